"""Among idle machines of one kind the first stands for all. Pure.

Most asks are placed once, and on a cluster that is mostly idle nearly all machines that fit are alike: scoring each for
each ask would cost machines × runs.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray


class Idle:
    """`worth_a_look`: the rows to score, by row: the busy ones, and of each kind the first idle one."""

    def __init__(self, kinds: Sequence[Hashable], idle: Sequence[bool]) -> None:
        numbers: dict[Hashable, int] = {}
        self._kind_of = [numbers.setdefault(kind, len(numbers)) for kind in kinds]
        self._idle = list(idle)
        self._queues: list[list[int]] = [[] for _ in numbers]  # idle rows, the last first
        for row in range(len(kinds) - 1, -1, -1):
            if self._idle[row]:
                self._queues[self._kind_of[row]].append(row)
        self.worth_a_look: NDArray[np.bool_] = ~np.array(self._idle, dtype=bool)
        for queue in self._queues:
            if queue:
                self.worth_a_look[queue[-1]] = True

    def touch(self, row: int) -> None:
        """Something was put there, or taken away: it is looked at from now on, and so is the next of its kind."""
        if not self._idle[row]:
            return
        self._idle[row] = False
        self.worth_a_look[row] = True
        queue = self._queues[self._kind_of[row]]
        while queue and not self._idle[queue[-1]]:
            queue.pop()
        if queue:
            self.worth_a_look[queue[-1]] = True
