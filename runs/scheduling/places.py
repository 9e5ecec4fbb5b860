"""Where asks can go at all, answered fast: per set of constraints, not per ask and machine. Pure.

Whether an ask could ever be held follows from the largest makes of machine; that it finds no room now, from smaller
asks that found none. So 10,000 different asks cost few looks at the machines, however many there are.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from runs.scheduling.feasible import PLACE_STAGES, SIZE_STAGES, Need, kinds_of, narrowed
from runs.scheduling.ledger import Ledger, Mask
from runs.scheduling.types import Ask, Constraints

Amounts: TypeAlias = tuple[int, int, int]  # GPUs, cores, memory
KNOWN_FULL = 100  # more different asks of which none covers another are looked for again


class Place:
    """Where one set of constraints leads: the machines (`where`; `open`: those that take work), and the GPU kinds that
    serve there. `full`, `full_beside`: what is known to find no room, in all and beside the reservation."""

    def __init__(self, ledger: Ledger, limits: Constraints) -> None:
        self.kinds = kinds_of(ledger, limits)
        need = Need(Ask(constraints=limits), self.kinds, 0, 0)
        self.where = narrowed(np.ones(len(ledger.machines), dtype=bool), ledger, need, PLACE_STAGES)
        self.open = self.where & ledger.takes_work
        self.full, self.full_beside = NoRoom(), NoRoom()
        self._ever = _largest(_amounts_of_makes(ledger, self.where, self.kinds, healthy=False))
        self._open = _largest(_amounts_of_makes(ledger, self.open, self.kinds, healthy=True))

    def can_ever(self, ask: Ask) -> bool:
        """Whether one of the machines could hold it if it were empty, ready and in good health."""
        return _hold(self._ever, ask)

    def is_open(self, ask: Ask) -> bool:
        """Whether one of the machines could hold it if it were empty, ready and healthy as it is."""
        return _hold(self._open, ask)


class NoRoom:
    """Asks that found no room on a ledger from which room is only taken, the smallest of them. What is at least one of
    them finds none either. Node fractions are not known here: they differ by machine."""

    def __init__(self) -> None:
        self._smallest: list[Amounts] = []

    def covers(self, ask: Ask) -> bool:
        gpus, cpu_milli, memory_bytes = ask.gpus, ask.cpu_milli, ask.memory_bytes
        for known in self._smallest:
            if known[0] <= gpus and known[1] <= cpu_milli and known[2] <= memory_bytes:
                return ask.node_fraction is None
        return False

    def add(self, ask: Ask) -> None:
        if ask.node_fraction is None and len(self._smallest) < KNOWN_FULL:
            new = (ask.gpus, ask.cpu_milli, ask.memory_bytes)
            self._smallest = [known for known in self._smallest if not _is_at_least(known, new)]
            self._smallest.append(new)


class Places:
    """The places of a pass, each worked out once."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._of: dict[Constraints, Place] = {}

    def of(self, limits: Constraints) -> Place:
        place = self._of.get(limits)
        if place is None:
            place = self._of[limits] = Place(self.ledger, limits)
        return place

    def ever(self, need: Need) -> Mask:
        """Machines that could take it if they were empty, ready and in good health."""
        return narrowed(self.of(need.ask.constraints).where, self.ledger, need, SIZE_STAGES)


def _hold(largest: Iterable[Amounts], ask: Ask) -> bool:
    """Whether one of these is at least the ask. A node fraction is never more than its machine has."""
    gpus, cpu_milli, memory_bytes = ask.gpus, ask.cpu_milli, ask.memory_bytes
    if ask.node_fraction is not None:
        cpu_milli = memory_bytes = 0
    return any(most[0] >= gpus and most[1] >= cpu_milli and most[2] >= memory_bytes for most in largest)


def _is_at_least(one: Amounts, other: Amounts) -> bool:
    return one[0] >= other[0] and one[1] >= other[1] and one[2] >= other[2]


def _amounts_of_makes(ledger: Ledger, rows: Mask, kinds: Sequence[int], healthy: bool) -> set[Amounts]:
    """What the makes among these machines have."""
    make_of, firsts = ledger.makes
    there = np.zeros(len(firsts), dtype=bool)
    there[make_of[rows]] = True
    found = set()
    for make in np.flatnonzero(there):
        row = firsts[make]
        served = [masks for masks in ledger.healthy_bits[row] if masks[0] in kinds]
        gpus = sum(bits.bit_count() if healthy else total for _, bits, total in served)
        found.add((gpus, int(ledger.cpu_milli[row]), int(ledger.memory_bytes[row])))
    return found


def _largest(amounts: Iterable[Amounts]) -> list[Amounts]:
    """Without those that another one is at least equal to in everything."""
    kept: list[Amounts] = []
    for amount in sorted(amounts, reverse=True):
        if not any(_is_at_least(other, amount) for other in kept):
            kept.append(amount)
    return kept
