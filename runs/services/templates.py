"""Templates: the one writer."""

from datetime import datetime

from django.db import transaction

from astraconsole.tenancy import audit
from astraconsole.tenancy.audit import Did, Kind
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from runs.models import Template
from runs.saved import TemplateFields


@transaction.atomic
def save_template(access: Access, fields: TemplateFields, now: datetime) -> tuple[Template, bool]:
    """The template, and whether it is new: one of this name is replaced. Raises Forbidden."""
    access.require(Action.WRITE)
    values = {"description": fields.description, "spec": fields.spec, "saved_by": access.user, "saved_at": now}
    template, is_new = Template.objects.update_or_create(workspace=access.workspace, name=fields.name, defaults=values)
    audit.record(access, Kind.TEMPLATE, template.name, Did.ADDED if is_new else Did.REPLACED, fields.description, now)
    return template, is_new


@transaction.atomic
def remove_template(access: Access, template: Template, now: datetime) -> None:
    """Raises Forbidden."""
    access.require(Action.WRITE)
    template.delete()
    audit.record(access, Kind.TEMPLATE, template.name, Did.REMOVED, "", now)
