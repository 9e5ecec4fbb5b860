"""What submitting a run would do, without doing it: the same rules, its workers as planned, when they would start."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from astraconsole.tenancy.queries import Access
from runs.scheduling.load import load_inventory
from runs.scheduling.outlook import Outlook, outlook
from runs.scheduling.shapes import plan_workers
from runs.scheduling.types import Refusal, WorkerShape
from runs.services.submit import admit, refuse_taken_names
from runs.spec import RunRequest


class DryRun(NamedTuple):
    """`workers`: none where they cannot be planned, which `outlook` then says."""

    request: RunRequest
    workers: Sequence[WorkerShape]
    outlook: Outlook


def dry_run(access: Access, cluster_slug: str, request: RunRequest, now: datetime) -> DryRun:
    """Writes nothing. Raises what `submit_run` would."""
    namespace = admit(access, cluster_slug, request)
    refuse_taken_names(namespace, request.metadata.name, request.spec.stems(request.metadata.name))
    planned = plan_workers(request.spec, request.metadata.name, load_inventory(namespace.cluster_id), namespace.pools)
    workers: Sequence[WorkerShape] = () if isinstance(planned, Refusal) else planned
    return DryRun(request, workers, outlook(namespace, request.spec, planned, now))
