"""The machine's own clock: seconds since boot, sleep included. It never jumps, and it outlives the agent's process."""

import time
from pathlib import Path


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Changes with each boot; tells whether a time kept on disk is still of this clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
