"""A manifest's text as documents, and what every reader of one shares. Pure.

Numbers with a point stay text, so that `python: 3.10` is not 3.1 and `cpu: 0.5` has the digits it was written with.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

TEXT_MAX = 1024 * 1024  # bytes
NODES_MAX = 50_000  # values in all, aliases counted as often as they are used
_TEMPLATE = re.compile(r"\{\{-?\s*(.+?)\s*-?\}\}|\{%-?\s*(.+?)\s*-?%\}")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)[^}]*\})")
_OWN_REFERENCE = re.compile(r"\$\{\{\s*(?:secrets|dstack)\.[^}]*\}\}")  # which dstack fills in itself
# Text for a shell or program inside the worker, where $NAME is filled in at run time.
PROGRAM_TEXT = frozenset({"command", "args", "run", "setup", "commands", "init", "entrypoint", "data", "script"})


class Refused(Exception):
    """The manifest cannot be a run. The text is a sentence for each fault."""


@dataclass(frozen=True)
class LeftOut:
    """Something of the manifest that the run does not carry, where it stands, and why."""

    path: str
    why: str


@dataclass
class Imported:
    """A run's JSON body, the manifest's meaning in plain keys, and what was left out."""

    run: dict[str, Any]
    meaning: dict[str, Any]
    left_out: list[LeftOut] = field(default_factory=list)


class _Loader(yaml.SafeLoader):
    """Safe, and leaves floats and times as text: YAML 1.1 would read `12:00:00` as 43200. No field is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    told = f"the field {key.value} is there twice"
                    raise yaml.constructor.ConstructorError(None, None, told, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("float", "timestamp", "int")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z"), list("-+0123456789"))


def read_documents(text: str, loader: type[yaml.SafeLoader] = _Loader) -> list[dict[str, Any]]:
    """Raises Refused: not YAML, not an object, too large, or a template that was not filled in, with every name."""
    if len(text.encode()) > TEXT_MAX:
        raise Refused(f"the file is longer than {TEXT_MAX // 1024} KiB")
    try:
        documents = [document for document in yaml.load_all(text, loader) if document is not None]
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        refuse_templates(_TEMPLATE.finditer(text))
        raise Refused(f"not YAML: {' '.join(str(error).split())}") from error
    for document in documents:
        if not isinstance(document, dict):
            raise Refused("a manifest is an object with fields")
        _refuse_unfilled(document)
    if not documents:
        raise Refused("the file is empty")
    return documents


def refuse_templates(found: Iterable[re.Match[str]]) -> None:
    names = list(dict.fromkeys((match[1] or match[2]).strip() for match in found))
    if names:
        raise Refused(f"a template that was not filled in: render it first ({', '.join(names)})")


def _refuse_unfilled(document: dict[str, Any]) -> None:
    texts = list(_texts(document))
    if "kind" not in document and "type" in document:  # dstack's
        texts = [_OWN_REFERENCE.sub("", text) for text in texts]
    refuse_templates(match for text in texts for match in _TEMPLATE.finditer(text))
    names = list(dict.fromkeys(match[1] or match[2] for text in texts for match in _VARIABLE.finditer(text)))
    if names:
        listed = ", ".join(f"${name}" for name in names)
        raise Refused(f"variables that were not filled in: {listed}: run envsubst on the file first")


def _texts(root: dict[str, Any]) -> Iterator[str]:
    """Every text that is not a program's; raises Refused for a document that aliases blow up."""
    waiting: list[Any] = [root]
    for _ in range(NODES_MAX):
        if not waiting:
            return
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting.extend(item for name, item in value.items() if name not in PROGRAM_TEXT)
        elif isinstance(value, list):
            waiting.extend(value)
    raise Refused(f"the file has more than {NODES_MAX} values")


class Part:
    """An object of the manifest that remembers which of its fields were taken: the others are left out by name."""

    def __init__(self, value: Any, path: str, left_out: list[LeftOut]) -> None:
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise Refused(f"{path or 'the file'} must be an object")
        self.value, self.path, self.left_out, self.taken = value, path, left_out, set[str]()

    def take(self, name: str, default: Any = None) -> Any:
        self.taken.add(name)
        value = self.value.get(name)
        return default if value is None else value

    def part(self, name: str) -> "Part":
        return Part(self.take(name), self.at(name), self.left_out)

    def parts(self, name: str) -> list["Part"]:
        value = self.take(name, [])
        if not isinstance(value, list):
            raise Refused(f"{self.at(name)} must be a list")
        return [Part(item, f"{self.at(name)}[{index}]", self.left_out) for index, item in enumerate(value)]

    def count(self, name: str, default: int) -> int:
        value = self.take(name, default)
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,6}", str(value)):
            raise Refused(f"{self.at(name)} must be a whole number, not {value!r}")
        return int(value)

    def text(self, name: str) -> str:
        value = self.take(name, "")
        if isinstance(value, dict | list):
            raise Refused(f"{self.at(name)} must be text")
        return str(value).lower() if isinstance(value, bool) else str(value)

    def texts(self, name: str) -> list[str]:
        value = self.take(name, [])
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            raise Refused(f"{self.at(name)} must be a list")
        return [str(item) for item in value]

    def leave(self, name: str, why: str) -> None:
        """Named as left out where it is there."""
        if self.take(name) not in (None, "", [], {}):
            self.left_out.append(LeftOut(self.at(name), why))

    def leave_rest(self, reasons: Mapping[str, str] = {}, why: str = "has no counterpart here") -> None:
        for name in self.value:
            if name not in self.taken:
                self.leave(name, reasons.get(name, why))

    def at(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else str(name)


def run_name(text: str, fallback: str) -> str:
    """A run's name after a manifest's."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-")
    return name or fallback
