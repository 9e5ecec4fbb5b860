"""Copies of remote sources: whole or not there, whatever breaks off, changes, fills the disk or is not what it says."""

import hashlib
import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from moto.server import ThreadedMotoServer

from machines.agent.data import filling
from machines.agent.data.filling import Filling, Stopped, read_manifest, write_manifest
from machines.agent.data.problems import DiskFull, SourceAway, SourceChanged, SourceRefused, WrongChecksum
from machines.agent.data.remote import Remote
from machines.agent.data.roots import Roots
from machines.orders import DataKind, VolumeSource
from tests.agent.sources import Source, http_source

MIB = 1024**2


@pytest.fixture
def source() -> Iterator[Source]:
    with http_source() as made:
        yield made


class Copying:
    """One copy in a folder, tried as often as a test likes."""

    def __init__(self, folder: Path, url: str, secret: bytes | None = None, roots: Roots | None = None, **more: str):
        self.folder = folder
        self.source = VolumeSource("a" * 32, 1, DataKind.DRIVE, "d", "copy", url, **more)
        self.secret, self.roots = secret, roots or Roots()
        self.told: list[tuple[int, int]] = []
        self.stop = threading.Event()

    def run(self) -> int:
        remote = Remote(self.source, self.secret, self.roots)
        return Filling(self.folder, remote, self.source.checksum, self.tell, self.stop).run()

    def tell(self, done: int, total: int) -> None:
        self.told.append((done, total))

    @property
    def files(self) -> dict[str, bytes] | None:
        """None: no copy is there."""
        copy = self.folder / "copy"
        if not copy.exists():
            return None
        return {str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()}


# ---- what is copied --------------------------------------------------------------------------------------------------


def test_a_file_is_copied_in_ranges_with_its_progress(tmp_path: Path, source: Source) -> None:
    source.files["/a b/big ü.bin"] = os.urandom(9 * MIB)
    copying = Copying(tmp_path, f"{source.url}/a b/big ü.bin")
    assert copying.run() == 9 * MIB
    assert copying.files == {"big ü.bin": source.files["/a b/big ü.bin"]}
    assert [wanted for _, wanted in source.requests] == [
        "bytes=0-4194303", "bytes=4194304-8388607", "bytes=8388608-9437183"
    ]  # fmt: skip
    assert copying.told == [(0, 9 * MIB), (4 * MIB, 9 * MIB), (8 * MIB, 9 * MIB), (9 * MIB, 9 * MIB)]


def test_index_pages_are_folders_and_odd_names_stay_what_they_are(tmp_path: Path, source: Source) -> None:
    names = [
        "one",
        "sub dir/two words",
        "sub dir/ü 🚀.txt",
        "sub dir/deep/a#b%20c",
        "sub dir/deep/empty",
        "-rf",
        "x;y&z='q'",
    ]
    source.files = {f"/data/{name}": name.encode() if "empty" not in name else b"" for name in names}
    copying = Copying(tmp_path, f"{source.url}/data/")
    copying.run()
    assert copying.files == {path.removeprefix("/data/"): data for path, data in source.files.items()}


@pytest.mark.parametrize(("ranges", "says_size"), [(False, True), (False, False), (True, False)])
def test_a_server_without_ranges_or_sizes_is_read_in_one_go(
    tmp_path: Path, source: Source, ranges: bool, says_size: bool
) -> None:
    source.files["/big.bin"] = os.urandom(9 * MIB)
    source.ranges, source.says_size = ranges, says_size
    copying = Copying(tmp_path, f"{source.url}/big.bin")
    assert copying.run() == 9 * MIB
    assert copying.files == {"big.bin": source.files["/big.bin"]}


def test_ten_thousand_small_files_are_copied(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for folder in range(100):
        (root / f"d {folder}").mkdir(parents=True)
        for number in range(100):
            (root / f"d {folder}" / f"f{number}").write_text(f"{folder}/{number}")
    copying = Copying(tmp_path / "copy", f"file://{root}", roots=Roots([str(root)]))
    copying.folder.mkdir()
    copying.run()
    assert len(list((copying.folder / "copy").rglob("f*"))) == 10_000
    assert (copying.folder / "copy" / "d 99" / "f7").read_text() == "99/7"


def test_a_credential_opens_what_is_closed(tmp_path: Path, source: Source) -> None:
    source.files["/closed"] = b"secret data"
    source.token = "of-tests"
    with pytest.raises(SourceRefused, match=r"may not be read \(HTTP 401\)"):
        Copying(tmp_path, f"{source.url}/closed").run()
    for secret in (b"of-tests\n", b'{"token": "of-tests"}'):
        folder = tmp_path / secret.decode()[:2].strip()
        folder.mkdir()
        assert Copying(folder, f"{source.url}/closed", secret).run() == 11


# ---- what breaks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "sent"),
    [(b"of-tests", "Bearer of-tests"), (b'{"username": "\xc3\xbc", "password": "of-tests"}', "Basic w7w6b2YtdGVzdHM=")],
)
def test_a_login_does_not_go_along_to_another_server(tmp_path: Path, source: Source, secret: bytes, sent: str) -> None:
    with http_source() as other:
        other.files["/d"] = b"data"
        source.moved_to = other.url
        assert Copying(tmp_path, f"{source.url}/d", secret).run() == 4
        assert set(source.authorizations) == {sent}
        assert set(other.authorizations) == {None}


def test_what_broke_off_goes_on_where_it_was_and_is_not_there_before(tmp_path: Path, source: Source) -> None:
    source.files["/big.bin"] = os.urandom(9 * MIB)
    copying = Copying(tmp_path, f"{source.url}/big.bin")
    source.break_after = 5 * MIB
    with pytest.raises(SourceAway, match="cannot be read"):
        copying.run()
    assert copying.files is None
    source.break_after = None
    source.requests.clear()
    copying.run()
    assert source.requests[0] == ("/big.bin", "bytes=4194304-8388607")
    assert copying.files == {"big.bin": source.files["/big.bin"]}


def test_a_source_that_changes_while_it_is_copied_is_begun_anew(tmp_path: Path, source: Source) -> None:
    source.files["/big.bin"] = os.urandom(9 * MIB)
    copying = Copying(tmp_path, f"{source.url}/big.bin")
    newer = os.urandom(9 * MIB)

    def change(done: int, total: int) -> None:
        if done == 4 * MIB:
            source.files["/big.bin"] = newer

    copying.tell = change  # type: ignore[method-assign]
    with pytest.raises(SourceChanged):
        copying.run()
    copying.tell = lambda done, total: None  # type: ignore[method-assign]
    copying.run()
    assert copying.files == {"big.bin": newer}


def test_a_change_that_no_range_shows_is_found_at_the_end(tmp_path: Path, source: Source) -> None:
    source.files = {"/data/a": b"1", "/data/b": b"2"}
    copying = Copying(tmp_path, f"{source.url}/data/")

    def add(done: int, total: int) -> None:
        source.files["/data/c"] = b"3"

    copying.tell = add  # type: ignore[method-assign]
    with pytest.raises(SourceChanged, match="changed while it was copied"):
        copying.run()
    copying.run()
    assert copying.files == {"a": b"1", "b": b"2", "c": b"3"}


def test_what_an_earlier_boot_left_is_begun_anew(tmp_path: Path, source: Source) -> None:
    source.files["/big.bin"] = os.urandom(9 * MIB)
    copying = Copying(tmp_path, f"{source.url}/big.bin")
    source.break_after = 5 * MIB
    with pytest.raises(SourceAway):
        copying.run()
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    write_manifest(tmp_path, filling.Manifest("an-earlier-boot", manifest.entries, manifest.single))
    (tmp_path / "part" / "big.bin").write_bytes(bytes(4 * MIB))  # what a loss of power makes of it
    source.break_after = None
    copying.run()
    assert copying.files == {"big.bin": source.files["/big.bin"]}


def test_what_is_there_stays_when_nobody_waits_any_more(tmp_path: Path, source: Source) -> None:
    source.files["/big.bin"] = os.urandom(9 * MIB)
    copying = Copying(tmp_path, f"{source.url}/big.bin")
    copying.stop.set()
    with pytest.raises(Stopped):
        copying.run()
    copying.stop.clear()
    copying.run()
    assert copying.files == {"big.bin": source.files["/big.bin"]}


@pytest.mark.parametrize(("path", "sentence"), [("/gone", "there is nothing at"), ("/gone/", "there is nothing at")])
def test_a_source_that_is_gone_is_told(tmp_path: Path, source: Source, path: str, sentence: str) -> None:
    with pytest.raises(SourceAway, match=sentence):
        Copying(tmp_path, f"{source.url}{path}").run()


def test_a_server_that_is_away_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceAway, match="cannot be read"):
        Copying(tmp_path, "http://127.0.0.1:1/data").run()


def test_a_checksum_is_of_the_file_or_of_the_list_of_files(tmp_path: Path, source: Source) -> None:
    source.files = {"/d/b": b"2", "/d/a/c": b"1"}
    single = "sha256:" + hashlib.sha256(b"2").hexdigest()
    for url, checksum in ((f"{source.url}/d/b", single), (f"{source.url}/d/", "")):
        folder = tmp_path / str(len(checksum))
        folder.mkdir()
        Copying(folder, url, checksum=checksum).run()
    command = "find * -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d' ' -f1"
    listed = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path / "0" / "copy", capture_output=True, text=True, check=True
    )
    whole = Copying(tmp_path / "w", f"{source.url}/d/", checksum=f"sha256:{listed.stdout.strip()}")
    whole.folder.mkdir()
    whole.run()
    wrong = Copying(tmp_path / "x", f"{source.url}/d/b", checksum="sha256:" + "0" * 64)
    wrong.folder.mkdir()
    with pytest.raises(WrongChecksum, match="its checksum is sha256:"):
        wrong.run()
    assert (wrong.files, (wrong.folder / "part").exists()) == (None, False)


def test_what_has_the_wrong_checksum_is_read_again_only_when_it_has_changed(tmp_path: Path, source: Source) -> None:
    source.files["/d"] = b"wrong"
    copying = Copying(tmp_path, f"{source.url}/d", checksum="sha256:" + hashlib.sha256(b"right").hexdigest())
    sentence = f"its checksum is sha256:{hashlib.sha256(b'wrong').hexdigest()}"
    for _ in range(3):
        with pytest.raises(WrongChecksum, match=sentence):
            copying.run()
    assert len(source.requests) == 1
    source.files["/d"] = b"right"
    assert copying.run() == 5
    assert copying.files == {"d": b"right"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(path)], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("no right to mount a small disk")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("says_size", [True, False])
def test_a_full_disk_is_told_apart_and_left_as_it_was(small_disk: Path, source: Source, says_size: bool) -> None:
    source.files["/big.bin"] = os.urandom(9 * MIB)
    source.says_size = source.ranges = says_size
    copying = Copying(small_disk, f"{source.url}/big.bin")
    with pytest.raises(DiskFull, match="this machine's disk is full"):
        copying.run()
    assert (copying.files, (small_disk / "part").exists()) == (None, False)
    assert filling.free_bytes(small_disk) > 5 * MIB


# ---- what may not be ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["ftp://x/y", "/etc", "file:/etc/passwd", "zip://a::file:///etc", "s4://x", ""])
def test_no_other_scheme_is_read(tmp_path: Path, url: str) -> None:
    with pytest.raises(SourceRefused):
        Copying(tmp_path, url, roots=Roots(["/"])).run()


def test_files_of_the_machine_are_copied_only_from_where_its_owner_allows(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "file").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    roots = Roots([str(root)])
    for url in ("/etc/passwd", f"{root}/../secret", f"{root}-other/x"):
        with pytest.raises(SourceRefused, match="has not allowed"):
            Copying(tmp_path, f"file://{url}", roots=roots).run()
    (root / "sub" / "loop").symlink_to("..")
    (root / "sub" / "leak").symlink_to(tmp_path / "secret")
    copying = Copying(tmp_path / "copy", f"file://{root}", roots=roots)
    copying.folder.mkdir()
    with pytest.raises(SourceRefused, match="has not allowed"):
        copying.run()
    (root / "sub" / "leak").unlink()
    copying.run()
    assert copying.files == {"sub/file": b"inside"}


def test_a_folder_that_cannot_be_looked_at_is_told_and_no_failure_of_the_worker(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    roots = Roots([str(tmp_path)])
    for source, words in ((f"{tmp_path}/loop", "symbolic links"), (f"{tmp_path}/{'a' * 300}", "File name too long")):
        with pytest.raises(SourceAway, match=f"cannot be read on this machine: .*{words}"):
            roots.folder(source)


# ---- S3 --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


KEYS = b'{"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}'


BYTES = {"Content-Type": "application/octet-stream"}


def put(endpoint: str, bucket: str, objects: dict[str, bytes]) -> None:
    """Keys as they are: a client would tidy them up."""
    for path, data in (("", b""), *((f"/{quote(key)}", data) for key, data in objects.items())):
        request = urllib.request.Request(f"{endpoint}/{bucket}{path}", data=data, method="PUT", headers=BYTES)
        urllib.request.urlopen(request, timeout=10).close()


def test_a_folder_of_s3_is_copied_and_its_neighbour_is_not(tmp_path: Path, s3: str) -> None:
    objects = {"data/a b": b"1", "data/deep/ü#?.bin": os.urandom(9 * MIB), "data/deep/": b"", "data2/x": b"no"}
    put(s3, "good", objects)
    copying = Copying(tmp_path, "s3://good/data", KEYS, endpoint=s3)
    copying.run()
    assert copying.files == {"a b": b"1", "deep/ü#?.bin": objects["data/deep/ü#?.bin"]}


def test_one_object_of_s3_is_a_file(tmp_path: Path, s3: str) -> None:
    put(s3, "single", {"dir/weights": b"w"})
    copying = Copying(tmp_path, "s3://single/dir/weights", KEYS, endpoint=s3)
    copying.run()
    assert copying.files == {"weights": b"w"}


@pytest.mark.parametrize("key", ["data/../up", "data//twice", "data/" + "n" * 256, "data/./x"])
def test_a_key_that_no_file_can_have_is_refused_by_name(tmp_path: Path, s3: str, key: str) -> None:
    bucket = f"odd{abs(hash(key)) % 10**9}"
    put(s3, bucket, {key: b"x"})
    copying = Copying(tmp_path, f"s3://{bucket}/data", KEYS, endpoint=s3)
    with pytest.raises(SourceRefused, match="a name that no file can have"):
        copying.run()
    assert list(tmp_path.rglob("*")) == []


def test_a_key_that_is_a_file_and_a_folder_is_refused(tmp_path: Path, s3: str) -> None:
    put(s3, "both", {"data/a": b"x", "data/a/b": b"y"})
    with pytest.raises(SourceRefused, match="a file and a folder"):
        Copying(tmp_path, "s3://both/data", KEYS, endpoint=s3).run()


def test_a_bucket_that_is_not_there_and_a_half_credential_are_told(tmp_path: Path, s3: str) -> None:
    with pytest.raises(SourceAway, match="there is nothing at s3://nowhere/data"):
        Copying(tmp_path, "s3://nowhere/data", KEYS, endpoint=s3).run()
    with pytest.raises(SourceRefused, match="the credential aws has no secret_access_key"):
        Copying(tmp_path, "s3://good", b'{"access_key_id": "test"}', endpoint=s3, credential="aws").run()
