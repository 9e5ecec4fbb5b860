"""The console's own health in Prometheus' text format: what an operator watches of the console itself, not of runs."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import redis
from django.db.models import Count, Q

from astraconsole.sockets import open_sockets
from machines import inbox
from machines.metrics import lane
from machines.models import Cluster, Machine, MachineState, SetAsideReport
from runs.models import Run
from runs.scheduling import passes
from runs.state_machine import RunState

log = logging.getLogger(__name__)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SOCKETS = ("agent", "log", "page")


@dataclass(frozen=True)
class Family:
    """One metric. `rows`: (labels, value)."""

    name: str
    kind: str
    help: str
    rows: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.rows:
            told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            yield f"{self.name}{{{told}}} {value:g}" if told else f"{self.name} {value:g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def exposition() -> str:
    """Everything, as Prometheus reads it. Where Redis is away, its part is left out and `astra_redis_up` is 0."""
    clusters = {
        pk: _labels(org, slug) for pk, org, slug in Cluster.objects.values_list("pk", "organisation__slug", "slug")
    }
    families = [*_of_database(clusters), *_of_redis(clusters), _sockets()]
    return "\n".join(line for family in families for line in family.lines()) + "\n"


def _labels(organisation: str, cluster: str) -> dict[str, str]:
    return {"organisation": organisation, "cluster": cluster}


def _of_database(clusters: Mapping[int, Mapping[str, str]]) -> list[Family]:
    runs = Run.objects.filter(deleted_at=None).values_list("namespace__cluster", "state").annotate(n=Count("id"))
    by_state = {(cluster, state): n for cluster, state, n in runs.order_by()}
    present = Machine.objects.exclude(state=MachineState.REMOVED)
    machines = {
        (pk, state): (n, connected)
        for pk, state, n, connected in present.values_list("cluster", "state")
        .annotate(n=Count("id"), connected=Count("id", filter=~Q(connection="")))
        .order_by()
    }
    aside = dict(SetAsideReport.objects.values_list("cluster").annotate(n=Count("id")).order_by())
    states = [state.value for state in RunState]
    return [
        Family(
            "astra_runs", "gauge", "Runs that are not deleted, by state.",
            [({**named, "state": s}, by_state.get((pk, s), 0)) for pk, named in clusters.items() for s in states],
        ),
        Family(
            "astra_queue_depth", "gauge", "Runs that wait to be placed.",
            [(named, by_state.get((pk, RunState.PENDING.value), 0)) for pk, named in clusters.items()],
        ),
        Family(
            "astra_machines", "gauge", "Machines, by state.",
            [({**clusters[pk], "state": state}, n) for (pk, state), (n, _) in sorted(machines.items())],
        ),
        Family(
            "astra_machines_connected", "gauge", "Machines whose agent is connected.",
            [(named, sum(c for (of, _), (_, c) in machines.items() if of == pk)) for pk, named in clusters.items()],
        ),
        Family(
            "astra_reports_set_aside", "gauge", "Reports of machines that could not be applied.",
            [(named, aside.get(pk, 0)) for pk, named in clusters.items()],
        ),
    ]  # fmt: skip


def _of_redis(clusters: Mapping[int, Mapping[str, str]]) -> list[Family]:
    up = Family("astra_redis_up", "gauge", "Whether Redis answers.", [({}, 1)])
    try:
        return [up, *_lengths(clusters)]
    except redis.RedisError as error:
        log.warning("Redis does not tell its part of the console's health: %s", error)
        return [Family(up.name, up.kind, up.help, [({}, 0)])]


def _lengths(clusters: Mapping[int, Mapping[str, str]]) -> list[Family]:
    made = passes.counted(clusters)
    return [
        _each("astra_inbox_entries", "Reports of machines that wait to be applied.", clusters, inbox.lengths(clusters)),
        _each("astra_samples_entries", "Seconds of samples that wait to be stored.", clusters, lane.lengths(clusters)),
        Family(
            "astra_scheduler_pass_seconds_sum", "counter", "Time that scheduling passes took.",
            [(clusters[pk], seconds) for pk, (_, seconds) in made.items()],
        ),
        Family(
            "astra_scheduler_pass_seconds_count", "counter", "Scheduling passes.",
            [(clusters[pk], count) for pk, (count, _) in made.items()],
        ),
    ]  # fmt: skip


def _each(name: str, help: str, clusters: Mapping[int, Mapping[str, str]], values: Mapping[int, float]) -> Family:
    return Family(name, "gauge", help, [(clusters[pk], value) for pk, value in values.items()])


def _sockets(kinds: Iterable[str] = SOCKETS) -> Family:
    rows = [({"kind": kind}, open_sockets[kind]) for kind in kinds]
    return Family("astra_websocket_viewers", "gauge", "Websockets that this daphne serves: scrape each.", rows)
