"""The pure parts of the docker runtime."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines.agent.runtimes.base import NOTHING_PREPARED, Mount, Prepared
from machines.agent.runtimes.docker import DockerRuntime
from machines.agent.runtimes.docker_memory import kills_in, memory_group
from machines.agent.runtimes.docker_request import (
    LOG_FILES,
    LogFiles,
    PullProgress,
    Site,
    container_request,
    image_digest,
    log_file_bytes,
    pull_failure,
)
from machines.images import image_reference
from machines.orders import Order
from machines.protocol import Gpu, PullFailure

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("pytorch/pytorch", "docker.io/pytorch/pytorch:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("index.docker.io/a/b", "docker.io/a/b:latest"),
        ("localhost/busybox:test", "localhost/busybox:test"),
        ("localhost:5000/a", "localhost:5000/a:latest"),
        ("127.0.0.1:1/a/b/c:x", "127.0.0.1:1/a/b/c:x"),
        ("nvcr.io/nvidia/pytorch:24.08-py3", "nvcr.io/nvidia/pytorch:24.08-py3"),
        ("Registry/a", "Registry/a:latest"),  # the engine reads a capital as a host, too
        (f"busybox@{DIGEST}", f"docker.io/library/busybox@{DIGEST}"),
        (f"quay.io/a/b:v1@{DIGEST}", f"quay.io/a/b:v1@{DIGEST}"),
    ],
)
def test_an_image_reference_has_one_full_form(image: str, full: str) -> None:
    assert image_reference(image) == full
    assert image_reference(full) == full


@pytest.mark.parametrize(
    "image",
    ["", " ", "UPPER", "a b", "a:", ":a", "a/", "/a", "../a", "a/../b", "a?x", "a#x", "a@sha256:1", "a\n", "a::b"],
)
def test_what_is_no_image_reference_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match="invalid reference format"):
        image_reference(image)


@given(st.text(alphabet="ab/.:@-_A0%?#& ", max_size=40))
def test_a_reference_that_is_taken_is_harmless_in_a_path(image: str) -> None:
    try:
        full = image_reference(image)
    except ValueError:
        return
    assert image_reference(full) == full
    assert not set(full) & set("?#% &")
    assert not {"", ".", ".."} & set(full.split("/"))


def test_the_digest_is_that_of_the_images_own_repository() -> None:
    inspected = {"Id": "sha256:id", "RepoDigests": ["quay.io/a/b@sha256:other", "busybox@sha256:ours"]}
    assert image_digest(inspected, "docker.io/library/busybox:latest") == "sha256:ours"
    assert image_digest(inspected, "quay.io/a/b:v1") == "sha256:other"
    assert image_digest(inspected, "localhost/never/pushed:1") == "sha256:id"
    assert image_digest({"Id": "sha256:id", "RepoDigests": None}, "docker.io/library/busybox:latest") == "sha256:id"


# ---- the create call -------------------------------------------------------------------------------------------------


def request_of(
    gpus: dict[int, Gpu] | None = None, prepared: Prepared = NOTHING_PREPARED, **fields: Any
) -> dict[str, Any]:
    base = {"attempt": "a", "worker": "w", "run": "r", "worker_name": "n", "run_name": "n", "number": 1, "image": "i"}
    order = Order(**{**base, **fields})
    return container_request(
        order,
        prepared,
        image="i:latest",
        site=Site("m", gpus or {}, "host", LogFiles("local", 1 << 20)),
    )


def test_without_command_and_arguments_the_image_decides() -> None:
    assert not {"Entrypoint", "Cmd", "WorkingDir", "User"} & request_of().keys()


def test_arguments_alone_leave_the_entrypoint_and_a_command_replaces_both() -> None:
    assert "Entrypoint" not in request_of(args=["a b", ""])
    assert request_of(args=["a b", ""])["Cmd"] == ["a b", ""]
    command = request_of(command="run it")
    assert (command["Entrypoint"], command["Cmd"]) == (["run it"], [])


def test_no_limit_asked_is_no_limit_set() -> None:
    assert not {"CpuQuota", "CpuShares", "Memory", "ShmSize", "DeviceRequests"} & request_of()["HostConfig"].keys()


def test_only_real_gpus_are_asked_of_the_engine() -> None:
    gpus = {
        0: Gpu(0, "GPU-real-0", "H100", 1),
        1: Gpu(1, "GPU-real-1", "H100", 1),
        2: Gpu(2, "GPU-simulated", "H100", 1, simulated=True),
    }
    (asked,) = request_of(gpus, gpu_indexes=[1, 2])["HostConfig"]["DeviceRequests"]
    assert asked == {"Driver": "nvidia", "DeviceIDs": ["GPU-real-1"], "Capabilities": [["gpu"]]}
    assert "DeviceRequests" not in request_of(gpus, gpu_indexes=[2])["HostConfig"]


def test_the_host_name_is_the_workers_as_a_dns_label() -> None:
    assert request_of(worker_name="My_run-0")["Hostname"] == "my-run-0"
    assert len(request_of(worker_name="x" * 62 + "-0")["Hostname"]) == 62


# ---- pulling ---------------------------------------------------------------------------------------------------------


def downloading(layer: str, current: int, total: int) -> dict[str, Any]:
    return {"status": "Downloading", "id": layer, "progressDetail": {"current": current, "total": total}}


def test_pull_progress_counts_bytes_and_never_goes_back() -> None:
    progress = PullProgress()
    items: list[dict[str, Any]] = [
        {"status": "Pulling from library/busybox", "id": "latest"},
        {"status": "Pulling fs layer", "progressDetail": {}, "id": "a"},
        downloading("a", 50, 100),
        downloading("a", 51, 100),
        downloading("b", 0, 100),  # a late layer: 25 %
        downloading("a", 100, 100),
        {"status": "Download complete", "progressDetail": {}, "id": "b"},
        {"status": "Extracting", "progressDetail": {"current": 30, "total": 60}, "id": "a"},
        {"status": "Pull complete", "progressDetail": {}, "id": "a"},
        {"status": "Pull complete", "progressDetail": {}, "id": "b"},
        {"status": "Status: Downloaded newer image"},
    ]
    told = [
        None,
        None,
        "50 %",
        "51 %",
        None,
        None,
        "100 %",
        "unpacking 25 %",
        "unpacking 50 %",
        "unpacking 100 %",
        None,
    ]
    assert [progress.feed(item) for item in items] == told


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("manifest for 127.0.0.1:5000/a:b not found: manifest unknown: manifest unknown", PullFailure.NOT_FOUND),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", PullFailure.NOT_FOUND),
        (
            "pull access denied for nope, repository does not exist or may require 'docker login': denied: requested "
            "access to the resource is denied",
            PullFailure.DENIED,
        ),
        ("Head https://r/v2/a/manifests/1: unauthorized: authentication required", PullFailure.DENIED),
        ("Get https://r/v2/: no basic auth credentials", PullFailure.DENIED),
        ("Get http://127.0.0.1:1/v2/: dial tcp 127.0.0.1:1: connect: connection refused", PullFailure.UNREACHABLE),
        ("dial tcp: lookup registry.invalid: no such host", PullFailure.UNREACHABLE),
        ("net/http: TLS handshake timeout", PullFailure.UNREACHABLE),
        ("toomanyrequests: You have reached your pull rate limit", PullFailure.UNREACHABLE),
        ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", PullFailure.DISK_FULL),
        ("invalid reference format: A", None),
    ],
)
def test_an_engines_words_tell_why_a_pull_failed(words: str, kind: PullFailure | None) -> None:
    assert pull_failure(words, "127.0.0.1:5000/a:latest") is kind


def test_an_images_own_name_says_nothing_about_its_pull() -> None:
    words = "manifest for denied/timeout:forbidden not found: manifest unknown: manifest unknown"
    assert pull_failure(words, "docker.io/denied/timeout:forbidden") is PullFailure.NOT_FOUND


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_kills_are_read_from_either_version_of_cgroups() -> None:
    assert kills_in(b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n") == 3
    assert kills_in(b"low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n") == 1
    assert kills_in(b"") == 0


def test_the_memory_group_is_found_in_either_version_of_cgroups() -> None:
    root = Path("/sys/fs/cgroup")
    assert memory_group("9:memory:/docker/1\n0::/system.slice\n") == root / "memory/docker/1"
    assert memory_group("0::/system.slice/docker-1.scope\n") == root / "system.slice/docker-1.scope"
    assert memory_group("3:cpu,cpuacct:/docker/1\n") is None


@pytest.mark.parametrize("keep", [1, 10**6, 2**26, 2**30, 2**40])
def test_the_engines_copy_of_the_output_is_part_of_what_may_be_kept(keep: int) -> None:
    engine = log_file_bytes(keep) * LOG_FILES
    assert engine + DockerRuntime("unix:///nowhere").share_log(keep) <= max(keep, 128 * 1024)
    assert engine <= 256 * 1024**2


def test_what_was_prepared_reaches_the_container() -> None:
    prepared = Prepared(
        env={"HF_TOKEN": "x", "RANK": "prepared"},
        mounts=[Mount(Path("/run/secrets/1"), "/var/secrets/gcs", read_only=True)],
        workspace=Path("/state/work"),
    )
    request = request_of(prepared=prepared, env={"RANK": "0", "A": "b"})
    assert request["Env"] == ["RANK=prepared", "A=b", "HF_TOKEN=x"]
    assert request["WorkingDir"] == "/workspace"
    assert [(each["Source"], each["Target"], each["ReadOnly"]) for each in request["HostConfig"]["Mounts"]] == [
        ("/run/secrets/1", "/var/secrets/gcs", True),
        ("/state/work", "/workspace", False),
    ]
    assert request_of(prepared=prepared, working_dir="/src")["WorkingDir"] == "/src"
