"""Where workers that differ fit at once, when placing them one after another finds no way. Pure.

The planner places the largest first, each where it fits best. Mostly that is enough; it is not where a worker that
could go anywhere takes the only machine that another may use. This is a depth-first search over all ways, the tightest
fit first, equal workers and equal machines tried once. It gives up after a number of looks: a placement that it finds
is valid, one that it does not find may exist.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from runs.scheduling.candidates import Candidates
from runs.scheduling.ledger import Ledger, lowest_bits
from runs.scheduling.types import Ask, WaitingWorker

LOOKS_PER_SEARCH = 20_000  # each at one machine for one worker: some ten milliseconds
LOOKS_PER_PASS = 100_000
WORKERS_MOST = 200


class Looks:
    """How many looks are left for all searches of a pass together."""

    def __init__(self, left: int = LOOKS_PER_PASS) -> None:
        self.left = left


def pack(workers: Sequence[Candidates], looks: Looks, without: Collection[int] = ()) -> list[tuple[int, int]] | None:
    """(which worker, its row), in the order in which to take room for them; None: no way was found.

    All look on one ledger, which stays as it is. `without`: rows that may not be used.
    """
    if len(workers) > WORKERS_MOST or looks.left <= 0 or all(one is workers[0] for one in workers):
        return None
    search = _Search(workers, min(looks.left, LOOKS_PER_SEARCH), without)
    found = search.place(0, 0)
    looks.left -= search.looks
    return list(zip(search.order, search.rows, strict=True)) if found else None


def in_turn(ledger: Ledger, workers: Iterable[Candidates], without: Collection[int] = ()) -> list[int]:
    """The rows that one worker after another takes, up to the first that finds none; the ledger stays as it is."""
    mark, rows = ledger.mark(), []
    for one in workers:
        row = one.best(without, as_known=False)
        if row is None:
            break
        ledger.take(ledger.choose(row, one.ask, one.place.kinds))
        rows.append(row)
    ledger.undo_to(mark)
    return rows


def largest_first(asks: Iterable[Ask]) -> list[Ask]:
    """In the order in which a gang's workers are placed: what is large finds room before what is small takes it."""
    return sorted(asks, key=size_of)


def workers_largest_first(workers: Iterable[WaitingWorker]) -> list[WaitingWorker]:
    return sorted(workers, key=lambda worker: size_of(worker.ask))


def size_of(ask: Ask) -> tuple[int, float, int, int]:
    """What sorts larger asks first; a node fraction before amounts."""
    return -ask.gpus, -(ask.node_fraction or 0), -ask.cpu_milli, -ask.memory_bytes


class _Free(NamedTuple):
    cpu_milli: int
    memory_bytes: int
    gpu_bits: int

    def without(self, need: "_Free") -> "_Free":
        return _Free(
            self.cpu_milli - need.cpu_milli, self.memory_bytes - need.memory_bytes, self.gpu_bits & ~need.gpu_bits
        )


class _Search:
    """`order`: the workers as they are tried, those first that the fewest machines can take, equal ones together."""

    def __init__(self, workers: Sequence[Candidates], most: int, without: Collection[int]) -> None:
        self.ledger, self.most, self.looks = workers[0].ledger, most, 0
        kinds = {id(one): one for one in workers}
        self._kind_number = {key: number for number, key in enumerate(kinds)}
        self._rows_of = {key: self._open_rows(one, without) for key, one in kinds.items()}
        self.order = sorted(range(len(workers)), key=lambda number: self._hardest(workers[number]))
        self._tried = [workers[number] for number in self.order]
        self.rows: list[int] = []
        takers = defaultdict[int, list[int]](list)
        for key, rows in self._rows_of.items():
            for row in rows:
                takers[row].append(key)
        self._takers = {row: tuple(keys) for row, keys in takers.items()}
        self._free = {row: self._free_on(row) for row in takers}

    def _open_rows(self, one: Candidates, without: Collection[int]) -> list[int]:
        closed = set(without)
        return [row for row in np.flatnonzero(one.room() & one.ledger.connected).tolist() if row not in closed]

    def _hardest(self, one: Candidates) -> tuple[int, tuple[int, float, int, int], int]:
        return len(self._rows_of[id(one)]), size_of(one.ask), self._kind_number[id(one)]

    def _free_on(self, row: int) -> _Free:
        ledger = self.ledger
        return _Free(int(ledger.free_cpu[row]), int(ledger.free_memory[row]), ~ledger.held[row])

    def place(self, number: int, first: int) -> bool:
        """Whether this worker and all after it fit; then their rows are in `rows`. `first`: earlier rows are skipped,
        since an equal worker before this one has tried them."""
        if number == len(self._tried):
            return True
        one = self._tried[number]
        is_equal = number + 1 < len(self._tried) and self._tried[number + 1] is one
        for row, need in self._ways(one, first):
            before = self._free[row]
            self._free[row] = before.without(need)
            self.rows.append(row)
            if self.place(number + 1, row if is_equal else 0):
                return True
            self.rows.pop()
            self._free[row] = before
        return False

    def _ways(self, one: Candidates, first: int) -> Iterator[tuple[int, _Free]]:
        """Rows that can take it, and what it takes there; of equal rows only the first. The tightest fit first."""
        known: dict[tuple[object, ...], tuple[int, _Free]] = {}
        for row in self._rows_of[id(one)]:
            if row < first:
                continue
            self.looks += 1
            if self.looks > self.most:
                return
            need = self._need(one, row)
            if need is not None:
                known.setdefault((self._free[row], self.ledger.healthy_bits[row], self._takers[row], need), (row, need))
        yield from sorted(known.values(), key=lambda way: self._left(*way))

    def _need(self, one: Candidates, row: int) -> _Free | None:
        ask: Ask = one.ask
        free = self._free[row]
        cpu_milli, memory_bytes = self.ledger.needs(ask, row)
        gpus = self.ledger.usable_gpus(row, one.place.kinds) & free.gpu_bits if ask.gpus else 0
        if cpu_milli > free.cpu_milli or memory_bytes > free.memory_bytes or ask.gpus > gpus.bit_count():
            return None
        return _Free(cpu_milli, memory_bytes, lowest_bits(gpus, ask.gpus))

    def _left(self, row: int, need: _Free) -> tuple[int, int, int, int]:
        free = self._free[row].without(need)
        gpus = sum((bits & free.gpu_bits).bit_count() for _, bits, _ in self.ledger.healthy_bits[row])
        return gpus, free.cpu_milli, free.memory_bytes, row
