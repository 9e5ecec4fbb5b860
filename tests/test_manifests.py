"""Manifests of other systems: what they mean, the run that comes of them, and what is named as left out."""

import json
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from astraconsole.cli.main import astra
from astraconsole.cli.manifests.importing import import_manifest
from astraconsole.cli.manifests.quantities import binary_size, kubernetes_quantity
from astraconsole.cli.manifests.reading import Imported, Refused
from runs.spec import parse_run
from tests.conftest import TEST_DATA

GIB = 1024**3


def cases() -> list[dict[str, Any]]:
    path = TEST_DATA / "jobfiles" / "expected.json"
    every = json.loads(path.read_text()) if path.exists() else []
    return [case for case in every if case["kind"] != "sbatch"]


def imported(text: str, image: str = "busybox") -> Imported:
    """The only run of a manifest, which the console takes."""
    [run] = import_manifest(text, image).runs
    parse_run(run.run)
    return run


def refusal(text: str) -> str:
    with pytest.raises(Refused) as refused:
        import_manifest(text)
    return str(refused.value)


def left_out(run: Imported) -> dict[str, str]:
    return {item.path: item.why for item in run.left_out}


def command(*words: str, text: str) -> Result:
    return CliRunner().invoke(astra, ["import", *words, "-"], input=text)


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


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: Train_1, namespace: ml}
spec:
  activeDeadlineSeconds: 30
  backoffLimit: 2
  template:
    spec:
      restartPolicy: Never
      securityContext: {runAsUser: 1000}
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB, disk: ssd}
      initContainers: [{name: i, image: x}]
      volumes:
        - {name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}
        - {name: data, persistentVolumeClaim: {claimName: imagenet}}
      containers:
        - name: t
          image: registry.example.com/t:1
          command: [python, train.py]
          args: ["--out", "$OUT"]
          workingDir: /app
          imagePullPolicy: Always
          env: [{name: OUT, value: /out}, {name: KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}]
          volumeMounts: [{name: shm, mountPath: /dev/shm}, {name: data, mountPath: /data}]
          resources:
            requests: {cpu: 500m, memory: 16G, rdma/hca: 1}
            limits: {cpu: "2", memory: 16G, nvidia.com/gpu: 2}
        - {name: sidecar, image: y}
"""


def test_a_job_becomes_a_run_with_everything_else_named() -> None:
    run = imported(JOB)
    assert run.run == {
        "metadata": {"name": "train-1"},
        "spec": {
            "task_template": {
                "image": "registry.example.com/t:1",
                "command": "python",
                "args": ["train.py", "--out", "$OUT"],
                "env": {"OUT": "/out"},
                "working_dir": "/app",
                "user": "1000",
                "pull_policy": "Always",
                "restart_policy": "Never",
                "time_limit_seconds": 60,
                "requested_resources": {
                    "cpu_cores": 0.5,
                    "memory_bytes": 16 * 10**9,
                    "cpu_burst": True,
                    "shm_bytes": 8 * GIB,
                    "gpu_requests": {"count": 2, "models": ["A100-SXM4-80GB"]},
                },
            }
        },
    }
    pod = "spec.template.spec"
    assert set(left_out(run)) == {
        "spec.activeDeadlineSeconds",
        "spec.backoffLimit",
        f"{pod}.nodeSelector.disk",
        f"{pod}.initContainers",
        f"{pod}.volumes[1] data (persistentVolumeClaim)",
        f"{pod}.containers[0].env[1] KEY",
        f"{pod}.containers[0].resources.requests.rdma/hca",
        f"{pod}.containers[1]",
    }


def test_groups_that_differ_are_worker_groups_of_one_gang() -> None:
    text = """
kind: PyTorchJob
metadata: {name: ddp}
spec:
  pytorchReplicaSpecs:
    Worker: {replicas: 3, template: {spec: {containers: [{image: w, resources: {limits: {nvidia.com/gpu: 8}}}]}}}
    Master: {replicas: 1, template: {spec: {containers: [{image: m, resources: {limits: {cpu: 2, memory: 1Gi}}}]}}}
"""
    run = imported(text)
    spec = run.run["spec"]
    assert [(group["name"], group["count"]) for group in spec["worker_groups"]] == [("master", 1), ("worker", 3)]
    assert spec["worker_groups"][1]["task_template"]["requested_resources"]["gpu_requests"] == {"count": 24}
    assert (spec["start"], run.meaning["gpus"], run.meaning["workers"]) == ("Gang", 24, 4)
    assert parse_run(run.run).spec.gpus == 24
    assert "not said: 4 cores per GPU" in left_out(run).values()


def test_job_sets_and_train_jobs_are_gangs_of_their_pods() -> None:
    pods = "{parallelism: 2, template: {spec: {containers: [{image: w, resources: {limits: {nvidia.com/gpu: 4}}}]}}}"
    run = imported(
        "kind: JobSet\nmetadata: {name: a, labels: {kai.scheduler/queue: q}}\nspec:\n  replicatedJobs:\n"
        f"    - {{name: workers, replicas: 3, template: {{spec: {pods}}}}}\n"
    )
    assert (run.meaning["workers"], run.meaning["gpus"], run.meaning["queue"]) == (6, 24, "q")
    assert run.run["spec"]["start"] == "Gang"
    text = "kind: TrainJob\nspec: {runtimeRef: {name: torch}, trainer: {numNodes: 2, image: i, command: [a], %s}}"
    run = imported(text % "resourcesPerNode: {requests: {cpu: 3, memory: 1Gi, nvidia.com/gpu: 1}}")
    assert (run.meaning["workers"], run.meaning["cpus"], run.meaning["gpus_each"]) == (2, 6, 1)
    assert "spec.runtimeRef" in left_out(run)


def test_a_part_of_a_gpu_is_a_whole_one_and_is_said() -> None:
    pod = "kind: Pod\nmetadata: {name: a, annotations: {%s}}\nspec: {containers: [{image: i}]}\n"
    run = imported(pod % 'gpu-fraction: "0.5"')
    assert (run.meaning["gpus"], run.meaning["gpu_fraction"]) == (0.5, 0.5)
    assert run.run["spec"]["task_template"]["requested_resources"]["gpu_requests"] == {"count": 1}
    assert left_out(run)["metadata.annotations.gpu-fraction"] == "GPUs are not shared: a whole GPU instead"
    run = imported(pod % 'gpu-memory: "2000"')
    asked = run.run["spec"]["task_template"]["requested_resources"]["gpu_requests"]
    assert asked == {"count": 1, "min_memory_bytes": 2000 * 1024**2}
    assert "must be above 0 and at most 1" in refusal(pod % 'gpu-fraction: "1.5"')


def test_labels_and_the_wishes_of_queues_are_told() -> None:
    text = """
kind: PyTorchJob
metadata: {name: a, labels: {kueue.x-k8s.io/queue-name: q, team: vision}}
status: {}
spec:
  nprocPerNode: "8"
  runPolicy: {schedulingPolicy: {minAvailable: 2, priorityClass: high}}
  pytorchReplicaSpecs:
    Worker:
      replicas: 3
      autoscale: true
      template:
        metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: rack, x: y}}
        spec: {containers: [{image: w, resources: {limits: {cpu: 1, memory: 1Gi}}}]}
"""
    run = imported(text)
    assert run.run["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q", "team": "vision"}
    told = {name: run.meaning[name] for name in ("queue", "topology", "min_available")}
    assert told == {"queue": "q", "topology": "all in one rack", "min_available": 2}
    replicas = "spec.pytorchReplicaSpecs.Worker"
    assert set(left_out(run)) == {
        "kueue.x-k8s.io/queue-name",
        "kueue.x-k8s.io/podset-required-topology",
        "spec.nprocPerNode",
        "spec.runPolicy.schedulingPolicy.minAvailable",
        "spec.runPolicy.schedulingPolicy.priorityClass",
        f"{replicas}.autoscale",
        f"{replicas}.template.metadata.annotations.x",
    }


def test_what_volcano_says_of_a_task_is_named() -> None:
    text = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: a}
spec:
  minAvailable: 1
  tasks: [{replicas: 2, name: w, minAvailable: 1, dependsOn: {name: [x]}, template: {spec: {containers: [{image: i}]}}}]
"""
    run = imported(text)
    assert {"spec.tasks[0].minAvailable", "spec.tasks[0].dependsOn", "spec.minAvailable"} <= set(left_out(run))
    assert (run.meaning["min_available"], run.meaning["gang"]) == (1, False)


def test_a_ray_job_has_its_limit_and_as_many_workers_as_hosts() -> None:
    pod = "template: {spec: {containers: [{image: i, resources: {limits: {cpu: 1, memory: 1G, nvidia.com/gpu: 1}}}]}}"
    groups = f"headGroupSpec: {{{pod}}}, workerGroupSpecs: [{{groupName: w, replicas: 2, numOfHosts: 4, {pod}}}]"
    text = f"kind: RayJob\nspec: {{entrypoint: a, activeDeadlineSeconds: 600, rayClusterSpec: {{{groups}}}}}"
    run = imported(text)
    assert (run.meaning["workers"], run.meaning["gpus"], run.meaning["time_s"]) == (9, 9, 600)


def test_variables_in_a_pods_command_are_filled_in_as_kubernetes_does() -> None:
    container = "{image: i, env: [{name: A, value: x}, {name: B, value: $(A)/y}], args: [$(B), $(C), $$(A), 1$$]}"
    template = imported(f"kind: Pod\nspec: {{containers: [{container}]}}").run["spec"]["task_template"]
    assert (template["args"], template["env"]["B"]) == (["x/y", "$(C)", "$(A)", "1$"], "x/y")


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


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("16G", 16 * 10**9),
        ("16Gi", 16 * GIB),
        ("500m", Decimal("0.5")),
        ("1e3", 1000),
        (".5", Decimal("0.5")),
        ("2", 2),
    ],
)
def test_kubernetes_quantities_are_decimal_where_they_say_so(text: str, amount: int | Decimal) -> None:
    assert kubernetes_quantity(text, "memory") == amount


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
