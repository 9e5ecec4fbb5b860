"""Programs that the agent runs for itself, each in a session of its own, so that its children can be ended with it."""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress


async def spawn(argv: Sequence[str], env: Mapping[str, str] | None = None, *, errors: int | None = None) -> Process:
    """Its stdout is a pipe; `errors`: where stderr goes, as `subprocess` takes it. Raises OSError.

    A cancellation waits until the program has begun, then ends it: asyncio, cancelled in the middle, would wait for the
    program's children without having killed them.
    """
    begin = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            env=env,
            cwd="/",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(begin)
    except asyncio.CancelledError:
        kill(await begin)
        raise


def kill(process: Process) -> None:
    """With its whole session, unless it has ended."""
    if process.returncode is None:
        with suppress(ProcessLookupError):  # it has ended, and asyncio is yet to be told
            os.killpg(process.pid, signal.SIGKILL)
