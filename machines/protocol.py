"""Every message between an agent and the console: typed, versioned, MessagePack. Pure; imported by both sides.

The agent opens a websocket to `/agent/v1` with `Authorization: Bearer <machine token>` and sends `Hello`. Each binary
frame is one message. `docs/agent-protocol.md` tells the conversation. Lost messages heal by themselves: assignments are
always the full set, and reports are repeated until acknowledged.
"""

from enum import IntEnum, StrEnum
from typing import Annotated, TypeAlias

import msgspec

from machines.orders import CredentialSource, DataKind, Order, VolumeSource

VERSION = 2  # docs/agent-protocol.md: what each one changed

MAX_BYTES_FROM_AGENT = 1024 * 1024  # of one frame; a larger one closes the connection: split reports over several
MAX_BYTES_TO_AGENT = 64 * 1024 * 1024  # a full set of assignments is one frame
LOG_CHUNK_BYTES = 256 * 1024  # of one answer to a log read, at most
DATA_STATES_MAX = 1_000  # of one machine
ARCHIVE_LINES = 1000  # of an attempt whose container is gone
LOG_TAIL_LINES, LOG_TAIL_BYTES = 50, 16 * 1024  # of a report's log_tail, at most

Uid: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]  # of an attempt: the fencing token
Sequence: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
ExitCode: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Amount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Moment: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e11)]  # Unix seconds
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Ratio: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
SeriesKey: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]  # machines.metrics.names.key_of
_NO_NUL = r"^[^\x00]*\Z"  # what a database column can hold
Word20: TypeAlias = Annotated[str, msgspec.Meta(max_length=20, pattern=_NO_NUL)]
Word64: TypeAlias = Annotated[str, msgspec.Meta(max_length=64, pattern=_NO_NUL)]
Word200: TypeAlias = Annotated[str, msgspec.Meta(max_length=200, pattern=_NO_NUL)]
Word500: TypeAlias = Annotated[str, msgspec.Meta(max_length=500, pattern=_NO_NUL)]


class Close(IntEnum):
    """Why the console closes a connection: the websocket's close code. A Goodbye with a sentence goes before it.

    An unknown or replaced machine token is refused in the handshake instead (HTTP 403).
    """

    TRY_AGAIN = 1013  # the console cannot serve it just now; connect again, with a growing pause
    TOO_LARGE = 1009
    MALFORMED = 4000  # a frame that is no message, or one that is out of place
    VERSION = 4001  # the protocol's version is not the console's: connect again, slowly, until one is upgraded
    NO_HELLO = 4002
    REPLACED = 4003  # the machine has a newer connection
    REMOVED = 4004  # the machine was removed from its cluster: stop all workers, and do not connect again
    HELLO_AGAIN = 4005  # the console holds the machine for lost: connect again at once and say hello
    IN_USE = 4006  # another agent speaks for this machine just now: connect again, with a growing pause


class Phase(StrEnum):
    """How far an attempt is, on its machine. Ended is final; Archived means that its container is gone and only the end
    of its log is kept; Forgotten that container, log and folder are gone."""

    PREPARING = "Preparing"
    PULLING = "Pulling"
    READY = "Ready"  # at the barrier: nothing is left to do but start it
    STARTING = "Starting"
    RUNNING = "Running"
    ENDED = "Ended"
    ARCHIVED = "Archived"
    FORGOTTEN = "Forgotten"


class EndReason(StrEnum):
    """Why an attempt ended, as the machine saw it."""

    EXITED = "Exited"  # by itself; exit_code says how, null: it could not be observed
    STOPPED = "Stopped"  # because the console no longer wanted it
    OOM_KILLED = "OOMKilled"
    TIME_LIMIT = "TimeLimit"
    PROBE_FAILED = "ProbeFailed"  # it was stopped for it; message says which probe and why
    IMAGE_PULL = "ErrImagePull"  # message: the engine's own words
    IMAGE_MISSING = "ImageMissing"  # pull policy None and no such image
    START_FAILED = "StartFailed"  # message: why the engine or the kernel would not start it
    MACHINE_REBOOTED = "MachineRebooted"
    REFUSED = "Refused"  # this machine's runtime cannot run such an order; message says what
    ENGINE_ENDED = "EngineEnded"  # the engine beside it did not serve, or no longer; message: the whole sentence


class PullFailure(StrEnum):
    """Why an image could not be pulled, as far as its engine's words tell."""

    NOT_FOUND = "NotFound"
    DENIED = "Denied"  # no login, or one that the registry refuses
    UNREACHABLE = "Unreachable"
    DISK_FULL = "DiskFull"


class Gpu(msgspec.Struct, frozen=True):
    index: Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)]
    uuid: Word64
    model: Word64
    memory_bytes: Amount
    healthy: bool = True
    health_reason: Word200 = ""
    simulated: bool = False


class Inventory(msgspec.Struct, frozen=True):
    """What the machine declares. cpu_milli: thousandths of a core. GPU indexes are unique. address: where workers on
    other machines reach it; empty: where the console sees its connection come from."""

    hostname: Word200
    runtime: Word20  # docker | process | simulated
    cpu_milli: Amount
    memory_bytes: Amount
    gpus: list[Gpu] = []
    labels: dict[Word64, Word200] = {}
    address: Word200 = ""

    def __post_init__(self) -> None:
        if len({gpu.index for gpu in self.gpus}) != len(self.gpus):
            raise ValueError("a GPU index is there twice")


# ---- console → agent -------------------------------------------------------------------------------------------------


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """The console closes the connection after this; `reason` is a sentence for the agent's log."""

    code: int  # Close
    reason: str


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The answer to Hello. An agent that was joined to another `console` closes the connection."""

    console: str  # the cluster's uid
    machine: str  # the machine's name
    heartbeat_seconds: float
    resend_seconds: float
    log_keep_bytes: int
    sample_seconds: float = 10  # between two looks at what its workers use


class Assignments(msgspec.Struct, frozen=True, tag="assignments"):
    """The full set. Start what is missing, stop what runs and is not listed, remove all traces of what is to be
    forgotten, and of what is to be archived all but the end of its log. A lower revision on the same connection is
    ignored."""

    revision: int
    orders: list[Order]
    forget: list[str] = []  # attempt uids
    waiting: list[str] = []  # attempt uids of orders whose barrier is closed
    credentials: list[CredentialSource] = []  # of the workspaces that use this machine's cluster
    archive: list[str] = []  # attempt uids: their workers have been placed anew
    volumes: list[VolumeSource] = []  # of the same workspaces


class Acknowledge(msgspec.Struct, frozen=True, tag="ack"):
    """These reports are in the database. Sent only after the commit."""

    items: list[tuple[str, int]]  # (attempt uid, seq)


class ReadLog(msgspec.Struct, frozen=True, tag="read_log"):
    """Bytes of an attempt's output. `start` < 0 counts from the end."""

    attempt: str
    start: int
    limit: int


class TailLog(msgspec.Struct, frozen=True, tag="tail_log"):
    """The end of an attempt's output: at most `lines` lines and `limit` bytes, from a line's start where one fits."""

    attempt: str
    lines: int
    limit: int


Request: TypeAlias = ReadLog | TailLog


class Call(msgspec.Struct, frozen=True, tag="call"):
    id: str
    request: Request
    deadline_seconds: float


ToAgent: TypeAlias = Welcome | Assignments | Acknowledge | Call | Goodbye


# ---- agent → console -------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first frame; and again on the same connection when the inventory has changed (a GPU's health, say)."""

    version: int
    agent_version: Word20
    boot_id: Word64
    wall_clock: Moment  # on the machine
    inventory: Inventory
    stop_grace_seconds: Seconds
    attempts: list[Uid] = []  # the machine knows and has not forgotten
    place: Word64 = ""  # of the agent's state directory: a copy of it has another


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    applied_revision: Amount  # of the newest set acted on; 0 before the first on this connection
    wall_clock: Moment


class PhaseAge(msgspec.Struct, frozen=True, array_like=True):
    phase: Phase
    seconds_ago: Seconds  # when the report was sent, on the machine's monotonic clock


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt's whole status so far: a later one replaces earlier ones. `phases` in order, each once."""

    attempt: Uid
    seq: Sequence  # counts up with each change of this attempt
    phases: list[PhaseAge]
    exit_code: ExitCode | None = None  # 128 + signal when killed by one; null: unknown
    end_reason: EndReason | None = None  # set with Phase.ENDED
    message: str = ""
    log_tail: str = ""  # of an end that is no success, cut on a character edge
    image_digest: str = ""
    pull_progress: str = ""  # "61 %"
    process_oom_kills: Sequence = 0  # children killed for memory while the main process lived
    pull_failure: PullFailure | None = None  # with ErrImagePull
    not_ready: str = ""  # why it is Running and does not count as ready: its readiness probe's words
    waiting: Word500 = ""  # what its preparation waits for: a sentence
    engine_image: Word500 = ""  # of the engine beside it, NAME:TAG@DIGEST


class Reports(msgspec.Struct, frozen=True, tag="reports"):
    items: list[Report]


class DataState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a machine is with something that its workers may need. `total_bytes` 0: not known, or of no meaning."""

    kind: DataKind
    uid: Uid  # of the console's row
    state: Word20
    message: Word500 = ""  # why it is not there; never a part of a credential's value
    done_bytes: Amount = 0
    total_bytes: Amount = 0


class DataStates(msgspec.Struct, frozen=True, tag="data_states"):
    """All that the machine holds or tries to get: after a hello, and when it changes, at most once a second. May get
    lost: the next one is whole again."""

    items: Annotated[list[DataState], msgspec.Meta(max_length=DATA_STATES_MAX)]


class LogChunk(msgspec.Struct, frozen=True, tag="log_chunk"):
    """`data` begins at `start` (later than asked where the oldest bytes were dropped: the difference is a gap).
    `ended`: nothing will follow `next`. `archived`: its container no longer exists."""

    start: Amount
    data: bytes
    next: Amount
    ended: bool
    archived: bool = False


class SampleRow(msgspec.Struct, frozen=True, array_like=True):
    """One look at a worker. `values` in the order of its keys; null: not known just then."""

    seconds_ago: Seconds
    values: list[float | None]


class AttemptSamples(msgspec.Struct, frozen=True, array_like=True):
    attempt: Uid
    keys: list[SeriesKey]
    rows: list[SampleRow]  # oldest first


class GpuUse(msgspec.Struct, frozen=True, array_like=True):
    """A GPU of the machine just now, whoever holds it. Null: not known. `processes`: that compute on it."""

    index: Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)]
    utilization: Ratio | None = None
    memory_bytes: Amount | None = None
    processes: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None


class Samples(msgspec.Struct, frozen=True, tag="samples"):
    """What its workers and GPUs use. Neither acknowledged nor repeated: a lost one is a gap."""

    items: list[AttemptSamples] = []
    gpus: list[GpuUse] = []


class FailureCode(StrEnum):
    """Why a call has no answer."""

    NOT_FOUND = "not_found"
    DEADLINE = "deadline"
    INTERNAL = "internal"


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    code: str  # a FailureCode; a newer agent's may be unknown here
    message: str


Answer: TypeAlias = LogChunk | Failure


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    call: str
    answer: Answer


FromAgent: TypeAlias = Hello | Heartbeat | Reports | Reply | Samples | DataStates

_encoder = msgspec.msgpack.Encoder()
_to_agent = msgspec.msgpack.Decoder(ToAgent)
_from_agent = msgspec.msgpack.Decoder(FromAgent)
_report = msgspec.msgpack.Decoder(Report)
_samples = msgspec.msgpack.Decoder(Samples)
_answer = msgspec.msgpack.Decoder(Answer)


class _AnyHello(msgspec.Struct, tag="hello"):
    """What a hello of every version has."""

    version: int


_any_hello = msgspec.msgpack.Decoder(_AnyHello)


def encode(message: ToAgent | FromAgent | Report | Answer | Order) -> bytes:
    return _encoder.encode(message)


def decode_to_agent(frame: bytes) -> ToAgent:
    """Raises msgspec.DecodeError (msgspec.ValidationError for a wrong shape)."""
    return _to_agent.decode(frame)


def decode_from_agent(frame: bytes) -> FromAgent:
    """Raises msgspec.DecodeError (msgspec.ValidationError for a wrong shape)."""
    return _from_agent.decode(frame)


def hello_version(frame: bytes) -> int | None:
    """The version a hello speaks, also one that is otherwise of an unknown shape; None: not a hello."""
    try:
        return _any_hello.decode(frame).version
    except msgspec.DecodeError:
        return None


def decode_report(data: bytes) -> Report:
    """One report as the inbox holds it. Raises msgspec.DecodeError."""
    return _report.decode(data)


def decode_samples(frame: bytes) -> Samples:
    """A frame of samples as its lane holds it. Raises msgspec.DecodeError."""
    return _samples.decode(frame)


def decode_answer(data: bytes) -> Answer:
    """The answer of a call, on its way through the console. Raises msgspec.DecodeError."""
    return _answer.decode(data)


# ---- joining: plain HTTP, before there is a machine token ------------------------------------------------------------


class JoinRequest(msgspec.Struct, frozen=True):
    """POST /agent/v1/join as JSON, with the one-time token as bearer."""

    name: str
    hostname: str
    agent_version: str


class JoinAnswer(msgspec.Struct, frozen=True):
    machine: str
    token: str  # the machine token; the agent keeps it, mode 600
    console: str
