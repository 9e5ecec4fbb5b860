"""A run's specification: parsed and validated once, then typed and frozen everywhere. Pure.

`parse_run` is the one door: it reports every unknown field and every broken rule at once. What is stored is
`RunSpec.stored()`; `load_spec` reads it back. The field names are the API's.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic import ValidationError as ShapeError

from astraconsole.errors import NameNotDnsSafe, UnknownField, ValidationError
from runs.names import stem
from runs.spec_fields import (
    AbsolutePath,
    Argument,
    Code,
    Command,
    Cores,
    CredentialName,
    Environment,
    EnvName,
    Flag,
    Fraction,
    GpuCount,
    GroupName,
    Image,
    Labels,
    MemoryBytes,
    Name,
    PerGpuMemoryBytes,
    Port,
    Priority,
    ProbePath,
    RetryExitCode,
    Seconds,
    Sha256,
    Text,
    Threshold,
    TimeLimit,
    User,
    Whole,
    WorkerCount,
)
from runs.spec_rules import KEPT, MODEL_PATH, PACKED, Findings, broken_rules, cleaned, shape_findings, unsafe_names

PullPolicy = Literal["IfNotPresent", "Always", "None"]
RestartPolicy = Literal["OnFailure", "Always", "Never"]
OnFailure = Literal["RestartJob", "RestartTask", "FailJob"]
Start = Literal["Independent", "Gang"]
Lifetime = Literal["Batch", "Service"]


class Part(BaseModel):
    """A JSON object of the specification: frozen, and strict about its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RegistrySecretRef(Part):
    external_secret_name: CredentialName


class SecretRef(Part):
    """A credential as environment variables (key of its value → variable) or as files under `mount_path`."""

    external_secret_name: CredentialName
    env_vars: dict[Name, EnvName] = {}
    mount_path: AbsolutePath | None = None


class DataVolumeRef(Part):
    name: Name
    mount_path: AbsolutePath
    read_only: Flag = False


class ModelRef(Part):
    name: Name
    mount_path: AbsolutePath = MODEL_PATH


class PerGpu(Part):
    """What a worker gets for each of its GPUs."""

    cpu_cores: Cores
    memory_bytes: PerGpuMemoryBytes

    @property
    def cpu_milli(self) -> int:
        return _milli(self.cpu_cores)


class GpuRequests(Part):
    """`count` is the run's total; no models means any."""

    count: GpuCount
    models: Annotated[tuple[Name, ...], Field(max_length=50)] = ()
    min_memory_bytes: MemoryBytes | None = None


class Resources(Part):
    """One of three forms: `cpu_cores` and `memory_bytes`, or `per_gpu`, or `node_fraction`."""

    cpu_cores: Cores | None = None
    memory_bytes: MemoryBytes | None = None
    per_gpu: PerGpu | None = None
    node_fraction: Fraction | None = None
    cpu_burst: Flag = False
    shm_bytes: MemoryBytes | None = None
    gpu_requests: GpuRequests | None = None

    @property
    def gpus(self) -> int:
        """The run's total."""
        return self.gpu_requests.count if self.gpu_requests else 0

    def cpu_milli_of(self, gpus: int) -> int:
        """Thousandths of a core of one worker with `gpus` GPUs; 0: a share of its machine."""
        if self.per_gpu is not None:
            return self.per_gpu.cpu_milli * gpus
        return _milli(self.cpu_cores or 0)

    def memory_bytes_of(self, gpus: int) -> int:
        """Memory of one worker with `gpus` GPUs; 0: a share of its machine."""
        if self.per_gpu is not None:
            return self.per_gpu.memory_bytes * gpus
        return self.memory_bytes or 0


class ExecProbe(Part):
    command: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=1000)]


class HttpProbe(Part):
    """A GET that is to answer 200 to 399."""

    port: Port
    scheme: Literal["http", "https"] = "http"
    path: ProbePath = "/"


class Probe(Part):
    """Exactly one of `exec` and `http`. Periods are seconds."""

    exec: ExecProbe | None = None
    http: HttpProbe | None = None
    initial_delay_seconds: Annotated[int, Field(strict=True, ge=0, le=86400)] = 0
    period_seconds: Seconds = 10
    timeout_seconds: Seconds = 1
    failure_threshold: Threshold = 3
    success_threshold: Threshold = 1


class Probes(Part):
    startup: Probe | None = None
    readiness: Probe | None = None
    liveness: Probe | None = None


class TaskTemplateFields(Part):
    """What a template and a group's overrides share."""

    command: Command | None = None
    args: Annotated[tuple[Argument, ...], Field(max_length=10_000)] = ()
    env: Environment = {}
    working_dir: AbsolutePath | None = None
    user: User | None = None
    pull_policy: PullPolicy = "IfNotPresent"
    registry_secret_ref: RegistrySecretRef | None = None
    secret_refs: Annotated[tuple[SecretRef, ...], Field(max_length=100)] = ()
    datavolume_refs: Annotated[tuple[DataVolumeRef, ...], Field(max_length=100)] = ()
    model_refs: Annotated[tuple[ModelRef, ...], Field(max_length=100)] = ()
    time_limit_seconds: TimeLimit | None = None
    restart_policy: RestartPolicy = "OnFailure"
    retry_exit_codes: Annotated[tuple[RetryExitCode, ...], Field(max_length=255)] = ()
    probes: Probes | None = None


class TaskTemplate(TaskTemplateFields):
    image: Image
    requested_resources: Resources


class TaskTemplateOverrides(TaskTemplateFields):
    """Only what is set counts; `env` is merged name by name, everything else replaces."""

    image: Image | None = None
    requested_resources: Resources | None = None


class NodeSelection(Part):
    """Workers by count, and which machines may be used. Empty means any."""

    count: WorkerCount | None = None
    pools: Annotated[tuple[Name, ...], Field(max_length=100)] = ()
    labels: Labels = {}
    names: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()


class Array(Part):
    count: WorkerCount
    parallelism: WorkerCount | None = None


class WorkerGroup(Part):
    name: GroupName
    count: WorkerCount
    task_template: TaskTemplateOverrides = TaskTemplateOverrides()


class Engine(Part):
    model: Name


class KeptCode(Part):
    """Code that came with an earlier run of the workspace, or with this one: what is stored and shown of it."""

    sha256: Sha256
    size_bytes: Whole | None = None


def _form_of_code(value: object) -> str:
    return PACKED if isinstance(value, str) else KEPT


class RunSpec(Part):
    task_template: TaskTemplate
    machines: WorkerCount | None = None
    node_selection: NodeSelection | None = None
    array: Array | None = None
    worker_groups: Annotated[tuple[WorkerGroup, ...], Field(max_length=100)] = ()
    start: Start | None = None
    on_failure: OnFailure | None = None
    lifetime: Lifetime | None = None
    priority: Priority = 0
    code: (
        Annotated[Annotated[Code, Tag(PACKED)] | Annotated[KeptCode, Tag(KEPT)], Discriminator(_form_of_code)] | None
    ) = None
    engine: Engine | None = None

    @property
    def effective_start(self) -> Start:
        return self.start or "Independent"

    @property
    def effective_on_failure(self) -> OnFailure:
        return self.on_failure or ("RestartJob" if self.effective_start == "Gang" else "RestartTask")

    @property
    def effective_lifetime(self) -> Lifetime:
        return self.lifetime or "Batch"

    @property
    def stated_workers(self) -> int | None:
        """How many workers the specification itself says; None where the GPU total decides."""
        if self.machines is not None:
            return self.machines
        if self.array is not None:
            return self.array.count
        if self.node_selection is not None and self.node_selection.count is not None:
            return self.node_selection.count
        return sum(group.count for group in self.worker_groups) or None

    @property
    def gpus(self) -> int:
        """Of all its workers. A group's own count adds to the run's, which the groups without one share."""
        own = [group.task_template.requested_resources for group in self.worker_groups]
        shared = self.task_template.requested_resources.gpus if None in own or not own else 0
        return shared + sum(resources.gpus for resources in own if resources is not None)

    @property
    def templates(self) -> list[TaskTemplate]:
        """What its workers are started from: one for each group, or the run's alone."""
        return [template_of(self, group.name) for group in self.worker_groups] or [self.task_template]

    def stems(self, name: str) -> list[str]:
        """What a run of this name lays claim to: its name, and what its workers' names begin with."""
        return sorted({name, *(stem(name, group.name) for group in self.worker_groups)})

    def stored(self) -> dict[str, Any]:
        """As JSON, normalised: fields that were not given are left out."""
        return self.model_dump(mode="json", exclude_unset=True, exclude_none=True)


class Metadata(Part):
    name: Text  # its rules are in `runs.names`, one door for all
    labels: Labels = {}


class RunRequest(Part):
    metadata: Metadata
    spec: RunSpec


def parse_run(body: object, *, console: bool = False) -> RunRequest:
    """The request in a JSON body. The console additionally insists on lower-case names.

    Raises UnknownField, ValidationError or NameNotDnsSafe, in this order of rank; `detail` then holds every finding of
    every kind.
    """
    findings = Findings()
    body = cleaned(body, findings)
    request = None
    try:
        request = RunRequest.model_validate(body)
    except ShapeError as error:
        shape_findings(error, findings)
    broken_rules(body, console, findings)
    unsafe_names(body, findings)
    if request is None or findings.any:
        raise _refusal(findings)
    return request


def load_spec(stored: dict[str, Any]) -> RunSpec:
    """What `stored` wrote. It was validated when it came in."""
    return RunSpec.model_validate(stored)


def template_of(spec: RunSpec, group: str) -> TaskTemplate:
    """The template of a group's workers: the run's, with the group's overrides applied. "" is no group."""
    for candidate in spec.worker_groups:
        if candidate.name == group:
            changes = {
                name: getattr(candidate.task_template, name) for name in candidate.task_template.model_fields_set
            }
            if "env" in changes:
                changes["env"] = {**spec.task_template.env, **changes["env"]}
            return spec.task_template.model_copy(update={k: v for k, v in changes.items() if v is not None})
    return spec.task_template


def _milli(cores: float) -> int:
    return round(cores * 1000)


def _refusal(findings: Findings) -> UnknownField | ValidationError | NameNotDnsSafe:
    detail = findings.detail()
    if findings.unknown:
        return UnknownField.of(findings.unknown_paths(), detail)
    if findings.broken:
        return ValidationError(findings.summary(), detail)
    return NameNotDnsSafe(f"{findings.unsafe[0]['field']} {findings.unsafe[0]['rule']}", detail)
