"""What a machine is told to run, and with what: the order of one attempt, its parts, and what credentials, drives and
models mean. Parts of the protocol's assignments (`machines.protocol`). Pure; imported by both sides."""

from enum import StrEnum

import msgspec


class DataKind(StrEnum):
    CREDENTIAL = "credential"
    DRIVE = "drive"
    MODEL = "model"


class ExecCheck(msgspec.Struct, frozen=True, tag="exec"):
    """Succeeds when the command, run where the worker runs and as its user, ends with 0."""

    command: list[str]


class HttpCheck(msgspec.Struct, frozen=True, tag="http", omit_defaults=True):
    """Succeeds when a GET on the worker's own network answers 200 to 399. Redirects are not followed, and an https
    server's certificate is not checked: it is the worker's own."""

    port: int
    path: str = "/"
    scheme: str = "http"  # or https


class Probe(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question asked of a worker again and again. Delays count from Running."""

    check: ExecCheck | HttpCheck
    initial_delay_seconds: float = 0
    period_seconds: float = 10
    timeout_seconds: float = 1
    failure_threshold: int = 3
    success_threshold: int = 1


class Probes(msgspec.Struct, frozen=True, omit_defaults=True):
    """`startup` holds off the other two until it has succeeded once."""

    startup: Probe | None = None
    readiness: Probe | None = None
    liveness: Probe | None = None


class SecretUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A credential that an attempt needs, by its name in the run's workspace. Its value exists on the machine only."""

    name: str
    env: dict[str, str] = {}  # key of its value → environment variable
    mount_path: str | None = None  # where its keys become files


class VolumeUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A drive or a model that an attempt needs, by its name in the run's workspace, and where it is mounted."""

    kind: DataKind
    name: str
    target: str
    read_only: bool = False


class EngineUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The engine that serves a model beside an attempt, as long as that lives. Of its arguments `{model}` (the model's
    name), `{path}` (where it is mounted) and `{port}` (where to listen) are replaced. It serves once a GET of
    `health_path` answers 200 to 399. Its limits come beside the attempt's own."""

    model: VolumeUse
    image: str
    command: str | None = None
    args: list[str] = []
    health_path: str = "/health"
    start_seconds: float = 1800  # within which it is to serve
    cpu_milli: int = 0  # 0: no limit
    memory_bytes: int = 0  # 0: no limit


class CodeUse(msgspec.Struct, frozen=True):
    """Code that came with the run. The machine fetches it (`GET /agent/v1/code/<attempt>`), checks it against the
    digest and unpacks it for this attempt alone."""

    sha256: str
    size_bytes: int


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt to run: all the machine needs. argv and environment travel as they are, never as a shell string."""

    attempt: str  # uid, 32 hexadecimal digits: the fencing token
    worker: str  # uid
    run: str  # uid
    worker_name: str
    run_name: str
    number: int  # of the attempt, from 1
    image: str
    command: str | None = None  # replaces the image's ENTRYPOINT and CMD
    args: list[str] = []
    env: dict[str, str] = {}  # injected and the run's own, already merged
    working_dir: str | None = None
    user: str | None = None
    pull_policy: str = "IfNotPresent"
    cpu_milli: int = 0  # 0: no limit (node_fraction)
    memory_bytes: int = 0  # 0: no limit
    cpu_burst: bool = False
    shm_bytes: int | None = None
    gpu_indexes: list[int] = []
    time_limit_seconds: float | None = None
    stop_grace_seconds: float = 30
    code: CodeUse | None = None
    volumes: list[VolumeUse] = []
    barrier: bool = False  # report Ready before starting, and wait while the set lists it as `waiting`
    probes: Probes | None = None
    workspace: int = 0  # whose names the following ones are
    secrets: list[SecretUse] = []
    registry_secret: SecretUse | None = None  # the login of its image's registry
    engine: EngineUse | None = None


class CredentialSource(msgspec.Struct, frozen=True):
    """Where a machine may fetch a credential's value: never the value."""

    uid: str
    workspace: int
    place: str  # organisation/workspace
    name: str
    provider: str  # file | environment | command | vault
    reference: str


class VolumeSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """A drive or a model as it is defined. A definition never changes: another one has another uid."""

    uid: str
    workspace: int
    kind: DataKind
    name: str
    form: str  # folder | nfs | copy
    source: str
    read_only: bool = False
    credential: str = ""  # of the workspace, for reading the source
    checksum: str = ""  # sha256:…
    endpoint: str = ""  # of an S3 that is not Amazon's
