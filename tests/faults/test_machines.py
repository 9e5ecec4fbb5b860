"""What machines do by themselves: clocks that jump, power that fails, processes that do not want to go, copies."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.console import eventually
from tests.faults.stage import Host, Stage, on, template

pytestmark = pytest.mark.processes

MACHINE = ("--runtime", "process", "--simulate-gpus", "1xH100-80GB", "--cpus", "4", "--memory", "2Gi")
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
GPU = {"gpu_requests": {"count": 1}, "per_gpu": {"cpu_cores": 0.1, "memory_bytes": 64 * 1024**2}}


# ---- clocks ----------------------------------------------------------------------------------------------------------


def set_ahead(file: Path, seconds: int) -> None:
    changed = file.with_suffix(".new")
    changed.write_text(f"{seconds:+d}\n")
    changed.rename(file)


@pytest.mark.faketime
def test_a_machines_clock_may_jump_and_is_shown_to_be_wrong(place: Stage, injected: Callable[..., None]) -> None:
    clock = place.folder / "clock"
    set_ahead(clock, 0)
    env = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    host = place.host("skewed", *MACHINE, env=env)
    for number, seconds in enumerate((300, -300, 0)):
        name = f"clock-{number}"
        place.submit(name, f"echo one; await {name}; exit 3", task_template=template(), **on("skewed"))
        place.reaches(f"{name}-0", "Running")
        set_ahead(clock, seconds)
        injected("clock of a machine jumps")
        place.until(lambda seconds=seconds: abs(skew(place, "skewed") - seconds) < 5)
        place.go(name)
        place.check()
        assert place.console.task(f"{name}-0")["exit_code"] == 3
        moves = place.console.task(f"{name}-0")["history"]
        times = [move["transition_at"] for move in moves]
        assert times == sorted(times)
        assert not any("lost" in move["reason"] for move in moves)
    assert place.machine("skewed")["status"]["state"] == "Ready"
    host.kill_all()


def skew(place: Stage, machine: str) -> float:
    ((seconds,),) = place.rows("SELECT clock_skew_seconds FROM machines_machine WHERE name = %s", [machine])
    return float(seconds)


# ---- power -----------------------------------------------------------------------------------------------------------


@pytest.mark.mount
def test_what_ran_when_a_machine_lost_its_power_is_started_anew_as_another_attempt(
    place: Stage, injected: Callable[..., None]
) -> None:
    boot = place.folder / "boot-id"
    boot.write_text("11111111-0000-0000-0000-000000000000\n")
    mounts = f'mount --bind {boot} /proc/sys/kernel/random/boot_id && exec "$@"'
    host = place.host("reboots", *MACHINE, wrapper=("unshare", "--mount", "sh", "-c", mounts, "sh"))
    restarts = {"restart_policy": "OnFailure", "requested_resources": GPU}
    script = "echo $ASTRA_ATTEMPT; test $ASTRA_ATTEMPT = 2 || await never"
    place.submit("again", script, task_template=restarts, **on("reboots"))
    place.submit("gone", "await never", task_template=template(), **on("reboots"))
    place.reaches("again-0", "Running")
    place.reaches("gone-0", "Running")
    host.kill_all()
    injected("machine started anew")
    boot.write_text("22222222-0000-0000-0000-000000000000\n")
    host.start()
    place.check()
    place.log_is("again-0", "2\n")
    assert place.console.task("again-0")["restarts"] == 1
    task = place.console.task("gone-0")
    assert (task["status"]["state"], task["exit_code"]) == ("Failed", None)
    assert "reboot" in task["status"]["reason"].lower()
    assert place.rows("SELECT boot_id FROM machines_machine WHERE name = 'reboots'")[0][0].startswith("2222")
    host.kill_all()


# ---- agents that are copied ------------------------------------------------------------------------------------------


@pytest.mark.everyday
def test_an_agent_on_a_copied_state_directory_runs_nothing_a_second_time(
    place: Stage, injected: Callable[..., None]
) -> None:
    first = place.host("original", *MACHINE)
    place.submit("runs", "echo once; await copied; exit 3", task_template=template(), **on("original"))
    place.reaches("runs-0", "Running")
    folder = place.folder / "copied"
    folder.mkdir(mode=0o711)
    subprocess.run(["cp", "-a", "--no-target-directory", str(first.state), str(folder / "state")], check=True)
    copy = place.hosts["copied"] = Host("original", folder, first.console, MACHINE)
    copy.start()
    injected("agent on a copied state directory")
    eventually(lambda: "another agent speaks for this machine" in copy.log, 60)
    place.submit("next", "echo once", task_template=template(), **on("original"))
    place.go("copied")
    place.check()
    for name in ("runs-0", "next-0"):
        place.log_is(name, "once\n")
    assert place.console.task("runs-0")["exit_code"] == 3
    events = place.rows(
        "SELECT e.reason FROM machines_machineevent e JOIN machines_machine m ON m.id = e.machine_id"
        " WHERE m.name = 'original' ORDER BY e.id"
    )
    assert ["turned away" in reason for (reason,) in events] == [False, True]
    whose = "SELECT place FROM machines_machine WHERE name = 'original'"
    before = place.rows(whose)
    first.kill_all()
    place.until(lambda: place.rows(whose) != before)
    place.submit("taken-over", "echo once", task_template=template(), **on("original"))
    place.reaches("taken-over-0", "Completed")
    copy.kill_all()


# ---- GPUs that fall ill ----------------------------------------------------------------------------------------------


def test_a_gpu_that_falls_ill_gets_no_new_worker_and_what_runs_on_it_goes_on(
    place: Stage, injected: Callable[..., None]
) -> None:
    sign = place.folder / "gpu-1-is-lost"
    agent = (sys.executable, "-m", "tests.faults.sick_agent", str(sign))
    host = place.host("ill", "--runtime", "process", "--cpus", "4", "--memory", "2Gi", agent=agent)
    both = template(requested_resources={**GPU, "gpu_requests": {"count": 2}})
    place.submit("holds", "await holds; exit 5", task_template=both, **on("ill"))
    place.reaches("holds-0", "Running")
    sign.touch()
    injected("a GPU falls ill")
    healthy = (
        "SELECT array_agg(g.healthy ORDER BY g.index) FROM machines_gpu g"
        " JOIN machines_machine m ON m.id = g.machine_id WHERE m.name = 'ill'"
    )
    place.until(lambda: place.rows(healthy) == [([True, False],)])
    assert place.state("holds-0") == "Running"
    place.submit("waits", "echo once", task_template=both, **on("ill"))
    place.go("holds")
    place.reaches("holds-0", "Failed")
    assert place.console.task("holds-0")["exit_code"] == 5
    place.until(lambda: "healthy" in place.console.run("waits")["status"]["reason"])
    place.submit("well", "echo $CUDA_VISIBLE_DEVICES", task_template=template(requested_resources=GPU), **on("ill"))
    place.reaches("well-0", "Completed")
    place.log_is("well-0", "0\n")
    assert place.state("waits-0") == "Pending"
    sign.unlink()
    place.reaches("waits-0", "Completed")
    place.check()
    host.kill_all()


# ---- processes that do not want to go ------------------------------------------------------------------------------


@pytest.mark.everyday
def test_a_gpu_is_free_when_every_process_that_used_it_is_gone(place: Stage, injected: Callable[..., None]) -> None:
    host = place.host("stubborn", *MACHINE, "--stop-grace", "1")
    gpu = {**template(requested_resources=GPU)}
    child = place.marks / "child"
    stays = f"trap '' TERM HUP; echo $$ > {child}; while :; do sleep .05; done"
    asks = f"pid=$(cat {child}); kill -0 $pid 2>/dev/null; test -e /proc/$pid && echo there || echo gone"
    (place.marks / "stays").write_text(stays)
    leaves = f"setsid sh {place.marks}/stays & while [ ! -s {child} ]; do sleep .05; done; exit 0"
    place.submit("daemon", leaves, task_template=gpu, **on("stubborn"))
    place.submit("next-1", asks, task_template=gpu, **on("stubborn"))
    place.reaches("next-1-0", "Completed")
    injected("a process that left its session and ignores SIGTERM")
    place.submit("ignores", stays, task_template=gpu, **on("stubborn"))
    place.reaches("ignores-0", "Running")
    place.submit("next-2", asks, task_template=gpu, **on("stubborn"))
    place.console.api.post("jobs/ignores/stop").raise_for_status()
    injected("a process that ignores SIGTERM")
    place.check()
    assert place.state("ignores-0") == "Cancelled"
    for name in ("next-1-0", "next-2-0"):
        place.log_is(name, "gone\n")
    host.kill_all()
