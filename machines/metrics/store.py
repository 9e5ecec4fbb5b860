"""Samples in the console's own database: written in batches, read as numpy tables, deleted with the run or by age."""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
from django.conf import settings

from astraconsole.sql import execute, fetch_binary
from machines import protocol
from machines.metrics.align import PLANES, Array
from machines.metrics.lane import Frame
from machines.metrics.names import Metric, place_of, series_of
from machines.models import GpuUse, SampleBlock, SampleLayout, SampleRollUp

log = logging.getLogger(__name__)
MINUTE, TEN_MINUTES = 60, 600
SPANS = {0: 900.0, MINUTE: 1800.0, TEN_MINUTES: 86400.0}  # seconds that one block covers, at most
OLDEST_SECONDS = 900.0  # of a sample on arrival
FRESH_SECONDS = 60.0  # an older value is not the latest any more: it is unknown

Keys = tuple[int, ...]
Owners = Callable[[Collection[UUID]], Mapping[UUID, int]]  # attempt uid → id of the machine that it was placed on


@dataclass(frozen=True)
class Block:
    """Raw samples of one attempt, as they are written. `table`: a row for each time, which is its first column."""

    attempt: UUID
    machine_id: int
    keys: Keys
    table: Array


@dataclass(frozen=True)
class Piece:
    """Samples of one attempt as they were read: raw (`resolution` 0) or rolled up."""

    attempt: UUID
    keys: Keys
    table: Array
    resolution: int

    @property
    def times(self) -> Array:
        return self.table[:, 0]

    def columns(self, metric: Metric, plane: int) -> list[tuple[int | None, Array]]:
        """(GPU index, values) of each of the metric's series. `plane` is of a rolled table; a raw one has only one."""
        shift = 1 + (plane * len(self.keys) if self.resolution else 0)
        named = enumerate(map(series_of, self.keys))
        return [(found[1], self.table[:, shift + place]) for place, found in named if found and found[0] is metric]


# ---- writing ---------------------------------------------------------------------------------------------------------


def blocks_of(frames: Iterable[Frame], owners: Owners) -> list[Block]:
    """What machines sent, without what they may not speak for, what is too old, and what stands for nothing here."""
    found = [
        block
        for machine_id, received_at, frame in frames
        for item in _decoded(machine_id, frame).items
        if (block := _block(machine_id, received_at, item)) is not None
    ]
    owner = owners({block.attempt for block in found}) if found else {}
    return [block for block in found if owner.get(block.attempt) == block.machine_id]


def _decoded(machine_id: int, frame: bytes) -> protocol.Samples:
    try:
        return protocol.decode_samples(frame)
    except msgspec.DecodeError as error:
        log.warning("Samples of machine %s are dropped: %s", machine_id, error)
        return protocol.Samples()


def _block(machine_id: int, received_at: float, item: protocol.AttemptSamples) -> Block | None:
    wanted = [place for place, key in enumerate(item.keys) if series_of(key) is not None]
    keys = tuple(item.keys[place] for place in wanted)
    rows = [
        [received_at - row.seconds_ago, *(_value(row.values[place]) for place in wanted)]
        for row in item.rows
        if len(row.values) == len(item.keys) and row.seconds_ago <= OLDEST_SECONDS
    ]
    if not keys or not rows or len(set(keys)) < len(keys):
        return None
    table = np.array(rows)
    return Block(UUID(item.attempt), machine_id, keys, table[np.argsort(table[:, 0], kind="stable")])


def _value(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) and value >= 0 else math.nan


def write(blocks: Sequence[Block]) -> None:
    """Safe to repeat."""
    if blocks:
        insert(0, [(block.attempt, float(block.table[0, 0]), block.keys, block.table) for block in blocks])


def insert(part: int, rows: Sequence[tuple[UUID, float, Keys, Array]]) -> None:
    """(attempt, start, series, table) each: one statement. One that is there already stays as it is."""
    attempts, starts, keys, tables = zip(*rows, strict=True)
    ids = _layout_ids(set(keys))
    execute(
        """INSERT INTO machines_sampleblock (attempt, start, layout_id, resolution, "table")
        SELECT attempt, start, layout, %s, rows
        FROM unnest(%s::uuid[], %s::float8[], %s::bigint[], %s::bytea[]) AS b (attempt, start, layout, rows)
        ON CONFLICT DO NOTHING""",
        [
            part,
            list(attempts),
            list(starts),
            [ids[each] for each in keys],
            [table.tobytes() for table in tables],
        ],
    )


def write_gpu_use(frames: Iterable[Frame]) -> None:
    """What each machine said last of its GPUs."""
    newest: dict[int, tuple[float, list[protocol.GpuUse]]] = {}
    for machine_id, received_at, frame in frames:
        gpus = _decoded(machine_id, frame).gpus
        if gpus and received_at >= newest.get(machine_id, (0.0, []))[0]:
            newest[machine_id] = (received_at, gpus)
    if not newest:
        return
    told = [[_gpu_document(gpu) for gpu in gpus] for _, gpus in newest.values()]
    execute(
        """INSERT INTO machines_gpuuse (machine_id, at, gpus)
        SELECT said.id, said.at, said.gpus::jsonb
        FROM unnest(%s::bigint[], %s::timestamptz[], %s::text[]) AS said (id, at, gpus)
        JOIN machines_machine m ON m.id = said.id
        ON CONFLICT (machine_id) DO UPDATE SET at = excluded.at, gpus = excluded.gpus
        WHERE machines_gpuuse.at <= excluded.at""",
        [
            list(newest),
            [datetime.fromtimestamp(at, UTC) for at, _ in newest.values()],
            [msgspec.json.encode(gpus).decode() for gpus in told],
        ],
    )


def _gpu_document(gpu: protocol.GpuUse) -> dict[str, Any]:
    return {name: getattr(gpu, name) for name in ("index", "utilization", "memory_bytes", "processes")}


def _layout_ids(wanted: set[Keys]) -> dict[Keys, int]:
    """Made where they are missing. Workers of one kind share a layout: there are few, however many workers."""
    lists = [list(keys) for keys in wanted]
    known = _known_layouts(lists)
    if missing := wanted - known.keys():
        new = [SampleLayout(keys=list(keys)) for keys in missing]
        SampleLayout.objects.bulk_create(new, ignore_conflicts=True)
        known = _known_layouts(lists)
    return known


def _known_layouts(lists: list[list[int]]) -> dict[Keys, int]:
    return {tuple(keys): id for keys, id in SampleLayout.objects.filter(keys__in=lists).values_list("keys", "id")}


def forget(attempts: Collection[UUID]) -> None:
    """With the run that they are of."""
    SampleBlock.objects.filter(attempt__in=attempts).delete()


# ---- reading ---------------------------------------------------------------------------------------------------------


def part_of(resolution: int, metric: Metric) -> int:
    """How the rows of a metric are numbered: raw ones hold all metrics together, as they came; rolled up, each metric
    has rows of its own, so that a question about one of them reads no other."""
    return resolution + place_of(metric) if resolution else 0


def resolution_of(part: int) -> int:
    return TEN_MINUTES if part >= TEN_MINUTES else MINUTE if part else 0


def read(attempts: Collection[UUID], metric: Metric, start: float, end: float, resolution: int) -> list[Piece]:
    """What is stored of a metric of these attempts from `start` to `end`: rolled up to `resolution` as far as that
    goes, finer after it. One query for each resolution that is needed. In the order of time for each attempt."""
    pieces: list[Piece] = []
    for level, begin, stop in _parts(resolution, start, end):
        pieces += read_part(attempts, part_of(level, metric), begin, stop)
    return pieces


def _parts(resolution: int, start: float, end: float) -> list[tuple[int, float, float]]:
    """(resolution, from, to), coarsest and oldest first."""
    until = dict(SampleRollUp.objects.values_list("resolution", "until")) if resolution else {}
    parts, begin = [], start
    for level in (level for level in (TEN_MINUTES, MINUTE) if level <= resolution):
        stop = min(end, until.get(level, 0.0))
        if stop > begin:
            parts.append((level, begin, stop))
            begin = stop
    return [*parts, (0, begin, end)] if end > begin else parts


def read_part(attempts: Collection[UUID], part: int, begin: float, stop: float) -> list[Piece]:
    """What is stored under one number. One query."""
    level = resolution_of(part)
    rows = fetch_binary(
        """SELECT b.attempt, l.keys, b.rows FROM (
            SELECT attempt, layout_id, string_agg("table", ''::bytea ORDER BY start) AS rows
            FROM machines_sampleblock
            WHERE attempt = ANY(%s::uuid[]) AND resolution = %s AND start > %s AND start < %s
            GROUP BY attempt, layout_id
        ) b JOIN machines_samplelayout l ON l.id = b.layout_id""",
        [list(attempts), part, begin - SPANS[level], stop],
    )
    pieces = []
    for attempt, keys, data in rows:
        width = 1 + len(keys) * (PLANES if level else 1)
        table = np.frombuffer(data, dtype=np.float64).reshape(-1, width)
        inside = table[(table[:, 0] >= begin) & (table[:, 0] < stop)]
        if len(inside):
            pieces.append(Piece(attempt, tuple(keys), inside, level))
    return pieces


def oldest_kept(resolution: int, now: float) -> float:
    """From when on samples of a resolution are kept."""
    return now - {0: settings.METRICS_RAW_SECONDS, MINUTE: settings.METRICS_MINUTE_SECONDS}.get(
        resolution, settings.METRICS_TEN_MINUTE_SECONDS
    )


def latest(attempts: Collection[UUID], now: datetime) -> dict[UUID, dict[int, float]]:
    """The newest values of these attempts by series key; attempts of which nothing fresh is known are left out."""
    if not attempts:
        return {}
    rows = fetch_binary(
        """SELECT a.uid, l.keys, b.rows FROM unnest(%s::uuid[]) AS a (uid)
        CROSS JOIN LATERAL (
            SELECT layout_id, "table" AS rows FROM machines_sampleblock
            WHERE attempt = a.uid AND resolution = 0 AND start > %s ORDER BY start DESC LIMIT 1
        ) b JOIN machines_samplelayout l ON l.id = b.layout_id""",
        [list(attempts), now.timestamp() - FRESH_SECONDS - SPANS[0]],
    )
    found = {}
    for attempt, keys, data in rows:
        values = np.frombuffer(data, dtype=np.float64)[-1 - len(keys) :]
        if values[0] >= now.timestamp() - FRESH_SECONDS:
            found[attempt] = {key: float(value) for key, value in zip(keys, values[1:], strict=True) if value == value}
    return found


def gpu_use(machine_ids: Collection[int], now: datetime) -> dict[int, dict[int, dict[str, Any]]]:
    """By machine id and GPU index; machines that were not heard lately are left out."""
    fresh = GpuUse.objects.filter(machine__in=machine_ids, at__gte=now - timedelta(seconds=FRESH_SECONDS))
    return {pk: {gpu["index"]: gpu for gpu in gpus} for pk, gpus in fresh.values_list("machine", "gpus")}
