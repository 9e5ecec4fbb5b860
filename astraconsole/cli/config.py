"""Where the console is, who asks, and in which workspace: from the environment, else from a file of mode 600."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from astraconsole.cli.problems import NotConfigured
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


def config_path(environment: Mapping[str, str] = os.environ) -> Path:
    base = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "astra" / "config.json"


def load(environment: Mapping[str, str] = os.environ) -> Config:
    """What is saved, with what the environment says over it. Raises NotConfigured for a file that cannot be read."""
    given = {field: environment[name] for field, name in ENVIRONMENT.items() if environment.get(name)}
    return replace(_saved(config_path(environment)), **given)


def save(config: Config, environment: Mapping[str, str] = os.environ) -> None:
    path = config_path(environment)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, json.dumps(asdict(config)))


def _saved(path: Path) -> Config:
    try:
        return Config(**json.loads(path.read_text()))
    except FileNotFoundError:
        return Config()
    except (OSError, ValueError, TypeError) as error:
        raise NotConfigured(f"cannot read {path}: {error}") from error


def require(config: Config, *fields: str) -> None:
    """Raises NotConfigured with the variables that would say it."""
    missing = [ENVIRONMENT[field] for field in fields if not getattr(config, field)]
    if missing:
        raise NotConfigured(
            f"not known: set {', '.join(missing)}, or choose a workspace with `astra use org/workspace`"
        )
