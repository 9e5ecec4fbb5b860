"""Run files: JSON as it is, YAML that means the same, and a sentence with a line for everything else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraconsole.cli.problems import NotConfigured
from astraconsole.cli.run_files import parse_run_file

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN)
def test_json_is_read_as_json_by_name_and_by_look(document: Any) -> None:
    content = json.dumps({"x": document}).encode()
    assert parse_run_file("run.json", content) == {"x": document}
    assert parse_run_file("standard input", content) == {"x": document}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("02:00:00", "02:00:00"),
        ("yes", "yes"),
        ("on", "on"),
        ("2026-10-01", "2026-10-01"),
        ("010", "010"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("12h", "12h"),
        (".inf", ".inf"),
        ("8", 8),
        ("-1", -1),
        ("0.5", 0.5),
        ("6.4e1", 64.0),
        ("true", True),
        ("null", None),
        ("", None),
        ("'8'", "8"),
        ("!!str 8", "8"),
    ],
)
def test_a_plain_value_of_yaml_is_what_json_would_have(text: str, value: object) -> None:
    parsed = parse_run_file("run.yaml", f"x: {text}\n".encode())["x"]
    assert (parsed, type(parsed)) == (value, type(value))


def test_anchors_and_merges_work() -> None:
    document = parse_run_file("run.yml", b"a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")
    assert document["b"] == {"x": 1, "y": 3}


BOMB = b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1)] * 10)) for n in range(ord("b"), ord("k"))
)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.json", b'{"a": 1, "a": 2}', "the field a is there twice"),
        ("run.json", b'{"a": NaN}', "NaN is not JSON"),
        ("run.json", b'{"a": ', "line 1"),
        ("run.json", b" \n", "is empty"),
        ("run.yaml", b"", "is empty"),
        ("run.json", b"[" * 100_000, "nested too deeply"),
        ("run.yaml", b"a: 1\nb: 2\na: 3\n", "the field a is there twice in line 3"),
        ("run.yaml", b"a:\n  - b\n c: 1\n", "line 3"),
        ("run.yaml", b"1: one\n", "the key 1 is no text in line 1"),
        ("run.yaml", b"a: !!python/object:os.system x\n", "line 1"),
        ("run.yaml", b"a: !!binary aGVsbG8=\n", "JSON has no bytes"),
        ("run.yaml", b"a: &a [*a]\n", "more than 200000 values"),
        ("run.yaml", BOMB, "more than 200000 values"),
        ("run.yaml", b"[" * 100_000, "nested too deeply"),
        ("run.yaml", b"a: 1\n---\nb: 2\n", "line 2"),
        ("run.yaml", b"a: \x01\n", "cannot be read"),
        ("run.yaml", b"\xff\xfe\x00", "is no text in UTF-8"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(name: str, content: bytes, words: str) -> None:
    with pytest.raises(NotConfigured) as refused:
        parse_run_file(name, content)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.binary(max_size=200), st.sampled_from(["run.yaml", "run.json", "standard input"]))
def test_no_content_whatever_raises_anything_else(content: bytes, name: str) -> None:
    try:
        document = parse_run_file(name, content)
    except NotConfigured:
        return
    json.dumps(document)
