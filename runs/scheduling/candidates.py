"""The machines that have room for one ask, scored, and kept current while a pass grants room. Pure."""

from collections.abc import Collection

import numpy as np

from runs.scheduling.feasible import Feasibility, count_gpus, need_of
from runs.scheduling.ledger import Ledger
from runs.scheduling.rank import score
from runs.scheduling.types import Ask

# Past this share of rows touched since the last look, working out all rows at once is cheaper than one by one.
_RESCORE_ALL = 0.05
NO_ROOM = np.inf


class Candidates:
    """`ever`, `available`: masks of the machines that could take the ask if empty, and that take work now.

    `best` looks on one ledger, that of the pass until told otherwise (`look_on`).
    """

    def __init__(self, feasibility: Feasibility, ask: Ask) -> None:
        self.feasibility = feasibility
        self.ledger = feasibility.ledger
        self.need = need_of(self.ledger, ask)
        self.ever = feasibility.ever(self.need)
        self.can_ever = bool(self.ever.any())
        self.available = feasibility.available(self.need, self.ever)
        self.is_available = bool(self.available.any())
        self._seen = 0
        self._without_room_at = -1  # how much had changed when there was none
        self._scores: np.ndarray | None = None

    def look_on(self, ledger: Ledger) -> "Candidates":
        """The same machines, as they are on another ledger."""
        twin = Candidates.__new__(Candidates)
        twin.__dict__ |= self.__dict__
        twin.ledger, twin._scores, twin._without_room_at = ledger, None, -1
        return twin

    def best(self, without: Collection[int] = ()) -> int | None:
        """The row to take, or None if no machine has room. `without`: rows that may not be used."""
        if not self.is_available or self._without_room_at == len(self.ledger.changes):
            return None
        if self._scores is None:
            self._scores = self._score_all()
        self._catch_up()
        scores = self._scores
        if without:
            scores = scores.copy()
            scores[list(without)] = NO_ROOM
        row = int(scores.argmin())
        if scores[row] < NO_ROOM:
            return row
        if not without:
            self._without_room_at = len(self.ledger.changes)
        return None

    def _catch_up(self) -> None:
        assert self._scores is not None
        changes = self.ledger.changes
        stale = len(changes) - self._seen
        if not stale:
            return
        if stale > 8 + _RESCORE_ALL * len(self.ledger.machines):
            self._scores = self._score_all()
        else:
            for row in set(changes[self._seen :]):
                self._scores[row] = self._score_one(row)
            self._seen = len(changes)

    def _score_all(self) -> np.ndarray:
        self._seen = len(self.ledger.changes)
        ledger, need = self.ledger, self.need
        room = self.feasibility.room(ledger, need, self.available)
        if not room.any():
            return np.full(len(room), NO_ROOM)
        cpu_left = (ledger.free_cpu - need.cpu_milli) / ledger.cpu_or_one
        memory_left = (ledger.free_memory - need.memory_bytes) / ledger.memory_or_one
        scores = score((ledger.free_gpus_in_all - need.ask.gpus).astype(np.float64), cpu_left, memory_left)
        return np.where(room, scores, NO_ROOM)

    def _score_one(self, row: int) -> float:
        if not self.available[row]:
            return NO_ROOM
        ledger, need = self.ledger, self.need
        cpu_milli, memory_bytes = ledger.needs(need.ask, row)
        cpu_left = int(ledger.free_cpu[row]) - cpu_milli
        memory_left = int(ledger.free_memory[row]) - memory_bytes
        if cpu_left < 0 or memory_left < 0:
            return NO_ROOM
        if need.ask.gpus and count_gpus(ledger.free_gpus[:, row : row + 1], need.kinds)[0] < need.ask.gpus:
            return NO_ROOM
        gpus_left = int(ledger.free_gpus_in_all[row]) - need.ask.gpus
        return score(
            float(gpus_left), cpu_left / int(ledger.cpu_or_one[row]), memory_left / int(ledger.memory_or_one[row])
        )
