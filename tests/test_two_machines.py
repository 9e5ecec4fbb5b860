"""A console with two machines: workers find each other, machines are drained, and cordoned when they fail."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.console import Console, eventually, running_console

pytestmark = pytest.mark.processes

# Rank 0 listens on every interface, as PyTorch's store does; the others say who they are and hear who is there.
MEETING = """
import json, os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(("", place[1]))
    peers = [server.accept()[0].makefile("rw") for _ in range(world - 1)]
    here = sorted([rank] + [int(peer.readline()) for peer in peers])
    for peer in peers:
        print(json.dumps(here), file=peer, flush=True)
else:
    for attempt in range(300):
        try:
            peer = socket.create_connection(place, timeout=60).makefile("rw")
            break
        except OSError:
            time.sleep(0.1)
    print(rank, file=peer, flush=True)
    here = json.loads(peer.readline())
print("MET " + json.dumps({"rank": rank, "here": here, "group": os.environ.get("ASTRA_GROUP")}))
"""


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    options = ("--runtime", "process", "--machines", "2", "--machine-cpus", "4", "--machine-memory", "2Gi")
    with running_console(*options, env={"STOP_GRACE_SECONDS": "3"}) as running:
        yield running


def met(console: Console, worker: str) -> dict[str, object]:
    (line,) = [line for line in console.logs(worker).splitlines() if line.startswith("MET ")]
    return json.loads(line.removeprefix("MET "))


def test_workers_on_two_machines_meet_at_the_master(console: Console) -> None:
    console.submit("meet", "python3", "-c", MEETING, machines=2)
    run = console.wait_for("meet", "Completed", "Failed")
    assert run["status"]["reason"] == "2 of 2 workers completed", [console.logs(name) for name in run["task_names"]]
    assert {console.task(name)["placement"]["machine"] for name in run["task_names"]} == {"local-1", "local-2"}
    assert [met(console, name)["here"] for name in run["task_names"]] == [[0, 1], [0, 1]]


def test_the_groups_of_a_run_are_one_world(console: Console) -> None:
    groups = [{"name": "ps", "count": 1}, {"name": "actors", "count": 2}]
    console.submit("rl", "python3", "-c", MEETING, worker_groups=groups)
    run = console.wait_for("rl", "Completed", "Failed")
    assert run["task_names"] == ["rl-ps-0", "rl-actors-0", "rl-actors-1"]
    assert [met(console, name) for name in run["task_names"]] == [
        {"rank": 0, "here": [0, 1, 2], "group": "ps"},
        {"rank": 1, "here": [0, 1, 2], "group": "actors"},
        {"rank": 2, "here": [0, 1, 2], "group": "actors"},
    ]


def test_all_meet_again_after_one_has_failed(console: Console) -> None:
    """The second attempt begins when the last worker of the first has gone, and its port with it."""
    fails_once = MEETING + "if rank == 1 and os.environ['ASTRA_ATTEMPT'] == '1': raise SystemExit(7)\ntime.sleep(1)\n"
    console.submit("again", "python3", "-c", fails_once, machines=2, on_failure="RestartJob")
    run = console.wait_for("again", "Completed", "Failed", seconds=90)
    assert (run["status"]["state"], run["status"]["restarts"]) == ("Completed", 1)
    assert [console.task(name)["restarts"] for name in run["task_names"]] == [1, 1]
    assert console.task("again-0")["last_failure"] is None
    assert console.task("again-1")["last_failure"]["reason"] == "Exited with code 7"
    reasons = [move["reason"] for move in run["history"]]
    assert "Restarting all 2 workers: Worker again-1 failed on" in " ".join(reasons)


def machine(console: Console, name: str) -> dict[str, Any]:
    return console.api.get(f"machines/{name}").json()


def test_a_drained_machine_gives_its_work_to_the_other_and_takes_it_again(console: Console) -> None:
    saves = "trap 'echo saved; exit 0' TERM; echo started; while :; do sleep 0.1; done"
    console.submit("move", "sh", "-c", saves, node_selection={"names": ["local-1", "local-2"]})
    console.wait_for("move", "Running")
    first = console.task("move-0")["placement"]["machine"]
    other = {"local-1": "local-2", "local-2": "local-1"}[first]
    assert console.api.post(f"machines/{first}/drain", json={"reason": "new firmware"}).status_code == 200
    moved = eventually(lambda: (task := console.task("move-0"))["placement"]["machine"] == other and task)
    reasons = [move["reason"] for move in moved["history"]]
    assert f"Stopping: Machine {first} is drained: new firmware" in reasons
    assert f"Machine {first} is drained: new firmware" in reasons
    assert (moved["restarts"], moved["last_failure"]) == (0, None)
    assert eventually(lambda: machine(console, first)["status"]["drain"] == "Drained")
    console.submit("waits", "true", node_selection={"names": [first]})
    closed = "No machine fits: the only machine that could hold it is draining: new firmware"
    assert eventually(lambda: console.run("waits")["status"]["reason"] == closed)
    assert console.api.post(f"machines/{first}/uncordon").status_code == 200
    console.wait_for("waits", "Completed")
    console.api.delete("jobs/move")


def test_a_machine_on_which_different_runs_cannot_start_is_cordoned_until_it_is_trusted_again(console: Console) -> None:
    broken = {"working_dir": "/no/such/folder", "restart_policy": "Never"}
    for number in range(3):
        console.submit(f"bad-{number}", "true", task_template=broken, node_selection={"names": ["local-2"]})
        run = console.wait_for(f"bad-{number}", "Failed", "Completed")
        assert "Could not start" in run["status"]["reason"]
    cordoned = eventually(lambda: machine(console, "local-2")["status"]["cordoned"])
    assert cordoned["by"] is None
    assert cordoned["reason"].startswith("3 different runs failed here within 1m of their start")
    assert machine(console, "local-2")["history"][-1]["actor"] == "console"
    console.submit("fine", "true")  # on the other machine
    console.wait_for("fine", "Completed")
    assert console.api.post("machines/local-2/uncordon").json()["status"]["cordoned"] is None
