"""What people do to a workspace's members, credentials, templates, …: an entry with each change, in its transaction."""

from datetime import datetime
from enum import StrEnum

from astraconsole import events
from astraconsole.tenancy.models import AuditEvent, Workspace
from astraconsole.tenancy.queries import Access

NAME_LENGTH, REASON_LENGTH = 200, 400


class Kind(StrEnum):
    """Of an entry: what it is about."""

    TEMPLATE = "template"
    SCHEDULE = "schedule"
    CREDENTIAL = "credential"
    DRIVE = "drive"
    MODEL = "model"
    MEMBER = "member"
    QUOTA = "quota"
    WEBHOOK = "webhook"


class Did(StrEnum):
    """Its state: what has become of it."""

    ADDED = "Added"
    REPLACED = "Replaced"
    CHANGED = "Changed"
    REMOVED = "Removed"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


def record(access: Access, kind: Kind, name: str, did: Did, reason: str, now: datetime) -> None:
    """`reason`: what is worth telling beside the word; never a value of a credential."""
    record_by(access.workspace, kind, name, did, reason, access.actor, now)


def record_by(workspace: Workspace, kind: Kind, name: str, did: Did, reason: str, actor: str, now: datetime) -> None:
    """As `record`, of an actor that is no member."""
    AuditEvent.objects.create(
        workspace=workspace,
        kind=kind,
        name=name[:NAME_LENGTH],
        state=did,
        reason=reason[:REASON_LENGTH],
        actor=actor,
        at=now,
    )
    events.workspaces_changed([workspace.pk])
