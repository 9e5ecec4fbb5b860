"""Commands that ask a worker how it is: started by the keeper beside the worker's own processes, in its cgroup, as its
user. Standard library alone.

What such a command prints goes into a file in memory, which counts as the worker's memory. One that takes too long is
killed, and so is one that is left when its worker ends.
"""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from machines.agent.clock import now
from machines.agent.keeper_link import Message
from machines.agent.processes import send_signal

OUTPUT_BYTES = 2048  # of its end


@dataclass
class Probe:
    attempt: str
    number: int
    output: int  # file descriptor
    kill_at: float


class KeeperProbes:
    """`tell`: an event for the agent."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self._running: dict[int, Probe] = {}  # by process number

    def start(self, message: Message, start: Callable[[int], int]) -> None:
        """`start`: makes the process, with this descriptor for its output. Raises OSError, ValueError."""
        output = os.memfd_create("probe")
        try:
            pid = start(output)
        except BaseException:
            os.close(output)
            raise
        self._running[pid] = Probe(message["attempt"], message["probe"], output, now() + message["timeout"])

    def refuse(self, message: Message, code: int, error: str) -> None:
        """It could not be started."""
        self._answer(message["attempt"], message["probe"], code, error.encode(errors="replace"))

    def deadlines(self) -> list[float]:
        return [probe.kill_at for probe in self._running.values()]

    def kill_due(self) -> None:
        for pid, probe in self._running.items():
            if probe.kill_at <= now():
                send_signal(pid, signal.SIGKILL)
                probe.kill_at = now() + 1

    def ended(self, pid: int, code: int, workers: Mapping[str, object]) -> bool:
        """Whether this was one; of a worker that is gone nobody asks any more."""
        probe = self._running.pop(pid, None)
        if probe is None:
            return False
        size = os.fstat(probe.output).st_size
        said = os.pread(probe.output, OUTPUT_BYTES, max(0, size - OUTPUT_BYTES))
        os.close(probe.output)
        if probe.attempt in workers:
            self._answer(probe.attempt, probe.number, code, said)
        return True

    def _answer(self, attempt: str, number: int, code: int, said: bytes) -> None:
        output = said.decode(errors="replace")
        self._tell({"ev": "probed", "attempt": attempt, "probe": number, "code": code, "output": output})
