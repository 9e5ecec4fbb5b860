"""What runs, as it could give way; and each machine's room beside what is free: what ends soon, less what is promised.
Pure. Arrays over machines answer most questions at once; only machines that may do are looked at one by one."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from runs.scheduling.ledger import Ints, Ledger, Mask, Take, bits_of
from runs.scheduling.types import Hold

STOP_PATIENCE = 300.0  # seconds; what was told to stop longer ago is not counted on to end


def ends_soon(hold: Hold, now: float) -> bool:
    """Whether it was told to stop, and not so long ago that something must be wrong with it."""
    return hold.stopping_since is not None and now - hold.stopping_since < STOP_PATIENCE


class Victim(NamedTuple):
    """A run that could give way, with all that it holds, by row."""

    run_id: int
    priority: int
    started_at: float
    rooms: dict[int, Take]


class Spare:
    """By row: room beside what the ledger says is free. `gpus` counts what is freed and not promised."""

    def __init__(self, ledger: Ledger) -> None:
        count = len(ledger.machines)
        self.ledger = ledger
        self.cpu_milli: Ints = np.zeros(count, dtype=np.int64)
        self.memory_bytes: Ints = np.zeros(count, dtype=np.int64)
        self.gpus: Ints = np.zeros(count, dtype=np.int64)
        self.freed = [0] * count  # GPU bits
        self.promised = [0] * count

    def copy(self) -> "Spare":
        twin = Spare.__new__(Spare)
        twin.ledger = self.ledger
        twin.cpu_milli, twin.memory_bytes = self.cpu_milli.copy(), self.memory_bytes.copy()
        twin.gpus, twin.freed, twin.promised = self.gpus.copy(), list(self.freed), list(self.promised)
        return twin

    def add(self, room: Take) -> None:
        """It will be free."""
        self.freed[room.row] |= room.gpu_bits
        self._count(room, 1)

    def promise(self, room: Take) -> None:
        self.promised[room.row] |= room.gpu_bits
        self._count(room, -1)

    def promise_no_more(self, room: Take) -> None:
        self.promised[room.row] &= ~room.gpu_bits
        self._count(room, 1)

    def _count(self, room: Take, sign: int) -> None:
        self.gpus[room.row] = (self.freed[room.row] & ~self.promised[room.row]).bit_count()
        self.cpu_milli[room.row] += sign * room.cpu_milli
        self.memory_bytes[room.row] += sign * room.memory_bytes

    def free(self, row: int) -> tuple[int, int]:
        """(cpu_milli, memory_bytes) of a machine that is free, or will be."""
        ledger = self.ledger
        return (
            int(ledger.free_cpu[row]) + int(self.cpu_milli[row]),
            int(ledger.free_memory[row]) + int(self.memory_bytes[row]),
        )

    def free_gpus(self, row: int, kinds: Sequence[int]) -> int:
        """The bits of a machine's GPUs of these kinds that are free, or will be."""
        held = self.ledger.held[row] & ~self.freed[row]
        return self.ledger.usable_gpus(row, kinds) & ~held & ~self.promised[row]


class Victims:
    """Kept current while a pass preempts. `entries`: one for each victim and machine, youngest victims first."""

    def __init__(self, ledger: Ledger, holds: Iterable[Hold], now: float) -> None:
        self.ledger = ledger
        self.spare = Spare(ledger)
        by_run: dict[int, Victim] = {}
        for hold in holds:
            row = ledger.row_of.get(hold.machine_id)
            if row is None:
                continue
            room = Take(row, hold.cpu_milli, hold.memory_bytes, bits_of(hold.gpu_indexes))
            if hold.stopping_since is None:
                _add_hold(by_run, hold, room)
            elif ends_soon(hold, now):
                self.spare.add(room)
        self.youngest_first = sorted(by_run.values(), key=lambda victim: (-victim.started_at, victim.run_id))
        self.gone: set[int] = set()  # runs that give way by this pass
        self._list_entries()

    def _list_entries(self) -> None:
        entries = [(number, room) for number, one in enumerate(self.youngest_first) for room in one.rooms.values()]
        self.victim_of = [number for number, _ in entries]
        self.entries_of: dict[int, list[int]] = {}
        for entry, number in enumerate(self.victim_of):
            self.entries_of.setdefault(self.youngest_first[number].run_id, []).append(entry)
        self.row: Ints = np.array([room.row for _, room in entries], dtype=np.int64)
        self.cpu_milli: Ints = np.array([room.cpu_milli for _, room in entries], dtype=np.int64)
        self.memory_bytes: Ints = np.array([room.memory_bytes for _, room in entries], dtype=np.int64)
        self.gpus: Ints = np.array([room.gpu_bits.bit_count() for _, room in entries], dtype=np.int64)
        self.priority: Ints = np.array([self.youngest_first[number].priority for number, _ in entries], dtype=np.int64)
        self.stays: Mask = np.ones(len(entries), dtype=bool)
        self.most_gpus = self._most_on_each_row(self.gpus)
        self.most_cpu = self._most_on_each_row(self.cpu_milli)
        self.most_memory = self._most_on_each_row(self.memory_bytes)
        self.on_row: dict[int, list[Victim]] = {}
        for number, room in entries:
            self.on_row.setdefault(room.row, []).append(self.youngest_first[number])

    def _most_on_each_row(self, amounts: Ints) -> Ints:
        most: Ints = np.zeros(len(self.ledger.machines), dtype=np.int64)
        np.maximum.at(most, self.row, amounts)
        return most

    def has_lower(self, priority: int) -> bool:
        """Whether any could have given way to a run of this priority when the pass began."""
        return bool((self.priority < priority).any())

    def may_go(self, priority: int) -> Mask:
        """The entries of runs of lower priority that have not given way yet."""
        return self.stays & (self.priority < priority)

    def give_way(self, victims: Iterable[Victim]) -> None:
        """What they hold ends soon."""
        for victim in victims:
            self.gone.add(victim.run_id)
            for room in victim.rooms.values():
                self.spare.add(room)
            self.stays[self.entries_of[victim.run_id]] = False


def _add_hold(by_run: dict[int, Victim], hold: Hold, room: Take) -> None:
    known = by_run.get(hold.run_id)
    if known is None:
        by_run[hold.run_id] = Victim(hold.run_id, hold.priority, hold.started_at, {room.row: room})
        return
    here = known.rooms.get(room.row)
    if here is not None:
        cpu_milli, memory_bytes = room.cpu_milli + here.cpu_milli, room.memory_bytes + here.memory_bytes
        room = Take(room.row, cpu_milli, memory_bytes, room.gpu_bits | here.gpu_bits)
    known.rooms[room.row] = room
    by_run[hold.run_id] = known._replace(started_at=min(known.started_at, hold.started_at))
