"""Slurm's batch scripts: what they mean, what is refused, and the run that is made of them."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from astraconsole.cli.main import astra
from astraconsole.cli.slurm import values
from astraconsole.cli.slurm.meaning import Meaning, understand
from astraconsole.cli.slurm.options import read_variables, read_words
from astraconsole.cli.slurm.script import Refused, read_script, split_words
from runs.spec import parse_run
from tests.conftest import TEST_DATA

GIB = 1024**3


def script(*directives: str, body: str = "srun true") -> str:
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {directive}" for directive in directives), body, ""])


def meaning(*directives: str, body: str = "srun true") -> Meaning:
    return understand(read_script(script(*directives, body=body)))


def document(*directives: str) -> dict[str, Any]:
    return meaning(*directives).document()


def faults(text: str) -> list[str]:
    with pytest.raises(Refused) as refused:
        understand(read_script(text))
    return refused.value.faults


def dry_run(*words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(astra, ["slurm", "sbatch", "--dry-run", "--json", *words], input=text)


def cases() -> list[dict[str, Any]]:
    path = TEST_DATA / "jobfiles" / "expected.json"
    every = json.loads(path.read_text()) if path.exists() else []
    return [case for case in every if case["kind"] == "sbatch"]


@pytest.mark.data
@pytest.mark.parametrize("case", cases(), ids=lambda case: case["file"])
def test_a_recorded_script_means_what_is_known_of_it(case: dict[str, Any], test_data: Path) -> None:
    result = dry_run(str(test_data / "jobfiles" / case["file"]))
    if "error" in case["expected"]:
        refusals = json.loads(result.stdout)["errors"]
        assert [fault.split(":")[0] for fault in refusals] == [f"line {line}" for line in range(2, 6)]
        return
    answer = json.loads(result.stdout)
    for key, value in case["expected"].items():
        told = answer["meaning"].get(key)
        if key == "array":
            assert {name: told[name] for name in value} == value
        elif key == "ignored":
            assert set(value) <= set(told)
        else:
            assert told == value, key
    answer["run"]["spec"]["task_template"]["image"] = "busybox"
    parse_run(answer["run"])  # the console would take it


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--time 30   # half an hour", ["--time", "30"]),
        ("-J 'my job' --comment=\"a # b\"", ["-J", "my job", "--comment=a # b"]),
        (r"--job-name=a\ b\#c", ["--job-name=a b#c"]),
        ("-J ''", ["-J", ""]),
        ("#only a comment", []),
    ],
)
def test_a_directive_is_split_as_sbatch_splits_it(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["-n4", "-c", "8"], [("ntasks", "4"), ("cpus-per-task", "8")]),
        (["-HvN2-4"], [("hold", ""), ("verbose", ""), ("nodes", "2-4")]),
        (["--err=x", "--job", "a", "--cpus-per-t=2"], [("error", "x"), ("job-name", "a"), ("cpus-per-task", "2")]),
        (["--exclusive", "--exclusive=user", "-W"], [("exclusive", ""), ("exclusive", "user"), ("wait", "")]),
        (["--gpus", "2", "--", "-n4"], [("gpus", "2")]),
    ],
)
def test_options_are_read_as_getopt_reads_them(words: list[str], given: list[tuple[str, str]]) -> None:
    assert [(option.name, option.value) for option in read_words(words).given] == given


@pytest.mark.parametrize(
    ("directive", "fault"),
    [
        ("--gpu=2", "could be --gpu-bind, --gpu-freq, --gpus, --gpus-per-node"),
        ("--requeue=1", "takes no value"),
        ("--time", "needs a value"),
        ("-N", "needs a value"),
        ("--nodes=0", "is not a number of nodes: write 2, or 2-4"),
        ("--nodes=4-2", "has a maximum below its minimum"),
        ("--ntasks=many", "is not a whole number of at least 1"),
        ("--mem=1.5G", "is not a size: write a whole number of MiB, or one with K, M, G or T"),
        ("--gres=gpu:a100:2,gpu:v100:1", "asks for several GPU models at once: a run's workers have one"),
        ("--array=1-10%0", "has no whole number of at least 1 after %"),
        ("--array=0-20000", "has more than 10000 indices"),
        ("--signal=@60", "is not a signal: write USR1@60, or B:USR1@60 for the script alone"),
        ("--job-name='a", "has an opening ' and no closing one"),
        ("hetjob", "heterogeneous jobs are not supported: submit their parts as runs"),
        ("--gpus-per-socket=1", "needs --sockets-per-node: or use --gpus-per-node"),
        ("--gres=gpus:2", "is no resource that is known: gpus: write gpu"),
        ("--gres=gpu:lots", "is not a number of GPUs: lots is neither a number nor a model"),
        ("--signal=FOO@10", "is not a signal: there is no FOO"),
        ("--signal=USR1@70000", "is more than 65535 seconds before the limit"),
        ("--exclusive=alone", "is not a way to be exclusive: write --exclusive, or one of user, mcs, topo"),
        ("--dependency=afterok:$ID", "is not a dependency: write afterok:JOBID, several with a comma, or singleton"),
        ("--mem=64 GB", "GB is no option: one begins with -"),
        ("nodes=2", "nodes=2 is no option: one begins with -"),
    ],
)
def test_a_bad_value_is_refused_with_its_line_and_the_rule(directive: str, fault: str) -> None:
    [told] = faults(script("--comment=x", directive))
    assert told.startswith("line 3: ")
    assert told.endswith(fault)


@pytest.mark.parametrize(
    ("directives", "fault"),
    [
        (("--mem=1G", "--mem-per-cpu=1G"), "--mem, --mem-per-cpu and --mem-per-gpu exclude one another"),
        (("-c2", "--cpus-per-gpu=2", "-G1"), "--cpus-per-task and --cpus-per-gpu exclude one another"),
        (("-N2", "--gpus=3"), "3 GPUs do not split evenly over 2 nodes"),
        (("-N2", "--gpus=4", "--gres=gpu:4"), "--gpus=4 on 2 nodes is 2 per node, and 4 per node are asked for"),
        (("--gres=gpu:2", "--gpus-per-node=4"), "--gpus-per-node asks for 4 GPUs per node and --gres for 2"),
        (("--gres=gpu:a100:2", "--gpus-per-node=h100:2"), "the GPU models contradict one another: h100, a100"),
        (("--mem-per-gpu=1G",), "--mem-per-gpu needs GPUs"),
        (("-n8", "-N2", "--ntasks-per-node=2"), "8 tasks do not fit on 2 nodes with 2 each"),
        (
            ("-n4", "--gpus-per-task=1", "--gres=gpu:2"),
            "4 tasks per node with 1 GPUs each need 4 GPUs, and 2 per node are asked for",
        ),
    ],
)
def test_options_that_contradict_one_another_are_refused(directives: tuple[str, ...], fault: str) -> None:
    assert faults(script(*directives)) == [fault]


@pytest.mark.parametrize(
    ("directives", "expected"),
    [
        (("-N2", "-n8"), {"nodes": 2, "tasks": 8, "tasks_per_node": 4, "cpus": 8, "gang": True}),
        (("-N4", "-n2"), {"nodes": 2, "tasks": 2}),
        (("-N2-4",), {"nodes": 2, "tasks": 2}),
        (("--gpus=16", "--gpus-per-node=8"), {"nodes": 2, "gpus": 16}),
        (("--gpus=h100:8", "--gpus-per-task=2"), {"nodes": 1, "tasks": 4, "gpus": 8, "gpu_model": "h100"}),
        (("-n8", "--ntasks-per-gpu=2"), {"gpus": 4, "tasks": 8}),
        (("--gpus-per-node=4", "--cpus-per-gpu=6", "-N2"), {"cpus": 48, "cpus_per_node": 24}),
        (("--gpus-per-socket=a100:2", "--sockets-per-node=2", "-N2"), {"gpus": 8, "gpu_model": "a100"}),
        (("--tasks-per-node=4", "--workdir=/w", "-N2"), {"tasks": 8, "chdir": "/w"}),
        (("-N 2,4",), {"nodes": 2}),
        (("--exclusive=user",), {"exclusive": True}),
        (("--gres=gpu",), {"gpus": 1}),
        (("--gres=gres/gpu:a100=2",), {"gpus": 2, "gpu_model": "a100"}),
        (("--gres=gres:gpu:tesla:2,shard:1",), {"gpus": 2, "gpu_model": "tesla", "ignored": ["--gres=shard:1"]}),
        (("-t -1",), {"time_s": None}),
        (
            ("--dependency=after:1+10,afterany:2_3?afternotok:4",),
            {"dependency": "after:1+10,afterany:2_3?afternotok:4"},
        ),
        (("--gres=gpu:tesla",), {"gpus": 1, "gpu_model": "tesla"}),
        (("--gres=gpu:a100:2(S:0-1),nvme:1",), {"gpus": 2, "gpu_model": "a100", "ignored": ["--gres=nvme:1"]}),
        (("--mem-per-cpu=2000", "-n2", "-c3"), {"mem_bytes": 6 * 2000 * 1024**2}),
        (("--mem=512K",), {"mem_bytes": 512 * 1024}),
        (("-t 90:30",), {"time_s": 5430}),
        (("-t 2-0",), {"time_s": 172800}),
        (("-t 1-02:30",), {"time_s": 95400}),
        (("-t 0",), {"time_s": None}),
        (("-t UNLIMITED",), {"time_s": None}),
        (("--time=10", "--time=20"), {"time_s": 1200}),
        (("--requeue", "--no-requeue"), {"requeue": False}),
        (("--signal=B:10@30",), {"signal": {"name": "USR1", "before_s": 30, "batch_only": True}}),
        (("--dependency=afterok:123:124",), {"dependency": "afterok:123:124"}),
        (("--no-such=1", "--frobnicate 7"), {"ignored": ["--no-such=1", "--frobnicate 7"]}),
    ],
)
def test_directives_mean(directives: tuple[str, ...], expected: dict[str, Any]) -> None:
    told = document(*directives)
    assert {key: told.get(key) for key in expected} == expected


def test_only_a_line_that_begins_with_the_word_is_a_directive() -> None:
    told = document("-n2\n  #SBATCH -n3\n#sbatch -n4\n#PBS -l nodes=5\n#SBATCH--nodes=2")
    assert (told["nodes"], told["tasks"]) == (2, 2)
    assert told["ignored"] == ["#SBATCH", "#sbatch", "#PBS"]


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("0-3", "0,1,2,3"),
        ("7", "7"),
        ("1,3,3,2", "1,2,3"),
        ("0-99:10", "0,10,20,30,40,50,60,70,80,90"),
        ("[1-2]", "1,2"),
    ],
)
def test_an_array_has_its_indices(text: str, spelled: str) -> None:
    assert values.parse_array(text).spelled() == spelled


@given(st.sets(st.integers(0, 3000), min_size=1, max_size=60))
def test_an_arrays_expression_says_the_same_indices(indices: set[int]) -> None:
    array = values.Array(tuple(sorted(indices)), None)
    assert values.parse_array(array.expression()) == array


@given(st.text(max_size=30) | st.from_regex(r"[0-9a-z:@%,./-]{0,20}", fullmatch=True))
def test_whatever_a_value_is_it_is_read_or_refused(text: str) -> None:
    for parse in (
        values.parse_time,
        values.parse_size,
        values.parse_gpus,
        values.parse_gres,
        values.parse_array,
        values.parse_signal,
        values.parse_nodes,
    ):
        with suppress(ValueError):
            parse(text)


@given(st.text(max_size=200))
def test_whatever_a_file_is_it_is_read_or_refused(text: str) -> None:
    for prefix in ("", "#!/bin/sh\n#SBATCH ", "sbatch ", "#!/bin/sh\nsbatch <<E\n#SBATCH "):
        with suppress(Refused):
            understand(read_script(prefix + text))


def test_the_environment_ranks_above_the_script_and_the_command_line_above_both() -> None:
    read = read_script(script("--time=10", "--mem-per-cpu=1G", "--gres=gpu:4"))
    variables = read_variables({"SBATCH_TIMELIMIT": "20", "SBATCH_MEM_PER_NODE": "3G"})
    told = understand(read, variables, read_words(["-t", "30", "--gpus=a100:2"]).given).document()
    assert (told["time_s"], told["mem_bytes"], told["gpus"], told["gpu_model"]) == (1800, 3 * GIB, 2, "a100")


def test_a_here_document_that_the_shell_would_fill_in_cannot_be_submitted() -> None:
    read = read_script("for n in 1 2; do\nsbatch -n2 <<E\n#!/bin/sh\n#SBATCH -c4\npython t.py $n\nE\ndone\n")
    assert understand(read).document()["cpus"] == 8
    assert read.cannot_run == "its job is in a here-document that the shell fills in first (python t.py $n)"
    named = read_script("sbatch <<E\n#!/bin/sh\n#SBATCH -J lr_$lr -o $lr.out -c4\nE\n")
    assert (understand(named).document()["cpus"], bool(named.cannot_run)) == (4, True)
    assert read_script("sbatch -J a_$i -c2 x.sh").cannot_run == "the shell fills in its options first (-J a_$i)"
    assert faults("sbatch <<E\n#SBATCH --gpus=$n\nE\n") == ["line 2: --gpus=$n: the shell would fill this in first"]
    assert read_script("sbatch <<'E'\n#!/bin/sh\n#SBATCH -c4\necho $HOME\nE\n").cannot_run == ""


def test_a_here_document_after_the_first_command_is_no_directive_of_the_script() -> None:
    body = "cat > next.sh <<EOF\n#SBATCH --gpus=8\nEOF\nsbatch next.sh"
    told = meaning("--time=5", body=body).document()
    assert (told["gpus"], told["time_s"], told.get("ignored")) == (0, 300, None)


def test_a_call_of_sbatch_ranks_above_the_script_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(script("--time=10", "-c4"))
    (tmp_path / "go.sh").write_text("sbatch -t 20 \\\n  run.sh --epochs 3\n")
    answer = json.loads(dry_run("--image=busybox", str(tmp_path / "go.sh")).stdout)
    assert (answer["meaning"]["time_s"], answer["meaning"]["cpus"]) == (1200, 4)
    assert answer["run"]["spec"]["task_template"]["args"][-2:] == ["--epochs", "3"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "the script is empty"),
        ("echo hello\n", "line 1: a batch script begins with #! and the path of its interpreter"),
        ("#SBATCH -n2\nsrun true\n", "line 1: a batch script begins with #! and the path of its interpreter"),
        ("#!/bin/sh\r\necho\r\n", "the script has DOS line ends (CR LF): sbatch takes none; dos2unix removes them"),
        ("#!/bin/sh\necho \0\n", "the script holds a NUL character"),
    ],
)
def test_what_is_no_batch_script_is_refused(text: str, fault: str) -> None:
    assert faults(text) == [fault]


def run_of(*words: str, text: str) -> dict[str, Any]:
    result = dry_run("--image", "busybox", *words, text=text)
    assert result.exit_code == 0, result.output
    run = json.loads(result.stdout)["run"]
    parse_run(run)
    return run


def test_nodes_are_workers_of_a_gang_that_fails_as_one() -> None:
    spec = run_of("--pool=a100", "-", "x y", text=script("-N2", "--gres=gpu:a100:4", "-c8", "--mem=64G", "-J My_Job"))[
        "spec"
    ]
    assert (spec["machines"], spec["start"], spec["on_failure"]) == (2, "Gang", "FailJob")
    assert spec["node_selection"] == {"pools": ["a100"]}
    template = spec["task_template"]
    assert template["restart_policy"] == "Never"
    assert template["args"][-1] == "x y"
    assert template["requested_resources"] == {
        "cpu_cores": 8,
        "memory_bytes": 64 * GIB,
        "gpu_requests": {"count": 8, "models": ["a100"]},
    }


def test_an_array_asks_for_the_gpus_of_all_its_elements() -> None:
    spec = run_of(text=script("--array=1-9:2%2", "--gpus=2"))["spec"]
    assert spec["array"] == {"count": 5, "parallelism": 2}
    assert spec["task_template"]["requested_resources"]["gpu_requests"] == {"count": 10}
    assert "machines" not in spec


def test_gpus_without_nodes_may_take_several_machines() -> None:
    spec = run_of(text=script("--gpus=16", "-c32"))["spec"]
    assert "machines" not in spec
    assert spec["task_template"]["requested_resources"]["per_gpu"]["cpu_cores"] == 2


def test_a_whole_node_is_a_whole_machine_and_a_short_limit_is_said() -> None:
    result = dry_run("--image=x", text=script("--mem=0", "--time=0:30"))
    answer = json.loads(result.stdout)
    template = answer["run"]["spec"]["task_template"]
    assert template["requested_resources"] == {"node_fraction": 1}
    assert template["time_limit_seconds"] == 60
    assert "time limit 60s, the shortest there is; 30s was asked for" in answer["notes"]


def test_what_would_start_later_is_shown_and_refused_on_submit(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(script("--dependency=afterok:7", "--begin=16:00"))
    answer = json.loads(dry_run(str(path)).stdout)
    assert len(answer["refused_on_submit"]) == 2
    result = CliRunner().invoke(astra, ["slurm", "sbatch", "--image=x", str(path)])
    assert "line 2: --dependency=afterok:7: a run starts as soon as there is room" in str(result.exception)


def test_only_variables_that_are_named_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LR", "0.1")
    env = run_of("--export=ALL,LR,SEED=7", text=script())["spec"]["task_template"]["env"]
    assert (env["LR"], env["SEED"], "HOME" in env) == ("0.1", "7", False)


def test_a_command_line_that_is_wrong_says_so_and_sends_nothing(tmp_path: Path) -> None:
    for words, told in {
        ("--no-such", "x.sh"): "--no-such is no option of sbatch",
        ("/no/such.sh",): "cannot read /no/such.sh: No such file or directory",
        ("--wrap=true", "x.sh"): "--wrap and a script exclude one another",
        ("-N1", ":", "-N2", "x.sh"): "heterogeneous jobs are not supported",
    }.items():
        result = CliRunner().invoke(astra, ["slurm", "sbatch", *words])
        assert told in str(result.exception)


def test_a_script_needs_an_image_and_may_name_it_as_pyxis_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRA_IMAGE", raising=False)
    result = CliRunner().invoke(astra, ["slurm", "sbatch", "--wrap=true"])
    assert "no image: a Slurm script names none" in str(result.exception)
    named = json.loads(dry_run(text=script('--container-image="docker://nvcr.io#nvidia/pytorch:24.08-py3"')).stdout)
    assert named["run"]["spec"]["task_template"]["image"] == "nvcr.io/nvidia/pytorch:24.08-py3"
