"""What a failure panel shows: what happened, what to do about it, and links to where the cause is."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe

from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from machines import queries as machine_queries
from runs import sizes
from runs.log_html import tail_html
from runs.sentences import Advice, Look, advice
from runs.spec import RunSpec, load_spec, template_of
from runs.state_machine import PLACED, WorkerState

if TYPE_CHECKING:
    from runs.models import Run, Worker

BEFORE, AFTER = timedelta(minutes=10), timedelta(minutes=1)  # a failure, of what its charts show


@dataclass(frozen=True)
class Link:
    look: Look
    label: str
    url: str


@dataclass(frozen=True)
class Failure:
    """Of one worker. `reason`: why it failed, as the API says it; `cause`: of its last failure, where that is another
    (its retries are used up); `advice` is about the reason, `further` about the cause."""

    worker: "Worker"
    reason: str
    cause: str
    exit_code: int | None
    failed_at: datetime | None
    log_tail: SafeString
    advice: Advice | None
    further: Advice | None
    links: list[Link]


def failure_of(access: Access, run: "Run", worker: "Worker | None") -> Failure | None:
    """Of a worker that failed, or that starts again after a failure. `worker.newest` and its machine are loaded. One
    query where a credential may be the cause, else none."""
    if worker is None:
        return None
    stored = worker.last_failure or {}
    cause = stored.get("reason", "")
    reason = worker.reason if worker.state == WorkerState.FAILED else cause or worker.reason
    about, further = advice(reason), advice(cause) if cause != reason else None
    failed_at = datetime.fromisoformat(stored["failed_at"]) if stored.get("failed_at") else None
    exit_code = stored.get("exit_code") if stored.get("exit_code") is not None else worker.exit_code
    looks = [*(further.looks if further else ()), *(about.looks if about else (Look.LOG,))]
    links = [
        link
        for look in dict.fromkeys(looks)
        for link in [_link(access, run, worker, look, failed_at)]
        if link is not None
    ]
    tail = mark_safe(tail_html(stored.get("log_tail", "")))  # escaped line by line
    return Failure(worker, reason, cause if cause != reason else "", exit_code, failed_at, tail, about, further, links)


def failed_attempt(worker: "Worker") -> int:
    """The number of the attempt that failed last: one that is on a machine again has another by now."""
    return worker.attempt_number - (worker.state in PLACED and worker.attempt_number > 1)


def _link(access: Access, run: "Run", worker: "Worker", look: Look, at: datetime | None) -> Link | None:
    if look in (Look.MORE_MEMORY, Look.MORE_TIME):
        return _again(access, run, look)
    if look is Look.CREDENTIAL:
        return Link(look, "Registry credential", _credential(access, load_spec(run.spec), worker.group))
    if look is Look.MACHINE:
        return _machine(access, run, worker)
    if look is Look.METRICS and (at is None or not worker.attempt_number):
        return None
    if look is Look.LOG and not worker.attempt_number:
        return None
    labels = {
        Look.LOG: "Its log",
        Look.METRICS: "Metrics around it",
        Look.STARTED: "How it was started",
        Look.HISTORY: "History",
    }
    return Link(look, labels[look], _address(access, run, worker, look, at))


def _address(access: Access, run: "Run", worker: "Worker", look: Look, at: datetime | None) -> str:
    where = _where(access, run)
    page = reverse("run", args=[*where, run.name])
    own = reverse("worker", args=[*where, worker.name])
    if look is Look.LOG:
        return f"{page}?{urlencode({'tab': 'logs', 'worker': worker.name, 'attempt': failed_attempt(worker)})}"
    if look is Look.HISTORY:
        return f"{page}?tab=history"
    if look is Look.STARTED or at is None:
        return f"{own}?tab=started"
    around = {"from": _minute(at - BEFORE), "to": _minute(at + AFTER)}
    return f"{own}?{urlencode({'tab': 'metrics', **around})}"


def _minute(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S")


def _where(access: Access, run: "Run") -> list[str]:
    return [access.workspace.organisation.slug, access.workspace.slug, run.namespace.cluster.slug]


def _machine(access: Access, run: "Run", worker: "Worker") -> Link | None:
    machine = worker.newest.machine if worker.newest else None
    if machine is None or machine.state == "Removed":
        return None
    return Link(Look.MACHINE, f"Machine {machine.name}", reverse("machine", args=[*_where(access, run), machine.name]))


def _credential(access: Access, spec: RunSpec, group: str) -> str:
    """The registry's, where the run names one that there is; else the list, to make one."""
    ref = template_of(spec, group).registry_secret_ref
    named = ref.external_secret_name if ref else ""
    place = [access.workspace.organisation.slug, access.workspace.slug]
    if named and any(each.name == named for each in machine_queries.credentials_of(access)):
        return reverse("credential", args=[*place, named])
    return reverse("credentials", args=place)


def _again(access: Access, run: "Run", look: Look) -> Link | None:
    spec = load_spec(run.spec)
    resize = sizes.more_memory(spec) if look is Look.MORE_MEMORY else sizes.more_time(spec)
    if resize is None or not access.allows(Action.WRITE):
        return None
    place = [access.workspace.organisation.slug, access.workspace.slug]
    asked = urlencode({"again": f"{run.namespace.cluster.slug}/{run.name}", "change": resize.key})
    return Link(look, f"Run again with {resize.label}", f"{reverse('new_run', args=place)}?{asked}")
