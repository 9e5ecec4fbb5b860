"""The JSON API of a workspace's drives and models, and how far each machine is with them."""

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
from machines.data_names import NAME_RULE
from machines.fillings import VolumeView, views_of
from machines.orders import DataKind
from machines.volumes import FORMS, SOURCE_LENGTH, create_volume, fields_of
from runs.services.volumes import delete_volume

router = Router()


class VolumeMetadata(TypedDict):
    name: str
    uid: str
    created_at: str
    created_by: str | None


class VolumeCounts(TypedDict):
    """`state`: Failed, Filling, Waiting or Ready, what most needs to be looked at; null where no machine holds it."""

    state: str | None
    machines: int
    ready: int


class DriveDocument(TypedDict):
    """`kind`: folder, nfs or copy. Empty: not given."""

    metadata: VolumeMetadata
    kind: str
    source: str
    read_only: bool
    credential: str
    checksum: str
    endpoint: str
    status: VolumeCounts


class ModelDocument(DriveDocument):
    version: str


class OnMachineDocument(TypedDict):
    """`total_bytes` 0: not known."""

    machine: str
    cluster: str
    state: str
    message: str
    done_bytes: int
    total_bytes: int
    changed_at: str | None


class DriveWithMachines(DriveDocument):
    machines: list[OnMachineDocument]


class ModelWithMachines(ModelDocument):
    machines: list[OnMachineDocument]


class DriveList(TypedDict):
    items: list[DriveDocument]
    next: None


class ModelList(TypedDict):
    items: list[ModelDocument]
    next: None


def _body(kind: DataKind) -> dict[str, Any]:
    properties: dict[str, Any] = {name: {"type": "string"} for name in fields_of(kind)}
    properties["name"] = {"type": "string", "description": NAME_RULE}
    properties["kind"] = {"type": "string", "enum": list(FORMS)}
    properties["source"] = {"type": "string", "maxLength": SOURCE_LENGTH}
    if "read_only" in properties:
        properties["read_only"] = {"type": "boolean"}
    return object_body(properties, ("name", "kind", "source"))


def _serve(kind: DataKind, lists: Any, whole: Any) -> None:
    """The four routes of drives, or of models."""
    address, options = f"{WORKSPACE}/{kind}s", {"tags": [f"{kind.capitalize()}s"]}

    @router.get(address, response=lists, operation_id=f"list_{kind}s", summary=f"List {kind}s", **options)
    def list_volumes(request: HttpRequest, org: str, ws: str) -> HttpResponse:
        """By name, each with how many machines hold it."""
        access = access_of(request, org, ws)
        views = views_of(access, queries.volumes_of(access, kind))
        return json_response({"items": [_document(kind, view) for view in views], "next": None})

    @router.post(
        address, response={201: whole}, openapi_extra=_body(kind), operation_id=f"create_{kind}",
        summary=f"Create a {kind}", **options,
    )  # fmt: skip
    def create(request: HttpRequest, org: str, ws: str) -> HttpResponse:
        """Machines fill a copy when the first worker there needs it. The answer is what was created."""
        access = access_of(request, org, ws, Action.MANAGE)
        volume = create_volume(access, kind, read_object(request, fields_of(kind)), timezone.now())
        return json_response(_whole(access, kind, volume.name), HTTPStatus.CREATED)

    @router.get(f"{address}/{{name}}", response=whole, operation_id=f"get_{kind}", summary=f"Read a {kind}", **options)
    def get(request: HttpRequest, org: str, ws: str, name: str) -> HttpResponse:
        """One, and how far each machine is with it."""
        return json_response(_whole(access_of(request, org, ws), kind, name))

    @router.delete(
        f"{address}/{{name}}",
        response={204: None},
        operation_id=f"delete_{kind}",
        summary=f"Delete a {kind}",
        **options,
    )
    def delete(request: HttpRequest, org: str, ws: str, name: str) -> HttpResponse:
        """Refused with 409 while runs in progress use it. Machines remove their copies."""
        delete_volume(access_of(request, org, ws), kind, name)
        return HttpResponse(status=HTTPStatus.NO_CONTENT)


_serve(DataKind.DRIVE, DriveList, DriveWithMachines)
_serve(DataKind.MODEL, ModelList, ModelWithMachines)


def _whole(access: Access, kind: DataKind, name: str) -> dict[str, Any]:
    (view,) = views_of(access, [queries.get_volume(access, kind, name)])
    machines = [
        {
            "machine": one.machine.name,
            "cluster": one.machine.cluster.slug,
            "state": one.told.state,
            "message": one.told.message,
            "done_bytes": one.told.done_bytes,
            "total_bytes": one.told.total_bytes,
            "changed_at": moment(one.told.changed_at),
        }
        for one in view.machines
    ]
    return {**_document(kind, view), "machines": machines}


def _document(kind: DataKind, view: VolumeView) -> dict[str, Any]:
    volume = view.volume
    return {
        "metadata": {
            "name": volume.name,
            "uid": str(volume.uid),
            "created_at": moment(volume.created_at),
            "created_by": volume.created_by.username if volume.created_by else None,
        },
        "kind": volume.form,
        "source": volume.source,
        "read_only": volume.read_only,
        **({"version": volume.version} if kind is DataKind.MODEL else {}),
        "credential": volume.credential,
        "checksum": volume.checksum,
        "endpoint": volume.endpoint,
        "status": {"state": view.state or None, "machines": len(view.machines), "ready": view.ready},
    }
