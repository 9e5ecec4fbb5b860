"""The machines that have room for one ask, scored, and kept current while a pass grants room. Pure."""

from collections.abc import Collection
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from runs.scheduling.feasible import Level, Need, count_gpus, first_emptying, need_of
from runs.scheduling.ledger import Ints, Ledger
from runs.scheduling.places import Places
from runs.scheduling.rank import all_stranded, score, stranded
from runs.scheduling.types import Ask, Refusal

# Past this share of rows touched since the last look, working out all rows at once is cheaper than one by one.
_RESCORE_ALL = 0.05
NO_ROOM = np.inf


class Candidates:
    """`can_ever`, `is_open`: whether some machine could hold the ask if empty; as machines take work now.

    `best` looks on one ledger, that of the pass until told otherwise (`beside`). Scores are kept from the second look
    on: most asks are looked for once.
    """

    def __init__(self, places: Places, ask: Ask) -> None:
        self.places, self.ask = places, ask
        self.ledger = places.ledger
        self.place = places.of(ask.constraints)
        self.can_ever = self.place.can_ever(ask)
        self.is_open = self.place.is_open(ask)
        self.full = self.place.full
        self._need: Need | None = None
        self._looks = 0
        self._seen = 0
        self._without_room_at = -1  # how much had changed when there was none
        self._scores: NDArray[np.float64] | None = None

    @property
    def need(self) -> Need:
        """No `cached_property`: that would give each of 10,000 of these a dictionary, for the collector to visit."""
        if self._need is None:
            self._need = need_of(self.places.ledger, self.ask)
        return self._need

    @cached_property
    def never(self) -> Refusal:
        """Why it could not run if every machine were empty, ready and in good health."""
        code, numbers = first_emptying(self.places.ledger, self.need, Level.EVER)
        return Refusal(f"never_{code}", numbers)

    @cached_property
    def closed(self) -> Refusal:
        """Why no machine that could hold it takes it now, however empty."""
        code, numbers = first_emptying(self.places.ledger, self.need, Level.AVAILABLE)
        return Refusal(f"unavailable_{code}", numbers)

    def beside(self, ledger: Ledger) -> "Candidates":
        """The same machines, as they are on the ledger beside the reservation."""
        twin = Candidates(self.places, self.ask)
        twin.ledger, twin.full = ledger, self.place.full_beside
        return twin

    def best(self, without: Collection[int] = (), settled: bool = True, as_known: bool = True) -> int | None:
        """The row to take, or None if no machine has room. `without`: rows that may not be used. `settled`: what has
        been taken so far will not be undone. `as_known`: no room was given back since others found none."""
        ledger = self.ledger
        if (
            not self.is_open
            or self._without_room_at == len(ledger.changes)
            or (as_known and self.full.covers(self.ask))
        ):
            return None
        self._looks += 1
        row = self._first_look() if self._looks == 1 and not without else self._look_again(without)
        if row is None and not without:
            self._without_room_at = len(ledger.changes)
            if settled and as_known:
                self.full.add(self.ask)
        return row

    def _first_look(self) -> int | None:
        room = self.room() & self.ledger.connected
        if not self.ask.constraints.names:
            room &= self.ledger.worth_a_look
        rows = np.flatnonzero(room)
        return int(rows[self._score(rows).argmin()]) if rows.size else None

    def _look_again(self, without: Collection[int]) -> int | None:
        self._catch_up()
        assert self._scores is not None
        scores = self._scores
        if without:
            scores = scores.copy()
            scores[list(without)] = NO_ROOM
        row = int(scores.argmin())
        return row if scores[row] < NO_ROOM else None

    def _catch_up(self) -> None:
        changes = self.ledger.changes
        stale = len(changes) - self._seen
        if self._scores is None or stale > 8 + _RESCORE_ALL * len(self.ledger.machines):
            rows = np.flatnonzero(self.room() & self.ledger.connected)
            self._scores = np.full(len(self.ledger.machines), NO_ROOM)
            self._scores[rows] = self._score(rows)
        else:
            for row in set(changes[self._seen :]):
                self._scores[row] = self._score_one(row)
        self._seen = len(changes)

    def room(self) -> NDArray[np.bool_]:
        """Where it fits now, also where nobody is connected. What is free is never more than the machine has, in good
        health: only that is asked."""
        ledger, need = self.ledger, self.need
        room = ledger.free_cpu >= need.cpu_milli
        room &= self.place.open
        room &= ledger.free_memory >= need.memory_bytes
        if self.ask.gpus:
            room &= self._free_gpus() >= self.ask.gpus
        return room

    def _free_gpus(self) -> Ints:
        kinds, ledger = self.place.kinds, self.ledger
        return ledger.free_gpus_in_all if len(kinds) == len(ledger.kinds) else count_gpus(ledger.free_gpus, kinds)

    def _score(self, rows: Ints) -> NDArray[np.float64]:
        ledger, need = self.ledger, self.need
        cpu_milli = need.cpu_milli if isinstance(need.cpu_milli, int) else need.cpu_milli[rows]
        memory_bytes = need.memory_bytes if isinstance(need.memory_bytes, int) else need.memory_bytes[rows]
        cpu_left, memory_left = ledger.free_cpu[rows] - cpu_milli, ledger.free_memory[rows] - memory_bytes
        gpus_left = (ledger.free_gpus_in_all[rows] - self.ask.gpus).astype(np.float64)
        more_stranded = all_stranded(gpus_left, cpu_left, memory_left, ledger.beside) - ledger.stranded[rows]
        missing = ledger.missing(self.ask.constraints.data)[rows]
        return score(gpus_left, cpu_left / ledger.most_cpu, memory_left / ledger.most_memory, more_stranded, missing)

    def _score_one(self, row: int) -> float:
        ledger, ask = self.ledger, self.ask
        if not (self.place.open[row] and ledger.connected[row]):
            return NO_ROOM
        cpu_milli, memory_bytes = ledger.needs(ask, row)
        cpu_left = int(ledger.free_cpu[row]) - cpu_milli
        memory_left = int(ledger.free_memory[row]) - memory_bytes
        if cpu_left < 0 or memory_left < 0:
            return NO_ROOM
        free = ledger.usable_gpus(row, self.place.kinds) & ~ledger.held[row]
        if free.bit_count() < ask.gpus:
            return NO_ROOM
        gpus_left = int(ledger.free_gpus_in_all[row]) - ask.gpus
        more = stranded(gpus_left, cpu_left, memory_left, ledger.beside) - float(ledger.stranded[row])
        missing = float(ledger.missing(ask.constraints.data)[row])
        return score(float(gpus_left), cpu_left / ledger.most_cpu, memory_left / ledger.most_memory, more, missing)
