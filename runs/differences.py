"""What differs between two runs: specification, images, machines, GPUs. Pure: facts in, differences out."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NUMBERED = re.compile(r"(?:-again|[-_]?\d+)+$")
ABSENT = None
CODE = "code"


@dataclass(frozen=True)
class Facts:
    """Of one run. `images`: `<group>` (or "") → digests of what ran; `machines`, `gpus`: names and models, sorted."""

    spec: Mapping[str, Any]
    images: Mapping[str, Sequence[str]]
    machines: Sequence[str]
    gpus: Sequence[str]


@dataclass(frozen=True)
class Difference:
    """`what`: a field's path, or `image digest`, `machines`, `GPU models`; `before`, `after`: null where there is
    none."""

    what: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Differences:
    """In the order in which a cause is looked for. `unknown`: what could not be compared, and why, as sentences."""

    spec: list[Difference]
    images: list[Difference]
    places: list[Difference]
    unknown: list[str]

    @property
    def all(self) -> list[Difference]:
        return [*self.spec, *self.images, *self.places]


def differences(before: Facts, after: Facts) -> Differences:
    images, unknown = _images(before, after)
    places = [("machines", before.machines, after.machines), ("GPU models", before.gpus, after.gpus)]
    return Differences(
        list(_fields("", before.spec, after.spec)),
        images,
        [Difference(what, list(old), list(new)) for what, old, new in places if list(old) != list(new)],
        unknown,
    )


def _fields(path: str, before: Any, after: Any) -> Iterator[Difference]:
    """By field, down to what is no object; lists of named parts by name, other lists as a whole."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping) and path != CODE:
        for name in [*before, *(name for name in after if name not in before)]:
            yield from _fields(f"{path}.{name}" if path else name, before.get(name), after.get(name))
    elif (old := _named(before)) is not None and (new := _named(after)) is not None:
        for name in [*old, *(name for name in new if name not in old)]:
            yield from _fields(f"{path}[{name}]", old.get(name), new.get(name))
    else:
        yield Difference(path, before, after)


def _named(parts: Any) -> dict[str, Any] | None:
    """Groups, drives, credentials: lists in which each part has a name of its own."""
    if not isinstance(parts, list) or not parts or not all(isinstance(part, Mapping) for part in parts):
        return None
    names = [part.get("name") or part.get("external_secret_name") for part in parts]
    return dict(zip(names, parts, strict=True)) if all(names) and len(set(names)) == len(names) else None


def _images(before: Facts, after: Facts) -> tuple[list[Difference], list[str]]:
    found, unknown = [], []
    for group in [*before.images, *(group for group in after.images if group not in before.images)]:
        old, new = list(before.images.get(group, [])), list(after.images.get(group, []))
        what = f"image digest of {group}" if group else "image digest"
        if old and new and old != new:
            found.append(Difference(what, old, new))
        elif not old or not new:
            which = "either run" if not old and not new else "the good run" if not old else "this run"
            unknown.append(f"The {what} is not known of {which}: its machines use no images, or pulled none.")
    return found, unknown


def stem(name: str) -> str:
    """What runs of one series share: `nightly` of `nightly-41` and of `nightly-again-again`."""
    return _NUMBERED.sub("", name) or name
