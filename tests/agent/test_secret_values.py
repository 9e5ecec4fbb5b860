"""What a credential's value gives to a worker."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machines.agent.runtimes.base import RegistryLogin
from machines.agent.secret_values import Unfit, environment_of, files_of, keys_of, login_of

OBJECT = json.dumps({"token": "hf_1", "port": 5432, "on": True, "key": {"a": [1]}}).encode()


@pytest.mark.parametrize(
    ("value", "variables", "expected"),
    [
        (OBJECT, {"token": "HF_TOKEN"}, {"HF_TOKEN": "hf_1"}),
        (OBJECT, {"port": "A", "on": "B", "key": "C"}, {"A": "5432", "B": "true", "C": '{"a": [1]}'}),
        (OBJECT, {"value": "ALL"}, {"ALL": OBJECT.decode()}),
        (b'{"value": "own"}', {"value": "V"}, {"V": "own"}),
        (b"plain\n", {"token": "HF_TOKEN"}, {"HF_TOKEN": "plain"}),
        (b"two\nlines\r\n", {"any": "X"}, {"X": "two\nlines"}),
        (b'"a JSON text"', {"token": "T"}, {"T": '"a JSON text"'}),
        (b"[1]", {"token": "T"}, {"T": "[1]"}),
        (b"\xff", {}, {}),
    ],
)
def test_keys_become_variables(value, variables, expected):
    assert environment_of(value, variables) == expected


@pytest.mark.parametrize(
    ("value", "variables", "said"),
    [
        (OBJECT, {"tokem": "T", "other": "O"}, "it has no key other, tokem"),
        (b"plain", {"a": "A", "b": "B"}, "its value is no JSON object, so it has one key and not several"),
        (b"\xff\xfe", {"a": "A"}, "its key a is no text: mount it as a file"),
        (b"a\0b", {"a": "A"}, "its key a holds a NUL character: mount it as a file"),
        (b"x" * 200_000, {"a": "A"}, "its key a is too long for a variable: mount it as a file"),
        (rb'{"a": "\ud800"}', {"a": "A"}, "its key a is no text: mount it as a file"),
    ],
)
def test_what_can_be_no_variable_is_said_without_the_value(value, variables, said):
    with pytest.raises(Unfit) as unfit:
        environment_of(value, variables)
    assert str(unfit.value) == said


def test_files_are_the_keys_and_the_whole_value():
    assert files_of(b'{"user": "u", "key.json": {"a": 1}}') == {
        "user": b"u",
        "key.json": b'{"a": 1}',
        "value": b'{"user": "u", "key.json": {"a": 1}}',
    }
    assert files_of(b"\xff binary\n") == {"value": b"\xff binary\n"}


@pytest.mark.parametrize("key", ["", ".", "..", "a/b", "../../etc/passwd", "x" * 256, "a\0b", "\ud800"])
def test_a_key_that_is_no_file_name_is_refused(key):
    with pytest.raises(Unfit, match="no file name"):
        files_of(json.dumps({key: "x"}).encode())


LOGIN = {"username": "robot$ci", "password": "pw", "server": "registry.example.com"}


@pytest.mark.parametrize(
    ("server", "of_image"),
    [
        ("registry.example.com", "registry.example.com"),
        ("https://registry.example.com/", "registry.example.com"),
        ("127.0.0.1:5000", "127.0.0.1:5000"),
        ("https://index.docker.io/v1/", "docker.io"),
        ("docker.io", "docker.io"),
    ],
)
def test_a_login_is_for_its_own_registry(server, of_image):
    value = json.dumps({**LOGIN, "server": server}).encode()
    assert login_of(value, of_image) == RegistryLogin(of_image, "robot$ci", "pw")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"plain", "its value is not JSON with username, password and server"),
        (b'{"username": "u", "password": "p"}', "its value is not JSON with username, password and server"),
        (json.dumps(LOGIN).encode(), "its login is for another registry than the image's, docker.io"),
        (json.dumps({**LOGIN, "server": "docker.io.evil"}).encode(), "its login is for another registry"),
    ],
)
def test_a_login_is_given_to_no_other_registry(value, said):
    with pytest.raises(Unfit, match=said):
        login_of(value, "docker.io")


@given(st.binary())
def test_any_bytes_are_a_value(value):
    keys = keys_of(value)
    assert keys is None or isinstance(keys, dict)


def test_a_login_shows_neither_name_nor_password():
    assert "robot" not in repr(RegistryLogin("r", "robot", "pw"))
    assert "pw" not in repr(RegistryLogin("r", "robot", "pw"))
