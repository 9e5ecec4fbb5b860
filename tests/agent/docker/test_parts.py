"""The pure parts of the docker runtime."""

import contextlib
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines.agent.runtimes.base import NOTHING_PREPARED, Mount, Prepared
from machines.agent.runtimes.docker import DockerRuntime
from machines.agent.runtimes.docker_log import (
    GAP_MARK,
    PIECE_BYTES,
    Cursor,
    Entry,
    FrameDecoder,
    OutputCopy,
    OutputNotWritten,
    Resume,
)
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


# ---- output ----------------------------------------------------------------------------------------------------------


def frame(stream: int, time: bytes, data: bytes) -> bytes:
    content = time + b" " + data
    return struct.pack(">BxxxL", stream, len(content)) + content


def stamp(number: int) -> bytes:
    return b"2026-11-29T15:14:%02d.%09dZ" % divmod(number, 10)


lines = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=20).map(lambda line: line + b"\n")), max_size=20)


@given(lines, st.lists(st.integers(min_value=1, max_value=50), max_size=200))
def test_frames_are_taken_apart_however_they_arrive(items: list[tuple[int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(frame(number, stamp(at), line) for at, (number, line) in enumerate(items))
    decoder, entries, position = FrameDecoder(), [], 0
    for size in [*cuts, len(stream)]:
        entries += decoder.feed(stream[position : position + size])
        position += size
    assert entries == [Entry(stream_number, stamp(at), line) for at, (stream_number, line) in enumerate(items)]


def decoded(*frames: bytes) -> bytes:
    return b"".join(entry.data for entry in FrameDecoder().feed(b"".join(frames)))


def test_a_long_line_gets_back_the_newline_that_the_engine_forgot() -> None:
    piece, time, later = b"x" * PIECE_BYTES, stamp(1), stamp(2)
    assert decoded(frame(1, time, piece), frame(1, time, b"y"), frame(1, later, b"z\n")) == piece + b"y\nz\n"
    assert decoded(frame(1, time, piece), frame(1, time, b""), frame(1, later, b"z\n")) == piece + b"\nz\n"
    assert decoded(frame(1, time, piece), frame(1, time, b"y\n")) == piece + b"y\n"
    assert decoded(frame(1, time, piece), frame(2, time, b"y")) == piece + b"y"  # another stream's last words
    assert decoded(frame(1, time, b"no newline at the end")) == b"no newline at the end"


FILE_BYTES = st.sampled_from([0, 10**9])  # the engine may have begun a second file at any time, or at none


class Copy:
    """The agent's copy over several readings; each may break off anywhere, even between its two writes."""

    def __init__(self, file_bytes: int) -> None:
        self.data = b""
        self.cursor = Cursor()
        self.file_bytes = file_bytes

    def read(self, entries: list[Entry], moves_cursor: bool = True) -> None:
        resume = Resume(len(self.data), self.cursor, self.file_bytes)
        new = resume.take(entries)
        self.data += new
        if new and moves_cursor:
            self.cursor = Cursor.decode(resume.cursor.encode())


def joined(entries: list[Entry]) -> bytes:
    return b"".join(entry.data for entry in entries)


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Entries in order of time, some at the same time; the first has a time of its own."""
    steps = draw(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=6)), max_size=30))
    entries, time = [Entry(1, stamp(0), b"first")], 1
    for step, data in steps:
        time += step
        entries.append(Entry(1, stamp(time), data))
    return entries


@given(logs(), st.data())
def test_a_copy_is_exact_whatever_readings_break_off_and_the_engine_drops(
    entries: list[Entry], data: st.DataObject
) -> None:
    copy, dropped = Copy(data.draw(FILE_BYTES)), 0
    for _ in range(data.draw(st.integers(0, 5))):
        end = data.draw(st.integers(dropped, len(entries)))
        copy.read(entries[dropped:end], moves_cursor=data.draw(st.booleans()))
        kept = [at for at, entry in enumerate(entries) if entry.time == copy.cursor.last] or [0]
        dropped = data.draw(st.integers(dropped, max(dropped, kept[0])))  # the newest known ones are still there
    copy.read(entries[dropped:])
    assert copy.data == joined(entries)


@given(logs(), st.data())
def test_what_the_engine_repeats_is_copied_once(entries: list[Entry], data: st.DataObject) -> None:
    copy, reading, at = Copy(file_bytes=0), [], 0
    while at < len(entries):
        end = data.draw(st.integers(at + 1, len(entries)))
        reading += entries[at:end]
        earlier = [number for number in range(end) if entries[number].time < entries[end - 1].time]
        at = data.draw(st.sampled_from(earlier)) if earlier and data.draw(st.booleans()) else end
        if len(reading) > 500:
            reading, at = reading + entries[at:], len(entries)
    copy.read(reading)
    assert copy.data == joined(entries)


@given(logs(), st.data())
def test_what_the_engine_dropped_before_it_was_copied_is_marked_and_nothing_else_is_missing(
    entries: list[Entry], data: st.DataObject
) -> None:
    seen = data.draw(st.integers(1, len(entries)))
    dropped = data.draw(st.integers(seen, len(entries)))
    copy = Copy(data.draw(FILE_BYTES))
    copy.read(entries[:seen])
    rest = [entry for entry in entries[dropped:] if entry.time > entries[seen - 1].time]
    copy.read(rest)
    lost = [entry for entry in entries[seen:dropped] if entry.time > entries[seen - 1].time]
    marked = GAP_MARK in copy.data
    assert copy.data == joined(entries[:seen]) + GAP_MARK * marked + joined(rest)
    assert marked or not (lost and rest)
    copy.read(rest)
    assert copy.data.count(GAP_MARK) == marked


def test_where_the_output_could_not_be_written_the_log_says_so(tmp_path: Path) -> None:
    copy = OutputCopy(tmp_path / "output.log")
    copy.add_line("step 1")
    copy.mark_lost("No space left on device")
    text = (tmp_path / "output.log").read_text()
    assert text == "step 1\n\n[output after this is lost: No space left on device]\n"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four pages, filled up by the file `output.log`."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)]
    subprocess.run(mount, check=True)
    try:
        with contextlib.suppress(OSError), open(tmp_path / "output.log", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 512)
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.engine  # needs root, as that
def test_on_a_full_disk_the_log_says_what_is_lost_in_place_of_its_last_bytes(full_disk: Path) -> None:
    copy, size = OutputCopy(full_disk / "output.log"), (full_disk / "output.log").stat().st_size
    with pytest.raises(OutputNotWritten, match=r"^No space left on device$"):
        copy.append(b"more\n" * 100, Cursor())
    copy.mark_lost("No space left on device")
    text = (full_disk / "output.log").read_text()
    assert len(text) == size
    assert text.endswith("xx\n[output after this is lost: No space left on device]\n")


def test_the_copy_on_the_disk_goes_on_where_it_was(tmp_path: Path) -> None:
    entries = [Entry(1, stamp(number), b"%d\n" % number) for number in range(10)]
    for end in (3, 3, 7, 10):
        copy = OutputCopy(tmp_path / "output.log")
        resume = copy.resume()
        copy.append(resume.take(entries[:end]), resume.cursor)
    assert (tmp_path / "output.log").read_bytes() == joined(entries)
    (tmp_path / "engine.cursor").write_bytes(b"spoilt")
    assert OutputCopy(tmp_path / "output.log").resume().take(entries) == b""


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
