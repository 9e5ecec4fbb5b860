"""Code that is sent with a run: nothing in an archive leads out of the folder that it is unpacked in."""

import gzip
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machines import packed_code
from machines.packed_code import BadCode
from tests import archives
from tests.archives import file, folder, hard_link, link, of_members, of_type


def unpacked(archive: bytes, at: Path) -> Path:
    at.mkdir(parents=True)
    packed_code.unpack(packed_code.read(archive), at)
    return at


def refusal(archive: bytes) -> str:
    with pytest.raises(BadCode) as caught:
        packed_code.read(archive)
    return str(caught.value)


def test_what_was_packed_is_unpacked_for_any_user(tmp_path: Path) -> None:
    archive = of_members(
        folder("./"), file("./train.py", "print(1)"), file("lib/größe mit leerzeichen.py", "ü"), folder("empty"),
        link("latest", "lib/../train.py"), hard_link("again.py", "train.py"), link("here", "."), file("-rf", ""),
    )  # fmt: skip
    code = unpacked(archive, tmp_path / "code")
    assert (code / "train.py").read_text() == (code / "latest").read_text() == (code / "again.py").read_text()
    assert (code / "lib" / "größe mit leerzeichen.py").read_text() == "ü"
    assert (code / "empty").is_dir()
    assert (code / "-rf").read_text() == ""
    assert stat.S_IMODE((code / "train.py").stat().st_mode) == 0o666
    assert stat.S_IMODE((code / "lib").stat().st_mode) == stat.S_IMODE(code.stat().st_mode) == 0o777


def test_what_was_executable_is_and_nothing_is_more(tmp_path: Path) -> None:
    code = unpacked(archives.packed({"run.sh": "#!/bin/sh"}, executable=["run.sh"]), tmp_path / "code")
    assert stat.S_IMODE((code / "run.sh").stat().st_mode) == 0o777
    member, text = file("setuid")
    member.mode = 0o4755
    code = unpacked(of_members((member, text)), tmp_path / "other")
    assert stat.S_IMODE((code / "setuid").stat().st_mode) == 0o777


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ([file("/etc/passwd")], "'/etc/passwd' is absolute"),
        ([file("../up")], "'../up' holds .."),
        ([file("a/../../up")], "holds .."),
        ([folder("..")], "holds .."),
        ([link("out", "/etc/passwd")], "'out' points to '/etc/passwd'"),
        ([link("out", "..")], "'out' points to '..'"),
        ([link("out", "a/../../b")], "'out' points to 'a/../../b'"),
        ([link("a/b/root", "../.."), link("out", "a/b/root/..")], "'out' points to"),
        ([link("d", "."), link("out", "d/../x")], "'out' points to"),
        ([link("a", "b"), link("b", "a")], "'a' does not"),
        ([link("a", "a")], "'a' does not"),
        ([link("d", "sub"), file("d/x")], "'d/x' lies below 'd'"),
        ([file("d/x"), link("d", "/tmp")], "'d' points to '/tmp'"),
        ([file("d/x"), link("d", "other")], "'d/x' lies below 'd'"),
        ([file("f"), file("f/x")], "'f/x' lies below 'f'"),
        ([folder("f"), file("f")], "'f' is there twice"),
        ([file("x"), file("./x")], "'./x' is there twice"),
        ([file("x"), link("x", "y")], "'x' is there twice"),
        ([hard_link("h", "/etc/shadow")], "'/etc/shadow' is absolute"),
        ([hard_link("h", "../x")], "holds .."),
        ([hard_link("h", "later"), file("later")], "'h' points to 'later'"),
        ([of_type("null", tarfile.CHRTYPE)], "'null' is none"),
        ([of_type("disk", tarfile.BLKTYPE)], "'disk' is none"),
        ([of_type("pipe", tarfile.FIFOTYPE)], "'pipe' is none"),
        ([of_type("odd", b"Z")], "'odd' is none"),
        ([file("n" * 256)], "names that a file can have"),
        ([file("/".join(["d" * 200] * 21))], "names that a file can have"),
        ([file("caf\udce9")], "UTF-8"),
        ([link("", "x")], "there twice"),
    ],
)  # fmt: skip
def test_a_member_that_leads_out_or_is_no_file_is_named(members: list, named: str) -> None:
    assert named in refusal(of_members(*members))


@pytest.mark.parametrize(
    ("archive", "rule"),
    [
        (b"PK zip", "must be a tar.gz"),
        (b"", "must be a tar.gz"),
        (b"\x1f\x8b packed", "must be a tar.gz"),
        (gzip.compress(b"no tar at all" * 100), "must be a tar.gz"),
        (archives.packed({"a": "x" * 5000})[:-20], "must be a tar.gz"),
        (gzip.compress(gzip.decompress(archives.packed({"a": "x" * 5000}))[:3000]), "must be"),
        (os.urandom(packed_code.PACKED_MAX + 1), "at most 900 KiB packed"),
        (gzip.compress(bytes(packed_code.EXPANDED_MAX + 1)), "at most 32 MiB unpacked"),
        (of_members(*(file(f"f{number}", "") for number in range(packed_code.MEMBERS_MAX + 1))), "10000 members"),
    ],
    ids=["a zip", "nothing", "a torn head", "no tar", "cut in the gzip", "cut in the tar", "large", "expands", "many"],
)  # fmt: skip
def test_what_is_no_archive_or_too_large_is_refused(archive: bytes, rule: str) -> None:
    assert rule in refusal(archive)


def test_hard_links_do_not_multiply_past_the_bound() -> None:
    large = file("a", "x" * (packed_code.EXPANDED_MAX // 4))
    assert "32 MiB unpacked" in refusal(of_members(large, *(hard_link(f"h{number}", "a") for number in range(4))))


PARTS = st.sampled_from(["a", "b", "c", "..", ".", "", "/", "é", "a b"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
MEMBERS = st.one_of(
    NAMES.map(file), NAMES.map(folder), st.tuples(NAMES, NAMES).map(lambda pair: link(*pair)),
    st.tuples(NAMES, NAMES).map(lambda pair: hard_link(*pair)),
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(MEMBERS, max_size=6))
def test_whatever_is_accepted_stays_inside(tmp_path_factory: pytest.TempPathFactory, members: list) -> None:
    try:
        packed = packed_code.read(of_members(*members))
    except BadCode:
        return
    outside = tmp_path_factory.mktemp("outside")
    code = outside / "x" / "code"
    code.mkdir(parents=True)
    packed_code.unpack(packed, code)
    assert sorted(outside.iterdir()) == [outside / "x"]
    assert sorted((outside / "x").iterdir()) == [code]
    for path in code.rglob("*"):
        assert path.resolve(strict=False).is_relative_to(code), path
