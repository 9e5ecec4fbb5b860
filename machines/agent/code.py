"""The code that came with a run: fetched from the console and unpacked, fresh for each attempt."""

import asyncio
import contextlib
import hashlib
import logging
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from machines import packed_code
from machines.agent.connection import is_local
from machines.agent.preparing import Waits
from machines.agent.runtimes.base import NOTHING_PREPARED, AttemptFolder, CannotStart, Prepared
from machines.orders import CodeUse, Order
from machines.protocol import EndReason

ANSWER_SECONDS = 30
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 10.0
REFUSALS = (403, 404)  # trying again cannot help

log = logging.getLogger(__name__)


class CodeRefused(Exception):
    """What the console has is not what the order speaks of. The message is one clear line."""


class CodeStep:
    """A step of an attempt's preparation. `token` is asked for at each try: joining again may have replaced it."""

    def __init__(self, console: str, token: Callable[[], str]) -> None:
        self._console = console
        self._token = token

    async def __call__(self, order: Order, folder: AttemptFolder, waits: Waits) -> Prepared:
        if order.code is None:
            return NOTHING_PREPARED
        packed = await self._fetched(order.attempt, order.code, waits)
        target = folder.code
        try:
            await asyncio.to_thread(_unpack, packed, target)
        except packed_code.BadCode as error:  # an older console's rules let it pass
            raise CannotStart(EndReason.REFUSED, f"The run's code {error}") from error
        except OSError as error:
            await asyncio.to_thread(packed_code.remove, target)
            message = f"the machine cannot unpack the run's code: {error.strerror}"
            raise CannotStart(EndReason.START_FAILED, message) from error
        return Prepared(workspace=target)

    async def _fetched(self, attempt: str, code: CodeUse, waits: Waits) -> bytes:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return await asyncio.to_thread(self._fetch, attempt, code)
            except CodeRefused as error:
                raise CannotStart(EndReason.START_FAILED, str(error)) from error
            except OSError as error:
                log.info("The code of attempt %s is not here yet: %s", attempt, error)
                waits(f"Waiting for the run's code: {getattr(error, 'reason', None) or error or type(error).__name__}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _fetch(self, attempt: str, code: CodeUse) -> bytes:
        """Raises OSError, CodeRefused."""
        address = f"{self._console.rstrip('/')}/agent/v1/code/{_dashed(attempt)}"
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {self._token()}"})
        proxies = urllib.request.ProxyHandler({} if is_local(address) else None)
        try:
            with urllib.request.build_opener(proxies).open(request, timeout=ANSWER_SECONDS) as answer:
                packed: bytes = answer.read(packed_code.PACKED_MAX + 1)
        except urllib.error.HTTPError as error:
            if error.code in REFUSALS:
                raise CodeRefused(f"The console does not have the run's code any more (HTTP {error.code})") from error
            raise
        if hashlib.sha256(packed).hexdigest() != code.sha256:
            if len(packed) < code.size_bytes:
                raise ConnectionError(f"only {len(packed)} of its {code.size_bytes} bytes arrived")
            raise CodeRefused("The run's code is not what it was when the run was submitted: its digest differs")
        return packed


def _dashed(uid: str) -> str:
    return "-".join((uid[:8], uid[8:12], uid[12:16], uid[16:20], uid[20:]))


def _unpack(packed: bytes, target: Path) -> None:
    """Anew: an agent that was killed may have left half of it."""
    packed_code.remove(target)
    with contextlib.suppress(FileExistsError):
        target.mkdir(mode=0o700)
    packed_code.unpack(packed_code.read(packed), target)
