"""Children of a local console live and die with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from astraconsole.supervision import Child, end_recorded, keep_alive, record
from tests.console import eventually


def child(folder: Path, *argv: str) -> Child:
    return Child("child", argv, folder / "child.log")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_that_ended_is_started_again(tmp_path: Path) -> None:
    service = child(tmp_path, "sleep", "60")
    service.start()
    first = service.process
    assert first is not None
    first.kill()
    first.wait()
    said: list[str] = []
    eventually(lambda: keep_alive([service], said.append) or service.running())
    assert service.process is not None
    assert service.process.pid != first.pid
    assert said == [f"child ended with code -9: started again (see {service.log})"]
    service.stop()


def test_a_child_that_ends_at_once_is_restarted_ever_more_slowly(tmp_path: Path) -> None:
    service = child(tmp_path, "true")
    service.start()
    delays = []
    for _ in range(2):
        assert service.process is not None
        service.process.wait()
        service.started_at = time.monotonic() - 10
        keep_alive([service], lambda line: None)
        delays.append(service.restart_delay)
    assert delays[1] == 2 * delays[0]
    service.stop()


def test_a_child_that_ignores_the_signal_is_killed_after_the_wait(tmp_path: Path) -> None:
    service = child(tmp_path, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
    service.start()
    eventually(lambda: "ready" in service.log.read_text())
    service.stop(seconds=0.2)
    assert service.process is not None
    assert service.process.returncode == -signal.SIGKILL


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time; from astraconsole.supervision import Child\n"
        "child = Child('c', ['sleep', '60'], pathlib.Path(sys.argv[1]) / 'c.log'); child.start()\n"
        "print(child.process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    eventually(lambda: not alive(pid))


def test_the_next_start_ends_what_a_killed_parent_left_behind(tmp_path: Path) -> None:
    left = child(tmp_path, "sleep", "60")
    left.start()
    assert left.process is not None
    record(tmp_path / "children.json", [left])
    end_recorded(tmp_path / "children.json")
    assert left.process.wait(5) == -signal.SIGTERM
    assert not (tmp_path / "children.json").exists()


def test_a_pid_that_another_process_has_by_now_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / "children.json").write_text(f"[[{other.pid}, 1, {int(signal.SIGTERM)}]]")
        end_recorded(tmp_path / "children.json")
        assert other.poll() is None
        os.kill(other.pid, signal.SIGKILL)
