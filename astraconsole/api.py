"""The JSON API's root: authentication, errors in the one shape, documentation, and the routers of the apps."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import ValidationError as ParameterError
from ninja.openapi.schema import OpenAPISchema
from ninja.security import HttpBearer

from astraconsole.errors import Detail, ValidationError
from astraconsole.rule_sentences import rule_sentence
from astraconsole.tenancy.api import router as account
from astraconsole.tenancy.models import User
from astraconsole.tenancy.services import authenticate_token
from machines.api import router as machines
from machines.api_credentials import router as credentials
from machines.api_volumes import router as volumes
from runs.api import router as runs
from runs.api_events import router as events
from runs.api_metrics import router as metrics
from runs.api_saved import router as saved
from runs.api_usage import router as usage
from runs.api_webhooks import router as webhooks
from runs.spec import RunRequest

DESCRIPTION = """
Submit and watch runs. Send an API token (Account → API tokens): `Authorization: Bearer <token>`.

Errors are always `{"code", "message", "detail"?}`. Lists are `{"items", "next"}`: give `next` as `after` for the
following page. Times are UTC with six decimals.
"""


class Bearer(HttpBearer):
    """An API token. No session: a browser's cookie opens nothing here, so there is no request to forge."""

    def __call__(self, request: HttpRequest) -> User:
        return authenticate_token(request.headers.get("Authorization"))

    def authenticate(self, request: HttpRequest, token: str) -> User:
        return authenticate_token(f"Bearer {token}")


class ConsoleApi(NinjaAPI):
    def set_default_exception_handlers(self) -> None:
        """None: `astraconsole.web` renders every error, whoever raised it."""

    def get_openapi_schema(self, **options: Any) -> OpenAPISchema:
        """With the body of a submitted run, which is read without ninja."""
        schema = super().get_openapi_schema(**options)
        run = RunRequest.model_json_schema(ref_template="#/components/schemas/{model}")
        schema["components"]["schemas"].update({**run.pop("$defs"), "RunRequest": run})
        return schema


api = ConsoleApi(title="Astra console", version="1", description=DESCRIPTION, docs_url="/docs", auth=Bearer())


@api.exception_handler(ParameterError)
def _refuse_parameters(request: HttpRequest, error: ParameterError) -> HttpResponse:
    """Raises ValidationError: parameters of the address in the words of the one shape."""
    detail: list[Detail] = [
        {"field": str(found["loc"][-1]), "rule": rule_sentence(found["type"], found.get("ctx", {}), found["msg"])}
        for found in error.errors
    ]
    broken = "; ".join(f"{entry['field']}: {entry['rule']}" for entry in detail)
    raise ValidationError(broken, detail)


api.add_router("", account)
api.add_router("", runs)
api.add_router("", saved)
api.add_router("", usage)
api.add_router("", events)
api.add_router("", webhooks)
api.add_router("", machines)
api.add_router("", metrics)
api.add_router("", credentials)
api.add_router("", volumes)
