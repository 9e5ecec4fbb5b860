"""Templates: the one writer; and how many of what is saved a workspace may have."""

from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from astraconsole.errors import Conflict, NotFound
from astraconsole.tenancy import audit
from astraconsole.tenancy.audit import Did, Kind
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from astraconsole.tenancy.services import hold
from runs.models import Schedule, Template
from runs.saved import TemplateFields

SAVED_MAX = 500  # of one workspace, each of templates and schedules: lists show all of them


@transaction.atomic
def save_template(access: Access, fields: TemplateFields, now: datetime) -> tuple[Template, bool]:
    """The template, and whether it is new: one of this name is replaced. Raises Forbidden, Conflict."""
    access.require(Action.WRITE)
    hold(access.workspace)
    require_room(Template.objects.filter(workspace=access.workspace), fields.name, "templates")
    values = {"description": fields.description, "spec": fields.spec, "saved_by": access.user, "saved_at": now}
    template, is_new = Template.objects.update_or_create(workspace=access.workspace, name=fields.name, defaults=values)
    audit.record(access, Kind.TEMPLATE, template.name, Did.ADDED if is_new else Did.REPLACED, fields.description, now)
    return template, is_new


@transaction.atomic
def remove_template(access: Access, template: Template, now: datetime) -> None:
    """Raises Forbidden, NotFound: somebody else may have removed it."""
    access.require(Action.WRITE)
    if not template.delete()[0]:
        raise NotFound(f"the workspace has no template {template.uid}")
    audit.record(access, Kind.TEMPLATE, template.name, Did.REMOVED, "", now)


def require_room(saved: QuerySet[Template] | QuerySet[Schedule], name: str, what: str) -> None:
    """Raises Conflict where one more would be too many. The workspace is held, so that the count stays true."""
    if saved.count() >= SAVED_MAX and not saved.filter(name=name).exists():
        raise Conflict(f"the workspace has {SAVED_MAX} {what}, the most it can have")
