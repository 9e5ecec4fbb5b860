"""Credentials on this machine: whether it can fetch them, and their values for the workers that need them.

A value is fetched for each start of a worker, so a rotated one counts from the next start on. It is held in memory
until the worker has started, and as files as long as the worker needs them; it is written down nowhere else. That a
machine can fetch a credential at all is tried when the credential becomes known and now and then afterwards.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Collection, Sequence

from machines.agent.credential_providers import NotFetched, Providers
from machines.agent.data_board import DataBoard
from machines.agent.preparing import Waits
from machines.agent.runtimes.base import (
    NOTHING_PREPARED,
    AttemptFolder,
    CannotStart,
    Mount,
    Prepared,
    RegistryLogin,
)
from machines.agent.secret_files import SecretFiles
from machines.agent.secret_values import Unfit, environment_of, files_of, login_of
from machines.images import image_reference
from machines.orders import CredentialSource, DataKind, Order, SecretUse
from machines.protocol import DataState, EndReason

SYNCED, FAILED = "Synced", "Failed"
FIRST_PAUSE_SECONDS = 1.0  # between tries, doubling
LONGEST_PAUSE_SECONDS = 30.0
LOOK_AGAIN_SECONDS = 600.0  # whether what could be fetched still can be
SPREAD_SECONDS = 1.0  # over which the machines of a cluster first ask for a new credential
SLOW_SECONDS = 1.0  # a provider that takes longer is told of

log = logging.getLogger(__name__)


class Credentials:
    def __init__(self, providers: Providers, files: SecretFiles, board: DataBoard) -> None:
        self._providers = providers
        self._files = files
        self._board = board
        self._sources: dict[tuple[int, str], CredentialSource] = {}
        self._watches: dict[CredentialSource, asyncio.Task[None]] = {}
        self._fetches: dict[CredentialSource, asyncio.Task[bytes]] = {}  # under way, shared by all who ask
        self._synced: set[CredentialSource] = set()  # that could be fetched the last time
        self._news = asyncio.Event()  # set, and replaced, when a source has come or can be fetched again

    def set_sources(self, sources: Sequence[CredentialSource]) -> None:
        """All that the console has defined for this machine."""
        self._sources = {(source.workspace, source.name): source for source in sources}
        wanted = set(sources)
        for gone in self._watches.keys() - wanted:
            self._watches.pop(gone).cancel()
        self._synced &= wanted
        for source in wanted - self._watches.keys():
            self._watches[source] = asyncio.create_task(self._watch(source))
        self._board.keep_only(DataKind.CREDENTIAL, {source.uid for source in sources})
        self._wake()

    def keep_only(self, attempts: Collection[str]) -> None:
        """Of what an earlier agent left, the files of these."""
        self._files.keep_only(attempts)

    def discard(self, attempt: str) -> None:
        """It has ended."""
        self._files.discard(attempt)

    async def close(self) -> None:
        tasks = [*self._watches.values(), *self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._providers.close()

    # ---- a step of preparing an attempt ------------------------------------------------------------------------------

    async def prepare(self, order: Order, folder: AttemptFolder, waits: Waits) -> Prepared:
        """Raises CannotStart."""
        if not order.secrets and order.registry_secret is None:
            return NOTHING_PREPARED
        login = await self._login(order, order.registry_secret, waits) if order.registry_secret else None
        environment: dict[str, str] = {}
        mounts: list[Mount] = []
        for number, use in enumerate(order.secrets):
            variables, files = await self._secret(order, use, waits)
            environment |= variables
            if use.mount_path is not None:
                source = self._files.write(order.attempt, number, files)
                mounts.append(Mount(source, use.mount_path, read_only=True))
        return Prepared(env=environment, mounts=mounts, login=login)

    async def _secret(self, order: Order, use: SecretUse, waits: Waits) -> tuple[dict[str, str], dict[str, bytes]]:
        """Variables and files. What does not fit may be put right where it is kept: so that is waited for, too."""
        sentence = f"waiting for external secret {use.name}"
        pause = FIRST_PAUSE_SECONDS
        while True:
            news = self._news
            value = await self.value(order.workspace, use.name, sentence, waits)
            try:
                return environment_of(value, use.env), files_of(value) if use.mount_path is not None else {}
            except Unfit as error:
                waits(f"{sentence}: {error}")
            await _wait_for(news, pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _login(self, order: Order, use: SecretUse, waits: Waits) -> RegistryLogin:
        sentence = f"waiting for registry secret {use.name} to be synced to this node"
        value = await self.value(order.workspace, use.name, sentence, waits)
        try:
            return login_of(value, image_reference(order.image).partition("/")[0], use.name)
        except (Unfit, ValueError) as error:
            raise CannotStart(EndReason.IMAGE_PULL, f"registry secret {use.name}: {error}") from error

    async def value(self, workspace: int, name: str, sentence: str, waits: Waits) -> bytes:
        """Waits until the credential is defined and can be fetched."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            news = self._news
            source = self._sources.get((workspace, name))
            if source is not None:
                fetch = asyncio.create_task(self._fetch(source))
                try:
                    done, _ = await asyncio.wait([fetch], timeout=SLOW_SECONDS)
                    if not done:
                        waits(sentence)
                    return await fetch
                except NotFetched:
                    pass  # the board tells why
                finally:
                    fetch.cancel()
            waits(sentence)
            await _wait_for(news, pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # ---- fetching ----------------------------------------------------------------------------------------------------

    async def _watch(self, source: CredentialSource) -> None:
        """Whether it can be fetched, from when it becomes known until it is gone or changed."""
        await asyncio.sleep(random.uniform(0, SPREAD_SECONDS))
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._fetch(source)
            except NotFetched:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                pause = FIRST_PAUSE_SECONDS
                await asyncio.sleep(LOOK_AGAIN_SECONDS * random.uniform(0.8, 1))

    async def _fetch(self, source: CredentialSource) -> bytes:
        """Raises NotFetched. Who asks while it is being fetched gets the same answer."""
        fetch = self._fetches.get(source)
        if fetch is None:
            fetch = self._fetches[source] = asyncio.create_task(self._ask_provider(source))
            fetch.add_done_callback(lambda task: self._fetched(source, task))
        return await asyncio.shield(fetch)

    async def _ask_provider(self, source: CredentialSource) -> bytes:
        try:
            return await self._providers.fetch(source)
        except NotFetched:
            raise
        except Exception as error:  # a provider's defect: its words may hold a part of the value
            log.error("The credential %s of %s cannot be fetched: %s", source.name, source.place, type(error).__name__)
            raise NotFetched(f"the provider broke down: {type(error).__name__}") from None

    def _fetched(self, source: CredentialSource, task: asyncio.Task[bytes]) -> None:
        del self._fetches[source]
        if task.cancelled():
            return
        error = task.exception()
        if source in self._watches:
            message = str(error)[:500] if error else ""
            self._board.put(DataState(DataKind.CREDENTIAL, source.uid, FAILED if error else SYNCED, message))
        if error is not None:
            self._synced.discard(source)
        elif source not in self._synced:
            self._synced.add(source)
            self._wake()


async def _wait_for(news: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds * random.uniform(0.8, 1)):
            await news.wait()
