"""What would become of a run if it were started now: told in the form, before anybody starts it."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django.utils.text import capfirst

from runs.scheduling.load import load_inventory
from runs.scheduling.outlook import outlook
from runs.scheduling.shapes import plan_workers
from runs.scheduling.types import Refusal, WorkerShape
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


def forecast(namespace: "Namespace", request: RunRequest, now: datetime) -> Forecast:
    """The workers that it would have, and when they would start. At most four queries."""
    inventory = load_inventory(namespace.cluster_id)
    planned = plan_workers(request.spec, request.metadata.name, inventory, namespace.pools)
    seen = outlook(namespace, request.spec, planned, now)
    if isinstance(planned, Refusal) or seen.never:
        return Forecast("fail", capfirst(seen.text))
    title = f"{counted(len(planned), 'worker')}, {_each(planned[0])}"
    return Forecast("wait" if seen.waits else "run", capfirst(seen.text), title)


def _each(shape: WorkerShape) -> str:
    """`each with 8 GPUs, 64 cores, 512 GiB`."""
    gpus = [counted(shape.gpus, "GPU")] if shape.gpus else []
    if shape.node_fraction is not None:
        return ", ".join([*gpus, f"{shape.node_fraction:.0%} of a machine each"])
    cores = format_cores(shape.cpu_milli)
    return ", ".join([*gpus, f"{cores} core{'s' if cores != '1' else ''}", f"{format_memory(shape.memory_bytes)} each"])
