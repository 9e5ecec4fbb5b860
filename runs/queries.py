"""The only reads of runs for pages and the API. Each starts from an Access, or from rows that one gave."""

import base64
import binascii
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from django.db.models import (
    BigIntegerField,
    BooleanField,
    Count,
    ExpressionWrapper,
    F,
    Func,
    Min,
    Q,
    QuerySet,
    Sum,
    Value,
)
from django.db.models.functions import Coalesce

from astraconsole.errors import NotFound, ValidationError
from astraconsole.sql import fetch, prepared
from astraconsole.tenancy.models import User
from astraconsole.tenancy.queries import Access
from machines.models import Cluster, Namespace
from runs.models import ACTIVE, Attempt, Run, Transition, Worker
from runs.state_machine import PLACED, RUN_ENDED, RunState, WorkerState

LIMIT_MAX = 500


@dataclass(frozen=True)
class Page:
    """`next`: what to pass as `after` for the following page; None at the end."""

    items: list[Run]
    next: str | None


@dataclass(frozen=True)
class Use:
    """Room held by live attempts, and the runs that hold it."""

    gpus: int
    cpu_milli: int
    memory_bytes: int
    runs: int


@dataclass(frozen=True)
class Held:
    workers: int
    gpus: int


@dataclass(frozen=True)
class PlaceOf:
    """Workers of a run on one machine. `live`: there now; `since`: when the first of them began to run."""

    machine: str
    live: bool
    since: datetime | None


# ---- runs ----


def runs_for(access: Access) -> QuerySet[Run]:
    """Every run of the workspace, deleted ones too, with what a row or a page of it shows."""
    return Run.objects.filter(workspace=access.workspace).select_related(
        "namespace__cluster", "namespace__workspace", "created_by"
    )


def list_runs(
    access: Access,
    *,
    cluster: str | None = None,
    state: str = "active",
    name: str = "",
    search: str = "",
    mine: bool = False,
    deleted: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> Page:
    """Newest first, one query. `state`: active, ended, all or one run state. `name`: a part of it.
    `search`: a part of the name or the owner, or a label as `key` or `key=value`.

    Raises ValidationError for an unknown state, cursor or limit."""
    if not 1 <= limit <= LIMIT_MAX:
        raise _invalid("limit", f"must be 1 to {LIMIT_MAX}")
    found = _narrowed(access, cluster, search, mine, deleted).filter(_in_state(state))
    if name:
        found = found.filter(name__icontains=_plain(name))
    if after:
        created_at, run_id = _read_cursor(after)
        found = found.filter(Q(created_at__lt=created_at) | Q(created_at=created_at, id__lt=run_id))
        found = found.filter(created_at__lte=created_at)  # what the index can start from
    items = list(found.order_by("-created_at", "-id")[: limit + 1])
    return Page(items[:limit], _cursor(items[limit - 1]) if len(items) > limit else None)


def state_counts(
    access: Access, *, cluster: str | None = None, search: str = "", mine: bool = False, deleted: bool = False
) -> dict[str, int]:
    """How many runs each of the list's groups has: active, ended, all. One query."""
    ended = Count("id", filter=Q(state__in=list(RUN_ENDED)))
    found = _narrowed(access, cluster, search, mine, deleted).aggregate(all=Count("id"), ended=ended)
    return {"active": found["all"] - found["ended"], "ended": found["ended"], "all": found["all"]}


def _narrowed(access: Access, cluster: str | None, search: str, mine: bool, deleted: bool) -> QuerySet[Run]:
    found = runs_for(access)
    if not deleted:
        found = found.filter(deleted_at=None)
    if cluster is not None:
        found = found.filter(namespace__cluster__slug=_plain(cluster))
    if mine:
        found = found.filter(created_by=access.user)
    if search:
        found = found.filter(_matching(_plain(search)))
    return found


def _matching(search: str) -> Q:
    key, _, value = search.partition("=")
    labelled = Q(labels__contains={key: value}) if value else Q(labels__has_key=search)
    return Q(name__icontains=search) | Q(created_by__username__icontains=search) | labelled


def _in_state(state: str) -> Q:
    groups = {"active": ACTIVE, "ended": Q(state__in=list(RUN_ENDED)), "all": Q()}
    if state in groups:
        return groups[state]
    if state not in list(RunState):
        raise _invalid("state", f"must be one of {', '.join([*groups, *RunState])}")
    return Q(state=state)


def _cursor(run: Run) -> str:
    return base64.urlsafe_b64encode(f"{run.created_at.isoformat()} {run.id}".encode()).decode().rstrip("=")


def _read_cursor(after: str) -> tuple[datetime, int]:
    try:
        text = base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)).decode()
        created_at, run_id = text.split(" ")
        moment, number = datetime.fromisoformat(created_at), int(run_id)
        moment = moment if moment.tzinfo is None else moment.astimezone(UTC)
    except (binascii.Error, ValueError, OverflowError) as error:
        raise _invalid("after", "must be the `next` of an earlier page") from error
    if moment.tzinfo is None or not 0 <= number < 2**63:
        raise _invalid("after", "must be the `next` of an earlier page")
    return moment, number


def _invalid(field: str, rule: str) -> ValidationError:
    return ValidationError(f"{field} {rule}", [{"field": field, "rule": rule}])


def get_run(access: Access, cluster_slug: str, name: str) -> Run:
    """One that is not deleted. Raises NotFound."""
    found = (
        runs_for(access)
        .filter(namespace__cluster__slug=_plain(cluster_slug), name=_plain(name), deleted_at=None)
        .first()
    )
    if found is None:
        raise NotFound(f"there is no run {name} on {cluster_slug}")
    return found


def picked_runs(access: Access, picked: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Runs named `<cluster>/<name>` that are not deleted, in this order, and the names that no run has any more. One
    query."""
    pairs = [(_plain(cluster), _plain(name)) for cluster, _, name in (item.partition("/") for item in picked)]
    named = runs_for(access).filter(deleted_at=None, name__in=[name for _, name in pairs])
    found = {(run.namespace.cluster.slug, run.name): run for run in named}
    gone = [item for item, pair in zip(picked, pairs, strict=True) if pair not in found]
    return [found[pair] for pair in dict.fromkeys(pairs) if pair in found], gone


def history_of_run(run: Run) -> list[Transition]:
    """Oldest first."""
    return list(Transition.objects.filter(run=run, worker=None).order_by("id"))


def task_counts(runs: Collection[Run]) -> dict[int, dict[str, int]]:
    """How many workers of each run are in each state. One query; none for no runs."""
    if not runs:
        return {}
    counts: dict[int, dict[str, int]] = {run.id: {} for run in runs}
    rows = Worker.objects.filter(run__in=list(counts)).values_list("run", "state").annotate(Count("id")).order_by()
    for run_id, state, count in rows:
        counts[run_id][state] = count
    return counts


def held_by(runs: Iterable[Run]) -> Held:
    """What stopping these runs would free."""
    live = Attempt.objects.filter(worker__run__in=[run.id for run in runs], released_at=None, superseded_at=None)
    found = live.aggregate(workers=Count("id"), gpus=_summed(_gpus_held()))
    return Held(**found)


# ---- workers ----


def get_worker(access: Access, cluster_slug: str, name: str) -> Worker:
    """One of a run that is not deleted, with its run and `.newest` attempt. Raises NotFound."""
    found = list(
        Worker.objects.filter(
            run__workspace=access.workspace,
            namespace__cluster__slug=_plain(cluster_slug),
            name=_plain(name),
            deleted=False,
        ).select_related("run__namespace__cluster", "run__namespace__workspace", "run__created_by")
    )
    if not found:
        raise NotFound(f"there is no worker {name} on {cluster_slug}")
    return _with_newest(found)[0]


def workers_of(run: Run, after: int = -1, limit: int | None = None) -> list[Worker]:
    """By rank, each with `.newest`: its newest attempt (machine loaded), None before the first. Two queries.

    `after`: only later ranks; `limit`: at most so many."""
    workers = list(Worker.objects.filter(run=run, rank__gt=after).order_by("rank")[:limit])
    for worker in workers:
        worker.run = run
    return _with_newest(workers)


def names_and_states(run: Run) -> list[tuple[str, str]]:
    """Of its workers, by rank. One query, of two columns: a run may have thousands."""
    with prepared() as cursor:
        cursor.execute("SELECT name, state FROM runs_worker WHERE run_id = %s ORDER BY rank", [run.pk])
        return cursor.fetchall()


def get_worker_of(run: Run, name: str) -> Worker:
    """Raises NotFound."""
    found = run.workers.filter(name=_plain(name)).first()
    if found is None:
        raise NotFound(f"{run.name} has no worker {name}")
    return found


def worker_ids(run: Run, names: Sequence[str]) -> dict[str, int]:
    """By name, of a run's workers. Raises NotFound where one of the names is none of theirs."""
    found = dict(run.workers.filter(name__in=[_plain(name) for name in names]).values_list("name", "pk"))
    for name in names:
        if name not in found:
            raise NotFound(f"{run.name} has no worker {name}")
    return found


class Viewer(NamedTuple):
    """Somebody with a page open: the session that opened it, and for which workspace."""

    session_key: str
    user: User
    workspace_id: int


def may_follow(viewer: Viewer, ids: Sequence[int]) -> bool:
    """Whether the session, the membership and all these workers are still what they were. One query: it is asked before
    each frame to each viewer."""
    [(found,)] = fetch(
        """
        SELECT count(*) FROM runs_worker w JOIN runs_run r ON r.id = w.run_id
        WHERE w.id = ANY(%s) AND NOT w.deleted AND r.workspace_id = %s
        AND EXISTS (SELECT FROM django_session WHERE session_key = %s AND expire_date > now())
        AND EXISTS (SELECT FROM tenancy_user WHERE id = %s AND is_active AND password = %s)
        AND EXISTS (SELECT FROM tenancy_membership WHERE user_id = %s AND workspace_id = %s)
        """,
        [list(ids), viewer.workspace_id, viewer.session_key, viewer.user.pk, viewer.user.password,
         viewer.user.pk, viewer.workspace_id],
    )  # fmt: skip
    return bool(found == len(ids))


def places_of(run: Run) -> list[PlaceOf]:
    """Where its workers are, or were last: one row for each machine and whether they are still there. One query."""
    newest = Attempt.objects.filter(worker__run=run, number=F("worker__attempt_number"))
    live = ExpressionWrapper(Q(worker__state__in=list(PLACED)), output_field=BooleanField())
    rows = newest.annotate(live=live).values_list("machine__name", "live").annotate(since=Min("running_at"))
    return [PlaceOf(*row) for row in rows.order_by("machine__name")]


def first_failed(run: Run) -> Worker | None:
    """The worker that failed for good before all others, with `.newest`: its log has the cause. Two queries."""
    return next(iter(_with_newest(list(_failed(run)[:1]))), None)


def failed_later(run: Run, limit: int) -> list[Worker]:
    """Those that failed for good after the first, with `.newest`: most likely because of it. Two queries."""
    return _with_newest(list(_failed(run)[1 : limit + 1]))


def _failed(run: Run) -> QuerySet[Worker]:
    """By the time that they failed, on their machines: reports come in any order."""
    return Worker.objects.filter(run=run, state=WorkerState.FAILED).order_by("last_failure__failed_at", "id")


def loops_of(run: Run, failures: int) -> tuple[Worker | None, int]:
    """Of the workers that wait for another try, or run after `failures` in a row: the one that failed most, with
    `.newest`, and how many there are. Three queries."""
    again = Q(state=WorkerState.RESTARTING) | Q(state__in=list(PLACED), failures_in_row__gte=failures)
    looping = Worker.objects.filter(again, run=run)
    worst = _with_newest(list(looping.order_by("-failures_in_row", "rank")[:1]))
    return (worst[0], looping.count()) if worst else (None, 0)


def _with_newest(workers: list[Worker]) -> list[Worker]:
    newest = Attempt.objects.filter(worker__in=[worker.id for worker in workers], number=F("worker__attempt_number"))
    attempts = {attempt.worker_id: attempt for attempt in newest.select_related("machine")}
    for worker in workers:
        worker.newest = attempts.get(worker.id)
    return workers


def attempts_of(worker: Worker) -> list[Attempt]:
    """Oldest first, machines loaded."""
    return list(Attempt.objects.filter(worker=worker).select_related("machine").order_by("number"))


def history_of_worker(worker: Worker) -> list[Transition]:
    """Oldest first."""
    return list(Transition.objects.filter(worker=worker).order_by("id"))


# ---- namespaces and machines ----


def namespaces_for(access: Access) -> QuerySet[Namespace]:
    """The workspace's share of each of its clusters, by cluster name."""
    return (
        Namespace.objects.filter(workspace=access.workspace)
        .select_related("cluster", "workspace__organisation")
        .order_by("cluster__slug")
    )


def get_namespace(access: Access, cluster_slug: str) -> Namespace:
    """Raises NotFound."""
    namespace = namespaces_for(access).filter(cluster__slug=_plain(cluster_slug)).first()
    if namespace is None:
        raise NotFound(f"the workspace has no cluster {cluster_slug}")
    return namespace


def use_of(namespace: Namespace) -> Use:
    """Sums over live attempts, as the scheduler counts them."""
    live = Attempt.objects.filter(worker__namespace=namespace, released_at=None, machine__state="Ready")
    found = live.aggregate(
        gpus=_summed(_gpus_held()),
        cpu_milli=_summed(F("cpu_milli")),
        memory_bytes=_summed(F("memory_bytes")),
        runs=Count("worker__run", distinct=True),
    )
    return Use(**{name: int(value) for name, value in found.items()})


def use_of_machines(machine_ids: Sequence[int]) -> dict[int, tuple[int, int, list[int]]]:
    """Per machine: thousandths of cores, bytes and GPU indexes that live attempts hold. One query."""
    use: dict[int, tuple[int, int, list[int]]] = {machine_id: (0, 0, []) for machine_id in machine_ids}
    live = Attempt.objects.filter(machine__in=list(machine_ids), released_at=None)
    for machine_id, cpu, memory, gpus in live.values_list("machine", "cpu_milli", "memory_bytes", "gpu_indexes"):
        held = use[machine_id]
        use[machine_id] = (held[0] + cpu, held[1] + memory, sorted([*held[2], *gpus]))
    return use


def cluster_ids_with_work() -> list[int]:
    """Clusters that have runs which have not ended."""
    return list(Run.objects.filter(ACTIVE).order_by().values_list("namespace__cluster", flat=True).distinct())


def cluster_ids() -> list[int]:
    return list(Cluster.objects.values_list("id", flat=True))


def _gpus_held() -> Func:
    return Func(F("gpu_indexes"), function="CARDINALITY", output_field=BigIntegerField())


def _summed(what: Func | F) -> Coalesce:
    return Coalesce(Sum(what, output_field=BigIntegerField()), Value(0, output_field=BigIntegerField()))


def _plain(name: str) -> str:
    """PostgreSQL takes no NUL; no name has one."""
    return name.replace("\0", "")
