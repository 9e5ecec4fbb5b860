"""Which of the machines that fit is best: the one with the lowest score. Pure.

Packing: fill machines that are already in use, so that whole machines, and large ones, stay free for large runs. Before
that, strand no GPU: one beside which too few cores or too little memory are left serves nobody. What a GPU needs beside
it is what GPUs in use and asked for have, on average (`Beside`).
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from runs.scheduling.types import Ask, Hold

Value = TypeVar("Value", NDArray[np.float64], float)

GPU_WEIGHT = 10.0  # one more GPU left free outweighs any difference in cores and memory
STRANDED_WEIGHT = 100.0  # one more that is left and of no use, several that are merely left
MISSING_WEIGHT = 45.0  # a drive or a model that would have to be copied first, a few that are merely left


class Beside(NamedTuple):
    """What a GPU needs beside it: cores and memory. 0: nothing."""

    cpu_milli: float = 0
    memory_bytes: float = 0

    def __bool__(self) -> bool:
        return self.cpu_milli > 0 or self.memory_bytes > 0


def beside_gpus(holds: Iterable[Hold], asked: Iterable[tuple[Ask, int]]) -> Beside:
    """The mean over all GPUs in use and asked for. `asked`: what workers wait for, and how many."""
    gpus = cpu_milli = memory_bytes = 0
    for hold in holds:
        if hold.gpu_indexes:
            gpus += len(hold.gpu_indexes)
            cpu_milli += hold.cpu_milli
            memory_bytes += hold.memory_bytes
    for ask, workers in asked:
        if ask.gpus:
            gpus += workers * ask.gpus
            cpu_milli += workers * ask.cpu_milli
            memory_bytes += workers * ask.memory_bytes
    return Beside(cpu_milli / gpus, memory_bytes / gpus) if gpus else Beside()


def stranded(gpus: int, cpu_milli: int, memory_bytes: int, beside: Beside) -> float:
    """How many of a machine's free GPUs are of no use, for want of free cores or memory."""
    useful = float(gpus)
    if beside.cpu_milli:
        useful = min(useful, cpu_milli / beside.cpu_milli)
    if beside.memory_bytes:
        useful = min(useful, memory_bytes / beside.memory_bytes)
    return gpus - useful


def all_stranded(
    gpus: NDArray[np.float64], cpu_milli: NDArray[np.int64], memory_bytes: NDArray[np.int64], beside: Beside
) -> NDArray[np.float64]:
    """`stranded`, of many machines."""
    useful = gpus
    if beside.cpu_milli:
        useful = np.minimum(useful, cpu_milli / beside.cpu_milli)
    if beside.memory_bytes:
        useful = np.minimum(useful, memory_bytes / beside.memory_bytes)
    return gpus - useful


def score(gpus_left: Value, cpu_left: Value, memory_left: Value, more_stranded: Value, missing: Value) -> Value:
    """The order of machines, from what would be left on each: GPUs as a count, cores and memory as shares of the
    largest machine's (0…1), how many more GPUs would be stranded; and from how many of the drives and models asked for
    are not there yet. One machine's numbers, or arrays."""
    left = gpus_left * GPU_WEIGHT + cpu_left + memory_left
    return left + more_stranded * STRANDED_WEIGHT + missing * MISSING_WEIGHT
