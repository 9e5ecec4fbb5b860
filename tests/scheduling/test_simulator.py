"""The planner over traces, in virtual time."""

from pathlib import Path

import pytest
from django.core.management import call_command

from runs.scheduling.saturation import saturate
from runs.scheduling.simulator import Job, simulate, summarise
from runs.scheduling.traces import equal_machines, read_jobs, read_machines
from runs.scheduling.types import Ask


def job(name: str, submitted: float, duration: float, gpus: int, workers: int = 1, limit: float | None = None) -> Job:
    return Job(name, submitted, duration, (Ask(gpus),) * workers, limit)


def waits(*jobs: Job) -> dict[str, float | None]:
    return {outcome.job.name: outcome.wait for outcome in simulate(jobs, equal_machines(2, 8)).outcomes}


def test_jobs_wait_for_those_before_them() -> None:
    assert waits(job("a", 0, 100, 8, 2), job("b", 10, 50, 8, 2), job("c", 20, 5, 1)) == {"a": 0, "b": 90, "c": 130}


def test_a_short_job_backfills_before_a_large_one() -> None:
    jobs = (job("a", 0, 100, 8, limit=100), job("b", 10, 50, 8, 2, 50), job("c", 20, 5, 8, limit=30))
    assert waits(*jobs) == {"a": 0, "b": 90, "c": 0}


def test_a_job_that_no_machine_can_hold_never_starts_and_holds_nobody_up() -> None:
    outcomes = simulate([job("a", 0, 100, 9), job("b", 1, 10, 8)], equal_machines(2, 8)).outcomes
    assert [outcome.started for outcome in outcomes] == [None, 1]
    assert summarise(outcomes).never == 1


def test_use_is_what_is_held_and_idle_what_is_free_while_somebody_waits() -> None:
    """16 GPUs over 100 s: 8 are held throughout, 4 more from 50 s on, when one job that needs 8 comes and waits."""
    jobs = (job("a", 0, 500, 8), job("b", 50, 500, 4), job("c", 50, 500, 8), job("last", 100, 1, 1))
    result = simulate(jobs, equal_machines(2, 8))
    assert (result.used, result.idle) == ((800 + 200) / 1600, 200 / 1600)


def test_a_cluster_is_filled_until_as_much_is_asked_for_as_there_is() -> None:
    """Jobs of 3 GPUs on machines of 8: two stay unallocated on each, and jobs are copied until they suffice."""
    result = saturate([job("a", 0, 1, 3)], equal_machines(4, 8), seed=1)
    assert (result.unallocated, result.asked, result.refused) == (8 / 32, 33, 3)


def test_amounts_above_a_machines_are_spread_over_whole_machines() -> None:
    machines = read_machines([{"name": "n", "gpus": "8", "cpu": "80", "mem_bytes": "1000"}])
    base = {"job": "a", "submit_s": "0", "duration_s": "1"}
    rows = [base | {"gpus": "20"}, base | {"nodes": "2", "cpu_per_node": "100", "mem_bytes": "4000"}]
    large, wide = read_jobs(rows, machines)
    assert large.asks == (Ask(8),) * 3
    assert wide.asks == (Ask(0, 80_000, 1000),) * 4
    (split,) = read_jobs([base | {"nodes": "2", "cpu": "24", "gpus": "4", "mem_bytes": "100"}], machines)
    assert split.asks == (Ask(2, 12_000, 50),) * 2


@pytest.mark.data
def test_a_recorded_trace_is_simulated(test_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("simulate", str(test_data / "traces" / "philly_3wk.csv"), "--nodes", "84x8", "--jobs", "300")
    assert "300 jobs" in capsys.readouterr().out
