"""Where the console is, who asks, and in which workspace: from the environment, else from a file of mode 600."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from astraconsole.cli.problems import NotConfigured, Problem
from astraconsole.private_files import write_private

ENVIRONMENT = {
    "url": "ASTRA_URL",
    "token": "ASTRA_TOKEN",
    "organisation": "ASTRA_ORG",
    "workspace": "ASTRA_WORKSPACE",
    "cluster": "ASTRA_CLUSTER",
}


@dataclass(frozen=True)
class Config:
    """Empty: not known. Without a cluster, the workspace's first one is meant."""

    url: str = ""
    token: str = ""
    organisation: str = ""
    workspace: str = ""
    cluster: str = ""

    @property
    def place(self) -> str:
        """`acme/vision`, `acme/vision@gpu-east`."""
        cluster = f"@{self.cluster}" if self.cluster else ""
        return f"{self.organisation}/{self.workspace}{cluster}"


def config_path(environment: Mapping[str, str] = os.environ) -> Path:
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or Path.home()) / ".config"
    return Path(base) / "astra" / "config.json"


def load(environment: Mapping[str, str] = os.environ) -> Config:
    """What is saved, with what the environment says over it. Raises NotConfigured for a file that cannot be read.

    A workspace from the environment alone does not come with the saved one's cluster, and the saved token goes to no
    other console.
    """
    given = {field: environment[name] for field, name in ENVIRONMENT.items() if environment.get(name)}
    saved = load_saved(environment)
    if given.get("url", saved.url).rstrip("/") != saved.url.rstrip("/"):
        saved = replace(saved, token="")
    if {"organisation", "workspace"} & set(given):
        saved = replace(saved, cluster="")
    return replace(saved, **given)


def load_saved(environment: Mapping[str, str] = os.environ) -> Config:
    """The file alone, made private where others could read it. Raises NotConfigured."""
    path = config_path(environment)
    try:
        config = _parsed(json.loads(path.read_text(encoding="utf-8")))
        if config.token:
            _make_private(path)
        return config
    except FileNotFoundError:
        return Config()
    except (OSError, ValueError, TypeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise NotConfigured(f"cannot read {path}: {reason}; remove it and run `astra login` again") from error


def save(config: Config, environment: Mapping[str, str] = os.environ) -> None:
    """Raises Problem where the file cannot be written."""
    path = config_path(environment)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps(asdict(config), indent=2) + "\n")
    except OSError as error:
        raise Problem(f"cannot write {path}: {error.strerror}") from error


def require(config: Config, *needed: str) -> None:
    """Raises NotConfigured with what would say it."""
    missing = [field for field in needed if not getattr(config, field)]
    if "url" in missing or "token" in missing:
        names = " and ".join(ENVIRONMENT[field] for field in missing)
        raise NotConfigured(f"not signed in: run `astra login`, or set {names}")
    if missing:
        names = " and ".join(ENVIRONMENT[field] for field in missing)
        raise NotConfigured(f"no workspace chosen: run `astra use organisation/workspace`, or set {names}")


def _make_private(path: Path) -> None:
    """A token that others could read is not kept so; a file that cannot be changed is used as it is."""
    if path.stat().st_mode & 0o077 == 0:
        return
    try:
        path.chmod(0o600)
    except OSError:  # another user's file, or a read-only file system: a mounted secret, say
        click.echo(f"({path} can be read by others; its mode should be 600)", err=True)
    else:
        click.echo(f"({path} could be read by others; its mode is 600 now)", err=True)


def _parsed(document: Any) -> Config:
    names = {field.name for field in fields(Config)}
    if not isinstance(document, dict) or not all(isinstance(value, str) for value in document.values()):
        raise ValueError("it is not an object of texts")
    if unknown := sorted(set(document) - names):
        raise ValueError(f"it has fields that this astra does not know: {', '.join(unknown)}")
    return Config(**document)
