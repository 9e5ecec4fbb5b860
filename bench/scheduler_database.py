"""The database's half of `make bench-scheduler`: load and apply. bench.scheduler starts it, with a PostgreSQL."""

import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402  (models only after setup)
from django.db import connection, transaction  # noqa: E402

from astraconsole.tenancy.models import Organisation, Workspace  # noqa: E402
from bench.scheduler import GIB, timed  # noqa: E402
from machines.models import Cluster, Gpu, Machine, MachineState, Namespace  # noqa: E402
from runs.models import Attempt, Run, Worker  # noqa: E402
from runs.scheduling.apply import apply_plan, try_lock  # noqa: E402
from runs.scheduling.load import load_snapshot  # noqa: E402
from runs.scheduling.loop import run_once  # noqa: E402
from runs.scheduling.planner import make_plan  # noqa: E402

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def make_namespace(slug: str) -> Namespace:
    organisation, _ = Organisation.objects.get_or_create(slug="bench", defaults={"name": "bench"})
    cluster = Cluster.objects.create(organisation=organisation, slug=slug)
    workspace = Workspace.objects.create(organisation=organisation, slug=slug, name=slug)
    return Namespace.objects.create(workspace=workspace, cluster=cluster)


def make_machines(cluster: Cluster, count: int, gpus: int = 8) -> None:
    made = Machine.objects.bulk_create(
        Machine(
            cluster=cluster,
            name=f"gpu-{number}",
            state=MachineState.READY,
            connection="here",
            token_digest=f"{cluster.slug}-{number}",
            cpu_milli=128_000,
            memory_bytes=1024 * GIB,
        )
        for number in range(count)
    )
    Gpu.objects.bulk_create(
        Gpu(machine=machine, index=index, uuid=f"{machine.id}-{index}", model="NVIDIA H100", memory_bytes=80 * GIB)
        for machine in made
        for index in range(gpus)
    )


def make_runs(namespace: Namespace, count: int, prefix: str, sizes: tuple[int, ...] = (1, 1, 1, 2, 4, 8)) -> None:
    """One-worker runs, as a submit leaves them."""
    chance = random.Random(1)
    chosen = [chance.choice(sizes) for _ in range(count)]
    runs = Run.objects.bulk_create(_run(namespace, f"{prefix}-{number}", gpus) for number, gpus in enumerate(chosen))
    Worker.objects.bulk_create(
        Worker(
            run=run,
            namespace=namespace,
            name=f"{run.name}-0",
            rank=0,
            gpus=gpus,
            cpu_milli=gpus * 8000,
            memory_bytes=gpus * 64 * GIB,
            changed_at=NOW,
        )
        for run, gpus in zip(runs, chosen, strict=True)
    )


def _run(namespace: Namespace, name: str, gpus: int) -> Run:
    resources: dict[str, Any] = {"cpu_cores": 1, "memory_bytes": GIB}
    if gpus:
        resources = {"per_gpu": {"cpu_cores": 8, "memory_bytes": 64 * GIB}, "gpu_requests": {"count": gpus}}
    template = {"image": "busybox", "command": "true", "requested_resources": resources, "time_limit_seconds": 3600}
    spec = {"task_template": template, "node_selection": {"count": 1}}
    return Run(
        namespace=namespace,
        workspace_id=namespace.workspace_id,
        name=name,
        spec=spec,
        gpus=gpus,
        created_at=NOW,
        changed_at=NOW,
        queued_at=NOW,
    )


def cpu_seconds() -> float:
    """Of this process and of its connection's server process: what else the machine does is not counted."""
    spent = Path(f"/proc/{connection.connection.info.backend_pid}/schedstat").read_text().split()[0]
    return time.process_time() + int(spent) / 1e9


def large_queues() -> None:
    print("load and apply, milliseconds of CPU, PostgreSQL's included")
    print(
        f"  {'waiting':>8}{'machines':>10}{'load':>9}{'plan':>9}{'first reasons stored':>22}{'pass without news':>19}"
    )
    for factor in (1, 2, 4):
        namespace = make_namespace(f"large-{factor}")
        make_machines(namespace.cluster, 1000 * factor)
        make_runs(namespace, 8000 * factor, "busy", (1,))
        while run_once(namespace.cluster_id, NOW):
            pass
        make_runs(namespace, 10_000 * factor, "waiting")
        _analyze()
        load, snapshot = timed(lambda: load_snapshot(namespace.cluster_id), 3, cpu_seconds)  # noqa: B023
        plan, made = timed(lambda: make_plan(snapshot, NOW.timestamp()), 3)  # noqa: B023
        apply = _elapsed(lambda: apply_plan(namespace.cluster_id, made, NOW))  # noqa: B023
        again = _elapsed(lambda: run_once(namespace.cluster_id, NOW))  # noqa: B023
        print(f"  {10_000 * factor:8}{1000 * factor:10}{load:9.1f}{plan:9.1f}{apply:22.1f}{again:19.1f}")


def placement_rate() -> None:
    namespace = make_namespace("rate")
    make_machines(namespace.cluster, 5000, gpus=2)
    make_runs(namespace, 10_000, "one", (1,))
    _analyze()
    began, passes = time.perf_counter(), 1
    while run_once(namespace.cluster_id, NOW):
        passes += 1
    seconds = time.perf_counter() - began
    placed = Attempt.objects.filter(machine__cluster=namespace.cluster).count()
    print(
        f"{placed} one-worker runs placed over 5000 machines: {seconds:.1f} s, {passes} passes, "
        f"{placed / seconds:,.0f}/s"
    )


def one_run_on_an_idle_cluster() -> None:
    namespace = make_namespace("idle")
    make_machines(namespace.cluster, 1)
    make_runs(namespace, 50, "quick", (0,))
    Worker.objects.filter(namespace=namespace).update(deleted=False, state="Cancelled", cpu_milli=1000)
    Run.objects.filter(namespace=namespace).update(state="Cancelled")
    steps: dict[str, list[float]] = {"lock": [], "load": [], "plan": [], "apply": [], "commit": []}
    for run in Run.objects.filter(namespace=namespace):
        Worker.objects.filter(run=run).update(state="Pending")
        Run.objects.filter(id=run.id).update(state="Pending")
        _steps_of_a_pass(namespace.cluster_id, steps)
    medians = {name: sorted(values)[len(values) // 2] for name, values in steps.items()}
    told = ", ".join(f"{name} {value:.2f}" for name, value in medians.items())
    print(f"one run on an idle machine, a pass in milliseconds: {told}; together {sum(medians.values()):.2f}")


def _steps_of_a_pass(cluster_id: int, steps: dict[str, list[float]]) -> None:
    marks = [time.perf_counter()]
    with transaction.atomic():
        assert try_lock(cluster_id)
        marks.append(time.perf_counter())
        snapshot = load_snapshot(cluster_id)
        marks.append(time.perf_counter())
        plan = make_plan(snapshot, NOW.timestamp())
        marks.append(time.perf_counter())
        assert apply_plan(cluster_id, plan, NOW + timedelta(seconds=1))
        marks.append(time.perf_counter())
    marks.append(time.perf_counter())
    for name, began, ended in zip(steps, marks, marks[1:], strict=False):
        steps[name].append((ended - began) * 1000)


def _elapsed(work: Any) -> float:
    began = cpu_seconds()
    work()
    return (cpu_seconds() - began) * 1000


def _analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


if __name__ == "__main__":
    call_command("migrate", verbosity=0)
    one_run_on_an_idle_cluster()
    large_queues()
    placement_rate()
