"""The copies of remote sources on this machine: one for each definition, shared by all workers that wait for it."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeAlias

from machines.agent.data.filling import Filling, Stopped, read_manifest, size_text
from machines.agent.data.problems import DataProblem, SourceChanged
from machines.agent.data.remote import Remote
from machines.agent.data.roots import Roots
from machines.agent.data_board import DataBoard
from machines.orders import VolumeSource
from machines.protocol import DataState

LOOK_SECONDS = 0.5  # between looks at how far it is
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
WAITING, FILLING, READY, FAILED = "Waiting", "Filling", "Ready", "Failed"
MESSAGE_CHARACTERS = 500
NOBODY_WAITS = "No worker waits for it: what is here is gone on with when one does"

log = logging.getLogger(__name__)
# A credential's value, awaited for as long as it takes: (workspace, name, what to say meanwhile, who hears it).
Secret: TypeAlias = Callable[[int, str, str, Callable[[str], None]], Awaitable[bytes]]


class Copy:
    """One copy. It is filled while somebody waits for it."""

    def __init__(
        self, folder: Path, source: VolumeSource, roots: Roots, secret: Secret, board: DataBoard, threads: Executor
    ) -> None:
        self.source = source
        self.folder = folder
        self.waiting = 0
        self.removed = False
        self._roots = roots
        self._secret = secret
        self._board = board
        self._threads = threads
        self._working: asyncio.Future[int] | None = None  # in a thread
        self._done = self._total = 0
        self._sentence = ""
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stop = threading.Event()

    @property
    def path(self) -> Path:
        return self.folder / "copy"

    @property
    def ready(self) -> bool:
        return self.path.is_dir()

    @property
    def busy(self) -> bool:
        return self._task is not None

    async def wait(self, told: Callable[[str], None]) -> None:
        """Until it is there; filled meanwhile. `told` hears how far it is, or what keeps it."""
        self.waiting += 1
        try:
            while not self.ready:
                if self._task is None:
                    self._begin()
                told(self._sentence)
                await self._news.wait()
        finally:
            self.waiting -= 1
            if not self.waiting:
                self._stop.set()
        self.show()

    def show(self) -> None:
        """What an agent finds of it."""
        if self._task is not None:
            return
        manifest = read_manifest(self.folder)
        total = manifest.total_bytes if manifest is not None else 0
        if self.ready:
            self._tell(READY, total or self._done, total or self._done)
        elif manifest is not None:
            self._tell(WAITING, self._done, total, NOBODY_WAITS)

    async def end(self) -> None:
        """It is not wanted any more; when this returns nothing writes to it."""
        self._stop.set()
        if self._working is not None:
            await asyncio.wait([self._working])
        await self.close()

    async def close(self) -> None:
        """The agent leaves: what is here stays."""
        self._stop.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ---- filling -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._stop = threading.Event()
        self._task = asyncio.create_task(self._fill())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("The copy of %s broke down", self.source.source, exc_info=error)
        self._wake()

    async def _fill(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            before = self._done
            try:
                await self._try()
                return
            except Stopped:
                self._tell(WAITING, self._done, self._total, NOBODY_WAITS)
                return
            except DataProblem as problem:
                if self._done > before or isinstance(problem, SourceChanged):
                    pause = FIRST_PAUSE_SECONDS
                log.warning("%s %s: %s", self.source.kind, self.source.name, problem)
                self._failed(str(problem), pause)
            except OSError as error:
                self._failed(f"this machine cannot write the copy: {error.strerror or error}", pause)
            again_at = asyncio.get_running_loop().time() + pause
            while asyncio.get_running_loop().time() < again_at:
                if self._stop.is_set():
                    return
                await asyncio.sleep(min(LOOK_SECONDS, pause))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _failed(self, sentence: str, pause: float) -> None:
        message = f"{sentence}; tried again in {pause:.0f} s"
        self._sentence = message
        self._tell(FAILED, self._done, self._total, message)

    async def _try(self) -> None:
        secret = None
        if self.source.credential:
            name = self.source.credential
            secret = await self._secret(self.source.workspace, name, f"it needs the credential {name}", self._waits)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        look = asyncio.create_task(self._look())
        try:
            self._working = asyncio.get_running_loop().run_in_executor(self._threads, self._fill_now, secret)
            self._done = await self._working
        finally:
            self._working = None
            look.cancel()
        self._tell(READY, self._done, self._done)

    def _fill_now(self, secret: bytes | None) -> int:
        remote = Remote(self.source, secret, self._roots)
        return Filling(self.folder, remote, self.source.checksum, self._count, self._stop).run()

    def _count(self, done: int, total: int) -> None:
        """In any thread: two numbers that are looked at now and then."""
        self._done, self._total = done, total

    async def _look(self) -> None:
        while True:
            self._sentence = self._progress()
            self._tell(FILLING, self._done, self._total)
            await asyncio.sleep(LOOK_SECONDS)

    def _progress(self) -> str:
        if self._total:
            return f"{100 * self._done // self._total} %"
        return size_text(self._done) if self._done else ""

    def _waits(self, sentence: str) -> None:
        self._sentence = sentence
        self._tell(WAITING, self._done, self._total, sentence)

    def _tell(self, state: str, done: int, total: int, message: str = "") -> None:
        if not self.removed:
            source = self.source
            item = DataState(source.kind, source.uid, state, message[:MESSAGE_CHARACTERS], done, max(done, total))
            self._board.put(item)
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
