"""The generated parts of docs/states.md: a diagram and tables, from the code that decides. Pure but for `main`.

python -m runs.states_page        writes them anew, between the page's marks
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from machines.protocol import PullFailure
from runs.outcomes import RETRY, End, EndCause, Outcome, Policy, backoff, end_sentence, outcome
from runs.state_machine import WORKER_MOVES, WorkerState

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"
POLICY = Policy(image="docker.io/library/busybox:latest", time_limit_seconds=43200, retry_exit_codes={75})
POLICIES = ("OnFailure", "Always", "Never")
LIFETIMES = ("Batch", "Service")
ON_FAILURE = ("RestartTask", "RestartJob", "FailJob")

# Every kind of end: those that differ within one cause, each.
ENDS: tuple[tuple[str, End], ...] = (
    ("exit code 0", End(EndCause.EXITED, 0)),
    ("another exit code", End(EndCause.EXITED, 1)),
    ("a code of `retry_exit_codes`", End(EndCause.EXITED, 75)),
    ("an exit code nobody saw", End(EndCause.EXITED, None)),
    ("memory limit", End(EndCause.OOM_KILLED, 137)),
    ("time limit", End(EndCause.TIME_LIMIT, 143)),
    ("a startup or liveness probe", End(EndCause.PROBE_FAILED, 143, "Liveness probe failed: …")),
    ("no such image, or denied", End(EndCause.IMAGE_PULL, message="…", pull_failure=PullFailure.NOT_FOUND)),
    ("registry away, or disk full", End(EndCause.IMAGE_PULL, message="…", pull_failure=PullFailure.UNREACHABLE)),
    ("image absent, pull policy None", End(EndCause.IMAGE_MISSING)),
    ("could not be started", End(EndCause.START_FAILED, message="…")),
    ("the engine beside it", End(EndCause.ENGINE_ENDED, 143, "The engine ended: Exited with code 1")),
    ("refused by the machine", End(EndCause.REFUSED, message="…")),
    ("stopped by its machine", End(EndCause.STOPPED, 143)),
    ("machine lost", End(EndCause.MACHINE_LOST)),
    ("machine rebooted", End(EndCause.MACHINE_REBOOTED)),
    ("unknown to its machine", End(EndCause.UNKNOWN_TO_MACHINE)),
)


def blocks() -> dict[str, str]:
    """What belongs between the page's marks, by their names."""
    return {
        "diagram": diagram(),
        "moves": moves_table(),
        "ends": ends_table(),
        "outcomes": outcomes_table(),
        "waits": waits(),
    }


def diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> Pending"]
    lines += [f"    {before} --> {after}" for before in WorkerState for after in _after(before)]
    lines += [f"    {state} --> [*]" for state in WorkerState if state in (WorkerState.FAILED, WorkerState.CANCELLED)]
    return "\n".join([*lines, "    Completed --> [*]", "```"])


def moves_table() -> str:
    rows = [(f"`{before}`", ", ".join(f"`{state}`" for state in _after(before)) or "final") for before in WorkerState]
    return _table(("from", "to"), rows)


def _after(before: WorkerState) -> list[WorkerState]:
    return [state for state in WorkerState if state in WORKER_MOVES[before]]


def ends_table() -> str:
    """Of each cause, how it is retried and how the API words it."""
    shown = {end.cause: end for _, end in reversed(ENDS) if end.exit_code != 0}
    rows = [(f"`{cause}`", RETRY[cause].value, end_sentence(shown[cause], POLICY)) for cause in EndCause]
    return _table(("cause", "again?", "reason of the worker"), rows)


def outcomes_table() -> str:
    """One row for each end and `on_failure`, one column for each lifetime and restart policy."""
    columns = [(lifetime, policy) for lifetime in LIFETIMES for policy in POLICIES]
    head = ("end", "`on_failure`", *(f"{lifetime}, {policy}" for lifetime, policy in columns))
    rows = []
    for name, end in ENDS:
        for on_failure in ON_FAILURE:
            cells = (told(outcome(end, policy_of(*column, on_failure), 3), end) for column in columns)
            rows.append((name, f"`{on_failure}`", *cells))
    return _table(head, rows)


def policy_of(lifetime: str, restart_policy: str, on_failure: str) -> Policy:
    return replace(POLICY, lifetime=lifetime, restart_policy=restart_policy, on_failure=on_failure)


def told(found: Outcome, end: End) -> str:
    """An outcome after three failures in a row, in a few words."""
    if found.state is WorkerState.COMPLETED:
        return "completed"
    if found.state is WorkerState.FAILED:
        return "run fails" if found.fails_run else "failed"
    if end.succeeded:
        again = "again"
    elif not found.wait_seconds:
        again = "again, free"
    else:
        again = "again, counted" if found.failures_in_row > 3 else "again, uncounted"
    return f"all {again}" if found.restarts_run else again


def waits() -> str:
    """The back-off with the settings' defaults."""
    seconds = [f"{backoff(failures, POLICY):.0f}" for failures in range(POLICY.budget)]
    return f"Seconds before each of the {POLICY.budget} restarts in a row: {', '.join(seconds)}."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def regenerated(text: str) -> str:
    """The page with its generated parts as they are to be. Raises ValueError for a part that has no place in it."""
    for name, block in blocks().items():
        mark = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if mark.search(text) is None:
            raise ValueError(f"the page has no place for {name}")
        text = mark.sub(lambda found, block=block: f"{found[1]}{block}\n{found[2]}", text)  # type: ignore[misc]
    return text


def main() -> None:
    PAGE.write_text(regenerated(PAGE.read_text()))


if __name__ == "__main__":
    main()
