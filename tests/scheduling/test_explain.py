"""Every sentence that a waiting run, or a machine that refuses it, can be given."""

import pytest

from runs.scheduling.explain import (
    MACHINE_SENTENCES,
    SENTENCES,
    is_for_good,
    is_for_room,
    machine_sentence,
    sentence,
    what_it_takes,
)
from runs.scheduling.types import Numbers

GIB = 1024**3
ASK: Numbers = {"gpus": 8, "cpu_milli": 64_000, "memory_bytes": 512 * GIB}
NEED = "8 GPUs, 64 cores and 512 GiB"
REASONS: dict[str, list[str]] = {"reasons": ["a fan rattles", "new firmware"]}

WAITS: list[tuple[str, Numbers, str]] = [
    (
        "plan_uneven",
        {"gpus": 9, "count": 2, "over": "machines"},
        "Cannot plan workers: 9 GPUs do not split evenly over 2 machines",
    ),
    (
        "plan_too_few",
        {"gpus": 64, "total": 16, "most": 8, "machines": 2},
        "Cannot plan workers: 64 GPUs asked, the machines that qualify have 16 in all",
    ),
    (
        "plan_split",
        {"gpus": 13, "total": 16, "most": 8, "machines": 2},
        "Cannot plan workers: 13 GPUs do not split evenly over the 16 GPUs of 2 machines, at most 8 on one",
    ),
    ("never_name", {"machines": 2, "wanted": ["x", "y"]}, "No machine fits: no machine is named x or y"),
    ("never_pool", {"machines": 2, "wanted": ["a"]}, "No machine fits: no machine is in pool a"),
    (
        "never_namespace_pool",
        {"machines": 2, "wanted": ["a"]},
        "No machine fits: no machine is in the workspace's pool a",
    ),
    (
        "never_containers",
        {"machines": 2, "wanted": ["file secrets", "drives"]},
        "No machine fits: no machine runs containers, which file secrets and drives need",
    ),
    ("never_labels", {"machines": 2, "wanted": ["a=1", "b=2"]}, "No machine fits: no machine is labelled a=1 and b=2"),
    ("never_gpu_model", {"machines": 2, "wanted": ["L4"]}, "No machine fits: no machine has a GPU of model L4"),
    (
        "never_gpu_memory",
        {"machines": 2, "wanted": 96 * GIB, "most": 80 * GIB},
        "No machine fits: no machine has a GPU with 96 GiB; the most is 80 GiB",
    ),
    ("never_gpus", {"machines": 2, "wanted": 9, "most": 8}, "No machine fits: no machine has 9 GPUs; the most is 8"),
    ("never_gpus", {"machines": 0, "wanted": 9, "most": 0}, "No machine fits: the cluster has no machines"),
    (
        "never_cpu",
        {"machines": 2, "wanted": 1500, "most": 1000},
        "No machine fits: no machine has 1.5 cores; the most is 1 core",
    ),
    (
        "never_memory",
        {"machines": 2, "wanted": GIB, "most": GIB // 2},
        "No machine fits: no machine has 1 GiB of memory; the most is 512 MiB",
    ),
    (
        "never_machines",
        {"wanted": 3, "most": 2},
        "No machine fits: 3 machines asked, one worker on each; 2 could hold one",
    ),
    (
        "never_gang",
        {"workers": 5, "most": 4, **ASK},
        f"No machine fits: 5 workers start together; all machines together could hold 4 at once, each needs {NEED}",
    ),
    (
        "unavailable_machines",
        {"wanted": 3, "most": 2},
        "No machine fits: 3 machines asked, one worker on each; 2 that take work now could hold one",
    ),
    (
        "unavailable_gang",
        {"workers": 5, "most": 4, "differ": 1, **ASK},
        "No machine fits: 5 workers start together; the machines that take work now could hold 4 at once, "
        f"the next needs {NEED}",
    ),
    (
        "unavailable_not_ready",
        {"machines": 1},
        "No machine fits: the only machine that could hold it is not ready",
    ),
    (
        "unavailable_cordoned",
        {"machines": 2, **REASONS},
        "No machine fits: the 2 machines that could hold it are cordoned: a fan rattles; new firmware",
    ),
    (
        "unavailable_draining",
        {"machines": 1, "also_not_ready": 2, "also_cordoned": 1},
        "No machine fits: none of the 4 machines that could hold it takes work: 2 not ready, 1 cordoned, 1 draining",
    ),
    (
        "unavailable_gpu_health",
        {"machines": 1, "wanted": 8, "most": 7},
        "No machine fits: no machine has 8 healthy GPUs now; the most is 7",
    ),
    ("quota_runs", {"used": 2, "limit": 2, "wanted": 1}, "Waits for namespace quota: 2 of 2 runs in use"),
    ("quota_gpus", {"used": 8, "limit": 8, "wanted": 1}, "Waits for namespace quota: 8 of 8 GPUs in use"),
    ("quota_gpus", {"used": 6, "limit": 8, "wanted": 4}, "Waits for namespace quota: 6 of 8 GPUs in use, 4 more asked"),
    ("quota_gpus", {"used": 0, "limit": 8, "wanted": 9}, "Waits for namespace quota: 9 GPUs asked, the quota is 8"),
    (
        "quota_cpu",
        {"used": 500, "limit": 2000, "wanted": 1750},
        "Waits for namespace quota: 0.5 of 2 cores in use, 1.75 more asked",
    ),
    (
        "quota_memory",
        {"used": GIB, "limit": GIB, "wanted": 1},
        "Waits for namespace quota: 1 GiB of 1 GiB memory in use",
    ),
    (
        "gang",
        {"workers": 2, "fit": 1, **ASK},
        f"Gang cannot be placed whole: 1 of 2 workers fit now, each needs {NEED}",
    ),
    ("next", ASK, f"Next to run: waits for {NEED} on one machine"),
    (
        "next",
        {"starts_by": 1_790_000_040, **ASK},
        f"Next to run: {NEED} on one machine are free by 2026-09-21 14:14 UTC at the latest",
    ),
    (
        "next",
        {"starts_by": 1_790_000_040, "gpus": 0, "node_fraction": 1.0},
        "Next to run: 100% of a machine is free by 2026-09-21 14:14 UTC at the latest",
    ),
    (
        "next",
        {"away": 1, **ASK},
        f"Next to run: waits for {NEED} on one machine; 1 machine with room is not connected",
    ),
    (
        "gang",
        {"workers": 2, "fit": 1, "away": 2, **ASK},
        f"Gang cannot be placed whole: 1 of 2 workers fit now, each needs {NEED}; "
        "2 machines with room are not connected",
    ),
    ("queued", ASK, f"Queued behind other runs: waits for {NEED} on one machine"),
    (
        "queued",
        {"ahead": 3, "gpus": 0, "node_fraction": 0.5},
        "Queued behind 3 runs: waits for 50% of a machine",
    ),
    ("queued", {"ahead": 1, "gpus": 0, "cpu_milli": 1000, "memory_bytes": GIB},
     "Queued behind 1 run: waits for 1 core and 1 GiB on one machine"),
    ("preempting", {}, "Next to run: what runs in its place is stopping"),
    ("parallelism", {"limit": 6}, "Next to run when one of its workers ends: 6 run at once"),
]  # fmt: skip

REFUSES: list[tuple[str, Numbers, str]] = [
    ("name", {"wanted": ["x", "y"]}, "not named x or y"),
    ("pool", {"wanted": ["a", "b"]}, "not in pool a or b"),
    ("namespace_pool", {"wanted": ["a"]}, "not in the workspace's pool a"),
    ("labels", {"wanted": ["a=1", "b=2"]}, "not labelled a=1 and b=2"),
    ("containers", {"wanted": ["models"]}, "runs host processes: models need a container"),
    ("gpu_model", {"wanted": ["L4"]}, "no GPU of model L4"),
    ("gpu_memory", {"wanted": 96 * GIB, "most": 80 * GIB}, "no GPU with 96 GiB"),
    ("gpus", {"wanted": 9, "most": 8}, "9 GPUs wanted, at most 8 there"),
    ("cpu", {"wanted": 2000, "most": 1000}, "2 cores wanted, at most 1 core there"),
    ("memory", {"wanted": GIB, "most": 0}, "1 GiB wanted, at most 0 bytes there"),
    ("not_ready", {}, "not ready"),
    ("not_connected", {}, "not connected"),
    ("cordoned", dict(REASONS), "cordoned: a fan rattles; new firmware"),
    ("draining", {"reasons": []}, "draining"),
    ("gpu_health", {"wanted": 8, "most": 7}, "8 GPUs wanted, at most 7 healthy"),
    ("free_gpus", {"wanted": 1, "most": 0}, "1 GPU wanted, at most 0 free"),
    ("free_cpu", {"wanted": 500, "most": 250}, "0.5 cores wanted, at most 0.25 cores free"),
    ("free_memory", {"wanted": GIB, "most": GIB // 2}, "1 GiB wanted, at most 512 MiB free"),
]


@pytest.mark.parametrize(("code", "numbers", "text"), WAITS)
def test_a_waiting_run_is_told_why(code: str, numbers: Numbers, text: str) -> None:
    assert sentence(code, numbers) == text


@pytest.mark.parametrize(("code", "numbers", "text"), REFUSES)
def test_a_machine_that_refuses_is_told_why(code: str, numbers: Numbers, text: str) -> None:
    assert machine_sentence(code, numbers) == text


def test_every_code_has_its_sentence_here() -> None:
    assert {code for code, _, _ in WAITS} == SENTENCES.keys()
    assert {code for code, _, _ in REFUSES} == MACHINE_SENTENCES.keys()


def test_every_sentence_begins_as_documented() -> None:
    heads = ("No machine fits: ", "Gang cannot be placed whole: ", "Queued behind ", "Next to run")
    for _, _, text in WAITS:
        assert text.startswith((*heads, "Waits for namespace quota: ", "Cannot plan workers: "))


@pytest.mark.parametrize("code", SENTENCES)
def test_who_is_ahead_matters_or_it_is_told_what_it_takes(code: str) -> None:
    assert is_for_room(code) or what_it_takes(code)


def test_only_other_machines_or_another_request_lift_what_is_for_good() -> None:
    assert {code for code in SENTENCES if is_for_good(code)} == {
        code for code in SENTENCES if code.split("_")[0] in ("plan", "never")
    }
