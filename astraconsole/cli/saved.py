"""What a workspace keeps by name."""

from typing import Any

from astraconsole.cli.client import Client
from astraconsole.cli.problems import Problem


def find_template(client: Client, name: str) -> dict[str, Any]:
    """Raises Problem."""
    for template in client.every("templates"):
        if template["name"] == name:
            found: dict[str, Any] = template
            return found
    raise Problem(f"the workspace has no template {name!r}: see `astra astraeus templates`")
