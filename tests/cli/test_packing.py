"""Packing a folder of code: what is in it, what is not, and that the machines' side takes it."""

import os
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from astraconsole.cli.packing import SKIPPED, pack
from astraconsole.cli.problems import Problem
from machines.packed_code import PACKED_MAX, read


def quiet(label: str, total: int):
    return lambda done: None


def names(packed: bytes) -> list[str]:
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        return archive.getnames()


def make(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_documented_folders_are_skipped_at_every_depth_and_files_of_such_names_are_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("1")
    for name in SKIPPED:
        for parent in (tmp_path, tmp_path / "deep" / "er"):
            (parent / name).mkdir(parents=True)
            (parent / name / "big").write_text("2")
    (tmp_path / "deep" / "target.py").write_text("3")
    other = tmp_path / "other"
    other.mkdir()
    (other / "target").write_text("a file")
    assert names(pack(tmp_path, quiet).data) == ["deep/target.py", "other/target", "train.py"]
    assert {".git", "target", "node_modules", "__pycache__", ".venv", "venv"} <= SKIPPED
    assert {".mypy_cache", ".pytest_cache", ".ipynb_checkpoints"} <= SKIPPED


def test_the_same_files_give_the_same_bytes_whatever_their_times_owners_and_order(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    make(one, b="2", a="1", sub__c="3")
    make(other, sub__c="3", a="1", b="2")
    os.utime(other / "a", (1, 1))
    (other / "b").chmod(0o600)
    assert pack(one, quiet).data == pack(other, quiet).data


def test_an_executable_file_stays_one_and_links_inside_stay_links(tmp_path: Path) -> None:
    make(tmp_path, run="#!/bin/sh", sub__data="x")
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "current").symlink_to("sub/data")
    (tmp_path / "folder").symlink_to("sub")
    packed = read(pack(tmp_path, quiet).data)
    assert packed.files["run"].executable
    assert not packed.files["sub/data"].executable
    assert packed.links == {"current": "sub/data", "folder": "sub"}


def test_what_cannot_be_sent_is_left_out_by_name(tmp_path: Path) -> None:
    make(tmp_path, a="1")
    (tmp_path / "data").symlink_to("/mnt/imagenet")
    (tmp_path / "up").symlink_to("../elsewhere")
    os.mkfifo(tmp_path / "pipe")
    packed = pack(tmp_path, quiet)
    assert names(packed.data) == ["a"]
    assert sorted(line.partition(":")[0] for line in packed.left_out) == ["data", "pipe", "up"]
    assert any("/mnt/imagenet" in line for line in packed.left_out)


def test_too_much_code_is_refused_with_its_largest_files_named(tmp_path: Path) -> None:
    make(tmp_path, small="x")
    for number, kib in enumerate((700, 600, 10)):
        (tmp_path / f"model-{number}.bin").write_bytes(os.urandom(kib * 1024))
    with pytest.raises(Problem, match="more than 900 KiB packed") as refused:
        pack(tmp_path, quiet)
    lines = str(refused.value).splitlines()[1:]
    assert [line.split()[-1] for line in lines] == ["model-0.bin", "model-1.bin", "model-2.bin", "small"]
    assert lines[0].split()[:2] == ["700", "KiB"]


def test_a_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    with (tmp_path / "weights").open("wb") as sparse:
        sparse.truncate(1024**4)
    with pytest.raises(Problem, match="more than 32 MiB unpacked") as refused:
        pack(tmp_path, quiet)
    assert "1 TiB  weights" in str(refused.value)


def test_just_as_much_as_may_be_sent_is_sent(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(os.urandom(PACKED_MAX - 2048))
    assert len(pack(tmp_path, quiet).data) <= PACKED_MAX


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_what_is_no_folder_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "file":
        (tmp_path / kind).write_text("x")
    with pytest.raises(Problem, match="is no folder"):
        pack(tmp_path / kind, quiet)


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    make(tmp_path, a="12", b="345")
    told: list[int] = []
    pack(tmp_path, lambda label, total: told.append(total) or told.append)  # type: ignore[func-returns-value]
    assert told == [5, 2, 5]
