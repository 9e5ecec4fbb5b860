"""PyTorch's own rendezvous over a run's workers on two machines: `make test-torch`. Named so that `make test`, which
knows no PyTorch, does not find it."""

import os
from collections.abc import Iterator

import pytest

from tests.console import Console, running_console

pytestmark = pytest.mark.processes

TRAINING = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")  # finds the others by the environment alone
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    if rank == 1 and step == 2 and os.environ.get("FAIL_ONCE") and os.environ["ASTRA_ATTEMPT"] == "1":
        raise SystemExit(9)
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
everywhere = [torch.empty_like(weights) for _ in range(world)]
dist.all_gather(everywhere, weights)
assert all(torch.equal(weights, other) for other in everywhere), everywhere
total = torch.tensor([float(rank)])
dist.all_reduce(total)
dist.destroy_process_group()
print(f"rank {rank} of {world}: the ranks add up to {total.item():g}, the weights are equal", flush=True)
os._exit(0)  # gloo's threads now and then abort the interpreter's own end, after all is done
"""
MEMORY = {"requested_resources": {"cpu_cores": 1, "memory_bytes": 2 * 1024**3}}


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    options = ("--runtime", "process", "--machines", "2", "--machine-cpus", "4", "--machine-memory", "4Gi")
    with running_console(*options, env={"STOP_GRACE_SECONDS": "5"}) as running:
        yield running


def train(console: Console, name: str, env: dict[str, str] | None = None, **spec: object) -> dict[str, object]:
    """Run it to its end, and read what every worker has said."""
    python = os.environ["TORCH_PYTHON"]
    template = {**MEMORY, "env": {"OMP_NUM_THREADS": "1", **(env or {})}}
    console.submit(name, python, "-c", TRAINING, task_template=template, machines=2, **spec)
    run = console.wait_for(name, "Completed", "Failed", seconds=300)
    logs = {worker: console.logs(worker) for worker in run["task_names"]}
    assert run["status"]["state"] == "Completed", (run["status"], logs)
    machines = {console.task(worker)["placement"]["machine"] for worker in run["task_names"]}
    assert machines == {"local-1", "local-2"}
    for rank, worker in enumerate(run["task_names"]):
        assert f"rank {rank} of 2: the ranks add up to 1, the weights are equal" in logs[worker], logs[worker]
    return run


def test_two_machines_train_one_model(console: Console) -> None:
    train(console, "ddp")


def test_training_goes_on_after_a_worker_has_failed(console: Console) -> None:
    run = train(console, "again", {"FAIL_ONCE": "1"}, on_failure="RestartJob")
    assert run["status"]["restarts"] == 1, [console.task(worker)["last_failure"] for worker in run["task_names"]]
