"""One cluster's rows → Snapshot, in one statement.

One statement sees one snapshot of the database, as a REPEATABLE READ transaction would, while the transaction around it
stays READ COMMITTED: it holds the scheduler's lock, and its writes must see what others have committed meanwhile. The
answer is one JSON text, decoded into typed rows in one go: 10,000 waiting runs take milliseconds, not model instances.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TypeAlias

import msgspec
from pydantic import ValidationError as SpecError

from astraconsole.sql import fetch
from runs.scheduling.load_sql import INVENTORY, MOUNTED, SNAPSHOT
from runs.scheduling.shapes import constraints_of, split_ask
from runs.scheduling.types import (
    Ask,
    Claim,
    Constraints,
    GpuView,
    Hold,
    MachineView,
    NamespaceView,
    Refusal,
    Snapshot,
    SplitAsk,
    WaitingRun,
    WaitingWorker,
)
from runs.spec import RunSpec, load_spec

_Asks: TypeAlias = dict[tuple[int, int, int, float | None, Constraints], Ask]
log = logging.getLogger(__name__)
NOTHING_MOUNTED = b"[null, null, null, null]"
WORKERS_LOADED = 2000  # of one group of one run, but of gangs all: what a pass can place at most


class _MachineRow(msgspec.Struct, array_like=True, gc=False):
    id: int
    name: str
    cpu_milli: int
    memory_bytes: int
    ready: bool
    connected: bool
    cordoned: bool
    draining: bool
    cordon_reason: str
    runs_containers: bool
    data: tuple[str, ...]
    labels: msgspec.Raw
    gpus: msgspec.Raw


class _HoldRow(msgspec.Struct, array_like=True, gc=False):
    run_id: int
    namespace_id: int
    machine_id: int
    cpu_milli: int
    memory_bytes: int
    gpu_indexes: tuple[int, ...]
    priority: int
    started_at: float
    time_limit: float | None
    stopping_since: float | None


class _NamespaceRow(msgspec.Struct, array_like=True, gc=False):
    id: int
    weight: float
    quota_gpus: int | None
    quota_cpu_milli: int | None
    quota_memory_bytes: int | None
    quota_runs: int | None
    pools: tuple[str, ...]


class _WaitingRow(msgspec.Struct, array_like=True, gc=False):
    """One group of equal workers of one run; a run without workers has one row without ids."""

    run_id: int
    namespace_id: int
    priority: int
    queued_at: float
    pending_code: str
    pending_numbers: msgspec.Raw
    machines: int | None
    parallelism: int | None
    gang: bool
    time_limit: float | None
    node_selection: msgspec.Raw
    resources: msgspec.Raw
    mounted: msgspec.Raw
    stated: bool
    gpus: int
    cpu_milli: int
    memory_bytes: int
    node_fraction: float | None
    worker_ids: tuple[int, ...]
    workers: int
    placed: int
    started: bool
    first_rank: int
    claim: Claim | None


class _Rows(msgspec.Struct):
    machines: list[_MachineRow]
    holds: list[_HoldRow] = []
    namespaces: list[_NamespaceRow] = []
    waiting: list[_WaitingRow] = []


_decode = msgspec.json.Decoder(_Rows).decode
_decode_numbers = msgspec.json.Decoder(dict[str, int | float | str | list[str]]).decode


def load_snapshot(cluster_id: int, about: int | None = None, from_priority: int | None = None) -> Snapshot:
    """All that a plan for this cluster depends on. `about`: of what waits only this run (0: none), those that room is
    kept for, new ones of higher priority, and, with `from_priority`, all of at least this priority."""
    parameters = {"cluster": cluster_id, "workers": WORKERS_LOADED, "about": about, "from_priority": from_priority}
    rows = _fetch(SNAPSHOT, parameters)
    pools = {namespace.id: namespace.pools for namespace in rows.namespaces}
    return Snapshot(
        machines=_machines(rows.machines),
        holds=tuple(_hold(row) for row in rows.holds),
        namespaces=tuple(_namespace(row) for row in rows.namespaces),
        waiting=tuple(_waiting_runs(rows.waiting, pools)),
    )


def load_inventory(cluster_id: int) -> tuple[MachineView, ...]:
    """The cluster's machines alone: what planning a run's workers depends on."""
    return _machines(_fetch(INVENTORY, {"cluster": cluster_id}).machines)


def _fetch(sql: str, parameters: dict[str, int | None]) -> _Rows:
    """Prepared by the server once per connection: planning this statement takes as long as a small cluster's answer."""
    return _decode(fetch(sql, parameters)[0][0])


def _machines(rows: Iterable[_MachineRow]) -> tuple[MachineView, ...]:
    return tuple(
        MachineView(
            id=row.id,
            name=row.name,
            cpu_milli=row.cpu_milli,
            memory_bytes=row.memory_bytes,
            gpus=_gpus(bytes(row.gpus)),
            labels=_labels(bytes(row.labels)),
            ready=row.ready,
            connected=row.connected,
            cordoned=row.cordoned,
            draining=row.draining,
            cordon_reason=row.cordon_reason,
            runs_containers=row.runs_containers,
            data=row.data,
        )
        for row in rows
    )


@lru_cache(maxsize=4096)
def _gpus(text: bytes) -> tuple[GpuView, ...]:
    return tuple(GpuView(*gpu) for gpu in msgspec.json.decode(text, type=list[tuple[int, str, int, bool]]))


@lru_cache(maxsize=4096)
def _labels(text: bytes) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(msgspec.json.decode(text, type=dict[str, str]).items()))


def _hold(row: _HoldRow) -> Hold:
    ends_by = None if row.time_limit is None else row.started_at + row.time_limit
    return Hold(
        row.run_id,
        row.namespace_id,
        row.machine_id,
        row.cpu_milli,
        row.memory_bytes,
        row.gpu_indexes,
        row.priority,
        row.started_at,
        ends_by,
        row.stopping_since,
    )


def _namespace(row: _NamespaceRow) -> NamespaceView:
    return NamespaceView(
        row.id, row.weight, row.quota_gpus, row.quota_cpu_milli, row.quota_memory_bytes, row.quota_runs
    )


def _waiting_runs(rows: Sequence[_WaitingRow], pools: dict[int, tuple[str, ...]]) -> Iterable[WaitingRun]:
    asks: _Asks = {}
    rows = sorted(rows, key=attrgetter("run_id", "first_rank"))
    position = 0
    while position < len(rows):
        end = position + 1
        while end < len(rows) and rows[end].run_id == rows[position].run_id:
            end += 1
        try:
            run = _waiting_run(rows[position:end], pools[rows[position].namespace_id], asks)
        except SpecError:
            log.exception("Run %s is left waiting: its specification cannot be read", rows[position].run_id)
        else:
            if run.workers or not run.planned:
                yield run
        position = end


def _waiting_run(rows: Sequence[_WaitingRow], pools: tuple[str, ...], asks: _Asks) -> WaitingRun:
    first = rows[0]
    workers: list[WaitingWorker] = []
    for row in rows:
        ask = _ask(row, pools, asks)
        workers += [WaitingWorker(worker_id, ask) for worker_id in row.worker_ids]
    can_split = not first.stated and not first.started
    return WaitingRun(
        id=first.run_id,
        namespace_id=first.namespace_id,
        queued_at=first.queued_at,
        workers=tuple(workers),
        priority=first.priority,
        gang=first.gang,
        distinct_machines=first.machines is not None,
        parallelism=first.parallelism,
        placed=sum(row.placed for row in rows),
        time_limit=_longest([row.time_limit for row in rows]),
        split=_split(*_texts(first), pools) if can_split else None,
        planned=sum(row.workers for row in rows),
        again=first.gang and any(row.started for row in rows),
        stored=Refusal(first.pending_code, _decode_numbers(first.pending_numbers)) if first.pending_code else None,
        claim=first.claim,
    )


def _longest(limits: Sequence[float | None]) -> float | None:
    """Of the groups' time limits; None: one of them has none."""
    known = [limit for limit in limits if limit is not None]
    return max(known) if len(known) == len(limits) else None


def _ask(row: _WaitingRow, pools: tuple[str, ...], asks: _Asks) -> Ask:
    """Equal asks are one object: comparing them is then free."""
    constraints = _constraints(*_texts(row), pools, row.namespace_id if bytes(row.mounted) != NOTHING_MOUNTED else 0)
    key = (row.gpus, row.cpu_milli, row.memory_bytes, row.node_fraction, constraints)
    return asks.get(key) or asks.setdefault(key, Ask(*key))


def _texts(row: _WaitingRow) -> tuple[bytes, bytes, bytes]:
    return bytes(row.node_selection), bytes(row.resources), bytes(row.mounted)


@lru_cache(maxsize=16384)
def _constraints(
    node_selection: bytes, resources: bytes, mounted: bytes, pools: tuple[str, ...], namespace_id: int
) -> Constraints:
    return constraints_of(_spec_of(node_selection, resources, mounted), "", pools, namespace_id)


@lru_cache(maxsize=16384)
def _split(node_selection: bytes, resources: bytes, mounted: bytes, pools: tuple[str, ...]) -> SplitAsk | None:
    return split_ask(_spec_of(node_selection, resources, mounted), pools)


def _spec_of(node_selection: bytes, resources: bytes, mounted: bytes) -> RunSpec:
    """The part of a specification that placing depends on; the rest of it is never loaded."""
    template = {"image": "any", "requested_resources": msgspec.json.decode(resources)}
    *refs, engine = msgspec.json.decode(mounted) or [None] * (len(MOUNTED) + 1)
    template |= {name: given for name, given in zip(MOUNTED, refs, strict=True) if given is not None}
    selection = msgspec.json.decode(node_selection)
    return load_spec({"task_template": template, "node_selection": selection, "engine": engine})
