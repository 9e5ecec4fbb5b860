"""Removing a drive or a model, which runs may still need."""

from django.db import transaction
from django.utils import timezone

from astraconsole.errors import Conflict
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from machines import queries, volumes
from machines.orders import DataKind
from runs.reference_queries import runs_using_volume

NAMED = 5


@transaction.atomic
def delete_volume(access: Access, kind: DataKind, name: str) -> None:
    """Raises Forbidden, NotFound, and Conflict while runs in progress use it."""
    access.require(Action.MANAGE)
    volume = queries.get_volume(access, kind, name)
    if users := runs_using_volume(access, kind, name):
        more = f" and {len(users) - NAMED} more" if len(users) > NAMED else ""
        raise Conflict(f"{name} is used by runs in progress: {', '.join(users[:NAMED])}{more}")
    volumes.remove_volume(access, volume, timezone.now())
