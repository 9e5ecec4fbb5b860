"""Whatever goes wrong, `astra` says one message on stderr, exits with a documented code, and shows no traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astraconsole.cli.problems import Exit
from tests.cli.stand_in import StandIn, standing_in
from tests.conftest import PROJECT

ASTRA = [sys.executable, "-m", "astraconsole.cli.main"]


@pytest.fixture(scope="module")
def console() -> Iterator[StandIn]:
    with standing_in() as stand_in:
        yield stand_in


@pytest.fixture(autouse=True)
def no_answers_yet(console: StandIn) -> None:
    console.answers.clear()
    console.asked.clear()


def astra(
    *arguments: str | bytes, home: Path, stdin: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ASTRA_")}
    env = {**clean, "PYTHONPATH": str(PROJECT), "XDG_CONFIG_HOME": str(home), **environment}
    return subprocess.run([*ASTRA, *arguments], cwd=home, env=env, input=stdin, capture_output=True, timeout=60)


def said(done: subprocess.CompletedProcess[bytes]) -> str:
    """The message; asserts that there is one and no traceback."""
    text = done.stderr.decode()
    assert "Traceback" not in text
    assert text.startswith("astra: "), text
    return text.removeprefix("astra: ").rstrip("\n")


BROKEN_CONFIGS = [
    b"{",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b"",
    b'{"url": 5}',
    b'{"colour": "red"}',
    b"[" * 50_000,
    b'{"url": null}',
]


@pytest.mark.parametrize("content", BROKEN_CONFIGS)
def test_a_broken_config_file_is_named_with_the_way_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "astra").mkdir()
    (tmp_path / "astra" / "config.json").write_bytes(content)
    done = astra("astraeus", "runs", home=tmp_path)
    assert done.returncode == Exit.USAGE
    assert f"cannot read {tmp_path}/astra/config.json: " in said(done)
    assert "astra login" in said(done)


def test_the_version_and_short_help_are_there(tmp_path: Path) -> None:
    assert astra("--version", home=tmp_path).stdout.startswith(b"astra")
    assert b"--follow" in astra("astraeus", "logs", "-h", home=tmp_path).stdout


def test_nobody_signed_in_is_told_how_to(tmp_path: Path) -> None:
    done = astra("astraeus", "runs", home=tmp_path)
    assert (done.returncode, said(done)) == (
        Exit.USAGE,
        "not signed in: run `astra login`, or set ASTRA_URL and ASTRA_TOKEN and ASTRA_ORG and ASTRA_WORKSPACE",
    )


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://x",
        "http://",
        "http://[::1",
        "http://x:99999",
        "http://a b",
        "http://x/?q",
        "é",
        "http://é",
    ],
)
def test_an_address_that_is_none_is_a_usage_error(tmp_path: Path, url: str) -> None:
    done = astra("login", url, home=tmp_path)
    assert done.returncode == Exit.USAGE
    assert "is not a console's address" in said(done)


def test_a_console_that_is_not_there_is_unreachable(tmp_path: Path, console: StandIn) -> None:
    done = astra("astraeus", "runs", home=tmp_path, **{**console.environment(), "ASTRA_URL": "http://127.0.0.1:1"})
    assert done.returncode == Exit.UNREACHABLE
    assert said(done).startswith("no answer from http://127.0.0.1:1: ")


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ((200, b"<!doctype html><title>Welcome</title>"), Exit.USAGE, "is not an Astra console: it answered 200"),
        ((404, b"<html>nothing here</html>"), Exit.USAGE, "is not an Astra console: it answered 404"),
        ((502, b"<html>bad gateway</html>"), Exit.UNREACHABLE, "its proxy answers 502"),
        ((301, b""), Exit.USAGE, "is not the console's address"),
        ((200, b'{"items": [{"metadata":'), Exit.USAGE, "is not an Astra console"),
        ((200, b"\xff\xfe\x00"), Exit.USAGE, "is not an Astra console"),
        ((200, b"[" * 50_000), Exit.USAGE, "is not an Astra console"),
        ((200, []), Exit.DEFECT, "unexpected: "),
        ((200, {"items": [{"metadata": {}}], "next": None}), Exit.DEFECT, "unexpected: "),
        ((403, {"code": "FORBIDDEN", "message": "no"}), Exit.REFUSED, "FORBIDDEN: no"),
        ((403, {"code": "FORBIDDEN"}), Exit.USAGE, "is not an Astra console"),
        (
            (400, {"code": "X", "message": "\x1b[2Jno", "detail": [{"field": "a", "rule": "b"}]}),
            Exit.REFUSED,
            "X: ␛[2Jno\n  a: b",
        ),
        ((400, {"code": "X", "message": "no", "detail": "words"}), Exit.USAGE, "is not an Astra console"),
    ],
)
def test_an_answer_of_another_kind(tmp_path: Path, console: StandIn, answer: Any, code: Exit, words: str) -> None:
    console.answers["GET", "jobs"] = answer
    done = astra("astraeus", "runs", home=tmp_path, **console.environment())
    assert done.returncode == code
    assert words in said(done)


def test_a_closed_pipe_ends_it_silently(tmp_path: Path, console: StandIn) -> None:
    run = {"metadata": {"name": "x", "cluster": "y"}, "status": {"state": "Running", "reason": "z" * 200}}
    console.answers["GET", "jobs"] = (200, {"items": [run] * 2000, "next": None})
    reading, writing = os.pipe()
    os.close(reading)
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), **console.environment()}
    done = subprocess.run(
        [*ASTRA, "astraeus", "runs"], stdout=writing, stderr=subprocess.PIPE, env=env, cwd=PROJECT, timeout=60
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (Exit.PIPE_CLOSED, b"")


@pytest.mark.parametrize(("closed", "code"), [("0<&-", 2), ("1>&-", 0), ("2>&-", 0), ("0<&- 1>&- 2>&-", 2)])
def test_streams_that_are_closed_from_the_start_are_empty_ones(
    tmp_path: Path, console: StandIn, closed: str, code: int
) -> None:
    console.answers["GET", "jobs"] = (200, {"items": [], "next": None})
    verb = "submit -" if "0<&-" in closed else "runs"
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), **console.environment()}
    line = f'"$0" -m astraconsole.cli.main astraeus {verb} {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable], env=env, cwd=PROJECT, capture_output=True, timeout=60)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


def test_a_full_disk_is_said(tmp_path: Path, console: StandIn) -> None:
    console.answers["GET", "jobs"] = (200, {"items": [], "next": None})
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), **console.environment()}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*ASTRA, "astraeus", "runs"], stdout=full, stderr=subprocess.PIPE, env=env, cwd=PROJECT, timeout=60
        )
    assert done.returncode == Exit.FAILED
    assert said(done) == "No space left on device"  # type: ignore[arg-type]


@pytest.mark.parametrize("locale", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}, {"PYTHONIOENCODING": "latin-1"}])
def test_a_terminal_that_cannot_show_a_character_costs_the_character_alone(
    tmp_path: Path, console: StandIn, locale: dict[str, str]
) -> None:
    run = {"metadata": {"name": "x"}, "status": {"state": "Running", "reason": "é🚀"}}
    console.answers["GET", "clusters/gpu-east/api/jobs/x"] = (200, run)
    console.answers["GET", "clusters/gpu-east/api/tasks"] = (200, {"items": [], "next": None})
    done = astra("astraeus", "status", "x", home=tmp_path, **console.environment(), **locale)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"x: Running ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["astraeus", "status", b"\xff\xfe"],
        ["astraeus", "run", "--name", b"\xff", "--image", "x", "--", "true"],
        ["astraeus", "run", "--image", "x", "-e", b"A=\xff", "--", b"\xff"],
        ["astraeus", "logs", b"\xed\xa0\x80"],
    ],
)
def test_arguments_that_are_no_text_reach_the_console_or_are_refused(
    tmp_path: Path, console: StandIn, arguments: list[str | bytes]
) -> None:
    done = astra(*arguments, home=tmp_path, **console.environment())
    assert done.returncode == Exit.REFUSED
    assert said(done).startswith("NOT_FOUND")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["astraeus", "status", ""], "is no name"),
        (["astraeus", "status", "a/b"], "is no name"),
        (["astraeus", "delete", ".."], "is no name"),
        (["astraeus", "delete"], "Missing argument"),
        (["astraeus", "nothing"], "No such command"),
        (["astraeus", "runs", "--nothing"], "No such option"),
        (["astraeus", "logs", "x", "--tail", "0"], "--tail"),
        (["astraeus", "run", "--", "true"], "which image?"),
        (["astraeus", "run", "--image", "x", "--code", "."], "--code needs a command"),
        (["astraeus", "run", "--image", "x", "--model-path", "/m"], "--model-path needs --model"),
        (["astraeus", "run", "--image", "x", "--with-engine"], "--with-engine needs --model"),
        (["astraeus", "run", "--image", "x", "--time", "0"], "more than 0"),
        (["astraeus", "submit", "missing.json"], "cannot read missing.json: No such file"),
        (["astraeus", "submit", "."], "cannot read .: "),
        (["use", "nowhere"], "organisation/workspace"),
    ],
)
def test_wrong_usage_asks_the_console_nothing(
    tmp_path: Path, console: StandIn, arguments: list[str], words: str
) -> None:
    done = astra(*arguments, home=tmp_path, **console.environment())
    assert done.returncode == Exit.USAGE
    assert words in said(done)
    assert console.asked == []


def test_a_home_that_cannot_be_written_is_said(tmp_path: Path, console: StandIn) -> None:
    (tmp_path / "astra").write_text("a file where the folder would be")
    console.answers["GET", "clusters"] = (200, {"items": [], "next": None})
    done = astra("use", "acme/vision", home=tmp_path, **console.environment())
    assert done.returncode == Exit.USAGE
    assert "config.json" in said(done)


HEAVY = {"django", "pydantic", "httpx", "rich", "yaml", "numpy", "msgspec", "asyncio", "runs.spec"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["astraeus", "--help"],
        ["slurm", "--help"],
        ["astraeus", "runs"],
        ["astraeus", "logs", "x"],
        ["astraeus", "run", "--image", "x", "--", "true"],
        ["whoami"],
    ],
)
def test_a_start_imports_nothing_that_is_slow_to_import(tmp_path: Path, console: StandIn, arguments: list[str]) -> None:
    program = (
        "import sys; from astraconsole.cli.main import main; sys.argv[0] = 'astra'\n"
        "try: main()\nfinally: print(*sorted(sys.modules), file=sys.stderr)"
    )
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), **console.environment()}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=env, cwd=PROJECT, capture_output=True, text=True, timeout=60
    )
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "astraconsole.cli.main" in loaded
    assert not HEAVY & loaded


WORDS = st.one_of(
    st.sampled_from(
        [
            "astraeus",
            "run",
            "runs",
            "logs",
            "submit",
            "status",
            "-f",
            "--json",
            "--image",
            "x",
            "--",
            "-",
            "--time",
            "-a",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
)
DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["items", "next", "metadata", "name", "status", "state", "code", "message", "detail", "logs"]
            ),
            inner,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(WORDS, max_size=5),
    st.sampled_from([200, 201, 400, 500]),
    st.lists(DOCUMENTS, min_size=4, max_size=4),
    st.binary(max_size=50),
)
def test_no_words_and_no_answers_whatever_bring_a_traceback(
    tmp_path: Path, console: StandIn, words: list[str], status: int, documents: list[Any], stdin: bytes
) -> None:
    below = "clusters/gpu-east/api/"
    paths = [("GET", "jobs"), ("POST", f"{below}jobs"), ("GET", f"{below}jobs/x"), ("GET", f"{below}tasks/x/logs")]
    console.answers = {path: (status, document) for path, document in zip(paths, documents, strict=True)}
    done = astra("astraeus", *words, home=tmp_path, stdin=stdin, **console.environment())
    assert b"Traceback" not in done.stderr, json.dumps(words)
    assert done.returncode in set(Exit)
