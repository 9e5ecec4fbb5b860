"""Files that hold a run: JSON, or YAML whose every value means what it would mean in JSON."""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import yaml

from astraconsole.cli.client import Client, path
from astraconsole.cli.problems import NotConfigured

VALUES_MAX = 200_000  # with what aliases repeat: a short file can spell more than any memory holds
_SCALARS = {
    "null": (r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    "bool": (r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    "float": (r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    "merge": (r"<<", ["<"]),
}


class _Loader(yaml.SafeLoader):
    """YAML 1.1 would read `02:00:00` as 7200, `yes` as true, `010` as 8 and a day as a date: here they are texts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"):
            name = self.construct_object(key, deep=True)
            if not isinstance(name, str):
                raise _refusal(f"the key {name!r} is no text", key.start_mark)
            if name in seen:
                raise _refusal(f"the field {name} is there twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _beginnings) in _SCALARS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"{_pattern}\Z"), _beginnings)


def read_run_file(file: Path) -> tuple[str, bytes]:
    """Its name for messages, and what is in it; `-` is standard input. Raises NotConfigured."""
    if str(file) == "-":
        return "standard input", sys.stdin.buffer.read()
    try:
        return str(file), file.read_bytes()
    except OSError as error:
        raise NotConfigured(f"cannot read {file}: {error.strerror}") from error


def parse_run_file(name: str, content: bytes) -> Any:
    """The document of a file; `name` says by its ending what it holds, else its first character does.

    Raises NotConfigured with the line, for what cannot be read or does not fit into JSON.
    """
    try:
        text = content.decode("utf-8-sig")
        if not text.strip():
            raise NotConfigured(f"{name} is empty")
        if name.endswith(".json") or (not name.endswith((".yaml", ".yml")) and text.lstrip()[:1] in ("{", "[")):
            return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
        return _plain(yaml.load(text, _Loader))
    except UnicodeDecodeError:
        raise NotConfigured(f"{name} is no text in UTF-8") from None
    except yaml.MarkedYAMLError as error:
        where = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise NotConfigured(f"{name} cannot be read: {error.problem}{where}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise NotConfigured(f"{name} cannot be read: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise NotConfigured(f"{name} cannot be read: it is nested too deeply") from None


def spec_of(client: Client, file: Path | None, run: str | None) -> Any:
    """The specification in a file (a whole run's, or alone) or of a run. Raises UsageError, NotConfigured, Refused."""
    if (file is None) == (run is None):
        raise click.UsageError("give either a FILE or --from-run")
    if run is not None:
        return client.get(path("jobs", run))["spec"]
    assert file is not None
    document = parse_run_file(*read_run_file(file))
    return document["spec"] if isinstance(document, dict) and "spec" in document else document


def _refusal(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice} is there twice")
    return dict(pairs)


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _plain(document: Any) -> Any:
    """The document, if JSON can say it. Raises ValueError."""
    waiting, seen = [document], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if seen > VALUES_MAX:
            raise ValueError(f"it has more than {VALUES_MAX} values")
        inside: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if not isinstance(value, dict | list | str | int | float | None):
            raise ValueError(f"JSON has no {type(value).__name__}")
        waiting.extend(inside)
    return document
