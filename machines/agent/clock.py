"""The machine's own clock: seconds since boot, sleep included. It never jumps, and it outlives the agent's process.

Standard library alone, and little of it: the keeper uses it too.
"""

import time


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Changes with each boot; tells whether a time kept on disk is still of this clock."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
