"""The agent of a machine with a real container engine dies: the next one takes up each container or removes it, and
with the last run the last container is gone."""

import random
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.engine import Engine
from tests.faults.stage import Host, Stage, config_of, on, template

pytestmark = [pytest.mark.processes, pytest.mark.engine]

MACHINE = ("--runtime", "docker", "--cpus", "4", "--memory", "4Gi", "--stop-grace", "60")
SHORT_RUNS, KILLS = 12, 4
UNTIL_STOPPED = "trap 'exit 0' TERM; while :; do sleep .05; done"


class Boxes:
    """Runs in containers of one machine, which write down their starts as those of host processes do."""

    def __init__(self, stage: Stage, engine: Engine, host: Host) -> None:
        self.stage, self.engine, self.host = stage, engine, host

    def submit(self, name: str, text: str, spec: dict[str, object] | None = None, **fields: object) -> None:
        marks = [{"name": "marks", "mount_path": str(self.stage.marks)}]
        asked = template(datavolume_refs=marks, **fields)
        self.stage.submit(name, text, task_template=asked, **(spec or on(self.host.name)))

    def names(self, *filters: str) -> list[str]:
        label = f"label=astra.machine={(self.host.state / 'machine-id').read_text()}"
        given = [word for each in (label, *filters) for word in ("--filter", each)]
        return self.engine.docker("ps", "--all", *given, "--format", "{{.Names}}").split()

    def ended(self, worker: str) -> bool:
        return bool(self.names("status=exited", f"label=astra.worker-name={worker}"))

    def ends_as(self, worker: str, state: str, code: int | None, attempt: int, log: str) -> None:
        self.stage.reaches(worker, state)
        task = self.stage.until(lambda: self.stage.console.task(worker))
        ((number,),) = self.stage.rows("SELECT attempt_number FROM runs_worker WHERE name = %s", [worker])
        assert (task["exit_code"], number) == (code, attempt), self.stage.told(worker)
        self.stage.log_is(worker, log)

    def are_gone_with_their_runs(self, *runs: str) -> None:
        self.stage.check()
        for run in runs:
            assert self.stage.console.api.delete(f"jobs/{run}").status_code in (204, 404)
        self.stage.until(lambda: self.names() == [])
        self.stage.until(lambda: list((self.host.state / "attempts").iterdir()) == [])
        self.stage.until(lambda: self.stage.rows("SELECT count(*) FROM machines_assignment") == [(0,)])


@pytest.fixture(scope="module")
def boxes(place: Stage, engine: Engine) -> Iterator[Boxes]:
    secrets = place.folder / "secrets-of-boxes"
    secrets.mkdir(mode=0o700)
    options = (*MACHINE, "--drive-root", str(place.folder))
    host = place.host("boxes", *options, env={"DOCKER_HOST": engine.url})
    config_of(host, {"files": str(secrets)})
    place.post_to_workspace("drives", {"name": "marks", "kind": "folder", "source": str(place.marks)})
    place.post_to_workspace("credentials", {"name": "late", "provider": "file", "reference": "late"})
    made = Boxes(place, engine, host)
    yield made
    host.signal(signal.SIGTERM)
    assert host.process is not None
    host.process.wait(30)
    if names := made.names():
        engine.docker("rm", "--force", *names)


def test_containers_at_every_edge_are_taken_up_or_removed_by_the_next_agent(
    boxes: Boxes, injected: Callable[..., None]
) -> None:
    stage, host = boxes.stage, boxes.host
    late = {"secret_refs": [{"external_secret_name": "late", "env_vars": {"value": "WORD"}}]}
    saves = "trap 'await box-stopping; echo saved; exit 0' TERM; echo one; while :; do sleep .05; done"
    boxes.submit("box-running", "echo one; await box-running; echo two; exit 7")
    boxes.submit("box-missed", "echo one; await box-missed; exit 5")
    boxes.submit("box-stopping", f"exec 2>/dev/null; {saves}")
    boxes.submit("box-deleted", UNTIL_STOPPED)
    boxes.submit("box-restarting", "test $ASTRA_ATTEMPT = 2 || exit 9; echo second", restart_policy="OnFailure")
    boxes.submit("box-preparing", 'test "$WORD" = late && echo once', **late)
    groups = [{"name": name, "count": 1, "task_template": more} for name, more in (("ready", {}), ("late", late))]
    boxes.submit("box-gang", "echo once", {"start": "Gang", "worker_groups": groups})
    for run in ("running", "missed", "stopping", "deleted"):
        stage.reaches(f"box-{run}-0", "Running")
    stage.reaches("box-gang-ready-0", "Starting")
    stage.reaches("box-gang-late-0", "Preparing")
    stage.until(lambda: stage.console.logs("box-stopping-0") == "one\n")  # its trap is set
    stage.console.api.post("jobs/box-stopping/stop").raise_for_status()

    left = ("running", "missed", "stopping", "restarting", "preparing", "gang")
    host.kill()
    injected("killed with containers at every edge: agent")
    stage.go("box-missed")
    stage.until(lambda: boxes.ended("box-missed-0"))
    assert stage.console.api.delete("jobs/box-deleted").status_code == 204
    host.start()

    (host.folder.parent / "secrets-of-boxes" / "late").write_text("late")
    for edge in ("running", "stopping"):
        stage.go(f"box-{edge}")
    boxes.ends_as("box-running-0", "Failed", 7, 1, "one\ntwo\n")
    boxes.ends_as("box-missed-0", "Failed", 5, 1, "one\n")
    boxes.ends_as("box-stopping-0", "Cancelled", 0, 1, "one\nsaved\n")
    boxes.ends_as("box-restarting-0", "Completed", 0, 2, "second\n")
    boxes.ends_as("box-preparing-0", "Completed", 0, 1, "once\n")
    boxes.ends_as("box-gang-ready-0", "Completed", 0, 1, "once\n")
    boxes.ends_as("box-gang-late-0", "Completed", 0, 1, "once\n")
    boxes.are_gone_with_their_runs(*(f"box-{run}" for run in left))


def test_containers_that_come_and_go_while_agents_die_start_once_and_end_truly(
    boxes: Boxes, injected: Callable[..., None]
) -> None:
    chance = random.Random(4)
    runs = [f"short-{number}" for number in range(SHORT_RUNS)]
    for number, run in enumerate(runs):
        boxes.submit(run, f"echo one; sleep {chance.uniform(0, 1):.2f}; echo two; exit {number % 3}")
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.2, 2.5))  # whatever it is at then
        boxes.host.kill()
        injected("killed while containers come and go: agent")
        boxes.host.start()
    for number, run in enumerate(runs):
        code = number % 3
        boxes.ends_as(f"{run}-0", "Failed" if code else "Completed", code, 1, "one\ntwo\n")
    boxes.are_gone_with_their_runs(*runs)


def test_the_container_of_a_lost_machine_is_removed_when_it_is_back(
    boxes: Boxes, injected: Callable[..., None]
) -> None:
    stage = boxes.stage
    text = f"test $ASTRA_ATTEMPT = 1 || {{ echo second; exit; }}; {UNTIL_STOPPED}"
    boxes.submit("box-lost", text, restart_policy="OnFailure")
    stage.reaches("box-lost-0", "Running")
    boxes.host.kill()
    injected("agent silent beyond its lease, with a container")
    stage.execute("UPDATE machines_machine SET last_seen_at = now() - interval '1 hour' WHERE name = 'boxes'")
    stage.reaches("box-lost-0", "Pending")
    assert len(boxes.names("status=running")) == 1
    boxes.host.start()
    boxes.ends_as("box-lost-0", "Completed", 0, 2, "second\n")
    assert stage.rows("SELECT failures_in_row FROM runs_worker WHERE name = 'box-lost-0'") == [(0,)]
    boxes.are_gone_with_their_runs("box-lost")
