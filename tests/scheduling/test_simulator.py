"""The planner over traces, in virtual time."""

from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

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
    machines = read_machines([(2, {"name": "n", "gpus": "8", "cpu": "80", "mem_bytes": "1000"})])
    base = {"job": "a", "submit_s": "0", "duration_s": "1"}
    rows = [base | {"gpus": "20"}, base | {"nodes": "2", "cpu_per_node": "100", "mem_bytes": "4000"}]
    large, wide = read_jobs(enumerate(rows, 2), machines)
    assert large.asks == (Ask(8),) * 3
    assert wide.asks == (Ask(0, 80_000, 1000),) * 4
    (split,) = read_jobs([(2, base | {"nodes": "2", "cpu": "24", "gpus": "4", "mem_bytes": "100"})], machines)
    assert split.asks == (Ask(2, 12_000, 50),) * 2


@pytest.mark.data
def test_a_recorded_trace_is_simulated(test_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("simulate", str(test_data / "traces" / "philly_3wk.csv"), "--nodes", "84x8", "--jobs", "300")
    assert "300 jobs" in capsys.readouterr().out


HEAD = "job,submit_s,duration_s,gpus,cpu,mem_bytes,nodes,walltime_limit_s"


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        ("", "the trace: there are no jobs"),
        (HEAD, "the trace: there are no jobs"),
        ("job,submit_s\na,0", "the trace: there is no column duration_s; the first line names job, submit_s"),
        ("name,start\na,0", "the trace: there is no column submit_s; the first line names name, start"),
        (f"{HEAD}\na,0,10,1\nb,0", "the trace: line 3: duration_s is empty"),
        (f"{HEAD}\na,soon,10", "the trace: line 2: submit_s is no number of use here: 'soon'"),
        (f"{HEAD}\na,0,-10", "the trace: line 2: duration_s is no number of use here: '-10'"),
        (f"{HEAD}\na,0,nan", "the trace: line 2: duration_s is no number of use here: 'nan'"),
        (f"{HEAD}\na,0,1e400", "the trace: line 2: duration_s is no number of use here: '1e400'"),
        (f"{HEAD}\na,0,10,0.5", "the trace: line 2: gpus must be a whole number up to 2,147,483,648: '0.5'"),
        (f"{HEAD}\na,0,10,1,1,1,0", "the trace: line 2: nodes must be at least 1"),
        (f"{HEAD}\na,0,10,1000000", "the trace: line 2: the job needs 125,000 workers, more than a run may have"),
        (f"{HEAD}\n,0,10", "the trace: line 2: job is empty"),
        (f"# seen in May\n\n{HEAD}\n# and in June\n\na,0,10,1\nb,0", "the trace: line 7: duration_s is empty"),
        (f"{HEAD}\na,0,10,1,1,1,1,9,9", "the trace: line 2: more fields than the 8 columns that the first line names"),
        ("job,submit_s,duration_s,job\na,0,10,b", "the trace: line 1: the column job is named twice"),
        (f'{HEAD}\n"a,0,10', "the trace: unexpected end of data"),
        ("\0\0\n\0", "the trace: "),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_line_and_the_column(tmp_path: Path, trace: str, told: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(trace)
    with pytest.raises(CommandError) as refused:
        call_command("simulate", str(path), nodes="2x8")
    assert f"cannot read {told}" in str(refused.value)


@pytest.mark.parametrize(
    "trace",
    [
        "job,submit_s,duration_s,gpus\r\na,0,10,1\r\nb,5,10,16\r\n",
        "\ufeffjob, submit_s, duration_s, gpus\na, 0, 10, 1\nb, 5, 10, 16",
        "# from elsewhere\n\njob,submit_s,duration_s,gpus\n\na,0,10,1\n# a comment\nb,5,10,16\n\n",
    ],
)
def test_line_ends_marks_spaces_and_comments_do_not_matter(capsys, tmp_path: Path, trace: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(trace.encode())
    call_command("simulate", str(path), nodes="2x8")
    told = capsys.readouterr().out
    assert "2 jobs" in told
    assert "wait: mean        2 s" in told


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ("0x8", "there are no machines"),
        ("100001x1", "there are more than 100,000 machines"),
        ("2x9999", "line 2: gpus must be a whole number up to 1,024: '9999'"),
        ("no-such-file.csv", "No such file or directory"),
    ],
)
def test_machines_that_cannot_be_read_are_refused(tmp_path: Path, nodes: str, told: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEAD}\na,0,10,1")
    with pytest.raises(CommandError, match=f"cannot read the machines: .*{told}"):
        call_command("simulate", str(path), nodes=nodes)


def test_a_trace_without_gpus_cannot_saturate_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEAD}\na,0,10,0,1")
    with pytest.raises(CommandError, match="counts GPUs"):
        call_command("simulate", str(path), nodes="2x8", saturate=[1])


def test_a_job_too_large_for_all_machines_together_never_starts_and_holds_nobody_up(capsys, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEAD}\nwide,0,10,24\na,1,10,16\nb,2,1e9,8,,,,\nlast,3,1,0,0,0,1,0")
    call_command("simulate", str(path), nodes="2x8")
    told = capsys.readouterr().out
    assert "3 jobs" in told
    assert "never: 1" in told


def test_more_jobs_at_once_than_a_pass_grants_all_start_at_once() -> None:
    jobs = [Job(f"j{number}", 0, 10, (Ask(cpu_milli=1),)) for number in range(4100)]
    outcomes = simulate(jobs, read_machines([(2, {"name": "n", "cpu": "64"})])).outcomes
    assert {outcome.wait for outcome in outcomes} == {0}
