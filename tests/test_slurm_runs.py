"""Batch scripts on a whole console: submitted, run by a machine, watched and stopped."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console import ROOT, Console, running_console

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    options = ("--runtime", "process", "--machine-cpus", "8", "--machine-memory", "32Gi")
    with running_console(*options, "--simulate-gpus", "4xH100-80GB") as running:
        yield running


def slurm(console: Console, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    ready = console.ready
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(console.data.parent),
        "ASTRA_URL": ready["url"],
        "ASTRA_TOKEN": ready["token"],
        "ASTRA_ORG": ready["organisation"],
        "ASTRA_WORKSPACE": ready["workspace"],
        "ASTRA_IMAGE": "busybox",
    }
    command = [sys.executable, "-m", "astraconsole.cli.main", "slurm", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, input=text, text=True, capture_output=True, timeout=60)


def submit(console: Console, *words: str, text: str) -> str:
    """The run's name."""
    answer = slurm(console, "sbatch", *words, text=text)
    assert answer.returncode == 0, answer.stderr
    job = re.fullmatch(r"Submitted batch job (\d+)\n", answer.stdout)
    assert job, answer.stdout
    [name] = re.findall(rf"^(\S+-{job[1]}) submitted to ", answer.stderr, re.MULTILINE)
    return name


def test_a_script_runs_whole_with_its_tasks_its_arguments_and_its_code(console: Console) -> None:
    text = (
        "#!/bin/bash\n#SBATCH -J train --ntasks=2 --gres=gpu:2 --mem=64M\n#SBATCH --mail-type=END\n"
        'echo "$1 on $SLURM_JOB_NUM_NODES: $SLURM_JOB_NAME"\n'
        "srun -l sh -c 'echo rank $SLURM_PROCID of $SLURM_NTASKS'\nexit 3\n"
    )
    name = submit(console, "-", "two words", text=text)
    run = console.wait_for(name, "Failed", "Completed")
    assert run["status"]["reason"] == f"Worker {name}-0 failed on local-1: Exited with code 3"
    assert run["status"]["restarts"] == 0
    lines = console.logs(f"{name}-0").splitlines()
    assert lines[0] == "two words on 1: train"
    assert sorted(lines[1:]) == ["0: rank 0 of 2", "1: rank 1 of 2"]


def test_a_folder_goes_along_and_is_where_the_script_runs(console: Console, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    text = "#!/bin/sh\n#SBATCH --mem=64M\ncd $SLURM_SUBMIT_DIR\nsrun cat train.py\n"
    name = submit(console, "--code", str(tmp_path), text=text)
    console.wait_for(name, "Completed", "Failed")
    assert console.logs(f"{name}-0") == "print('trained')\n"


def test_an_array_runs_every_index(console: Console) -> None:
    name = submit(console, text="#!/bin/sh\n#SBATCH -a 5-9:2%2 --mem=64M\necho index $SLURM_ARRAY_TASK_ID\n")
    console.wait_for(name, "Completed")
    assert [console.logs(f"{name}-{rank}") for rank in range(3)] == [f"index {index}\n" for index in (5, 7, 9)]


def test_a_job_is_listed_cancelled_and_its_trap_runs(console: Console) -> None:
    text = "#!/bin/sh\n#SBATCH -J long --mem=64M\ntrap 'echo bye; exit 0' TERM\necho up\nwhile :; do sleep 0.1; done\n"
    name = submit(console, text=text)
    console.wait_for(name, "Running")
    job = name.rpartition("-")[2]
    assert [line.split()[:2] for line in slurm(console, "squeue", "-j", job).stdout.splitlines()[1:]] == [[job, name]]
    assert job in slurm(console, "squeue", "-u", "demo").stdout
    assert len(slurm(console, "squeue", "-u", "somebody-else").stdout.splitlines()) == 1
    assert slurm(console, "scancel", job).returncode == 0
    console.wait_for(name, "Cancelled")
    assert console.logs(f"{name}-0").splitlines()[-1] == "bye"
    again = slurm(console, "scancel", job)
    assert (again.returncode, again.stderr) == (1, f"astra: no run that has not ended: {job}\n")


def test_the_machines_are_shown_as_nodes(console: Console) -> None:
    header, row = slurm(console, "sinfo").stdout.splitlines()
    assert header.split() == ["PARTITION", "NODES", "STATE", "GPUS", "NODELIST"]
    assert row.split() == ["-", "1", "Ready", "4", "local-1"]


def test_waiting_for_a_job_ends_as_it_does(console: Console) -> None:
    answer = slurm(console, "sbatch", "--parsable", "--wait", "--mem=64M", "--wrap=exit 4")
    assert answer.returncode == 1
    assert re.fullmatch(r"\d+\n", answer.stdout)
