"""The connection of a machine is away, for one lease and for three: cut, or silent with every connection standing."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.console import eventually
from tests.faults.stage import SETTINGS, Host, Stage, stage, template
from tests.faults.wires import Cable, laid

pytestmark = pytest.mark.processes

LEASE_SECONDS = float(SETTINGS["MACHINE_LEASE_SECONDS"])
MACHINE = ("--runtime", "process", "--simulate-gpus", "1xH100-80GB", "--cpus", "4", "--memory", "2Gi")
LOST = "Machine lost: its lease expired"


@dataclass
class Two:
    """`far` is behind the cable, `near` is not."""

    stage: Stage
    cable: Cable
    far: Host
    near: Host
    number: int = 0

    def submit(self, name: str, text: str, **fields: object) -> None:
        """On `far`, but free to go to the other."""
        self.stage.console.api.post("machines/near/cordon", json={"reason": "not yet"}).raise_for_status()
        self.stage.submit(name, text, task_template=fields, node_selection={"names": ["far", "near"], "count": 1})
        self.stage.reaches(f"{name}-0", "Running")
        self.stage.console.api.post("machines/near/uncordon").raise_for_status()

    def is_away(self, how: str, leases: int) -> None:
        """For so many leases; the time itself is the fault."""
        end = time.monotonic() + leases * LEASE_SECONDS
        getattr(self.cable, how)()
        eventually(lambda: time.monotonic() >= end, 60)

    def is_back(self) -> None:
        self.cable.mend()
        self.stage.until(lambda: self.stage.machine("far")["status"]["state"] == "Ready")


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    with stage() as made:
        cable = Cable(made.console.url)
        with laid(cable):
            yield Two(made, cable, made.host("far", *MACHINE, console=cable.url), made.host("near", *MACHINE))


def cases(everyday: str) -> list[object]:
    return [pytest.param(how, marks=pytest.mark.everyday if how == everyday else ()) for how in ("cut", "silence")]


@pytest.mark.parametrize("how", cases(everyday="none"))
def test_after_one_lease_an_exit_meanwhile_is_told_or_the_machine_counted_as_lost(
    two: Two, how: str, injected: Callable[..., None]
) -> None:
    name = f"one-{how}"
    two.submit(name, f"echo one; await {name}; exit 5", **template())
    two.stage.go(name)
    two.is_away(how, 1)
    injected(f"connection away for one lease: {how}")
    two.is_back()
    two.stage.check()
    reason = two.stage.console.run(name)["status"]["reason"]
    assert "Exited with code 5" in reason or LOST in reason
    assert two.stage.console.task(f"{name}-0")["restarts"] == 0
    two.stage.log_is(f"{name}-0", "one\n")


@pytest.mark.parametrize("how", cases(everyday="cut"))
def test_after_three_leases_the_work_is_elsewhere_and_the_old_copy_is_stopped_and_changes_nothing(
    two: Two, how: str, injected: Callable[..., None]
) -> None:
    moves, over = f"moves-{how}", f"over-{how}"
    two.submit(moves, f"echo $ASTRA_ATTEMPT; await {moves}; exit 0", restart_policy="OnFailure")
    two.submit(over, f"await {over}; exit 0", **template())
    two.is_away(how, 3)
    injected(f"connection away for three leases: {how}")
    two.stage.until(lambda: two.stage.console.task(f"{moves}-0")["placement"]["machine"] == "near")
    two.stage.reaches(f"{moves}-0", "Running")
    two.stage.reaches(f"{over}-0", "Failed")
    two.stage.go(over)  # it completes, and nobody asks
    assert two.stage.machine("far")["status"]["state"] == "Lost"
    assert two.far.processes() != []
    two.is_back()
    eventually(lambda: two.far.processes() == [], 60)
    assert two.stage.state(f"{moves}-0") == "Running"
    two.stage.go(moves)
    two.stage.check()
    task = two.stage.console.task(f"{moves}-0")
    assert (task["status"]["state"], task["exit_code"], task["restarts"]) == ("Completed", 0, 1)
    two.stage.log_is(f"{moves}-0", "2\n")
    assert LOST in two.stage.console.run(over)["status"]["reason"]
    assert two.stage.console.task(f"{over}-0")["exit_code"] is None
