"""What a machine is told to run: an attempt's `Order`, with the environment that the console injects."""

from collections.abc import Mapping
from uuid import UUID

from machines.orders import CodeUse, DataKind, ExecCheck, HttpCheck, Order, Probe, Probes, SecretUse, VolumeUse
from runs.services import engines
from runs.services.rows import RunRow, WorkerRow
from runs.spec import KeptCode, RunSpec, TaskTemplate, template_of
from runs.spec import Probe as AskedProbe
from runs.spec import Probes as AskedProbes

MASTER_PORTS = range(20000, 30000)  # one for each run, so that runs on one machine's network do not meet


def build_order(
    run: RunRow,
    worker: WorkerRow,
    spec: RunSpec,
    attempt: UUID,
    gpu_indexes: tuple[int, ...],
    stop_grace_seconds: float,
    master_host: str,
) -> Order:
    """`master_host`: of the machine of rank 0, "" where it is not known."""
    template = template_of(spec, worker.group)
    resources = template.requested_resources
    injected = injected_environment(run, worker, spec, gpu_indexes, master_host)
    cpu_milli = resources.cpu_milli_of(worker.gpus)  # 0 for a share of a machine: no limit
    memory_bytes = resources.memory_bytes_of(worker.gpus)
    engine = engines.use_of(spec, cpu_milli, memory_bytes)
    return Order(
        attempt=attempt.hex,
        worker=worker.uid.hex,
        run=run.uid.hex,
        worker_name=worker.name,
        run_name=run.name,
        number=worker.attempt_number,
        image=template.image,
        command=template.command,
        args=list(template.args),
        env={**injected, **template.env},  # the run's own wins
        working_dir=template.working_dir,
        user=template.user,
        pull_policy=template.pull_policy,
        cpu_milli=cpu_milli - (engine.cpu_milli if engine else 0),
        memory_bytes=memory_bytes - (engine.memory_bytes if engine else 0),
        cpu_burst=resources.cpu_burst,
        shm_bytes=resources.shm_bytes,
        gpu_indexes=list(gpu_indexes),
        time_limit_seconds=template.time_limit_seconds,
        stop_grace_seconds=stop_grace_seconds,
        code=_code(spec),
        volumes=_volumes(template),
        barrier=run.gang and sum(run.counts.values()) > 1,
        probes=_probes(template.probes),
        workspace=run.workspace_id,
        secrets=_secrets(template),
        registry_secret=_registry_secret(template),
        engine=engine,
    )


def _volumes(template: TaskTemplate) -> list[VolumeUse]:
    drives = [VolumeUse(DataKind.DRIVE, ref.name, ref.mount_path, ref.read_only) for ref in template.datavolume_refs]
    return drives + [VolumeUse(DataKind.MODEL, ref.name, ref.mount_path, True) for ref in template.model_refs]


def _secrets(template: TaskTemplate) -> list[SecretUse]:
    return [SecretUse(ref.external_secret_name, dict(ref.env_vars), ref.mount_path) for ref in template.secret_refs]


def _registry_secret(template: TaskTemplate) -> SecretUse | None:
    ref = template.registry_secret_ref
    return None if ref is None else SecretUse(ref.external_secret_name)


def _probes(asked: AskedProbes | None) -> Probes | None:
    if asked is None:
        return None
    return Probes(startup=_probe(asked.startup), readiness=_probe(asked.readiness), liveness=_probe(asked.liveness))


def _probe(asked: AskedProbe | None) -> Probe | None:
    if asked is None:
        return None
    if asked.exec is not None:
        check: ExecCheck | HttpCheck = ExecCheck(list(asked.exec.command))
    else:
        assert asked.http is not None  # one of the two: a rule of the specification
        check = HttpCheck(asked.http.port, asked.http.path, asked.http.scheme)
    timing = asked.model_dump(exclude={"exec", "http"})
    return Probe(check=check, **timing)


def _code(spec: RunSpec) -> CodeUse | None:
    """Of a stored specification, where code is never the archive itself."""
    code = spec.code
    return CodeUse(code.sha256, code.size_bytes or 0) if isinstance(code, KeptCode) else None


def injected_environment(
    run: RunRow, worker: WorkerRow, spec: RunSpec, gpu_indexes: tuple[int, ...], master_host: str
) -> Mapping[str, str]:
    """The workers of an array are worlds of their own. MASTER_ADDR is left out where rank 0's machine is not known."""
    alone = spec.array is not None
    workers = 1 if alone else sum(run.counts.values())
    rank = 0 if alone else worker.rank
    master = "127.0.0.1" if workers == 1 else master_host
    environment = {
        "RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_RANK": "0",
        "NNODES": str(workers),
        "NODE_RANK": str(rank),
        "MASTER_PORT": str(MASTER_PORTS[run.id % len(MASTER_PORTS)]),
        "ASTRA_RUN": run.name,
        "ASTRA_WORKER": worker.name,
        "ASTRA_ATTEMPT": str(worker.attempt_number),
        "ASTRA_GPU_COUNT": str(worker.gpus),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # "void" hides every GPU; an image's own default is often "all".
        "NVIDIA_VISIBLE_DEVICES": ",".join(map(str, gpu_indexes)) or "void",
    }
    if master:
        environment["MASTER_ADDR"] = master
    if worker.group:
        environment["ASTRA_GROUP"] = worker.group
    if alone:
        environment["ASTRA_ARRAY_INDEX"] = str(worker.rank)
    return environment
