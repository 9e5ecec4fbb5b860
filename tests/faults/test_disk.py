"""The disk of a machine is full."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.stage import Stage, on, template

pytestmark = [pytest.mark.processes, pytest.mark.mount]

MACHINE = ("--runtime", "process", "--cpus", "4", "--memory", "2Gi")


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o711)
    options = "size=2m,mode=711"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "small", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Every byte that is left."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


@pytest.mark.everyday
def test_a_full_disk_refuses_starts_clearly_and_lets_what_runs_go_on(
    place: Stage, injected: Callable[..., None]
) -> None:
    with small_disk(place.folder / "full"):
        host = place.host("full", *MACHINE)
        place.submit("before", "echo one; await full-go; echo two; exit 4", task_template=template(), **on("full"))
        place.submit("ends", "await full-end; exit 6", task_template=template(), **on("full"))
        place.reaches("before-0", "Running")
        place.reaches("ends-0", "Running")
        ballast = fill(host.folder)
        injected("disk full")
        place.submit("refused", "echo never", task_template=template(), **on("full"))
        place.reaches("refused-0", "Failed")
        assert "No space left on device" in place.console.task("refused-0")["status"]["reason"]
        place.go("full-end")
        place.reaches("ends-0", "Failed")
        assert place.console.task("ends-0")["exit_code"] == 6
        host.kill()
        injected("killed with a full disk: agent")
        host.start()
        place.until(lambda: place.machine("full")["status"]["state"] == "Ready")
        assert place.state("before-0") == "Running"
        ballast.unlink()
        place.go("full-go")
        place.submit("after", "echo whole", **on("full"))
        place.check()
        assert place.console.task("before-0")["exit_code"] == 4, place.told("before-0")
        place.log_is("before-0", "one\ntwo\n")
        place.log_is("after-0", "whole\n")
        host.kill_all()
