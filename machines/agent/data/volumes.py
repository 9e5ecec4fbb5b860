"""Drives and models for the workers of this machine: folders, file servers' folders, and copies of remote sources.

STATE-DIR/data/UID/     one for each definition: a copy, or the place where a file server's folder is mounted
attempts/UID/volumes    what the attempt has mounted, so that a later agent knows what is in use
"""

import asyncio
import contextlib
import json
import logging
import os
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from machines.agent.data import nfs
from machines.agent.data.copies import FAILED, READY, Copy, Secret
from machines.agent.data.filling import discard
from machines.agent.data.problems import DataProblem
from machines.agent.data.roots import Roots
from machines.agent.data_board import DataBoard
from machines.agent.preparing import Waits
from machines.agent.runtimes.base import NOTHING_PREPARED, AttemptFolder, Mount, Prepared
from machines.orders import DataKind, Order, VolumeSource, VolumeUse
from machines.protocol import DataState

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
FILLED_AT_ONCE = 4  # copies; the others wait their turn
USED = "volumes"  # of an attempt's folder

log = logging.getLogger(__name__)


class Volumes:
    """`roots`: what the machine's owner allows."""

    def __init__(self, folder: Path, roots: Roots, secret: Secret, board: DataBoard) -> None:
        self._folder = folder
        self._roots = roots
        self._secret = secret
        self._board = board
        self._sources: dict[tuple[int, DataKind, str], VolumeSource] | None = None  # None: not told yet
        self._copies: dict[str, Copy] = {}
        self._used: dict[str, set[str]] = {}  # attempt → uids of what it has mounted
        self._news = asyncio.Event()
        self._sweeping: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(FILLED_AT_ONCE, thread_name_prefix="copies")

    def take_up(self, folders: Iterable[AttemptFolder]) -> None:
        """What attempts of an earlier agent use that may still run."""
        for folder in folders:
            with contextlib.suppress(OSError, ValueError):
                self._used[folder.root.name] = set(json.loads((folder.root / USED).read_text()))

    def set_sources(self, sources: Sequence[VolumeSource]) -> None:
        """All that the console has defined for this machine."""
        self._sources = {(source.workspace, source.kind, source.name): source for source in sources}
        self._news.set()
        self._news = asyncio.Event()
        uids = {source.uid for source in sources}
        for kind in (DataKind.DRIVE, DataKind.MODEL):
            self._board.keep_only(kind, uids)
        for source in sources:
            if source.form == "copy" and source.uid not in self._copies and (self._folder / source.uid).is_dir():
                self._copy(source).show()
        self._sweep()

    def discard(self, attempt: str) -> None:
        """It has ended: what it had mounted may go, if it is not defined any more."""
        if self._used.pop(attempt, None):
            self._sweep()

    async def close(self) -> None:
        """The agent leaves: what is here stays."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.gather(*(copy.close() for copy in self._copies.values()))
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- a step of preparing an attempt ------------------------------------------------------------------------------

    async def prepare(self, order: Order, folder: AttemptFolder, waits: Waits) -> Prepared:
        if not order.volumes and order.engine is None:
            return NOTHING_PREPARED
        mounts = []
        for use in order.volumes:
            mounts.append(await self._mount(order, folder, use, waits))
            waits("")
        if order.engine is None:
            return Prepared(mounts=mounts)
        return Prepared(mounts=mounts, served_model=await self._mount(order, folder, order.engine.model, waits))

    async def _mount(self, order: Order, folder: AttemptFolder, use: VolumeUse, waits: Waits) -> Mount:
        """Waits for as long as it takes. Whoever makes the drive, fills it or allows its folder ends that."""
        pause = FIRST_PAUSE_SECONDS
        sentence = f"Waiting for data volume {use.name}"
        while True:
            news = self._news
            source = (self._sources or {}).get((order.workspace, use.kind, use.name))
            if source is None:
                known = self._sources is not None
                missing = f"the workspace has no {use.kind} of this name" if known else "the console is out of reach"
                waits(f"{sentence}: {missing}")
            else:
                self._note_use(order.attempt, folder, source.uid)
                try:
                    path = await self._provide(source, waits, news)
                except DataProblem as problem:
                    waits(f"{sentence}: {problem}")
                    self._board.put(DataState(source.kind, source.uid, FAILED, str(problem)[:500]))
                else:
                    if path is not None:
                        return Mount(path, use.target, _is_read_only(use, source))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause * random.uniform(0.8, 1)):
                    await news.wait()
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _provide(self, source: VolumeSource, waits: Waits, news: asyncio.Event) -> Path | None:
        """Where it is on this machine; None: its definition has changed meanwhile. Raises DataProblem."""
        if source.form == "folder":
            path = await asyncio.to_thread(self._roots.folder, source.source)
        elif source.form == "nfs":
            path = await nfs.mounted(self._roots.export(source.source), self._folder / source.uid, source.read_only)
        else:
            return await self._filled(source, waits, news)
        self._board.put(DataState(source.kind, source.uid, READY))
        return path

    async def _filled(self, source: VolumeSource, waits: Waits, news: asyncio.Event) -> Path | None:
        copy = self._copy(source)

        def told(sentence: str) -> None:
            waits(f"Waiting for {source.kind} {source.name} to be filled" + (f": {sentence}" if sentence else ""))

        filling = asyncio.create_task(copy.wait(told))
        other = asyncio.create_task(self._changed(source, news))
        try:
            await asyncio.wait((filling, other), return_when=asyncio.FIRST_COMPLETED)
            if not filling.done():
                return None
            filling.result()
            return copy.path
        finally:
            for task in (filling, other):
                task.cancel()
            await asyncio.gather(filling, other, return_exceptions=True)

    async def _changed(self, source: VolumeSource, news: asyncio.Event) -> None:
        """Until another definition, or none, is what the name means."""
        while (self._sources or {}).get((source.workspace, source.kind, source.name)) == source:
            await news.wait()
            news = self._news

    def _copy(self, source: VolumeSource) -> Copy:
        copy = self._copies.get(source.uid)
        if copy is None or copy.removed:
            copy = self._copies[source.uid] = Copy(
                self._folder / source.uid, source, self._roots, self._secret, self._board, self._threads
            )
        return copy

    # ---- what is in use, and what may go -----------------------------------------------------------------------------

    def _note_use(self, attempt: str, folder: AttemptFolder, uid: str) -> None:
        """Written down before it is mounted."""
        used = self._used.setdefault(attempt, set())
        if uid not in used:
            used.add(uid)
            new = folder.root / f"{USED}.new"
            new.write_text(json.dumps(sorted(used)))
            new.rename(folder.root / USED)

    def _sweep(self) -> None:
        if self._sources is not None and self._sweeping is None:
            self._sweeping = asyncio.create_task(self._remove_unused())
            self._sweeping.add_done_callback(self._swept)

    def _swept(self, task: asyncio.Task[None]) -> None:
        self._sweeping = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Data that is not used any more was not removed", exc_info=error)

    async def _remove_unused(self) -> None:
        """What is defined no longer, and no attempt uses."""
        for uid in await asyncio.to_thread(_folders_in, self._folder):
            if uid in self._wanted():
                continue
            if (copy := self._copies.pop(uid, None)) is not None:
                copy.removed = True
                await copy.end()
            await asyncio.to_thread(_remove, self._folder / uid)
            log.info("The data of %s is removed: it is defined no longer, and nobody uses it", uid)

    def _wanted(self) -> set[str]:
        return {source.uid for source in (self._sources or {}).values()}.union(*self._used.values())


def _is_read_only(use: VolumeUse, source: VolumeSource) -> bool:
    return use.read_only or source.read_only or source.form == "copy" or source.kind is DataKind.MODEL


def _folders_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _remove(folder: Path) -> None:
    """Never what a file server holds: what is still mounted is left to the next try."""
    if nfs.unmounted(folder):
        discard(folder)
