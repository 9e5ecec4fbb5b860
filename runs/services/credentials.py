"""Removing a credential, which runs may still need."""

from django.db import transaction
from django.utils import timezone

from astraconsole.errors import Conflict
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from machines import credentials, queries
from runs.reference_queries import runs_using_credential

NAMED = 5


@transaction.atomic
def delete_credential(access: Access, name: str) -> None:
    """Raises Forbidden, NotFound, and Conflict while runs in progress use it: their workers would wait at the next
    start for something that nobody can give them."""
    access.require(Action.MANAGE)
    credential = queries.get_credential(access, name)
    if users := runs_using_credential(access, name):
        more = f" and {len(users) - NAMED} more" if len(users) > NAMED else ""
        raise Conflict(f"{name} is used by runs in progress: {', '.join(users[:NAMED])}{more}")
    credentials.remove_credential(access, credential, timezone.now())
