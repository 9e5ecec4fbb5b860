"""The agents' door over plain HTTP: joining a cluster, before there is a machine token."""

import msgspec
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from astraconsole.errors import Unauthenticated, ValidationError
from astraconsole.json_bodies import json_response, read_json
from astraconsole.tokens import bearer
from machines import services
from machines.protocol import JoinRequest


@csrf_exempt
@require_POST
def join(request: HttpRequest) -> HttpResponse:
    """A join token as bearer and a JoinRequest as JSON; answers a JoinAnswer, or the one shape of an error."""
    token = bearer(request.headers.get("Authorization"))
    if token is None:
        raise Unauthenticated("give the join token: Authorization: Bearer <token>")
    body = read_json(request)
    try:
        asked = msgspec.convert(body, JoinRequest)
    except msgspec.ValidationError as error:
        raise ValidationError(str(error), [{"field": "body", "rule": str(error)}]) from None
    answer = services.join(token, asked, timezone.now())
    return json_response(msgspec.to_builtins(answer))
