"""What a credential's value gives to a worker: variables, files, a registry's login. Pure.

A value that is a JSON object gives its keys. Any other value is plain, and is one key: whatever name a run calls it by.
Of both, the key `value` is the whole value, unless an object has a key of that name. No sentence here repeats a part of
a value.
"""

import json
from collections.abc import Mapping

from machines.agent.runtimes.base import RegistryLogin

WHOLE = "value"
VARIABLE_BYTES = 128 * 1024 - 1024  # of one variable, name included: a little less than Linux takes
FILE_NAME_BYTES = 255
LOGIN_KEYS = ("username", "password", "server")
DEFAULT_SERVERS = {"https://index.docker.io/v1": "docker.io", "index.docker.io": "docker.io"}


class Unfit(Exception):
    """The value is there, and is not what is asked of it. The message goes on after `…: `."""


def keys_of(value: bytes) -> dict[str, bytes] | None:
    """Of a JSON object; None: the value is plain. What is no text stays JSON."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return {
        key: (item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)).encode(errors="surrogatepass")
        for key, item in found.items()
    }


def environment_of(value: bytes, variables: Mapping[str, str]) -> dict[str, str]:
    """`variables`: key → name. Raises Unfit."""
    keys = keys_of(value)
    if keys is None:
        if len(variables) > 1:
            raise Unfit("its value is no JSON object, so it has one key and not several")
        keys = {key: _without_newline(value) for key in variables}
    keys.setdefault(WHOLE, _without_newline(value))
    if missing := sorted(set(variables) - set(keys)):
        raise Unfit(f"it has no key {', '.join(missing)}")
    return {name: _variable(key, name, keys[key]) for key, name in variables.items()}


def _without_newline(value: bytes) -> bytes:
    """Files and programs end their one line with a newline that is no part of what they hold."""
    return value.removesuffix(b"\n").removesuffix(b"\r")


def _variable(key: str, name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise Unfit(f"its key {key} is no text: mount it as a file") from None
    if "\0" in text:
        raise Unfit(f"its key {key} holds a NUL character: mount it as a file")
    if len(name) + len(value) > VARIABLE_BYTES:
        raise Unfit(f"its key {key} is too long for a variable: mount it as a file")
    return text


def files_of(value: bytes) -> dict[str, bytes]:
    """Name → content. Raises Unfit."""
    files = keys_of(value) or {}
    files.setdefault(WHOLE, value)
    if not all(map(_is_file_name, files)):
        raise Unfit("it has a key that is no file name")
    return files


def _is_file_name(key: str) -> bool:
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        return False
    return key not in ("", ".", "..") and "/" not in key and "\0" not in key and length <= FILE_NAME_BYTES


def login_of(value: bytes, server: str, credential: str = "") -> RegistryLogin:
    """For the registry `server` of an image: a login is given to nobody else. Raises Unfit."""
    keys = keys_of(value) or {}
    if any(not keys.get(key) for key in LOGIN_KEYS):
        raise Unfit("its value is not JSON with username, password and server")
    username, password, of = (keys[key].decode(errors="replace") for key in LOGIN_KEYS)
    of = of.rstrip("/")
    of = DEFAULT_SERVERS.get(of, of.removeprefix("https://").removeprefix("http://"))
    if of != server:
        raise Unfit(f"its login is for another registry than the image's, {server}")
    return RegistryLogin(server, username, password, credential)
