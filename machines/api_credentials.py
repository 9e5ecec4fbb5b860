"""The JSON API of a workspace's credentials: names and where machines fetch the values, never a value."""

from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Router
from typing_extensions import TypedDict

from astraconsole.json_bodies import json_response, moment, object_body, read_object
from astraconsole.tenancy.api_access import WORKSPACE, access_of
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access
from machines import queries
from machines.credentials import PROVIDERS, REFERENCE_LENGTH, save_credential
from machines.data_names import NAME_RULE
from machines.syncs import CredentialView, views_of
from runs.services.credentials import delete_credential

CREDENTIALS = f"{WORKSPACE}/credentials"
FIELDS = ("name", "provider", "reference")

router = Router(tags=["Credentials"])


class CredentialMetadata(TypedDict):
    name: str
    uid: str
    created_at: str
    created_by: str | None
    changed_at: str


class SyncCounts(TypedDict):
    """`state`: Failed if a machine could not fetch it, else Waiting if one has not said, else Synced."""

    state: str
    machines: int
    synced: int
    failed: int


class CredentialDocument(TypedDict):
    metadata: CredentialMetadata
    provider: str
    reference: str
    status: SyncCounts


class MachineSync(TypedDict):
    """`state`: Synced, Failed (`message` says why), Waiting."""

    machine: str
    cluster: str
    state: str
    message: str
    changed_at: str | None


class CredentialWithMachines(CredentialDocument):
    machines: list[MachineSync]


class CredentialList(TypedDict):
    items: list[CredentialDocument]
    next: None


_BODY = object_body(
    {
        "name": {"type": "string", "description": NAME_RULE},
        "provider": {"type": "string", "enum": PROVIDERS},
        "reference": {"type": "string", "maxLength": REFERENCE_LENGTH},
    },
    FIELDS,
)


@router.get(CREDENTIALS, response=CredentialList)
def list_credentials(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """The workspace's credentials, by name."""
    access = access_of(request, org, ws)
    views = views_of(access, queries.credentials_of(access))
    return json_response({"items": [_document(view) for view in views], "next": None})


@router.post(
    CREDENTIALS,
    response={200: CredentialWithMachines, 201: CredentialWithMachines},
    openapi_extra=_BODY,
)
def save(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """Create a credential (201), or replace what it says (200). Its value stays where its machines fetch it."""
    access = access_of(request, org, ws, Action.MANAGE)
    body = read_object(request, FIELDS)
    credential, is_new = save_credential(access, *(body.get(name) for name in FIELDS), timezone.now())
    return json_response(_whole(access, credential.name), HTTPStatus.CREATED if is_new else HTTPStatus.OK)


@router.get(f"{CREDENTIALS}/{{credential}}", response=CredentialWithMachines)
def get_credential(request: HttpRequest, org: str, ws: str, credential: str) -> HttpResponse:
    """One credential, and whether each machine of the workspace can fetch it."""
    return json_response(_whole(access_of(request, org, ws), credential))


@router.delete(f"{CREDENTIALS}/{{credential}}", response={204: None})
def delete(request: HttpRequest, org: str, ws: str, credential: str) -> HttpResponse:
    """Refused with 409 while runs in progress use it."""
    delete_credential(access_of(request, org, ws), credential)
    return HttpResponse(status=HTTPStatus.NO_CONTENT)


def _whole(access: Access, name: str) -> dict[str, Any]:
    (view,) = views_of(access, [queries.get_credential(access, name)])
    machines = [
        {
            "machine": sync.machine.name,
            "cluster": sync.machine.cluster.slug,
            "state": sync.state,
            "message": sync.message,
            "changed_at": moment(sync.changed_at),
        }
        for sync in view.syncs
    ]
    return {**_document(view), "machines": machines}


def _document(view: CredentialView) -> dict[str, Any]:
    credential = view.credential
    return {
        "metadata": {
            "name": credential.name,
            "uid": str(credential.uid),
            "created_at": moment(credential.created_at),
            "created_by": credential.created_by.username if credential.created_by else None,
            "changed_at": moment(credential.changed_at),
        },
        "provider": credential.provider,
        "reference": credential.reference,
        "status": {
            "state": view.state,
            "machines": len(view.syncs),
            "synced": view.synced,
            "failed": view.failed,
        },
    }
