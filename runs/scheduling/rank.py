"""Which of the machines that fit is best: the one with the lowest score. Pure.

Packing: fill machines that are already in use, so that whole machines stay free for large runs. A worker without GPUs
goes where it strands the fewest of them.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value", NDArray[np.float64], float)

GPU_WEIGHT = 10.0  # one more GPU left free outweighs any difference in cores and memory


def score(gpus_left: Value, cpu_left: Value, memory_left: Value) -> Value:
    """The order of machines, from what would be left on each: GPUs as a count, cores and memory as shares of the
    machine (0…1). Works on one machine's numbers and on arrays alike."""
    return gpus_left * GPU_WEIGHT + cpu_left + memory_left
