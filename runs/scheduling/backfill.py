"""Room kept for the first run that must wait (EASY backfill): when and where it starts, what others may use. Pure.

The time follows from the time limits of all that runs. Others may still go ahead where they cannot delay it: runs that
certainly end before (short ones) anywhere, all others (long ones) in what is left beside the reservation.
"""

from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

import numpy as np

from runs.scheduling.candidates import Candidates
from runs.scheduling.ledger import Ints, Ledger, Take, bits_of, lowest_bits
from runs.scheduling.packing import Looks, in_turn, pack
from runs.scheduling.types import Hold, Placement, Reservation
from runs.scheduling.victims import ends_soon

NEVER_ENDS = float("inf")
STOP_SECONDS = 30.0  # how long what has been told to stop may still take


class Release(NamedTuple):
    """Room that becomes free at a time, at the latest."""

    at: float
    row: int
    cpu_milli: int
    memory_bytes: int
    gpu_bits: int


def releases(
    ledger: Ledger, holds: Iterable[Hold], granted: Iterable[tuple[Placement, float | None]], now: float
) -> list[Release]:
    """All that is held, with the time of its end, first ends first. What never ends by itself comes last, machine by
    machine, the least of it first; so does what is free on a machine that is not connected. `granted`: what the pass
    itself has placed, with its run's time limit."""
    away = np.flatnonzero(ledger.takes_work & ~ledger.connected)
    found = [Release(NEVER_ENDS, int(row), 0, 0, 0) for row in away]
    for hold in holds:
        if (row := ledger.row_of.get(hold.machine_id)) is not None:
            bits = bits_of(hold.gpu_indexes)
            found.append(Release(_end(hold, now), row, hold.cpu_milli, hold.memory_bytes, bits))
    for placed, limit in granted:
        at = NEVER_ENDS if limit is None else now + limit
        row, bits = ledger.row_of[placed.machine_id], bits_of(placed.gpu_indexes)
        found.append(Release(at, row, placed.cpu_milli, placed.memory_bytes, bits))
    endless: dict[int, int] = {}
    for release in found:
        if release.at == NEVER_ENDS:
            endless[release.row] = endless.get(release.row, 0) + 1 + release.gpu_bits.bit_count()
    return sorted(found, key=lambda release: (release.at, endless.get(release.row, 0), release.row, release.gpu_bits))


def _end(hold: Hold, now: float) -> float:
    if ends_soon(hold, now):
        return now + STOP_SECONDS
    return NEVER_ENDS if hold.ends_by is None else max(hold.ends_by, now)


class Reserved:
    """A reservation, and a ledger of what is left beside it for long runs (`beside`).

    The pass's own ledger stays the truth about what is free now; after each take from it, `follow` brings `beside` in
    line: on reserved machines never more than the reservation leaves.
    """

    def __init__(self, ledger: Ledger, run_id: int, starts_by: float, rooms: dict[int, "_Kept"]) -> None:
        self.ledger = ledger
        self.starts_by = starts_by
        self.beside = ledger.copy()
        self._rooms = rooms
        ids = tuple(sorted(ledger.machines[row].id for row in rooms))
        self.reservation = Reservation(run_id, None if starts_by == NEVER_ENDS else starts_by, ids)
        for row in rooms:
            self._set(row)

    def is_short(self, ends_by: float) -> bool:
        """Whether something that ends by then cannot delay the reservation wherever it runs."""
        return ends_by <= self.starts_by < NEVER_ENDS

    def follow(self, taken: Take, long: bool, sign: int = 1) -> None:
        """The pass's ledger has just granted (sign 1) or given back (-1) this, to a long run or a short one."""
        kept = self._rooms.get(taken.row)
        if kept is not None and long:
            kept.cpu_left -= sign * taken.cpu_milli
            kept.memory_left -= sign * taken.memory_bytes
        self._set(taken.row)

    def follow_row(self, row: int) -> None:
        """What is free on the pass's ledger has changed, for a claim."""
        self._set(row)

    @property
    def rows(self) -> Set[int]:
        """The machines of the reservation."""
        return self._rooms.keys()

    def _set(self, row: int) -> None:
        free_cpu, free_memory = int(self.ledger.free_cpu[row]), int(self.ledger.free_memory[row])
        kept = self._rooms.get(row)
        if kept is None:
            self.beside.set_free(row, free_cpu, free_memory, self.ledger.held[row])
        else:
            held = self.ledger.held[row] | kept.gpu_bits
            self.beside.set_free(row, min(free_cpu, kept.cpu_left), min(free_memory, kept.memory_left), held)


class _Kept:
    """A machine of the reservation: the GPUs it will use, and the cores and memory it leaves once it has started."""

    def __init__(self, gpu_bits: int, cpu_left: int, memory_left: int) -> None:
        self.gpu_bits = gpu_bits
        self.cpu_left = cpu_left
        self.memory_left = memory_left


def reserve(
    run_id: int,
    workers: Sequence[Candidates],
    ends: Sequence[Release],
    without: Iterable[int],
    distinct: bool,
    looks: Looks,
) -> Reserved | None:
    """The earliest time at which all workers fit together, and where; None if they do not even when all has ended.

    `workers`: the candidates of each, in the order in which they are placed. `without`: rows that the run may not use.
    """
    first = workers[0]
    if any(other is not first for other in workers):
        return _reserve_mixed(run_id, workers, ends, frozenset(without), looks)
    search = _Search(first, len(workers), distinct, set(without))
    if not search.run(ends):
        return None
    return Reserved(first.ledger, run_id, search.at, search.rooms())


class _Search:
    """Lets holds end one after another until the workers fit."""

    def __init__(self, candidates: Candidates, wanted: int, distinct: bool, without: set[int]) -> None:
        self.candidates, self.ledger = candidates, candidates.ledger
        self.wanted, self.distinct, self.without = wanted, distinct, without
        self.at = 0.0
        self.free: dict[int, tuple[int, int, int]] = {}  # row → cores, memory, GPU bits free, where something ended
        self.fits = self._fits_now()

    def _fits_now(self) -> Ints:
        """How many workers each machine holds beside all that runs."""
        fits = np.zeros(len(self.ledger.machines), dtype=np.int64)
        for row in np.flatnonzero(self.candidates.room() & self.ledger.connected):
            fits[row] = self._count(int(row), *self._free_on(int(row)))
        return fits

    def _free_on(self, row: int) -> tuple[int, int, int]:
        if row in self.free:
            return self.free[row]
        ledger = self.ledger
        usable = ledger.usable_gpus(row, self.candidates.place.kinds)
        return int(ledger.free_cpu[row]), int(ledger.free_memory[row]), usable & ~ledger.held[row]

    def _count(self, row: int, cpu_milli: int, memory_bytes: int, gpu_bits: int) -> int:
        if row in self.without:
            return 0
        ask = self.candidates.ask
        need_cpu, need_memory = self.ledger.needs(ask, row)
        limits = [self.wanted, 1 if self.distinct else self.wanted]
        if ask.gpus:
            limits.append(gpu_bits.bit_count() // ask.gpus)
        if need_cpu:
            limits.append(cpu_milli // need_cpu)
        if need_memory:
            limits.append(memory_bytes // need_memory)
        return max(0, min(limits))

    def run(self, ends: Sequence[Release]) -> bool:
        """Whether all workers fit at some time; then `at` is the first such time."""
        total = int(self.fits.sum())
        position = 0
        while total < self.wanted and position < len(ends):
            self.at = ends[position].at
            # One by one even at one time: of what never ends, no more is counted on than is needed.
            release = ends[position]
            position += 1
            if not self.candidates.place.open[release.row]:
                continue
            cpu_milli, memory_bytes, gpu_bits = self._free_on(release.row)
            gpu_bits |= release.gpu_bits & self.ledger.usable_gpus(release.row, self.candidates.place.kinds)
            after = (cpu_milli + release.cpu_milli, memory_bytes + release.memory_bytes, gpu_bits)
            self.free[release.row] = after
            count = self._count(release.row, *after)
            total += count - int(self.fits[release.row])
            self.fits[release.row] = count
        return total >= self.wanted

    def rooms(self) -> dict[int, _Kept]:
        """The machines to keep, those that hold most workers first."""
        rooms: dict[int, _Kept] = {}
        left = self.wanted
        for row in np.argsort(-self.fits, kind="stable"):
            workers = min(left, int(self.fits[row]))
            if not workers:
                break
            rooms[int(row)] = self._keep(int(row), workers)
            left -= workers
        return rooms

    def _keep(self, row: int, workers: int) -> _Kept:
        """GPUs in use now are kept first: those free now stay open to long runs."""
        ask = self.candidates.ask
        cpu_milli, memory_bytes, gpu_bits = self._free_on(row)
        need_cpu, need_memory = self.ledger.needs(ask, row)
        count = workers * ask.gpus
        in_use = gpu_bits & self.ledger.held[row]
        first = lowest_bits(in_use, min(count, in_use.bit_count()))
        kept = first | lowest_bits(gpu_bits & ~first, count - first.bit_count())
        return _Kept(kept, cpu_milli - workers * need_cpu, memory_bytes - workers * need_memory)


# ---- workers that differ ---------------------------------------------------------------------------------------------


def _reserve_mixed(
    run_id: int, workers: Sequence[Candidates], ends: Sequence[Release], without: Set[int], looks: Looks
) -> Reserved | None:
    """The same for workers of which none can stand for the others: they are placed as the pass would, on what is free
    once so many holds have ended. How many must is searched by halving."""
    ledger = workers[0].ledger
    too_few, enough = -1, len(ends)
    rooms = _placed_after(ledger, workers, ends, without, looks)
    if rooms is None:
        return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        found = _placed_after(ledger, workers, ends[:middle], without, looks)
        if found is None:
            too_few = middle
        else:
            enough, rooms = middle, found
    return Reserved(ledger, run_id, ends[enough - 1].at if enough else 0.0, rooms)


def _placed_after(
    ledger: Ledger, workers: Sequence[Candidates], ended: Iterable[Release], without: Set[int], looks: Looks
) -> dict[int, _Kept] | None:
    """The machines to keep, were these holds gone; None if not all workers fit then."""
    later = ledger.copy()
    _let_end(later, ended)
    twins = {id(one): one.beside(later) for one in workers}
    there = [twins[id(one)] for one in workers]
    rows = in_turn(later, there, without)
    if len(rows) < len(there):
        packed = pack(there, looks, without)
        if packed is None:
            return None
        there, rows = [there[number] for number, _ in packed], [row for _, row in packed]
    return _keep(later, there, rows)


def _keep(ledger: Ledger, workers: Sequence[Candidates], rows: Sequence[int]) -> dict[int, _Kept]:
    kept: dict[int, _Kept] = {}
    for one, row in zip(workers, rows, strict=True):
        taken = ledger.choose(row, one.ask, one.place.kinds)
        ledger.take(taken)
        bits = kept[row].gpu_bits if row in kept else 0
        kept[row] = _Kept(bits | taken.gpu_bits, int(ledger.free_cpu[row]), int(ledger.free_memory[row]))
    return kept


def _let_end(ledger: Ledger, ended: Iterable[Release]) -> None:
    rows: dict[int, tuple[int, int, int]] = {}
    for release in ended:
        cpu_milli, memory_bytes, bits = rows.get(release.row, (0, 0, 0))
        rows[release.row] = (
            cpu_milli + release.cpu_milli,
            memory_bytes + release.memory_bytes,
            bits | release.gpu_bits,
        )
    ledger.connected = ledger.connected.copy()
    for row, (cpu_milli, memory_bytes, bits) in rows.items():
        ledger.connected[row] = True
        free_cpu, free_memory = int(ledger.free_cpu[row]) + cpu_milli, int(ledger.free_memory[row]) + memory_bytes
        ledger.set_free(row, free_cpu, free_memory, ledger.held[row] & ~bits)
