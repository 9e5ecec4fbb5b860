"""What is free on every machine while a pass grants it away: numpy over machines, with undo for trials. Pure."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from runs.scheduling.idle import Idle
from runs.scheduling.rank import Beside, all_stranded, stranded
from runs.scheduling.types import Ask, GpuView, Hold, MachineView

Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Masks: TypeAlias = tuple[tuple[int, int, int], ...]  # (kind, bits of its healthy GPUs, how many in all) of a machine


class GpuKind(NamedTuple):
    model: str
    memory_bytes: int


class Take(NamedTuple):
    """Room taken from one machine's row; given back by `Ledger.undo_to`."""

    row: int
    cpu_milli: int
    memory_bytes: int
    gpu_bits: int


class Ledger:
    """Rows are machines, in the snapshot's order. A machine's GPUs are the bits of an integer, by their index.

    `changes` is the list of rows touched, in order: whoever keeps something per row looks there for what is stale.
    """

    def __init__(self, machines: Sequence[MachineView], holds: Iterable[Hold]) -> None:
        self.machines = machines
        self.row_of = {machine.id: row for row, machine in enumerate(machines)}
        self.cpu_milli: Ints = np.array([machine.cpu_milli for machine in machines], dtype=np.int64)
        self.memory_bytes: Ints = np.array([machine.memory_bytes for machine in machines], dtype=np.int64)
        self.most_cpu = max((machine.cpu_milli for machine in machines), default=0) or 1  # of one machine
        self.most_memory = max((machine.memory_bytes for machine in machines), default=0) or 1
        self.kinds: list[GpuKind] = []
        self.held = [0] * len(machines)
        self.changes: list[int] = []
        self._missing: dict[tuple[str, ...], NDArray[np.float64]] = {(): np.zeros(len(machines))}
        self._takes: list[Take] = []
        self._idle: Idle | None = None
        self._load_gpus(machines)
        self._load_holds(holds)
        self.free_gpus: Ints = np.zeros_like(self.gpus)  # by (kind, row)
        self.free_gpus_in_all: Ints = np.zeros(len(machines), dtype=np.int64)
        self.beside = Beside()
        self.stranded: NDArray[np.float64] = np.zeros(len(machines))  # GPUs, by row; only where GPUs need something
        for row in range(len(machines)):
            self._count_gpus(row)

    def _load_gpus(self, machines: Sequence[MachineView]) -> None:
        """gpus and healthy_gpus: counts by (kind, row). Machines of one make share what is worked out of their GPUs."""
        seen: dict[tuple[GpuView, ...], Masks] = {}
        rows = [seen[m.gpus] if m.gpus in seen else seen.setdefault(m.gpus, self._masks(m.gpus)) for m in machines]
        self.gpus: Ints = np.zeros((len(self.kinds), len(machines)), dtype=np.int64)
        self.healthy_gpus: Ints = np.zeros_like(self.gpus)
        self.healthy_bits = rows
        for row, masks in enumerate(rows):
            for kind, healthy, total in masks:
                self.gpus[kind, row] = total
                self.healthy_gpus[kind, row] = healthy.bit_count()

    def _masks(self, gpus: tuple[GpuView, ...]) -> Masks:
        masks: dict[int, tuple[int, int]] = {}
        for gpu in gpus:
            kind = GpuKind(gpu.model, gpu.memory_bytes)
            if kind not in self.kinds:
                self.kinds.append(kind)
            number = self.kinds.index(kind)
            bits, total = masks.get(number, (0, 0))
            masks[number] = (bits | (gpu.healthy << gpu.index), total + 1)
        return tuple((kind, bits, total) for kind, (bits, total) in masks.items())

    def _load_holds(self, holds: Iterable[Hold]) -> None:
        free_cpu, free_memory = self.cpu_milli.tolist(), self.memory_bytes.tolist()
        for hold in holds:
            row = self.row_of.get(hold.machine_id)
            if row is None:
                continue  # left behind on a machine that was removed
            free_cpu[row] -= hold.cpu_milli
            free_memory[row] -= hold.memory_bytes
            self.held[row] |= bits_of(hold.gpu_indexes)
        self.free_cpu: Ints = np.array(free_cpu, dtype=np.int64)
        self.free_memory: Ints = np.array(free_memory, dtype=np.int64)

    def _count_gpus(self, row: int) -> None:
        held, in_all = self.held[row], 0
        for kind, healthy, _ in self.healthy_bits[row]:
            free = (healthy & ~held).bit_count()
            self.free_gpus[kind, row] = free
            in_all += free
        self.free_gpus_in_all[row] = in_all

    def need_beside_gpus(self, beside: Beside) -> None:
        """From here on GPUs that have less than this beside them count as stranded."""
        self.beside = beside
        gpus = self.free_gpus_in_all.astype(np.float64)
        self.stranded = all_stranded(gpus, self.free_cpu, self.free_memory, beside)

    def _count_stranded(self, row: int) -> None:
        if self.beside:
            gpus, cpu_milli = int(self.free_gpus_in_all[row]), int(self.free_cpu[row])
            self.stranded[row] = stranded(gpus, cpu_milli, int(self.free_memory[row]), self.beside)

    @cached_property
    def row_named(self) -> dict[str, int]:
        return {machine.name: row for row, machine in enumerate(self.machines)}

    @cached_property
    def _labelled(self) -> dict[tuple[str, str], Mask]:
        found: dict[tuple[str, str], list[int]] = {}
        for row, machine in enumerate(self.machines):
            for label in machine.labels:
                found.setdefault(label, []).append(row)
        return {label: self.mask_of(rows) for label, rows in found.items()}

    def labelled(self, key: str, value: str) -> Mask:
        """The machines with this label."""
        mask = self._labelled.get((key, value))
        return self.mask_of(()) if mask is None else mask

    def missing(self, data: tuple[str, ...]) -> NDArray[np.float64]:
        """How many of these drives and models each machine does not hold. Worked out once for each set of them."""
        found = self._missing.get(data)
        if found is None:
            counts = [len(set(data).difference(machine.data)) for machine in self.machines]
            found = self._missing[data] = np.array(counts, dtype=np.float64)
        return found

    def mask_of(self, rows: Iterable[int]) -> Mask:
        mask = np.zeros(len(self.machines), dtype=bool)
        mask[list(rows)] = True
        return mask

    @cached_property
    def runs_containers(self) -> Mask:
        return np.array([machine.runs_containers for machine in self.machines], dtype=bool)

    @cached_property
    def ready(self) -> Mask:
        return np.array([machine.ready for machine in self.machines], dtype=bool)

    @cached_property
    def connected(self) -> Mask:
        return np.array([machine.connected for machine in self.machines], dtype=bool)

    @cached_property
    def cordoned(self) -> Mask:
        return np.array([machine.cordoned for machine in self.machines], dtype=bool)

    @cached_property
    def draining(self) -> Mask:
        return np.array([machine.draining for machine in self.machines], dtype=bool)

    @cached_property
    def takes_work(self) -> Mask:
        return self.ready & ~self.cordoned

    @cached_property
    def makes(self) -> tuple[Ints, list[int]]:
        """Machines of one make have the same cores, memory and GPUs, healthy and broken: (make of each row, the first
        row of each make). A cluster has few, however many machines it has."""
        numbers: dict[tuple[int, int, Masks], int] = {}
        firsts: list[int] = []
        make_of = np.zeros(len(self.machines), dtype=np.int64)
        for row, machine in enumerate(self.machines):
            key = (machine.cpu_milli, machine.memory_bytes, self.healthy_bits[row])
            if key not in numbers:
                numbers[key] = len(numbers)
                firsts.append(row)
            make_of[row] = numbers[key]
        return make_of, firsts

    @property
    def worth_a_look(self) -> Mask:
        """The rows to score: not those of idle machines that differ only by name from an idle one before them."""
        if self._idle is None:
            kinds = [
                (make, one.labels, one.runs_containers, one.data, one.connected, one.ready, one.cordoned)
                for make, one in zip(self.makes[0].tolist(), self.machines, strict=True)
            ]
            all_free = (self.free_cpu == self.cpu_milli) & (self.free_memory == self.memory_bytes)
            self._idle = Idle(
                kinds, [free and not held for free, held in zip(all_free.tolist(), self.held, strict=True)]
            )
        return self._idle.worth_a_look

    def needs(self, ask: Ask, row: int) -> tuple[int, int]:
        """(cpu_milli, memory_bytes) of the ask on this machine, a node fraction resolved."""
        if ask.node_fraction is None:
            return ask.cpu_milli, ask.memory_bytes
        return int(self.cpu_milli[row] * ask.node_fraction), int(self.memory_bytes[row] * ask.node_fraction)

    def choose(self, row: int, ask: Ask, kinds: Sequence[int]) -> Take:
        """What the ask takes of a machine on which it fits: its GPUs are the lowest free indexes of these kinds."""
        free = self.usable_gpus(row, kinds) & ~self.held[row]
        return Take(row, *self.needs(ask, row), lowest_bits(free, ask.gpus))

    def usable_gpus(self, row: int, kinds: Sequence[int]) -> int:
        """The bits of a machine's healthy GPUs of these kinds, free or not."""
        usable = 0
        for kind, healthy, _ in self.healthy_bits[row]:
            if kind in kinds:
                usable |= healthy
        return usable

    def take(self, taken: Take) -> None:
        self._apply(taken, 1)
        self._takes.append(taken)

    def keep(self, room: Take) -> None:
        """Take room outside marks and undoing; given back by `give_back`."""
        self._apply(room, 1)

    def give_back(self, room: Take) -> None:
        self._apply(room, -1)

    def set_free(self, row: int, cpu_milli: int, memory_bytes: int, held: int) -> None:
        """What is free on a machine, whatever was taken before; outside marks and undoing."""
        self.free_cpu[row] = cpu_milli
        self.free_memory[row] = memory_bytes
        self.held[row] = held
        self._count_gpus(row)
        self._count_stranded(row)
        self._note(row)

    def copy(self) -> "Ledger":
        """Another ledger of the same machines, as free as this one is now."""
        twin = Ledger.__new__(Ledger)
        twin.__dict__ |= self.__dict__
        twin.free_cpu, twin.free_memory = self.free_cpu.copy(), self.free_memory.copy()
        twin.free_gpus, twin.free_gpus_in_all = self.free_gpus.copy(), self.free_gpus_in_all.copy()
        twin.stranded = self.stranded.copy()
        twin.held, twin.changes, twin._takes, twin._idle = list(self.held), [], [], None
        return twin

    def mark(self) -> int:
        """A point to come back to with `undo_to`."""
        return len(self._takes)

    def undo_to(self, mark: int) -> list[Take]:
        """Give back what was taken since; the takes that were undone."""
        undone = self._takes[mark:]
        del self._takes[mark:]
        for taken in undone:
            self._apply(taken, -1)
        return undone

    def _apply(self, taken: Take, sign: int) -> None:
        row = taken.row
        self.free_cpu[row] -= sign * taken.cpu_milli
        self.free_memory[row] -= sign * taken.memory_bytes
        if taken.gpu_bits:
            self.held[row] ^= taken.gpu_bits
            self._count_gpus(row)
        self._count_stranded(row)
        self._note(row)

    def _note(self, row: int) -> None:
        self.changes.append(row)
        if self._idle is not None:
            self._idle.touch(row)


def lowest_bits(bits: int, count: int) -> int:
    chosen = 0
    for _ in range(count):
        lowest = bits & -bits
        chosen |= lowest
        bits ^= lowest
    return chosen


def bits_of(gpu_indexes: Iterable[int]) -> int:
    bits = 0
    for index in gpu_indexes:
        bits |= 1 << index
    return bits


def indexes(bits: int) -> tuple[int, ...]:
    """The GPU indexes that these bits stand for."""
    return tuple(index for index in range(bits.bit_length()) if bits >> index & 1)
