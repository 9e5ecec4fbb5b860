"""What would become of a run if it were started now: told in the form, before anybody starts it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runs.queries import Use
from runs.scheduling.explain import sentence
from runs.scheduling.load import load_inventory
from runs.scheduling.shapes import plan_workers
from runs.scheduling.types import Refusal, WorkerShape
from runs.services.submit import never
from runs.spec import RunRequest
from runs.units import counted, format_cores, format_memory

if TYPE_CHECKING:
    from machines.models import Namespace


@dataclass(frozen=True)
class Forecast:
    """`tone` is a colour of the stylesheet: fail, wait or run."""

    tone: str
    title: str
    text: str = ""


def forecast(namespace: "Namespace", use: Use, request: RunRequest) -> Forecast:
    """The workers that it would have, or why it could never run, or would wait for quota. One query."""
    inventory = load_inventory(namespace.cluster_id)
    shapes = plan_workers(request.spec, request.metadata.name, inventory, namespace.pools)
    if isinstance(shapes, Refusal):
        return Forecast("fail", "Can never run as it is", sentence(shapes.code, shapes.numbers))
    refusal = never(request.spec, shapes, inventory, namespace.pools)
    if refusal is not None:
        return Forecast("fail", "Can never run as it is", sentence(refusal.code, refusal.numbers))
    title, text = counted(len(shapes), "worker"), _each(shapes[0])
    asked = sum(shape.gpus for shape in shapes)
    if namespace.quota_gpus is not None and asked and use.gpus + asked > namespace.quota_gpus:
        return Forecast("wait", title, f"{text}. Waits for quota: {use.gpus} of {namespace.quota_gpus} GPUs in use")
    return Forecast("run", title, text)


def _each(shape: WorkerShape) -> str:
    """`each with 8 GPUs, 64 cores, 512 GiB`."""
    gpus = [counted(shape.gpus, "GPU")] if shape.gpus else []
    if shape.node_fraction is not None:
        return ", ".join([*gpus, f"{shape.node_fraction:.0%} of a machine each"])
    cores = format_cores(shape.cpu_milli)
    return ", ".join([*gpus, f"{cores} core{'s' if cores != '1' else ''}", f"{format_memory(shape.memory_bytes)} each"])
