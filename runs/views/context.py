"""What every page of a workspace hands to its template."""

from typing import Any

from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access


def context_of(access: Access, **more: Any) -> dict[str, Any]:
    """The workspace at hand, and whether this person may start, stop and delete runs."""
    return {
        "access": access,
        "org": access.workspace.organisation.slug,
        "ws": access.workspace.slug,
        "may_write": access.allows(Action.WRITE),
        **more,
    }
