"""Whether failures point at the machine they happened on. Pure.

A machine that fails whatever it is given empties a queue in minutes, so it is cordoned; a run that fails wherever it is
put must never have that effect. What counts: failures while starting or soon after, of different runs, one after the
other, with nothing in between that went well.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from runs.outcomes import End, EndCause


class Blame(StrEnum):
    """Whom a quick failure points at."""

    NOBODY = ""  # the run itself, or something else that another machine would not mend
    PROGRAM = "program"  # perhaps the machine: where different programs fail alike
    MACHINE = "machine"  # what programs seldom bring about


BLAME: dict[EndCause, Blame] = {
    EndCause.EXITED: Blame.PROGRAM,  # but for some codes, see `blame`
    EndCause.STOPPED: Blame.MACHINE,
    EndCause.OOM_KILLED: Blame.NOBODY,  # its own limit
    EndCause.TIME_LIMIT: Blame.NOBODY,
    EndCause.PROBE_FAILED: Blame.NOBODY,  # the program does not answer
    EndCause.IMAGE_PULL: Blame.NOBODY,
    EndCause.IMAGE_MISSING: Blame.NOBODY,
    EndCause.START_FAILED: Blame.MACHINE,
    EndCause.MACHINE_REBOOTED: Blame.NOBODY,  # one event, whatever it ended
    EndCause.REFUSED: Blame.NOBODY,  # the order does not suit the machine's runtime
    EndCause.ENGINE_ENDED: Blame.NOBODY,  # the engine, or the model
    EndCause.MACHINE_LOST: Blame.NOBODY,  # leases take care of that
    EndCause.UNKNOWN_TO_MACHINE: Blame.NOBODY,
}
COMMAND_CODES = {126, 127}  # the command is not there, or may not be run
SIGNAL_CODES = {132, 135, 137, 139}  # SIGILL, SIGBUS, SIGKILL without a memory limit reached, SIGSEGV


def blame(end: End, quick_seconds: float) -> Blame:
    """Of an end that nobody had asked for. `quick_seconds`: how long after its start a failure still counts."""
    succeeded = end.cause is EndCause.EXITED and end.exit_code == 0
    if succeeded or end.stop_reason is not None or end.ran_seconds >= quick_seconds:
        return Blame.NOBODY
    if end.cause is not EndCause.EXITED:
        return BLAME[end.cause]
    if end.exit_code is None or end.exit_code in SIGNAL_CODES:
        return Blame.MACHINE
    return Blame.NOBODY if end.exit_code in COMMAND_CODES else Blame.PROGRAM


@dataclass(frozen=True)
class QuickFailure:
    """`program`: equal for runs of one person that start the same thing."""

    run_id: int
    blame: Blame
    program: Hashable


def strikes(failures: Iterable[QuickFailure]) -> int:
    """How many different things have failed: runs, but those of one program that ended by itself count once. So one
    person who tries the same program again and again, or a sweep over its arguments, is one."""
    by_run: dict[int, Hashable] = {}
    for failure in failures:
        if failure.blame is Blame.MACHINE:
            by_run[failure.run_id] = failure.run_id
        elif failure.blame is Blame.PROGRAM:
            by_run.setdefault(failure.run_id, ("program", failure.program))
    return len(set(by_run.values()))
