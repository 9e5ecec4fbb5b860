"""Kubernetes' Job, Kubeflow's training jobs, Volcano's Job and Ray's clusters as runs; Kueue's labels on them. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from astraconsole.cli.manifests.pods import PRIORITY, RESTARTS, TOPOLOGY, Pod, read_pod
from astraconsole.cli.manifests.reading import Imported, LeftOut, Part, Refused, run_name
from astraconsole.cli.manifests.shares import totals
from runs.units import TIME_LIMIT_MAX, TIME_LIMIT_MIN

QUEUE_LABELS = ("kueue.x-k8s.io/queue-name", "kai.scheduler/queue", "runai/queue")
_MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
# Kind → field of its replicas.
REPLICAS = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
}
_FIRST = ("Master", "Launcher", "Chief", "PS")  # rank 0 is among these
_JOB_REASONS = {
    "backoffLimit": "a worker is restarted at most 10 times in a row, or never",
    "ttlSecondsAfterFinished": "a run is kept until it is deleted",
    "completionMode": "an element knows its number as ASTRA_ARRAY_INDEX",
    "suspend": "a run starts as soon as there is room",
    "runPolicy": "use on_failure and time_limit_seconds",
    "plugins": "workers reach rank 0 by MASTER_ADDR",
    "policies": "use on_failure",
    "maxRetry": "a worker is restarted at most 10 times in a row, or never",
    "priorityClassName": PRIORITY,
    "priorityClass": PRIORITY,
    "dependsOn": "workers of a run start together, or in no order",
    "failurePolicy": "use on_failure",
    "successPolicy": "a run is Completed when every worker has ended with 0",
    "nprocPerNode": "a worker knows its GPUs as ASTRA_GPU_COUNT",
    "slotsPerWorker": "a worker knows its GPUs as ASTRA_GPU_COUNT",
    "cleanPodPolicy": "a run is kept until it is deleted",
}


@dataclass(frozen=True)
class Group:
    name: str
    count: int
    pod: Pod
    path: str


def read_kubernetes(document: dict[str, Any]) -> Imported | None:
    """None for a kind that is no work: a queue, a volume, a service."""
    left_out: list[LeftOut] = []
    root = Part(document, "", left_out)
    kind, group = root.text("kind"), root.text("apiVersion").partition("/")[0]
    reader = VOLCANO if (kind, group) == ("Job", "batch.volcano.sh") else KINDS.get(kind)
    if reader is None:
        return None
    metadata = root.part("metadata")
    imported = reader(root, metadata)
    labels = metadata.part("labels").value
    labelled = next((label for label in QUEUE_LABELS if label in labels), "")
    if queue := labels.get(labelled) or imported.meaning.get("queue"):
        imported.meaning["queue"] = str(queue)
        left_out.append(LeftOut(labelled or "spec.queue", "the workspace's quota decides"))
    name = metadata.text("name") or metadata.text("generateName")
    imported.run["metadata"] = {"name": run_name(name, kind.lower())}
    if labels:
        imported.run["metadata"]["labels"] = {str(label): str(value) for label, value in labels.items()}
    metadata.taken.add("namespace")
    if kind != "Pod":  # whose annotations are its template's
        metadata.leave("annotations", "annotations are not kept")
    root.taken |= {"apiVersion", "spec", "status"}
    root.leave_rest()
    imported.left_out += left_out
    return imported


# ---- kinds ----


def _pod(root: Part, metadata: Part) -> Imported:
    template = Part({"metadata": metadata.value, "spec": root.take("spec")}, "", root.left_out)
    return _run_of([Group("", 1, read_pod(template), "spec")], gang=False)


def _job(root: Part, metadata: Part) -> Imported:
    """`completions` are elements of an array, of which `parallelism` run at once."""
    spec = root.part("spec")
    parallelism = spec.count("parallelism", 1)
    completions = spec.count("completions", parallelism)
    pod = read_pod(spec.part("template"))
    imported = _run_of([Group("", max(completions, 1), pod, "spec.template")], gang=False, array=completions > 1)
    if completions > 1:
        imported.run["spec"]["array"]["parallelism"] = min(max(parallelism, 1), completions)
        imported.meaning |= {"array_size": completions, "max_parallel": parallelism}
    _time_limit(spec, "activeDeadlineSeconds", imported)
    annotations = metadata.part("annotations")
    if annotations.value.get(_MIN_PARALLELISM) is not None:
        imported.meaning["min_workers"] = annotations.count(_MIN_PARALLELISM, parallelism)
    spec.leave_rest(_JOB_REASONS)
    return imported


def _cron_job(root: Part, metadata: Part) -> Imported:
    spec = root.part("spec")
    spec.leave("schedule", "make a schedule of the run: astra astraeus schedules")
    job = spec.part("jobTemplate")
    spec.leave_rest(why="make a schedule of the run: astra astraeus schedules")
    return _job(job, metadata)


def _training_job(field: str) -> Callable[[Part, Part], Imported]:
    def read(root: Part, metadata: Part) -> Imported:
        spec = root.part("spec")
        replicas, elastic = spec.part(field), spec.part("elasticPolicy")
        names = sorted(replicas.value, key=lambda name: (name not in _FIRST, name))
        groups = [_replica_group(replicas.part(name), name) for name in names]
        if not groups:
            raise Refused(f"{replicas.path} must have replicas")
        least, most = elastic.take("minReplicas"), elastic.take("maxReplicas")
        imported = _run_of(groups, gang=not elastic.value)
        if elastic.value:
            imported.meaning |= {"min_workers": least, "max_workers": most}
            root.left_out.append(LeftOut(elastic.path, "a run has a fixed number of workers"))
        policy = spec.part("runPolicy")
        _time_limit(policy, "activeDeadlineSeconds", imported)
        scheduling = policy.part("schedulingPolicy")
        _min_available(scheduling, sum(group.count for group in groups), imported)
        scheduling.leave_rest(_JOB_REASONS)
        policy.leave_rest(_JOB_REASONS)
        if field == "mpiReplicaSpecs":
            root.left_out.append(LeftOut(replicas.path, "mpirun reaches workers by ssh, which is not set up"))
        spec.leave_rest(_JOB_REASONS)
        return imported

    return read


def _replica_group(part: Part, name: str) -> Group:
    pod = read_pod(part.part("template"))
    if restart := part.text("restartPolicy"):
        pod = replace(pod, template={**pod.template, "restart_policy": RESTARTS.get(restart, "OnFailure")})
    group = Group(name.lower(), part.count("replicas", 1), pod, part.path)
    part.leave_rest(_JOB_REASONS)
    return group


def _volcano(root: Part, metadata: Part) -> Imported:
    spec = root.part("spec")
    tasks = spec.parts("tasks")
    groups = [
        Group(
            run_name(task.text("name"), f"task{index}"),
            task.count("replicas", 1),
            read_pod(task.part("template")),
            task.path,
        )
        for index, task in enumerate(tasks)
    ]
    if not groups:
        raise Refused("spec.tasks must have a task")
    for task in tasks:
        task.leave("minAvailable", "all workers start together")
        task.leave_rest(_JOB_REASONS)
    workers = sum(group.count for group in groups)
    imported = _run_of(groups, gang=spec.count("minAvailable", workers) > 1)
    imported.meaning["min_available"] = workers
    _min_available(spec, workers, imported)
    spec.take("schedulerName")
    spec.leave_rest(_JOB_REASONS)
    return imported


def _ray(root: Part, metadata: Part) -> Imported:
    """Commands are what Ray's operator would start."""
    spec = root.part("spec")
    entrypoint = spec.text("entrypoint")
    cluster = spec.part("rayClusterSpec") if "rayClusterSpec" in spec.value else spec
    head = cluster.part("headGroupSpec")
    start = "ray start --head --port=6379"
    start += f" && {entrypoint}" if entrypoint else " --block"
    groups = [Group("head", 1, _with_command(read_pod(head.part("template")), start), head.path)]
    for index, workers in enumerate(cluster.parts("workerGroupSpecs")):
        pod = _with_command(read_pod(workers.part("template")), "ray start --address=$MASTER_ADDR:6379 --block")
        name = run_name(workers.text("groupName"), f"workers{index}")
        count = workers.count("replicas", 1) * workers.count("numOfHosts", 1)
        groups.append(Group(name, count, pod, workers.path))
        workers.leave("minReplicas", "a run has a fixed number of workers")
        workers.leave("maxReplicas", "a run has a fixed number of workers")
        workers.leave_rest()
    head.leave_rest()
    imported = _run_of([group for group in groups if group.count], gang=False)
    if not entrypoint:
        imported.run["spec"]["lifetime"] = "Service"
    _time_limit(spec, "activeDeadlineSeconds", imported)
    cluster.leave_rest(why="of Ray's operator, which is not there")
    spec.leave_rest(why="of Ray's operator, which is not there")
    return imported


def _with_command(pod: Pod, line: str) -> Pod:
    return replace(pod, template={**pod.template, "command": "sh", "args": ["-c", line]})


def _job_set(root: Part, metadata: Part) -> Imported:
    """Each replicated job is a group of as many workers as its jobs have pods."""
    spec, groups = root.part("spec"), []
    for index, job in enumerate(spec.parts("replicatedJobs")):
        inner = job.part("template").part("spec")
        pods = inner.count("parallelism", 1) * job.count("replicas", 1)
        groups.append(
            Group(run_name(job.text("name"), f"job{index}"), pods, read_pod(inner.part("template")), job.path)
        )
        inner.take("completions")
        inner.leave_rest(_JOB_REASONS)
        job.leave_rest()
    if not groups:
        raise Refused("spec.replicatedJobs must have a job")
    imported = _run_of(groups, gang=True)
    spec.leave_rest(_JOB_REASONS)
    return imported


def _train_job(root: Part, metadata: Part) -> Imported:
    """Kubeflow's second version: what its runtime adds is not in the manifest."""
    spec = root.part("spec")
    trainer = spec.part("trainer")
    resources = trainer.part("resourcesPerNode")
    container = {
        **{name: trainer.take(name) for name in ("image", "command", "args", "env") if name in trainer.value},
        "resources": {name: resources.take(name) for name in ("requests", "limits") if name in resources.value},
    }
    if "image" not in container:
        raise Refused(f"{trainer.path}.image is required: the runtime's is not in the manifest")
    pod = read_pod(Part({"spec": {"containers": [container]}}, trainer.path, root.left_out))
    imported = _run_of([Group("", trainer.count("numNodes", 1), pod, trainer.path)], gang=True)
    trainer.leave_rest()
    spec.leave_rest(why="of Kubeflow's operator, which is not there")
    return imported


KINDS: Mapping[str, Callable[[Part, Part], Imported]] = {
    "Pod": _pod,
    "Job": _job,
    "CronJob": _cron_job,
    "JobSet": _job_set,
    "TrainJob": _train_job,
    "RayCluster": _ray,
    "RayJob": _ray,
    **{kind: _training_job(field) for kind, field in REPLICAS.items()},
}
VOLCANO = _volcano


# ---- the run ----


def _run_of(groups: list[Group], gang: bool, array: bool = False) -> Imported:
    """One template with a count where all workers are alike, else worker groups."""
    first = groups[0]
    together = gang and sum(group.count for group in groups) > 1
    alike = all((group.pod.template, group.pod.share) == (first.pod.template, first.pod.share) for group in groups)
    workers = sum(group.count for group in groups)
    base = workers if alike else first.count
    spec: dict[str, Any] = {
        "task_template": {**first.pod.template, "requested_resources": first.pod.share.resources(base)}
    }
    if array:
        spec["array"] = {"count": workers}
    elif alike and workers > 1:
        spec["node_selection"] = {"count": workers}
    elif not alike:
        spec["task_template"].pop("env", None)
        spec["worker_groups"] = [
            {
                "name": group.name,
                "count": group.count,
                "task_template": {**group.pod.template, "requested_resources": group.pod.share.resources(group.count)},
            }
            for group in groups
        ]
    if together:
        spec["start"] = "Gang"
    meaning = {**totals([(group.count, group.pod.share) for group in groups]), "gang": together}
    wishes = {name: text for group in groups for name, text in group.pod.annotations.items() if name in TOPOLOGY}
    for name, place in wishes.items():
        meaning["topology"] = f"{TOPOLOGY[name]} {place}"
    if alike:
        meaning |= totals([(workers, first.pod.share)])
    made_up = [item for group in groups for item in group.pod.share.defaults(group.path)]
    made_up += [LeftOut(name, "machines are chosen by room, not by their network") for name in wishes]
    return Imported({"spec": spec}, meaning, made_up)


def _time_limit(part: Part, name: str, imported: Imported) -> None:
    limit = part.take(name)
    if limit is None:
        return
    seconds = part.count(name, 0)
    imported.meaning["time_s"] = seconds
    bounded = min(max(seconds, TIME_LIMIT_MIN), TIME_LIMIT_MAX)
    imported.run["spec"]["task_template"]["time_limit_seconds"] = bounded
    if bounded != seconds:
        part.left_out.append(LeftOut(part.at(name), f"{seconds} s is out of range: {bounded} s"))


def _min_available(part: Part, workers: int, imported: Imported) -> None:
    """How many must start at once, and the queue, of a gang's policy."""
    if part.take("minAvailable") is not None:
        least = imported.meaning["min_available"] = part.count("minAvailable", workers)
        if least < workers:
            part.left_out.append(LeftOut(part.at("minAvailable"), f"all {workers} workers start together, not {least}"))
    if queue := part.text("queue"):
        imported.meaning["queue"] = queue
