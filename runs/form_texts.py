"""What people type into the fields of the New run form, read and spelled. Pure."""

import re
import shlex
from typing import Any

from runs import units
from runs.spec_rules import MODEL_PATH

_ENV_NAME = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)=")
_WHOLE_VALUE = "value"  # the key that every credential has


def split_arguments(text: str) -> list[str]:
    """As a shell would split them, expanding nothing. Raises ValueError with a sentence."""
    try:
        return shlex.split(text)
    except ValueError as error:
        what = "a quote is not closed" if "quotation" in str(error) else "it ends with a lone backslash"
        raise ValueError(f"{what}: quote spaces as 'two words', and a quote itself as \\'") from None


def parse_environment(text: str) -> dict[str, str]:
    """`KEY=value` pairs, one a line or separated by commas. A comma that no `KEY=` follows belongs to the value; a
    value in quotes is taken whole, commas and line ends too. Raises ValueError with a sentence."""
    pairs: dict[str, str] = {}
    rest = text.replace("\r\n", "\n").strip(" \t\n,")
    while rest:
        match = _ENV_NAME.match(rest)
        if match is None:
            raise ValueError(f"{_short(rest)} is not KEY=value")
        name = match.group(1)
        if name in pairs:
            raise ValueError(f"{name} is there twice")
        pairs[name], rest = _environment_value(name, rest[match.end() :])
        rest = rest.strip(" \t\n,")
    return pairs


def _environment_value(name: str, rest: str) -> tuple[str, str]:
    """The value that `rest` begins with, and what follows it."""
    if rest[:1] in ("'", '"'):
        end = rest.find(rest[0], 1)
        if end < 0:
            raise ValueError(f"the quote of {name} is not closed")
        after = rest[end + 1 :].lstrip(" \t")
        if after and after[0] not in ",\n":
            raise ValueError(
                f"after the closing quote of {name} comes {_short(after)}: separate with a comma or a new line"
            )
        return rest[1:end], after
    line, newline, more = rest.partition("\n")
    for comma in re.finditer(",", line):
        if _ENV_NAME.match(line, comma.end()):
            return line[: comma.start()].strip(), line[comma.end() :] + newline + more
    return line.rstrip(" \t,"), more


def split_list(text: str) -> list[str]:
    """One a line, or separated by commas."""
    return [part for part in (part.strip() for part in re.split(r"[,\n]", text)) if part]


def whole_number(text: str) -> int:
    """Raises ValueError with a sentence."""
    try:
        return int(text.strip()) if len(text) <= 20 and text.strip().isascii() else _not_whole(text)
    except ValueError:
        return _not_whole(text)


def _not_whole(text: str) -> int:
    raise ValueError(f"{_short(text)} is not a whole number")


def _short(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return repr(line if len(line) <= 40 else line[:40] + "…")


def parse_cores(text: str) -> float | int:
    """Raises ValueError with a sentence."""
    milli = units.parse_cores(text)
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


def parse_credentials(text: str) -> list[dict[str, Any]]:
    """`secret_refs` from `NAME`, `NAME:KEY=VARIABLE` and `NAME:/path`. A name alone becomes the variable of that name:
    `hf-token` is HF_TOKEN. Lines of one name are one reference. Raises ValueError with a sentence."""
    found: dict[str, dict[str, Any]] = {}
    for part in split_list(text):
        name, colon, how = (piece.strip() for piece in part.partition(":"))
        if not name or (colon and not how):
            raise ValueError(f"{_short(part)} is not NAME, NAME:KEY=VARIABLE or NAME:/path")
        reference = found.setdefault(name, {"external_secret_name": name})
        if how.startswith("/"):
            if "mount_path" in reference:
                raise ValueError(f"{name} has two paths: one is enough for its files")
            reference["mount_path"] = how
            continue
        key, equals, variable = (piece.strip() for piece in how.partition("="))
        if colon and not (key and equals and variable):
            raise ValueError(f"{_short(part)} is not NAME:KEY=VARIABLE or NAME:/path")
        variables = reference.setdefault("env_vars", {})
        if (key or _WHOLE_VALUE) in variables:
            raise ValueError(f"{name} is there twice")
        variables[key or _WHOLE_VALUE] = variable or re.sub(r"\W", "_", name).upper()
    return list(found.values())


def spell_credentials(references: list[dict[str, Any]]) -> str:
    """`HF_TOKEN from hf-token, files of gcs-key in /var/secrets/gcs`."""
    parts = []
    for reference in references:
        name = reference["external_secret_name"]
        for key, variable in reference.get("env_vars", {}).items():
            of = "" if key == _WHOLE_VALUE else f"key {key} of "
            parts.append(f"{variable} from {of}{name}")
        if "mount_path" in reference:
            parts.append(f"files of {name} in {reference['mount_path']}")
    return ", ".join(parts)


def parse_drives(text: str) -> list[dict[str, Any]]:
    """`datavolume_refs` from `NAME:/path` and `NAME:/path:ro`. Raises ValueError with a sentence."""
    found = []
    for part in split_list(text):
        name, _, rest = (piece.strip() for piece in part.partition(":"))
        path, colon, how = (piece.strip() for piece in rest.partition(":"))
        if not name or not path.startswith("/") or (colon and how not in ("ro", "rw")):
            raise ValueError(f"{_short(part)} is not NAME:/path or NAME:/path:ro")
        found.append({"name": name, "mount_path": path, **({"read_only": True} if how == "ro" else {})})
    return found


def spell_drives(references: list[dict[str, Any]]) -> str:
    """`imagenet at /data, read only`."""
    return "; ".join(
        f"{reference['name']} at {reference['mount_path']}{', read only' if reference.get('read_only') else ''}"
        for reference in references
    )


def parse_model(text: str) -> list[dict[str, Any]]:
    """`model_refs` from `NAME` or `NAME:/path`. Raises ValueError with a sentence."""
    name, colon, path = (piece.strip() for piece in text.partition(":"))
    if not name or (colon and not path.startswith("/")) or "," in name:
        raise ValueError(f"{_short(text)} is not NAME or NAME:/path")
    return [{"name": name, "mount_path": path or MODEL_PATH}]
