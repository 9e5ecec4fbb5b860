"""Rows for scheduler tests on the real database: a cluster with machines, and runs as a submit would leave them."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from astraconsole.tenancy.models import Organisation, Workspace
from machines.models import Cluster, Gpu, Machine, MachineState, Namespace
from runs.models import Run, Worker
from runs.scheduling.load import load_inventory
from runs.scheduling.shapes import plan_workers
from runs.spec import RunSpec, load_spec

GIB = 1024**3
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def make_namespace(slug: str = "vision", cluster: Cluster | None = None, **facts: Any) -> Namespace:
    organisation, _ = Organisation.objects.get_or_create(slug="acme", name="Acme")
    cluster = cluster or Cluster.objects.get_or_create(organisation=organisation, slug="east")[0]
    workspace = Workspace.objects.create(organisation=organisation, slug=slug, name=slug)
    return Namespace.objects.create(workspace=workspace, cluster=cluster, **facts)


def make_machine(cluster: Cluster, name: str, gpus: int = 0, **facts: Any) -> Machine:
    values = {"state": MachineState.READY, "connection": "here", "cpu_milli": 64_000, "memory_bytes": 512 * GIB} | facts
    machine = Machine.objects.create(cluster=cluster, name=name, token_digest=uuid.uuid4().hex, **values)
    Gpu.objects.bulk_create(
        Gpu(machine=machine, index=index, uuid=f"{name}-{index}", model="NVIDIA H100", memory_bytes=80 * GIB)
        for index in range(gpus)
    )
    return machine


def make_spec(gpus: int = 0, **spec: Any) -> dict[str, Any]:
    """A stored specification: one core and one GiB per worker, or per GPU."""
    amounts = {"cpu_cores": 1, "memory_bytes": GIB}
    resources = {"per_gpu": amounts, "gpu_requests": {"count": gpus}} if gpus else amounts
    template = {"image": "busybox", "requested_resources": spec.pop("resources", resources)} | spec.pop("template", {})
    return {"task_template": template} | spec


def make_run(namespace: Namespace, name: str, age: float = 0, **spec: Any) -> Run:
    """`age`: seconds before NOW at which it was submitted."""
    stored, at = make_spec(**spec), NOW - timedelta(seconds=age)
    run = Run.objects.create(
        namespace=namespace,
        workspace_id=namespace.workspace_id,
        name=name,
        spec=stored,
        priority=stored.get("priority", 0),
        gang=stored.get("start") == "Gang",
        created_at=at,
        changed_at=at,
        queued_at=at,
    )
    make_workers(run, load_spec(stored))
    return run


def make_workers(run: Run, spec: RunSpec) -> None:
    shapes = plan_workers(spec, run.name, load_inventory(run.namespace.cluster_id))
    if isinstance(shapes, list):
        Worker.objects.bulk_create(
            Worker(
                run=run,
                namespace_id=run.namespace_id,
                name=shape.name,
                group=shape.group,
                rank=shape.rank,
                gpus=shape.gpus,
                cpu_milli=shape.cpu_milli,
                memory_bytes=shape.memory_bytes,
                node_fraction=shape.node_fraction,
                changed_at=run.created_at,
            )
            for shape in shapes
        )
