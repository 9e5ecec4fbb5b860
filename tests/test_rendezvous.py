"""The workers of one run on two machines find each other by the environment that they are given."""

import json
from collections.abc import Iterator

import pytest

from tests.console import Console, running_console

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
