"""What the agent asks of a runtime, and what a runtime tells it.

A runtime makes one attempt a container or a process, and says what became of it. It decides nothing: which attempts
run, for how long, and what an end means is the supervisor's. All of it runs in the agent's one event loop.

For every attempt given to `start`, or to `adopt` and not handed back by it, a runtime emits exactly one end, `Exited`
or `Failed`, and nothing after it. It emits that end when no process of the attempt is left and the last byte of its
output is in `folder.output`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeAlias

from machines.agent.probes import ProbeKind
from machines.agent.usage import Usage
from machines.orders import Order, Probe
from machines.protocol import EndReason, Phase, PullFailure


@dataclass(frozen=True)
class AttemptFolder:
    """Where an attempt lives on the disk. Made by the agent before `start`, removed by it after `remove`."""

    root: Path

    @cached_property
    def output(self) -> Path:
        """Standard output and standard error, in the order they were written; only ever appended to."""
        return self.root / "output.log"

    @cached_property
    def exit(self) -> Path:
        """What the keeper saw of the attempt's process; empty with other runtimes."""
        return self.root / "exit"

    @cached_property
    def work(self) -> Path:
        """The working folder of a host process."""
        return self.root / "work"

    @cached_property
    def code(self) -> Path:
        """The code that came with the run, unpacked for this attempt."""
        return self.root / "code"


@dataclass(frozen=True)
class Adoptable:
    """An attempt that an earlier life of the agent took on and whose end is not known."""

    order: Order
    folder: AttemptFolder
    running: bool  # it was reported Running
    clock_shift: float = 0  # to be added to times of an earlier boot, to have them on this boot's clock


# ---- what was prepared for an attempt --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mount:
    """A folder or file of the machine, to be seen in the container at `target`."""

    source: Path
    target: str
    read_only: bool


@dataclass(frozen=True)
class RegistryLogin:
    """`server`: host and port, as images name them. `credential`: whose value it is, for people."""

    server: str
    username: str = field(repr=False)
    password: str = field(repr=False)
    credential: str = ""


@dataclass(frozen=True)
class Prepared:
    """What an attempt needs of its machine beside its order. Holds secrets: for memory, and the engine, only."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # wins over the order's
    mounts: Sequence[Mount] = ()
    login: RegistryLogin | None = None
    served_model: Mount | None = None  # of the engine beside it
    workspace: Path | None = None  # its code, unpacked: `/workspace` of a container, the working folder of a process


NOTHING_PREPARED = Prepared()


# ---- events ----------------------------------------------------------------------------------------------------------
# `at` is on the clock of `machines.agent.clock.now()`: seconds since the machine's boot, which outlive the agent.


@dataclass(frozen=True)
class Progress:
    """The attempt is that far, or (with the same phase again) further within it."""

    attempt: str
    phase: Phase  # Preparing (its engine is known), Pulling, Starting or Running
    at: float
    image_digest: str = ""
    pull_progress: str = ""  # "61 %"
    engine_image: str = ""  # of the engine beside it, with the digest


@dataclass(frozen=True)
class Waiting:
    """What a start waits for, before its first phase: the sentence."""

    attempt: str
    sentence: str


@dataclass(frozen=True)
class EngineEnded:
    """The engine beside it ended by itself while the attempt ran, which is to be stopped for it."""

    attempt: str
    message: str  # the whole sentence


@dataclass(frozen=True)
class MemoryKills:
    """The kernel killed `count` processes of the attempt for memory so far, while its main process lives."""

    attempt: str
    count: int


@dataclass(frozen=True)
class Exited:
    """The main process ended. exit_code: 128 + signal when killed by one; null when nobody could see it."""

    attempt: str
    at: float
    exit_code: int | None
    oom_killed: bool = False  # the engine's flag, or the cgroup counted a kill and the main process died of SIGKILL


@dataclass(frozen=True)
class Failed:
    """It ended, or never began, for a reason other than its main process: image, engine, reboot, refusal."""

    attempt: str
    at: float
    reason: EndReason
    message: str = ""  # the engine's or the kernel's own words
    exit_code: int | None = None
    pull_failure: PullFailure | None = None  # of an image that could not be pulled


# Called when nothing is left to do but start the attempt; returns when it may start, raises CannotStart if it may not.
Ready: TypeAlias = Callable[[], Awaitable[None]]


async def at_once() -> None:
    """The `Ready` of an attempt that waits for no others."""


RuntimeEvent: TypeAlias = Progress | Waiting | MemoryKills | EngineEnded | Exited | Failed
Listener: TypeAlias = Callable[[RuntimeEvent], None]  # to be called in the event loop's thread; returns at once


class CannotStart(Exception):
    """Raised by `start` instead of emitting `Failed`; the agent emits it."""

    def __init__(
        self,
        reason: EndReason,
        message: str,
        exit_code: int | None = None,
        pull_failure: PullFailure | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.exit_code = exit_code
        self.pull_failure = pull_failure


class CannotProbe(Exception):
    """The worker could not be asked: that says nothing about it. The message says why."""


class RuntimeUnavailable(Exception):
    """The engine (or keeper) cannot be reached at all. The message is one clear line."""


class Runtime(Protocol):
    """One way to run attempts on one machine. Constructors take what is needed to reach the engine, do no I/O."""

    @property
    def name(self) -> str:
        """docker | process | simulated"""

    async def open(self, machine_id: str, emit: Listener) -> None:
        """Reach the engine. `machine_id` marks this machine's containers: several agents may share an engine, and ids
        outlive restarts. Raises RuntimeUnavailable."""

    def share_log(self, keep: int) -> int:
        """At most `keep` bytes of each attempt's output are to be kept on the machine. Returns how many of them may be
        in `folder.output`: an engine may have a copy of its own."""

    async def adopt(self, attempts: Sequence[Adoptable], known: Sequence[str], *, rebooted: bool) -> Sequence[str]:
        """Take up what an earlier life of the agent left: emit Progress(Running) for what runs, the end for what ended
        meanwhile (with its code where it can be known), `Failed(MachineRebooted)` where only a reboot explains it.
        Return the uids of those of which nothing was ever created: the agent starts these again. `known` are all
        attempts the machine has not forgotten: what else carries this machine's id is left over and to be removed."""

    async def start(
        self,
        order: Order,
        folder: AttemptFolder,
        prepared: Prepared = NOTHING_PREPARED,
        ready: Ready = at_once,
    ) -> None:
        """Have its engine serve, pull, await `ready`, create, start; returns once it runs, having emitted Progress for
        each phase it went through. Each call is its own task of the agent. Raises CannotStart, and lets through what
        `ready` raises; the agent then calls `remove` before it tells the end, where there is an engine. Any other
        exception is reported as StartFailed, and the agent then calls `remove`."""

    async def stop(self, attempt: str, grace_seconds: float) -> None:
        """SIGTERM, after the grace SIGKILL, descendants included; returns at once, the end is emitted when it comes.
        May be called at any time after `start` was called (also while it pulls: then the pull is given up) and more
        than once; an unknown or ended attempt is no error."""

    async def probe(self, order: Order, kind: ProbeKind, probe: Probe) -> str:
        """Ask a running attempt once: empty when it is well, else why not. Cancelled when it takes too long. Raises
        CannotProbe."""

    async def remove(self, attempt: str) -> None:
        """Remove the containers of an ended attempt; nothing there is no error."""

    async def usage(self, attempts: Sequence[str]) -> Mapping[str, Usage]:
        """What these running attempts use, by uid; one of which nothing is known is left out."""

    async def close(self) -> None:
        """The agent leaves; workers go on."""
