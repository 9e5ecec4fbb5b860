"""Manifests of other systems: what they mean, the run that comes of them, and what is named as left out."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraconsole.cli.manifests.importing import import_manifest
from astraconsole.cli.manifests.quantities import binary_size
from astraconsole.cli.manifests.reading import Refused
from runs.spec import parse_run
from tests.conftest import TEST_DATA
from tests.manifests import JOB, command, imported, left_out, refusal

GIB = 1024**3


def cases() -> list[dict[str, Any]]:
    path = TEST_DATA / "jobfiles" / "expected.json"
    every = json.loads(path.read_text()) if path.exists() else []
    return [case for case in every if case["kind"] != "sbatch"]


@pytest.mark.data
@pytest.mark.parametrize("case", cases(), ids=lambda case: case["file"])
def test_a_recorded_manifest_means_what_is_known_of_it(case: dict[str, Any], test_data: Path) -> None:
    text = (test_data / "jobfiles" / case["file"]).read_text()
    if "error" in case["expected"]:
        result = command("--json", text=text)
        assert json.loads(result.stdout)["error"] == refusal(text)
        assert isinstance(result.exception, Exception)
        return
    answer = json.loads(command("--json", "--image=busybox", text=text).stdout)
    assert {key: answer["meaning"].get(key) for key in case["expected"]} == case["expected"]
    parse_run(answer["run"])


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ("{accelerators: {'L4:2', 'A10G:2'}}", {"gpus": 2, "gpu_model": ["L4", "A10G"]}),
        ("{gpus: H100:8}", {"gpus": 8, "gpu_model": "H100"}),
        ("{any_of: [{accelerators: A100:8}, {accelerators: H100:8}]}", {"gpus": 8, "gpu_model": ["A100", "H100"]}),
        ("{accelerators: T4, ordered: [{infra: a}, {infra: b}]}", {"gpus": 1, "gpu_model": "T4"}),
    ],
)
def test_skypilots_accelerators_may_be_choices(resources: str, expected: dict[str, Any]) -> None:
    run = imported(f"run: x\nresources: {resources}")
    assert {name: run.meaning.get(name) for name in expected} == expected


def test_a_pool_of_skypilot_has_its_least_workers() -> None:
    run = imported("pool: {min_workers: 2, max_workers: 4}\nresources: {accelerators: H100:1}\nrun: x")
    assert [run.meaning[name] for name in ("workers", "gpus", "min_workers", "max_workers")] == [2, 2, 2, 4]


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("80GB..", {"gpus": 1, "gpu_memory_bytes": 80 * GIB}),
        ("24GB:2", {"gpus": 2, "gpu_memory_bytes": 24 * GIB}),
        ("'A10G,A100:2..4'", {"gpus": 2, "gpu_model": ["A10G", "A100"], "gpus_per_worker": "2..4"}),
        ("amd:MI300X:8", {"gpus": 8, "gpu_model": "MI300X"}),
        ("{name: [H100, H200], memory: 80GB.., count: '2..'}", {"gpus": 2, "gpu_model": ["H100", "H200"]}),
    ],
)
def test_dstacks_gpus_have_a_model_a_memory_and_a_count(gpu: str, expected: dict[str, Any]) -> None:
    run = imported(f"type: task\nimage: i\ncommands: [x]\nmax_duration: 2w\nresources: {{gpu: {gpu}}}")
    assert {name: run.meaning.get(name) for name in expected} == expected
    assert run.meaning["time_s"] == 14 * 86400


def test_a_secret_that_dstack_would_fill_in_is_left_out() -> None:
    run = imported('type: task\nimage: i\ncommands: [x]\nenv: ["A=1", "B=${{ secrets.B }}"]')
    assert run.run["spec"]["task_template"]["env"] == {"A": "1"}
    assert "env.B" in left_out(run)


def test_several_documents_give_several_runs_and_name_what_is_none() -> None:
    text = f"kind: ConfigMap\nmetadata: {{name: c}}\n---\n{JOB}\n---\ntype: task\nname: t\nimage: i\ncommands: [a]\n"
    result = import_manifest(text)
    assert [run.run["metadata"]["name"] for run in result.runs] == ["train-1", "t"]
    assert [item.path for item in result.others] == ["document 1 (ConfigMap)"]
    assert [run["metadata"]["name"] for run in json.loads(command(text=text).stdout)] == ["train-1", "t"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "the file is empty"),
        ("- a\n", "a manifest is an object with fields"),
        ("a: [\n", "not YAML: "),
        ("kind: Job\nspec: {a: 1, b: 2, a: 3}", "the field a is there twice"),
        ("kind: Job\nspec: {parallelism: {{ .Values.n }} }", "render it first (.Values.n)"),
        ("kind: Job\nmetadata: {name: '{{ name }}'}\nspec: {}", "render it first (name)"),
        ("kind: Deployment\nspec: {}", "Deployment: no run comes of it. Known are Kubernetes Job and Pod"),
        (
            "kind: Job\nspec: {template: {spec: {containers: []}}}",
            "spec.template.spec.containers must have a container",
        ),
        ("kind: Job\nspec: {parallelism: two, template: {}}", "spec.parallelism must be a whole number, not 'two'"),
        (
            "kind: Job\nspec: {template: {spec: {containers: [{image: i, resources: {limits: {memory: 16GB}}}]}}}",
            "16GB",
        ),
        ("type: task\nimage: i\nresources: {memory: lots}", "resources.memory 'lots' is not a size"),
        ("type: task\nimage: i\nresources: {gpu: v5litepod-8}", "asks for TPUs"),
        ("type: task\nimage: i\nresources: {gpu: 'A100:H100'}", "resources.gpu 'H100' is not a GPU"),
        ("type: task\nimage: '{{ image }}'", "render it first (image)"),
        ("run: a\nresources: {accelerators: tpu-v4}", "resources.accelerators asks for TPUs"),
        ("run: a\nresources: {accelerators: A100:0.5}", "with whole GPUs"),
        ("gpus: 1\nmem: 16", "memory 16 has no unit"),
    ],
)
def test_what_cannot_be_a_run_is_refused_with_the_reason(text: str, fault: str) -> None:
    assert fault in refusal(text)


def test_a_file_that_aliases_blow_up_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert refusal("\n".join(lines)) == "the file has more than 50000 values"


def test_dstack_is_carried_with_its_names_in_the_environment() -> None:
    text = """
type: task
name: train
nodes: 2
image: nvcr.io/nvidia/pytorch:24.08-py3
env: [A=1, HF_TOKEN]
commands: [pip install x, torchrun t.py]
max_duration: 2h
resources: {gpu: "A100:80GB:8", cpu: 16.., memory: 200GB.., shm_size: 16GB, disk: 500GB..}
spot_policy: auto
"""
    run = imported(text)
    template = run.run["spec"]["task_template"]
    assert template["env"] == {"A": "1"}
    assert template["args"][1].endswith("\npip install x\ntorchrun t.py")
    assert "DSTACK_NODE_RANK=$NODE_RANK" in template["args"][1]
    assert template["time_limit_seconds"] == 7200
    assert template["requested_resources"] == {
        "cpu_cores": 16,
        "memory_bytes": 200 * GIB,
        "shm_bytes": 16 * GIB,
        "gpu_requests": {"count": 16, "models": ["A100"], "min_memory_bytes": 80 * GIB},
    }
    assert (run.run["spec"]["machines"], run.run["spec"]["start"]) == (2, "Gang")
    assert {"env.HF_TOKEN", "resources.disk", "resources.cpu", "resources.memory", "spot_policy"} <= set(left_out(run))


def test_skypilot_is_carried_with_its_names_in_the_environment() -> None:
    text = """
resources: {accelerators: {H100: 8}, cpus: 32, memory: 256+, image_id: "docker:pytorch/pytorch", use_spot: true}
num_nodes: 2
envs: {A: 1, B: null}
secrets: {TOKEN: hunter2}
setup: pip install x
run: torchrun t.py
"""
    run = imported(text)
    template = run.run["spec"]["task_template"]
    assert template["image"] == "pytorch/pytorch"
    assert template["requested_resources"]["gpu_requests"] == {"count": 16, "models": ["H100"]}
    assert template["requested_resources"]["memory_bytes"] == 256 * GIB
    assert "hunter2" not in json.dumps(run.run)
    assert {"secrets", "envs.B", "resources.use_spot", "resources.memory"} <= set(left_out(run))


@pytest.mark.parametrize(("time", "seconds"), [("12:00:00", 43200), ("1-12:00:00", 129600), ("90", 5400), ("2h", 7200)])
def test_a_time_is_read_as_the_command_line_reads_it(time: str, seconds: int) -> None:
    run = imported(f"gpus: 1\nmem: 1Gi\ncpus: 1\ntime: {time}")
    assert run.run["spec"]["task_template"]["time_limit_seconds"] == seconds


def test_our_own_specification_is_printed_as_it_is() -> None:
    resources = "{cpu_cores: 0.5, memory_bytes: 1073741824}"
    text = f"metadata: {{name: a}}\nspec: {{task_template: {{image: i, requested_resources: {resources}}}}}"
    result = command(text=text)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["spec"]["task_template"]["requested_resources"]["cpu_cores"] == 0.5


def test_a_run_that_the_console_would_refuse_is_printed_and_says_so() -> None:
    text = "type: task\nimage: i\nname: a\nworking_dir: /a/../b\ncommands: [x]\n"
    result = command(text=text)
    assert json.loads(result.stdout)["metadata"] == {"name": "a"}
    assert "spec.task_template.working_dir must be an absolute path without .." in str(result.exception)


@given(st.integers(1, 10**6), st.sampled_from(["KB", "MB", "GB", "TB", "K", "MiB", "g"]))
def test_sizes_of_dstack_and_skypilot_are_binary(number: int, unit: str) -> None:
    assert binary_size(f"{number}{unit}", "memory") == number * 1024 ** ("kmgt".index(unit[0].lower()) + 1)


@given(st.text(max_size=300))
def test_whatever_a_manifest_is_it_is_read_or_refused(text: str) -> None:
    for prefix in ("", "kind: Job\nspec: ", "type: task\nresources: ", "run: x\nresources: ", "gpus: "):
        with suppress(Refused):
            import_manifest(prefix + text)


FIELDS = [
    *("template", "spec", "containers", "image", "resources", "limits", "requests", "cpu", "memory", "gpu", "count"),
    *("name", "replicas", "env", "tasks", "pytorchReplicaSpecs", "Worker", "metadata", "labels", "headGroupSpec"),
    *("parallelism", "accelerators", "cpus", "volumes", "emptyDir"),
]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["1", "16G", "a:2", "4+", "1..2", "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(
    st.sampled_from(["Job", "PyTorchJob", "RayCluster", "Pod", "task", "sky"]), st.dictionaries(st.just("spec"), values)
)
def test_whatever_shape_a_field_has_it_is_read_or_refused(kind: str, fields: dict[str, Any]) -> None:
    body = fields.get("spec")
    document = {
        "Job": {"kind": kind, "spec": body},
        "task": {"type": kind, "resources": body},
        "sky": {"resources": body},
    }
    with suppress(Refused):
        import_manifest(json.dumps(document.get(kind, {"kind": kind, "spec": body})))
