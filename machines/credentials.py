"""Credentials of a workspace: their names, and where machines fetch the values. Never a value."""

import re
import uuid
from datetime import datetime

from django.db import IntegrityError, transaction

from astraconsole.errors import Conflict, Detail, NotFound, ValidationError
from astraconsole.tenancy import audit
from astraconsole.tenancy.audit import Did, Kind
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from astraconsole.tenancy.services import hold
from machines import dispatch
from machines.data_names import NAME_RULE, is_data_name
from machines.models import Credential, Provider

CREDENTIALS_MAX = 200  # of one workspace: each of its machines looks after all of them
REFERENCE_LENGTH = 500
PROVIDERS = list(Provider.values)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@transaction.atomic
def save_credential(
    access: Access, name: object, provider: object, reference: object, now: datetime
) -> tuple[Credential, bool]:
    """Create one, or replace what it says; and whether it is new. Machines are told once the transaction commits.

    Raises Forbidden, ValidationError, Conflict.
    """
    access.require(Action.MANAGE)
    name, provider, reference = _checked(name, provider, reference)
    present = access.workspace.credentials.select_for_update().filter(name=name).first()
    if present is None:
        return _create(access, name, provider, reference, now), True
    if (present.provider, present.reference) != (provider, reference):
        present.uid, present.provider, present.reference, present.changed_at = uuid.uuid4(), provider, reference, now
        present.save(update_fields=["uid", "provider", "reference", "changed_at"])
        audit.record(access, Kind.CREDENTIAL, name, Did.REPLACED, f"From {provider}", now)
    dispatch.data_changed(access.workspace.pk)  # unchanged, too: saving it again has machines look again
    return present, False


def _create(access: Access, name: str, provider: str, reference: str, now: datetime) -> Credential:
    hold(access.workspace)
    if access.workspace.credentials.count() >= CREDENTIALS_MAX:
        raise Conflict(f"the workspace has {CREDENTIALS_MAX} credentials, the most it can have")
    try:
        with transaction.atomic():
            made = Credential.objects.create(
                workspace=access.workspace,
                name=name,
                provider=provider,
                reference=reference,
                created_by=access.user,
                created_at=now,
                changed_at=now,
            )
    except IntegrityError:
        raise Conflict(f"somebody else has just created the credential {name}") from None
    audit.record(access, Kind.CREDENTIAL, name, Did.ADDED, f"From {provider}", now)
    dispatch.data_changed(access.workspace.pk)
    return made


@transaction.atomic
def remove_credential(access: Access, credential: Credential, now: datetime) -> None:
    """Raises Forbidden, NotFound: somebody else may have removed it. Whether a run uses it is
    `runs.services.credentials`' to know."""
    access.require(Action.MANAGE)
    if not credential.delete()[0]:
        raise NotFound(f"the workspace has no credential {credential.name}")
    audit.record(access, Kind.CREDENTIAL, credential.name, Did.REMOVED, "", now)
    dispatch.data_changed(access.workspace.pk)


def _checked(name: object, provider: object, reference: object) -> tuple[str, str, str]:
    """Raises ValidationError with every broken rule."""
    broken: list[Detail] = []
    if not isinstance(name, str) or not is_data_name(name):
        broken.append({"field": "name", "rule": NAME_RULE})
    if provider not in PROVIDERS:
        broken.append({"field": "provider", "rule": f"must be one of {', '.join(PROVIDERS)}"})
    if rule := _reference_rule(provider, reference):
        broken.append({"field": "reference", "rule": rule})
    if broken:
        raise ValidationError.of(broken)
    return str(name), str(provider), str(reference).strip()


def _reference_rule(provider: object, reference: object) -> str:
    if not isinstance(reference, str) or not 1 <= len(reference.strip()) <= REFERENCE_LENGTH:
        return f"must have 1 to {REFERENCE_LENGTH} characters"
    text = reference.strip()
    if not text.isprintable():
        return "must be one line of printable characters"
    if provider == Provider.ENVIRONMENT and not _VARIABLE.fullmatch(text):
        return "must be the name of an environment variable"
    if provider in (Provider.FILE, Provider.VAULT) and (text.startswith("/") or ".." in text.split("/")):
        return "must be a path without .. that does not begin with /: it is read below what the machine's owner allows"
    return ""
