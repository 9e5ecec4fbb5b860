"""What a worker of a Slurm job runs, as real processes under a real sh."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from astraconsole.cli.slurm.launcher import command_of, files
from tests.console import eventually

SHELLS = [shell for shell in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(shell[0])]


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    return request.param


def start(shell: list[str], folder: Path, body: str, *arguments: str, **variables: object) -> subprocess.Popen[str]:
    """One worker, its shell in place of the image's `sh`."""
    for name, content in files(f"#!/bin/sh\n{body}\n").items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o755)
    command = [*shell, *command_of(list(arguments))[1:]]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "SLURM_NTASKS": "1", "ASTRA_RUN": "job"}
    environment |= {name: str(value) for name, value in variables.items()}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(shell: list[str], folder: Path, body: str, *arguments: str, **variables: object) -> tuple[int, list[str]]:
    process = start(shell, folder, body, *arguments, **variables)
    output, _ = process.communicate(timeout=30)
    return process.returncode, output.splitlines()


def test_the_script_has_its_arguments_its_place_and_its_exit_code(shell: list[str], tmp_path: Path) -> None:
    body = 'echo "$1|$2|$SLURM_NODEID/$SLURM_NNODES|$SLURM_PROCID|$SLURM_JOB_NODELIST|$SLURM_TASKS_PER_NODE"; exit 7'
    place = {"NNODES": 2, "NODE_RANK": 1, "MASTER_ADDR": "gpu-07", "SLURM_NTASKS": 4}
    assert run(shell, tmp_path, body, "a b", "$c", **place) == (7, ["a b|$c|1/2|2|gpu-07,job-1|2(x2)"])


def test_srun_starts_this_nodes_tasks_with_their_ranks(shell: list[str], tmp_path: Path) -> None:
    place = {"NNODES": 2, "NODE_RANK": 1, "SLURM_NTASKS": 5, "SLURMD_NODENAME": "x"}
    body = "srun sh -c 'echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NTASKS'"
    code, lines = run(shell, tmp_path, body, **place)
    assert (code, sorted(lines)) == (0, ["3 0 5", "4 1 5"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-n3", ["0", "1", "2"]),
        ("-n 2 --cpu_bind=v", ["0", "1"]),
        ("--ntasks=2 --cpus-per-task 4", ["0", "1"]),
        ("-lun2", ["0: 0", "1: 1"]),
        ("--ntasks-per-node=2 -K1", ["0", "1"]),
        ("-N1 -n1 -w 127.0.0.1 -J step", ["0"]),
        ("-w job-1", ["srun: this step runs on other nodes"]),
        ("-n x", ["srun: x is not a number of at least 1"]),
    ],
)
def test_srun_reads_its_options(shell: list[str], tmp_path: Path, options: str, expected: list[str]) -> None:
    _, lines = run(shell, tmp_path, f"srun {options} sh -c 'echo $SLURM_PROCID'")
    assert sorted(lines) == expected


def test_the_worst_exit_code_of_a_steps_tasks_is_its_own(shell: list[str], tmp_path: Path) -> None:
    assert run(shell, tmp_path, "srun -n3 sh -c 'exit $((SLURM_PROCID * 5))'")[0] == 10
    assert run(shell, tmp_path, "srun sh -c 'exit 3'")[0] == 3
    assert run(shell, tmp_path, "srun /no/such/program")[0] == 127


def test_a_failed_task_ends_the_others_where_that_is_asked(shell: list[str], tmp_path: Path) -> None:
    body = "srun -n2 --kill-on-bad-exit sh -c 'if [ $SLURM_PROCID = 0 ]; then exit 9; fi; exec sleep 60'"
    assert run(shell, tmp_path, body)[0] == 128 + signal.SIGTERM


def test_signals_reach_the_tasks(shell: list[str], tmp_path: Path) -> None:
    task = 'trap "echo got $SLURM_PROCID; exit 4" USR1; echo ready; while :; do sleep 0.05; done'
    (tmp_path / "task").write_text(task)
    process = start(shell, tmp_path, "exec srun -n2 sh task")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGUSR1)
    rest, _ = process.communicate(timeout=30)
    assert (lines, sorted(rest.split("\n"))) == (["ready\n"] * 2, ["", "got 0", "got 1"])
    assert process.returncode == 4


def test_the_script_itself_gets_the_workers_signals(shell: list[str], tmp_path: Path) -> None:
    process = start(shell, tmp_path, 'trap "exit 5" TERM; touch ready; while :; do sleep 0.05; done')
    eventually(lambda: (tmp_path / "ready").exists())
    process.terminate()
    assert process.wait(30) == 5


def test_the_folder_that_a_script_goes_to_first_is_there(shell: list[str], tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert run(shell, tmp_path, "cd $SLURM_SUBMIT_DIR && pwd", ASTRA_SLURM_CHDIR="sub") == (0, [str(tmp_path)])
    assert run(shell, tmp_path, "pwd", ASTRA_SLURM_CHDIR="sub") == (0, [str(tmp_path / "sub")])
    assert run(shell, tmp_path, "pwd", ASTRA_SLURM_CHDIR="/no/such/folder")[0] != 0


@pytest.mark.parametrize(("index", "task"), [(0, "1"), (2, "5"), (4, "9")])
def test_an_element_of_an_array_knows_its_index(shell: list[str], tmp_path: Path, index: int, task: str) -> None:
    place = {"ASTRA_SLURM_ARRAY": "1,3,5-6,9", "ASTRA_ARRAY_INDEX": index}
    assert run(shell, tmp_path, "echo $SLURM_ARRAY_TASK_ID", **place) == (0, [task])


@pytest.mark.parametrize("visible", [{}, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}])
def test_each_task_sees_its_own_gpus(shell: list[str], tmp_path: Path, visible: dict[str, str]) -> None:
    place = {"SLURM_NTASKS": 2, "SLURM_GPUS_PER_TASK": 2, "ASTRA_GPU_COUNT": 4, **visible}
    _, lines = run(shell, tmp_path, "srun sh -c 'echo $SLURM_LOCALID $CUDA_VISIBLE_DEVICES'", **place)
    assert sorted(lines) == ["0 0,1", "1 2,3"]


def test_the_usual_way_to_the_first_nodes_address_works(shell: list[str], tmp_path: Path) -> None:
    """Of torchrun's recipes: the head of the list, and its address by a step on it."""
    body = (
        'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST"); set -- $nodes; head=$1\n'
        'echo $# $(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address)'
    )
    place = {"NNODES": 2, "NODE_RANK": 1, "MASTER_ADDR": "10.0.0.7", "SLURM_NTASKS": 2}
    assert run(shell, tmp_path, body, **place) == (0, ["2 10.0.0.7"])
