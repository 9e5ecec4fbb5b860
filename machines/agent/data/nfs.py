"""Folders of file servers, mounted by the machine for all its workers, below the data folder."""

import asyncio
import logging
import os
import subprocess
from pathlib import Path

from machines.agent.data.problems import SourceAway
from machines.agent.spawning import kill, spawn

MOUNT_SECONDS = 60
OPTIONS = "nosuid,nodev"

log = logging.getLogger(__name__)
_one_at_a_time = asyncio.Lock()


async def mounted(export: str, folder: Path, read_only: bool) -> Path:
    """Where the export is mounted. Raises SourceAway with the words of `mount`."""
    path = _place(folder)
    async with _one_at_a_time:
        if not await asyncio.to_thread(os.path.ismount, path):
            await asyncio.to_thread(path.mkdir, mode=0o700, parents=True, exist_ok=True)
            await _mount(export, path, read_only)
    return path


def unmounted(folder: Path) -> bool:
    """Whether nothing is mounted there (any more)."""
    path = _place(folder)
    if not os.path.ismount(path):
        return True
    ended = subprocess.run(["umount", str(path)], capture_output=True, timeout=MOUNT_SECONDS, check=False)
    if ended.returncode:
        log.warning("%s is still mounted: %s", path, ended.stderr.decode(errors="replace").strip())
    return ended.returncode == 0


def _place(folder: Path) -> Path:
    return folder / "nfs"


async def _mount(export: str, path: Path, read_only: bool) -> None:
    options = f"{OPTIONS},ro" if read_only else OPTIONS
    try:
        process = await spawn(["mount", "-t", "nfs", "-o", options, export, str(path)], errors=subprocess.STDOUT)
    except OSError as error:
        raise SourceAway(f"this machine cannot mount {export}: {error.strerror}") from error
    try:
        output, _ = await asyncio.wait_for(process.communicate(), MOUNT_SECONDS)
    except TimeoutError:
        raise SourceAway(f"{export} does not answer") from None
    finally:
        kill(process)
    if process.returncode:
        words = " ".join(output.decode(errors="replace").split())
        raise SourceAway(f"{export} cannot be mounted: {words[:300]}")
