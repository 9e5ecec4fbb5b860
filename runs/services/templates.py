"""Templates: the one writer."""

from datetime import datetime

from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from runs.models import Template
from runs.saved import TemplateFields


def save_template(access: Access, fields: TemplateFields, now: datetime) -> tuple[Template, bool]:
    """The template, and whether it is new: one of this name is replaced. Raises Forbidden."""
    access.require(Action.WRITE)
    values = {"description": fields.description, "spec": fields.spec, "saved_by": access.user, "saved_at": now}
    return Template.objects.update_or_create(workspace=access.workspace, name=fields.name, defaults=values)


def remove_template(access: Access, template: Template) -> None:
    """Raises Forbidden."""
    access.require(Action.WRITE)
    template.delete()
