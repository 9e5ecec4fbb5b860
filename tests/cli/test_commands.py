"""The command line against a stand-in console: what it sends, prints and exits with."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from astraconsole.cli import config
from astraconsole.cli.client import Client
from astraconsole.cli.commands.run import default_name
from astraconsole.cli.main import astra
from astraconsole.cli.problems import NotConfigured, Problem, Refused, Unreachable
from machines.packed_code import read
from tests.cli.stand_in import StandIn, standing_in


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with standing_in() as stand_in:
        for name, value in stand_in.environment().items():
            monkeypatch.setenv(name, value)
        yield stand_in


def astraeus(*arguments: str) -> Result:
    return CliRunner().invoke(astra, ["astraeus", *arguments])


def run_document(name: str, state: str, reason: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "cluster": "gpu-east"},
        "status": {"state": state, "reason": reason},
        "task_names": [],
    }


def test_runs_prints_the_documented_table(console: StandIn) -> None:
    item = run_document("resnet50", "Running", "1 of 1 workers running")
    console.answers["GET", "jobs"] = (200, {"items": [item], "next": None})
    lines = astraeus("runs").output.splitlines()
    assert lines[0] == "NAME                          CLUSTER       STATE       REASON"
    assert lines[1] == "resnet50                      gpu-east      Running     1 of 1 workers running"


def test_runs_follows_every_page(console: StandIn) -> None:
    item = run_document("one", "Running", "")
    console.answers["GET", "jobs"] = [(200, {"items": [item], "next": "x"}), (200, {"items": [item], "next": None})]
    assert len(list(Client(config.load()).every("jobs"))) == 2
    assert [asked.parameters.get("after") for asked in console.asked] == [None, "x"]


def test_run_sends_the_documented_specification(console: StandIn) -> None:
    console.answers["POST", "clusters/gpu-east/api/jobs"] = (201, run_document("resnet50", "Pending", "Run created"))
    options = (
        "--name",
        "resnet50",
        "--image",
        "pytorch",
        "--gpus",
        "1",
        "--cpus",
        "8",
        "--mem",
        "64G",
        "--time",
        "12h",
    )
    result = astraeus("run", *options, "-e", "A=b=c", "--", "python", "train.py", "--epochs", "90")
    assert result.output == f"resnet50 submitted to gpu-east: {console.url}/o/acme/w/vision/jobs/gpu-east/resnet50\n"
    assert console.asked[0].body == {
        "metadata": {"name": "resnet50"},
        "spec": {
            "task_template": {
                "image": "pytorch",
                "command": "python",
                "args": ["train.py", "--epochs", "90"],
                "env": {"A": "b=c"},
                "restart_policy": "Never",
                "time_limit_seconds": 43200,
                "requested_resources": {
                    "gpu_requests": {"count": 1},
                    "per_gpu": {"cpu_cores": 8.0, "memory_bytes": 64 * 1024**3},
                },
            }
        },
    }


def test_a_run_that_cannot_start_says_so_at_once(console: StandIn) -> None:
    reason = "No machine fits: no machine has 9 GPUs; the most is 8"
    console.answers["POST", "clusters/gpu-east/api/jobs"] = (201, run_document("wide", "Pending", reason))
    assert reason in astraeus("run", "--image", "x", "--gpus", "9", "--", "true").stderr


@pytest.mark.parametrize(
    ("option", "value"), [("--mem", "lots"), ("--time", "2-x"), ("--cpus", "-1"), ("-e", "novalue")]
)
def test_a_bad_value_is_a_usage_error_and_nothing_is_sent(console: StandIn, option: str, value: str) -> None:
    assert astraeus("run", "--image", "x", option, value, "--", "true").exit_code == 2
    assert console.asked == []


def test_a_refusal_shows_code_message_and_every_broken_rule_once(console: StandIn) -> None:
    one = {"field": "spec.machines", "rule": "must be at least 1"}
    two = {"field": "metadata.name", "rule": "is required"}
    for detail, message, shown in (
        ([one], "spec.machines must be at least 1", "spec.machines must be at least 1"),
        ([one, two], "two rules", "two rules\n  spec.machines: must be at least 1\n  metadata.name: is required"),
    ):
        body = {"code": "VALIDATION_ERROR", "message": message, "detail": detail}
        console.answers["DELETE", "clusters/gpu-east/api/jobs/x"] = (400, body)
        problem = astraeus("delete", "x").exception
        assert isinstance(problem, Refused)
        assert str(problem) == f"VALIDATION_ERROR: {shown}"
        assert problem.exit_code == 3


def test_a_workspace_without_a_cluster_is_told_what_to_do(console: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRA_CLUSTER")
    console.answers["GET", "clusters"] = (200, {"items": [], "next": None})
    with pytest.raises(Problem, match="the workspace has no cluster yet: add a machine in the console"):
        Client(config.load()).get("jobs")


def test_a_console_that_does_not_answer_is_its_own_exit_code(console: StandIn) -> None:
    console.hang_up = 1
    with pytest.raises(Unreachable, match="no answer from http://localhost"):
        Client(config.load()).get("jobs")


def test_why_tells_what_each_machine_has_against_a_run_and_what_would_help(console: StandIn) -> None:
    document = run_document("wide", "Pending", "Queued behind 2 runs")
    document["status"]["pending"] = {
        "ahead": 2,
        "starts_by": "2026-10-01T03:12:44.118202Z",
        "machines": [{"count": 2, "reason": "8 GPUs wanted, at most 4 free", "machines": ["gpu-01", "gpu-02"]}],
        "quota": {"gpus": {"used": 8, "limit": 16}, "runs": {"used": 1, "limit": None}},
        "would_start": [{"change": "4 GPUs instead of 8", "outcome": "starts at once on gpu-01"}],
    }
    console.answers["GET", "clusters/gpu-east/api/jobs/wide"] = (200, document)
    assert astraeus("why", "wide").output.splitlines() == [
        "wide: Pending — Queued behind 2 runs",
        "2 runs ahead of it",
        "starts by 2026-10-01 03:12 UTC, if all use their limits",
        "quota of gpus: 8 of 16 in use",
        "4 GPUs instead of 8: starts at once on gpu-01",
        "MACHINES  REASON                                            WHICH",
        "2         8 GPUs wanted, at most 4 free                     gpu-01, gpu-02",
    ]


def test_a_list_of_runs_is_submitted_one_after_the_other(console: StandIn, tmp_path: Path) -> None:
    console.answers["POST", "clusters/gpu-east/api/jobs"] = (201, run_document("x", "Pending", "Run created"))
    (tmp_path / "runs.json").write_text('[{"a": 1}, {"b": 2}]')
    assert astraeus("submit", str(tmp_path / "runs.json")).output.count("submitted") == 2
    assert [asked.body for asked in console.asked] == [{"a": 1}, {"b": 2}]


def test_a_file_without_a_run_is_told_so(console: StandIn, tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text("[]")
    result = astraeus("submit", str(tmp_path / "runs.json"))
    assert isinstance(result.exception, NotConfigured)
    assert str(result.exception) == f"{tmp_path}/runs.json holds no run"


def test_a_history_may_be_a_workers(console: StandIn) -> None:
    moved = {"transition_at": "2026-10-01T01:02:11.402117Z", "state": "Running", "reason": "up", "actor": "ada"}
    console.answers["GET", "clusters/gpu-east/api/tasks/llama-0"] = (200, {"history": [moved]})
    assert astraeus("history", "llama-0").output == "2026-10-01T01:02:11.402117Z  Running  ada  up\n"


def test_a_name_that_is_neither_a_run_nor_a_worker_is_said_to_be_neither(console: StandIn) -> None:
    for command in (["logs", "nope"], ["logs", "nope", "-f"], ["logs", "nope", "--all-workers"], ["history", "nope"]):
        problem = astraeus(*command).exception
        assert str(problem) == "NOT_FOUND: there is no run and no worker nope on gpu-east"


def test_a_difference_shows_what_was_and_what_is(console: StandIn) -> None:
    differences = [
        {"what": "task_template.args", "before": ["a"], "after": ["b\n"]},
        {"what": "x", "before": None, "after": 1},
    ]
    good = {"name": "llama-1", "state": "Completed"}
    answer = {
        "good": good,
        "how": "the last run of the same name",
        "differences": differences,
        "unknown": ["Not known."],
    }
    console.answers["GET", "clusters/gpu-east/api/jobs/llama-2/diff"] = (200, answer)
    result = astraeus("diff", "llama-2")
    assert result.stdout.splitlines() == [
        "llama-2 against llama-1 (the last run of the same name)",
        "  task_template.args",
        '    - ["a"]',
        '    + ["b\\n"]',
        "  x",
        "    + 1",
    ]
    assert result.stderr == "(Not known.)\n"
    astraeus("diff", "llama-2", "llama-0")
    assert console.asked[-1].parameters == {"against": "llama-0"}


def test_a_run_without_a_good_one_before_it_is_told_so(console: StandIn) -> None:
    answer = {"good": None, "how": "", "differences": [], "unknown": []}
    console.answers["GET", "clusters/gpu-east/api/jobs/x/diff"] = (200, answer)
    assert astraeus("diff", "x").output.startswith("x: no run of its kind has completed before it")


def test_usage_is_told_as_a_table_and_as_csv(console: StandIn) -> None:
    used = {"month": "2026-10", "organisation": "acme", "workspace": "vision", "user": "ada", "gpu_hours": 1234.5678}
    left = {**used, "user": None, "gpu_hours": 0.25}
    console.answers["GET", "usage"] = (200, {"items": [used, left], "next": None})
    assert astraeus("usage", "--month", "2026-10").output.splitlines() == [
        "MONTH     USER                          GPU-HOURS",
        "2026-10   ada                           1,234.57",
        "2026-10   -                             0.25",
    ]
    assert console.asked[-1].parameters == {"from": "2026-10", "to": "2026-10"}
    csv = astraeus("usage", "--csv").output
    assert (
        csv
        == "month,organisation,workspace,user,gpu_hours\n2026-10,acme,vision,ada,1234.5678\n2026-10,acme,vision,,0.25\n"
    )
    assert astraeus("usage", "--month", "October").exit_code == 2
    assert astraeus("usage", "--csv", "--json").exit_code == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lgoin"], "No such command 'lgoin'. Did you mean 'login'?"),
        (["logs", "x"], "No such command 'logs': it is `astra astraeus logs`."),
        (["squeue"], "No such command 'squeue': it is `astra slurm squeue`."),
        (["astraeus", "satus"], "No such command 'satus'. Did you mean 'status'?"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(words: list[str], told: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        astra.main(words, prog_name="astra", standalone_mode=False)
    assert refused.value.format_message() == told


def test_logs_of_a_run_are_its_first_workers(console: StandIn) -> None:
    console.answers["GET", "clusters/gpu-east/api/jobs/llama"] = (200, {"task_names": ["llama-0", "llama-1"]})
    console.answers["GET", "clusters/gpu-east/api/tasks/llama-0/logs"] = (200, {"task_name": "llama-0", "logs": "hi\n"})
    assert astraeus("logs", "llama").output == "hi\n"


def test_a_name_that_is_no_run_is_a_worker(console: StandIn) -> None:
    console.answers["GET", "clusters/gpu-east/api/tasks/llama-1"] = (200, {"history": []})
    console.answers["GET", "clusters/gpu-east/api/tasks/llama-1/logs"] = (200, {"task_name": "llama-1", "logs": "ho\n"})
    assert astraeus("logs", "llama-1").output == "ho\n"


@pytest.mark.parametrize(
    ("argv", "stem"), [(("python", "x"), "python"), (("/bin/My App.sh",), "my-app-sh"), ((), "run")]
)
def test_a_run_without_a_name_is_named_after_its_command(argv: tuple[str, ...], stem: str) -> None:
    name, _, number = default_name(argv).rpartition("-")
    assert name == stem
    assert 10_000 <= int(number) <= 99_999


def test_a_token_that_is_refused_is_told_how_to_get_another(console: StandIn) -> None:
    console.answers["GET", "jobs"] = (401, {"code": "UNAUTHENTICATED", "message": "this API token was revoked"})
    problem = astraeus("runs").exception
    assert str(problem).splitlines() == [
        "UNAUTHENTICATED: this API token was revoked",
        "sign in with `astra login`, or see ASTRA_TOKEN",
    ]


def test_sbatch_waits_over_a_break_of_the_network_and_exits_as_the_run_did(console: StandIn, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\nexit 3\n")
    ended = run_document("job-7", "Failed", "Worker job-7-0 failed on gpu-01: Exited with code 3")
    console.answers["POST", "clusters/gpu-east/api/jobs"] = (201, run_document("job-7", "Pending", "Run created"))
    console.answers["GET", "clusters/gpu-east/api/jobs/job-7"] = [(502, b"bad gateway"), (200, ended)]
    result = CliRunner().invoke(astra, ["slurm", "sbatch", "--image", "x", "--wait", str(tmp_path / "job.sh")])
    assert result.exit_code == 1
    assert "the console answers again" in result.stderr
    assert result.stderr.splitlines()[-1] == "job-7: Failed — Worker job-7-0 failed on gpu-01: Exited with code 3"


# ---- GPUs and templates ----


def gpu(machine: str, index: int, utilization: float | None, held_by: str | None, **more: Any) -> dict[str, Any]:
    model = "NVIDIA H100 80GB HBM3"
    seen = {"machine": machine, "index": index, "model": model, "utilization": utilization, "health": "ok"}
    return {**seen, "held_by": held_by, "simulated": False, **more}


def test_gpus_prints_the_documented_lines(console: StandIn) -> None:
    items = [
        gpu("gpu-07", 0, 0.97, "llama-sft"),
        gpu("gpu-09", 0, 0.0, None),
        gpu("gpu-09", 1, None, "another workspace's run", simulated=True, health="fell off the bus"),
    ]
    console.answers["GET", "clusters/gpu-east/api/gpus"] = (200, {"items": items, "next": None})
    assert astraeus("gpus").output.splitlines() == [
        "gpu-07/0  NVIDIA H100 80GB HBM3  97%  ok  held by llama-sft",
        "gpu-09/0  NVIDIA H100 80GB HBM3  0%  ok  free",
        "gpu-09/1  NVIDIA H100 80GB HBM3 (simulated)  -  fell off the bus  held by another workspace's run",
    ]


def test_gpus_of_every_cluster_are_listed_where_none_is_chosen(
    console: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASTRA_CLUSTER")
    console.answers["GET", "clusters"] = (200, {"items": [{"name": "gpu-east"}, {"name": "lab"}], "next": None})
    console.answers["GET", "clusters/gpu-east/api/gpus"] = (200, {"items": [gpu("a", 0, 0.5, None)], "next": None})
    console.answers["GET", "clusters/lab/api/gpus"] = (200, {"items": [gpu("b", 0, 0.5, None)], "next": None})
    assert [line[:3] for line in astraeus("gpus").output.splitlines()] == ["a/0", "b/0"]


TEMPLATE = {
    "name": "llama-70b finetune",
    "description": "16 H100, 24 h, checkpoints on /ckpt",
    "spec": {"task_template": {"image": "pytorch", "command": "/usr/bin/torchrun"}, "start": "Gang"},
}


def test_templates_are_listed_as_documented(console: StandIn) -> None:
    console.answers["GET", "templates"] = (200, {"items": [TEMPLATE], "next": None})
    assert astraeus("templates").output == "llama-70b finetune  16 H100, 24 h, checkpoints on /ckpt\n"


def test_a_run_from_a_template_is_the_template_and_says_what_it_ignores(console: StandIn) -> None:
    console.answers["GET", "templates"] = (200, {"items": [TEMPLATE], "next": None})
    console.answers["POST", "clusters/gpu-east/api/jobs"] = (201, run_document("finetune", "Pending", "Run created"))
    result = astraeus("run", "--template", "llama-70b finetune", "--gpus", "8", "-e", "A=b")
    sent = console.asked[-1].body
    assert sent["spec"] == TEMPLATE["spec"]
    assert sent["metadata"]["name"].startswith("torchrun-")
    assert result.stderr == "(the template llama-70b finetune is used as it is: --gpus, --env ignored)\n"


def test_a_template_that_there_is_not_is_said(console: StandIn) -> None:
    console.answers["GET", "templates"] = (200, {"items": [TEMPLATE], "next": None})
    with pytest.raises(Problem, match="no template 'other'"):
        astra.main(["astraeus", "run", "--template", "other"], standalone_mode=False)


def test_models_pools_machines_and_code_are_in_the_specification(console: StandIn, tmp_path: Path) -> None:
    console.answers["POST", "clusters/gpu-east/api/jobs"] = (201, run_document("x", "Pending", "Run created"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print()")
    chosen = ("--machines", "2", "--pool", "h100", "--model", "llama", "--model-path", "/m", "--with-engine")
    astraeus("run", "--image", "x", *chosen, "--code", str(tmp_path / "code"), "--", "python", "train.py")
    spec = console.asked[0].body["spec"]
    assert (spec["machines"], spec["node_selection"], spec["engine"]) == (2, {"pools": ["h100"]}, {"model": "llama"})
    assert spec["task_template"]["model_refs"] == [{"name": "llama", "mount_path": "/m"}]
    assert list(read(base64.b64decode(spec["code"])).files) == ["train.py"]


def test_an_image_may_come_from_the_environment_and_defaults_are_the_documented_ones(
    console: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRA_IMAGE", "from-environment")
    console.answers["POST", "clusters/gpu-east/api/jobs"] = (201, run_document("x", "Pending", "Run created"))
    astraeus("run", "--", "true")
    template = console.asked[0].body["spec"]["task_template"]
    assert template["image"] == "from-environment"
    assert template["requested_resources"] == {"cpu_cores": 4.0, "memory_bytes": 16 * 1024**3}
    assert set(console.asked[0].body["spec"]) == {"task_template"}
