"""A workspace's events: one list over the histories of its runs and workers, of the machines it may use, and of what
people did to the workspace. Each is read from its own table, by an index in the order of its positions, never further
than one page; there is no second store.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from astraconsole.errors import ValidationError
from astraconsole.json_bodies import moment
from astraconsole.sql import SETTLED, fetch
from astraconsole.tenancy.audit import Kind
from runs.event_positions import END, Position, Source, before_transaction

RUN, WORKER, MACHINE = "run", "worker", "machine"
KINDS = (RUN, WORKER, MACHINE, *Kind)
LIMIT_MAX = 500
FILTER_LENGTH = 200
_RANKED = re.compile(r"(.+)-(\d{1,6})", re.ASCII)


@dataclass(frozen=True)
class Wanted:
    """What a list is narrowed to; "" is no filter. `name`: an event's own, or of the run whose worker it is about."""

    name: str = ""
    kind: str = ""
    actor: str = ""


@dataclass(frozen=True)
class Event:
    position: Position
    at: datetime
    kind: str
    name: str
    run: str | None  # of a run or a worker: the run's name
    cluster: str | None
    state: str
    reason: str
    actor: str
    exists: bool  # its page: the run has not been deleted


@dataclass(frozen=True)
class Page:
    """`next`: what to pass as `after` for the following page; None at the end."""

    items: list[Event]
    next: str | None


@dataclass(frozen=True)
class Step:
    """Events after a position, oldest first, and how far they reach. `unsettled`: more are there, but others that are
    being written may yet come before them: look again soon. `full`: more are there now."""

    items: list[Event]
    reached: Position
    unsettled: bool
    full: bool


def wanted(name: str, kind: str, actor: str) -> Wanted:
    """Raises ValidationError."""
    if kind and kind not in KINDS:
        rule = f"must be one of {', '.join(KINDS)}"
        raise ValidationError(f"kind {rule}", [{"field": "kind", "rule": rule}])
    for field, text in (("name", name), ("actor", actor)):
        if len(text) > FILTER_LENGTH or "\0" in text:
            rule = f"must be text of at most {FILTER_LENGTH} characters"
            raise ValidationError(f"{field} {rule}", [{"field": field, "rule": rule}])
    return Wanted(name.strip(), kind, actor.strip())


def newest(workspace_id: int, filters: Wanted, before: Position | None = None, limit: int = 50) -> Page:
    """Newest first, before a position. One query."""
    items = _read(workspace_id, filters, before or END, limit + 1, forward=False)
    return Page(items[:limit], str(items[limit - 1].position) if len(items) > limit else None)


def settled_end() -> Position:
    """Where whoever wants to hear of what happens from now on begins."""
    return before_transaction(_settled())


def newest_settled(workspace_id: int, filters: Wanted, limit: int) -> Step:
    """The last so many events before `settled_end`, oldest first."""
    end = settled_end()
    items = _read(workspace_id, filters, end, limit, forward=False)[::-1] if limit else []
    return Step(items, end, unsettled=False, full=False)


def read_on(workspace_id: int, filters: Wanted, after: Position, limit: int = 100) -> Step:
    """What has happened since a position. Nothing is ever passed over: a transaction that began earlier and ends later
    would write events before ones that can be seen already, so those wait until it has ended."""
    settled = _settled()  # before the events are read: what has settled by then is seen by the later statement
    found = _read(workspace_id, filters, after, limit + 1, forward=True)
    known = [event for event in found if event.position.tx < settled]
    items = known[:limit]
    full = len(known) > limit
    if full:
        return Step(items, items[-1].position, unsettled=False, full=True)
    return Step(items, max(after, before_transaction(settled)), unsettled=len(known) < len(found), full=False)


def between(workspace_id: int, filters: Wanted, after: Position, until: Position, limit: int) -> list[Event]:
    """Oldest first: those after the one position and up to the other, which has settled."""
    found = _read(workspace_id, filters, after, limit, forward=True)
    return [event for event in found if event.position <= until]


def event_document(event: Event) -> dict[str, Any]:
    return {
        "id": str(event.position),
        "at": moment(event.at),
        "kind": event.kind,
        "name": event.name,
        "run": event.run,
        "cluster": event.cluster,
        "state": event.state,
        "reason": event.reason,
        "actor": event.actor,
    }


def _settled() -> int:
    return int(fetch(f"SELECT {SETTLED}", [])[0][0])


# ---- the statement ---------------------------------------------------------------------------------------------------

# Every part gives (tx, row, at, state, reason, actor, …) of the events of one source, at most a page of them.
_ORDER = {True: "ASC", False: "DESC"}
_BEYOND = {True: ">", False: "<"}
_NAMES_OF_MOVES = """
    SELECT m.tx, 0 AS source, m.id, m.at, CASE WHEN w.id IS NULL THEN 'run' ELSE 'worker' END, coalesce(w.name, r.name),
        r.name, c.slug, m.state, m.reason, m.actor, r.deleted_at IS NULL
    FROM ({moves}) m JOIN runs_run r ON r.id = m.run_id LEFT JOIN runs_worker w ON w.id = m.worker_id
    JOIN machines_namespace n ON n.id = r.namespace_id JOIN machines_cluster c ON c.id = n.cluster_id
"""
# As `transition_person` has them: what machines and the scheduler did is nearly everything.
_BY_A_PERSON = "AND NOT (t.actor::text LIKE 'machine %%') AND NOT (t.actor = 'scheduler')"
# A name that no machine has would be looked for among all that machines ever did.
_OF_A_MACHINE = """AND EXISTS (SELECT FROM machines_namespace n JOIN machines_machine m ON m.cluster_id = n.cluster_id
    WHERE n.workspace_id = %(workspace)s AND m.name = substr(%(actor)s, 9))"""


def _read(workspace_id: int, filters: Wanted, bound: Position, limit: int, forward: bool) -> list[Event]:
    parts, parameters = [], dict[str, Any]()
    parameters |= {"workspace": workspace_id, "limit": limit, "name": filters.name, "actor": filters.actor}
    for source in Source:
        parameters[f"tx{source.value}"], parameters[f"row{source.value}"] = bound.before(source)
    if filters.kind in ("", RUN, WORKER):
        parts.append(_moves(filters, forward, parameters))
    if filters.kind in ("", MACHINE):
        parts.append(_machines(filters, forward))
    if filters.kind in ("", *Kind):
        parts.append(_audit(filters, forward))
        parameters["kind"] = filters.kind
    how = _ORDER[forward]
    union = " UNION ALL ".join(f"({part})" for part in parts)
    rows = fetch(f"SELECT * FROM ({union}) e ORDER BY 1 {how}, 2 {how}, 3 {how} LIMIT %(limit)s", parameters)
    return [Event(Position(*row[:3]), *row[3:]) for row in rows]


def _page(table: str, source: Source, where: str, forward: bool) -> str:
    """A page of a source's rows `t`, in order."""
    number, how = source.value, _ORDER[forward]
    return f"""
        SELECT t.* FROM {table} t
        WHERE {where} AND (t.tx, t.id) {_BEYOND[forward]} (%(tx{number})s, %(row{number})s)
        ORDER BY t.tx {how}, t.id {how} LIMIT %(limit)s
    """


def _moves(filters: Wanted, forward: bool, parameters: dict[str, Any]) -> str:
    of_kind = {"": "", RUN: "AND t.worker_id IS NULL", WORKER: "AND t.worker_id IS NOT NULL"}[filters.kind]
    by = _actor(filters)
    if filters.actor.startswith("machine "):
        by += f" {_OF_A_MACHINE}"
    elif by and filters.actor != "scheduler":
        by += f" {_BY_A_PERSON}"
    if not filters.name:
        where = f"t.workspace_id = %(workspace)s {of_kind} {by}"
        return _NAMES_OF_MOVES.format(moves=_page("runs_transition", Source.MOVES, where, forward))
    ranked = _RANKED.fullmatch(filters.name)
    parameters["stems"] = _stems(filters.name) if ranked else []
    parameters["rank"] = int(ranked[2]) if ranked else None
    owners = []
    if filters.kind != WORKER:
        where = f"t.run_id = o.id AND t.worker_id IS NULL {by}"
        owners.append(f"SELECT t.* FROM named o, LATERAL ({_page('runs_transition', Source.MOVES, where, forward)}) t")
    if filters.kind != RUN:
        where = f"t.worker_id = o.id {by}"
        owners.append(
            f"SELECT t.* FROM workers o, LATERAL ({_page('runs_transition', Source.MOVES, where, forward)}) t"
        )
    how = _ORDER[forward]
    moves = f"SELECT * FROM ({' UNION ALL '.join(owners)}) u ORDER BY u.tx {how}, u.id {how} LIMIT %(limit)s"
    return f"""
        WITH named AS MATERIALIZED (
            SELECT id FROM runs_run WHERE workspace_id = %(workspace)s AND name = %(name)s),
        workers AS MATERIALIZED (
            SELECT w.id FROM named JOIN runs_worker w ON w.run_id = named.id
            UNION
            SELECT w.id FROM runs_run r JOIN runs_worker w ON w.run_id = r.id
            WHERE r.workspace_id = %(workspace)s AND r.name = ANY(%(stems)s::text[]) AND w.rank = %(rank)s::int
                AND w.name = %(name)s)
        {_NAMES_OF_MOVES.format(moves=moves)}
    """


def _stems(name: str) -> Sequence[str]:
    """The runs that a worker of this name may be of: `<run>-<rank>` or `<run>-<group>-<rank>`."""
    parts = name.split("-")
    return ["-".join(parts[:end]) for end in range(1, len(parts))]


def _machines(filters: Wanted, forward: bool) -> str:
    """Of the clusters that the workspace has a share of."""
    named = "AND t.machine_id IN (SELECT id FROM machines_machine WHERE name = %(name)s)" if filters.name else ""
    where = f"t.cluster_id = n.cluster_id {named} {_actor(filters)}"
    return f"""
        SELECT t.tx, 1, t.id, t.at, 'machine', m.name, NULL, c.slug, t.state, t.reason, t.actor, m.state <> 'Removed'
        FROM machines_namespace n JOIN machines_cluster c ON c.id = n.cluster_id,
            LATERAL ({_page("machines_machineevent", Source.MACHINES, where, forward)}) t
        JOIN machines_machine m ON m.id = t.machine_id
        WHERE n.workspace_id = %(workspace)s
    """


def _audit(filters: Wanted, forward: bool) -> str:
    named = "AND t.name = %(name)s" if filters.name else ""
    kind = "AND t.kind = %(kind)s" if filters.kind else ""
    where = f"t.workspace_id = %(workspace)s {named} {kind} {_actor(filters)}"
    return f"""
        SELECT t.tx, 2, t.id, t.at, t.kind, t.name, NULL, NULL, t.state, t.reason, t.actor, t.state <> 'Removed'
        FROM ({_page("tenancy_auditevent", Source.AUDIT, where, forward)}) t
    """


def _actor(filters: Wanted) -> str:
    return "AND t.actor = %(actor)s" if filters.actor else ""
