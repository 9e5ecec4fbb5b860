"""Messages between agent and console that are lost, doubled, late and out of order: hundreds of workers, all true."""

from collections.abc import Callable

import pytest

from tests.faults.stage import Stage, template
from tests.faults.wires import Line, laid

pytestmark = pytest.mark.processes

WORKERS = 150
NEAR = ("--runtime", "process", "--simulate-gpus", "4xH100-80GB", "--cpus", "1", "--memory", "6Gi")
SEEDS = (1, 2, 3)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.everyday if seed == 1 else ()) for seed in SEEDS]
)
def test_hundreds_of_workers_are_true_over_a_line_that_muddles_messages(
    place: Stage, seed: int, injected: Callable[..., None]
) -> None:
    line = Line(place.console.url, seed)
    name = f"muddled-{seed}"
    with laid(line):
        host = place.host(f"near-{seed}", *NEAR, console=line.url)
        names = {"names": [host.name]}
        place.submit(
            name,
            "echo $ASTRA_ARRAY_INDEX; exit $((ASTRA_ARRAY_INDEX % 3))",
            task_template=template(),
            array={"count": WORKERS},
            node_selection=names,
        )
        place.submit(f"stopped-{seed}", "await never", array={"count": 5}, node_selection=names)
        place.until(lambda: place.console.run(f"stopped-{seed}")["task_counts"].get("Running") == 5)
        place.console.api.post(f"jobs/stopped-{seed}/stop").raise_for_status()
        place.settle()
        for fate in ("dropped", "duplicated", "delayed"):
            assert line.told[fate] > 0
            injected(f"message {fate}", line.told[fate])
        line.muddles = False
        place.check()
        assert codes(place, name) == {rank: rank % 3 for rank in range(WORKERS)}
        for rank in (0, 1, WORKERS - 1):
            place.log_is(f"{name}-{rank}", f"{rank}\n")
        host.kill_all()


def codes(place: Stage, run: str) -> dict[int, int]:
    """Exit codes by rank, of workers that had one attempt."""
    query = (
        "SELECT w.rank, w.exit_code FROM runs_worker w JOIN runs_run r ON r.id = w.run_id"
        " WHERE r.name = %s AND w.attempt_number = 1"
    )
    return dict(place.rows(query, [run]))
