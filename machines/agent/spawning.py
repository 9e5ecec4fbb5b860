"""Programs that the agent runs for itself, each in a session of its own so that it ends with all that it has begun."""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence


async def spawn(argv: Sequence[str], env: Mapping[str, str] | None = None, *, errors: int | None = None) -> Process:
    """Its output is a pipe; `errors`: where stderr goes, as `subprocess` takes it. Raises OSError.

    Begun whole even if it is cancelled: asyncio, cancelled while it begins a program, would wait for that program's
    children without having ended them."""
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
        os.killpg(process.pid, signal.SIGKILL)
