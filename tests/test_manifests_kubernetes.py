"""Kubernetes, its training operators and its queues: what their manifests mean here."""

from decimal import Decimal

import pytest

from astraconsole.cli.manifests.quantities import kubernetes_quantity
from runs.spec import parse_run
from tests.manifests import JOB, imported, left_out, refusal

GIB = 1024**3


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
