"""What agents fetch over plain HTTP: the code of the attempts that are placed on them."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from astraconsole.errors import Unauthenticated
from astraconsole.tokens import bearer
from machines.connections import authenticate
from runs.services import codes


@require_GET
def code(request: HttpRequest, attempt: UUID) -> HttpResponse:
    """The tar.gz as it came with the run. The machine's own token as bearer."""
    token = bearer(request.headers.get("Authorization"))
    machine = authenticate([token])[0] if token is not None else None
    if machine is None or machine.removed:
        raise Unauthenticated("give the machine's token: Authorization: Bearer <token>")
    return HttpResponse(codes.packed_for(machine.machine_id, attempt), content_type="application/gzip")
