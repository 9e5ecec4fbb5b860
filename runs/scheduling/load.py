"""One cluster's rows → Snapshot, in one statement.

One statement sees one snapshot of the database, as a REPEATABLE READ transaction would, while the transaction around it
stays READ COMMITTED: it holds the scheduler's lock, and its writes must see what others have committed meanwhile. The
answer is one JSON text, decoded into typed rows in one go: 10,000 waiting runs take milliseconds, not model instances.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
from django.db import connection

from runs.scheduling.load_sql import INVENTORY, SNAPSHOT
from runs.scheduling.shapes import constraints_of, split_ask
from runs.scheduling.types import (
    Ask,
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

WORKERS_LOADED = 2000  # of one group of one run: what a pass can place at most


class _MachineRow(msgspec.Struct, array_like=True):
    id: int
    name: str
    cpu_milli: int
    memory_bytes: int
    ready: bool
    cordoned: bool
    labels: msgspec.Raw
    gpus: msgspec.Raw


class _HoldRow(msgspec.Struct, array_like=True):
    run_id: int
    namespace_id: int
    machine_id: int
    cpu_milli: int
    memory_bytes: int
    gpu_indexes: tuple[int, ...]
    priority: int
    started_at: float
    time_limit: float | None
    stopping: bool


class _NamespaceRow(msgspec.Struct, array_like=True):
    id: int
    weight: float
    quota_gpus: int | None
    quota_cpu_milli: int | None
    quota_memory_bytes: int | None
    quota_runs: int | None
    pools: tuple[str, ...]


class _WaitingRow(msgspec.Struct, array_like=True):
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
    stated: bool
    gpus: int
    cpu_milli: int
    memory_bytes: int
    node_fraction: float | None
    worker_ids: tuple[int, ...]
    workers: int
    placed: int
    started: bool


class _Rows(msgspec.Struct):
    machines: list[_MachineRow]
    holds: list[_HoldRow] = []
    namespaces: list[_NamespaceRow] = []
    waiting: list[_WaitingRow] = []


_decode = msgspec.json.Decoder(_Rows).decode
_decode_numbers = msgspec.json.Decoder(dict[str, int | float | str | list[str]]).decode


def load_snapshot(cluster_id: int, run_id: int | None = None) -> Snapshot:
    """All that a plan for this cluster depends on; with `run_id`, of what waits that run alone."""
    rows = _fetch(SNAPSHOT, {"cluster": cluster_id, "workers": WORKERS_LOADED, "run": run_id})
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
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return _decode(cursor.fetchone()[0])


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
            cordoned=row.cordoned,
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
        row.stopping,
    )


def _namespace(row: _NamespaceRow) -> NamespaceView:
    return NamespaceView(
        row.id, row.weight, row.quota_gpus, row.quota_cpu_milli, row.quota_memory_bytes, row.quota_runs
    )


def _waiting_runs(rows: Sequence[_WaitingRow], pools: dict[int, tuple[str, ...]]) -> Iterable[WaitingRun]:
    """`rows`: a run's rows stand together, in rank order."""
    asks: dict[tuple[int, int, int, float | None, Constraints], Ask] = {}
    position = 0
    while position < len(rows):
        first, workers, placed = rows[position], [], 0
        while position < len(rows) and rows[position].run_id == first.run_id:
            row = rows[position]
            ask = _ask(row, pools[row.namespace_id], asks)
            workers += [WaitingWorker(worker_id, ask) for worker_id in row.worker_ids]
            placed += row.placed
            position += 1
        if workers or not first.workers:
            yield _waiting_run(first, tuple(workers), placed, pools[first.namespace_id])


def _ask(
    row: _WaitingRow, pools: tuple[str, ...], asks: dict[tuple[int, int, int, float | None, Constraints], Ask]
) -> Ask:
    constraints = _constraints(bytes(row.node_selection), bytes(row.resources), pools)
    key = (row.gpus, row.cpu_milli, row.memory_bytes, row.node_fraction, constraints)
    return asks.get(key) or asks.setdefault(key, Ask(*key))


def _waiting_run(
    row: _WaitingRow, workers: tuple[WaitingWorker, ...], placed: int, pools: tuple[str, ...]
) -> WaitingRun:
    can_split = not row.stated and not row.started
    return WaitingRun(
        id=row.run_id,
        namespace_id=row.namespace_id,
        queued_at=row.queued_at,
        workers=workers,
        priority=row.priority,
        gang=row.gang,
        distinct_machines=row.machines is not None,
        parallelism=row.parallelism,
        placed=placed,
        time_limit=row.time_limit,
        split=_split(bytes(row.node_selection), bytes(row.resources), pools) if can_split else None,
        planned=row.workers,
        stored=Refusal(row.pending_code, _decode_numbers(row.pending_numbers)) if row.pending_code else None,
    )


@lru_cache(maxsize=16384)
def _constraints(node_selection: bytes, resources: bytes, pools: tuple[str, ...]) -> Constraints:
    return constraints_of(_spec_of(node_selection, resources), "", pools)


@lru_cache(maxsize=16384)
def _split(node_selection: bytes, resources: bytes, pools: tuple[str, ...]) -> SplitAsk | None:
    return split_ask(_spec_of(node_selection, resources), pools)


def _spec_of(node_selection: bytes, resources: bytes) -> RunSpec:
    """The part of a specification that placing depends on; the rest of it is never loaded."""
    template = {"image": "any", "requested_resources": msgspec.json.decode(resources)}
    return load_spec({"task_template": template, "node_selection": msgspec.json.decode(node_selection)})
