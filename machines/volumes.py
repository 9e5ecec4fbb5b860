"""Drives and models of a workspace: what they are called, and what machines mount under that name."""

import re
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.db import IntegrityError, transaction

from astraconsole.errors import Conflict, Detail, NotFound, ValidationError
from astraconsole.tenancy import audit
from astraconsole.tenancy.audit import Did, Kind
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from astraconsole.tenancy.services import hold
from machines import dispatch
from machines.data_names import NAME_RULE, is_data_name
from machines.models import Volume, VolumeForm
from machines.orders import DataKind

VOLUMES_MAX = 500  # of one workspace, drives and models together: its machines are told all of them
SOURCE_LENGTH, ENDPOINT_LENGTH, VERSION_LENGTH = 1000, 300, 63
FORMS: dict[str, str] = dict(VolumeForm.choices)  # with their labels
SCHEMES = ("s3", "gs", "http", "https", "file")
CREDENTIAL_SCHEMES = ("s3", "gs", "http", "https")
DRIVE_FIELDS = ("name", "kind", "source", "read_only", "credential", "checksum", "endpoint")
MODEL_FIELDS = ("name", "kind", "source", "version", "credential", "checksum", "endpoint")
COPY_IS_READ_ONLY = "must be true for a copy: what a worker wrote to it would be on one machine only, and go with it"
_CHECKSUM = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


def fields_of(kind: DataKind) -> tuple[str, ...]:
    return DRIVE_FIELDS if kind is DataKind.DRIVE else MODEL_FIELDS


@transaction.atomic
def create_volume(access: Access, kind: DataKind, given: dict[str, Any], now: datetime) -> Volume:
    """`given`: values of `fields_of(kind)`; what is left out is empty. Machines are told once the transaction commits.

    Raises Forbidden, ValidationError, Conflict.
    """
    access.require(Action.MANAGE)
    columns = _checked(kind, given)
    hold(access.workspace)
    if access.workspace.volumes.count() >= VOLUMES_MAX:
        raise Conflict(f"the workspace has {VOLUMES_MAX} drives and models, the most it can have")
    try:
        with transaction.atomic():
            made = Volume.objects.create(
                workspace=access.workspace, kind=kind.value, created_by=access.user, created_at=now, **columns
            )
    except IntegrityError:
        message = f"the workspace has a {kind} {columns['name']} already: remove it first, or choose another name"
        raise Conflict(message) from None
    audit.record(access, Kind(kind.value), made.name, Did.ADDED, f"{made.form} {made.source}", now)
    dispatch.data_changed(access.workspace.pk)
    return made


@transaction.atomic
def remove_volume(access: Access, volume: Volume, now: datetime) -> None:
    """Machines remove their copies once no worker uses them. Raises Forbidden, NotFound: somebody else may have
    removed it. Whether a run uses it is `runs.services.volumes`' to know."""
    access.require(Action.MANAGE)
    if not volume.delete()[0]:
        raise NotFound(f"the workspace has no {volume.kind} {volume.name}")
    audit.record(access, Kind(volume.kind), volume.name, Did.REMOVED, "", now)
    dispatch.data_changed(access.workspace.pk)


def _checked(kind: DataKind, given: dict[str, Any]) -> dict[str, Any]:
    """The columns. Raises ValidationError with every broken rule."""
    texts = {name: given.get(name, "") for name in fields_of(kind) if name != "read_only"}
    broken = [
        Detail(field=name, rule="must be one line of printable text")
        for name, text in texts.items()
        if not isinstance(text, str) or not text.isprintable()
    ]
    if not broken:
        texts = {name: text.strip() for name, text in texts.items()}
        broken = [Detail(field=name, rule=rule) for name, rule in _broken_rules(kind, texts, given.get("read_only"))]
    if broken:
        raise ValidationError.of(broken)
    form = texts.pop("kind")
    read_only = form == VolumeForm.COPY or kind is DataKind.MODEL or bool(given.get("read_only"))
    return {**texts, "form": form, "read_only": read_only}


def _broken_rules(kind: DataKind, texts: dict[str, str], read_only: object) -> list[tuple[str, str]]:
    form, scheme = texts["kind"], texts["source"].partition("://")[0]
    rules = {
        "name": "" if is_data_name(texts["name"]) else NAME_RULE,
        "kind": "" if form in FORMS else f"must be one of {', '.join(FORMS)}",
        "source": _source_rule(form, texts["source"]),
        "credential": _credential_rule(form, scheme, texts["credential"]),
        "checksum": _checksum_rule(form, texts["checksum"]),
        "endpoint": _endpoint_rule(form, scheme, texts["endpoint"]),
        "version": ""
        if len(texts.get("version", "")) <= VERSION_LENGTH
        else f"must be at most {VERSION_LENGTH} characters",
        "read_only": "" if read_only is None or isinstance(read_only, bool) else "must be true or false",
    }
    if kind is DataKind.DRIVE and form == VolumeForm.COPY and read_only is False:
        rules["read_only"] = COPY_IS_READ_ONLY
    return [(name, rule) for name, rule in rules.items() if rule]


def _source_rule(form: str, source: str) -> str:
    if not 1 <= len(source) <= SOURCE_LENGTH:
        return f"must have 1 to {SOURCE_LENGTH} characters"
    if form == VolumeForm.FOLDER and (not source.startswith("/") or ".." in source.split("/") or not source.strip("/")):
        return "must be an absolute path of a folder on the machines, without .."
    if form == VolumeForm.NFS:
        server, colon, path = source.partition(":/")
        if (
            not colon
            or not server
            or "/" in server
            or server.startswith("-")
            or " " in server
            or ".." in path.split("/")
        ):
            return "must be a folder of a file server: server:/path, without .."
    return _address_rule(source) if form == VolumeForm.COPY else ""


def _address_rule(source: str) -> str:
    scheme, colon, rest = source.partition("://")
    if not colon or scheme not in SCHEMES:
        return f"must be an address that begins with {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
    if scheme == "file":
        return "" if rest.startswith("/") and ".." not in rest.split("/") else "must be file:///path, without .."
    host = rest.partition("/")[0]
    if "@" in host:
        return "must not hold a user or a password: name a credential"
    if not host or host.startswith("."):
        return "must name a host or a bucket"
    try:
        urlsplit(source).port if scheme in ("http", "https") else None
    except ValueError:
        return "must be an address with a port from 0 to 65535"
    return ""


def _credential_rule(form: str, scheme: str, credential: str) -> str:
    if not credential:
        return ""
    if form != VolumeForm.COPY or scheme not in CREDENTIAL_SCHEMES:
        return "has a meaning only for a copy from s3, gs, http or https"
    return "" if is_data_name(credential) else NAME_RULE


def _checksum_rule(form: str, checksum: str) -> str:
    if not checksum:
        return ""
    if form != VolumeForm.COPY:
        return "has a meaning only for a copy"
    return "" if _CHECKSUM.fullmatch(checksum) else "must be sha256: and 64 hexadecimal digits in lower case"


def _endpoint_rule(form: str, scheme: str, endpoint: str) -> str:
    if not endpoint:
        return ""
    if form != VolumeForm.COPY or scheme != "s3":
        return "has a meaning only for a copy from s3"
    good = endpoint.startswith(("http://", "https://")) and "@" not in endpoint and len(endpoint) <= ENDPOINT_LENGTH
    return (
        ""
        if good
        else f"must be an address that begins with http:// or https://, of at most {ENDPOINT_LENGTH} characters"
    )
