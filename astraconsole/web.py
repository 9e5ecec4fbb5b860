"""How errors are rendered (JSON for programs and scripts, a page for people), and what a partial request is."""

import logging
import sys
import uuid
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlencode

from django.conf import settings
from django.core.exceptions import DisallowedHost, PermissionDenied, RequestDataTooBig
from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.cache import patch_vary_headers

from astraconsole.errors import (
    AstraError,
    BadRequest,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
)
from astraconsole.json_bodies import json_response, too_large

log = logging.getLogger(__name__)

PROGRAM_PATHS = ("/api/", "/agent/")  # here errors are JSON, whatever raised them
TITLES = {
    400: "That cannot be done",
    403: "You may not do this",
    404: "There is nothing here",
    405: "This address does not work that way",
    409: "Not in this state",
    413: "Too large",
    429: "Too many tries",
    500: "Something went wrong here",
    503: "Not available right now",
    504: "No answer in time",
}


class ErrorMiddleware:
    """The innermost middleware: turns what views raise, and Django's bare refusals, into the one shape of an error."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if "\0" in request.path_info:  # no name holds one, and PostgreSQL refuses to compare with one
            return error_response(request, NotFound("there is no such address"))
        if "%00" in request.META.get("QUERY_STRING", ""):
            return error_response(request, BadRequest("the address holds a NUL character"))
        if not is_for_programs(request) and any(
            "\0" in text for texts in request.POST.lists() for text in (texts[0], *texts[1])
        ):
            return error_response(request, BadRequest("a field of the form holds a NUL character"))
        if is_for_programs(request) and request.path_info.endswith("/"):
            request.path_info = request.path_info[:-1]  # `…/jobs/` is `…/jobs`, for every method
        response = self.get_response(request)
        if isinstance(response, HttpResponseNotAllowed):
            response = _not_allowed(request, response)
        if not is_for_programs(request):  # else Back may show the fragment that htmx was given last, as a whole page
            patch_vary_headers(response, ["HX-Request"])
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        match error:
            case AstraError():
                return error_response(request, error)
            case Http404():
                return error_response(request, NotFound(str(error) or "there is no such address"))
            case PermissionDenied():
                return error_response(request, Forbidden(str(error) or "you may not do this"))
            case RequestDataTooBig():
                return error_response(request, too_large())
            case OperationalError():
                log.error("The database did not answer %s %s", request.method, request.path, exc_info=error)
                return error_response(request, Unavailable("the database does not answer; try again"))
        return None  # a defect of ours: Django logs it and asks `server_error`


def is_for_programs(request: HttpRequest) -> bool:
    return f"{request.path_info}/".startswith(PROGRAM_PATHS)


def is_partial(request: HttpRequest) -> bool:
    """Whether htmx asks for a fragment, not for a whole page (a boosted link, or history it has lost)."""
    htmx = getattr(request, "htmx", None)  # absent where a request failed before the middleware that sets it
    return bool(htmx) and not htmx.boosted and not htmx.history_restore_request


def client_address(request: HttpRequest) -> str:
    """Who asks: behind a proxy that is trusted, what it says of its client; else the other end of the connection."""
    if settings.SECURE_PROXY_SSL_HEADER is not None and (forwarded := request.headers.get("X-Forwarded-For")):
        return forwarded.rpartition(",")[2].strip()[:45]
    return str(request.META.get("REMOTE_ADDR") or "")


def error_response(request: HttpRequest, error: AstraError) -> HttpResponse:
    """JSON for programs and for the page's own scripts (which show `message`); for people a page, or to the sign-in."""
    for_programs = is_for_programs(request)
    if isinstance(error, Unauthenticated) and not for_programs:
        return _to_sign_in(request)
    if not for_programs and not is_partial(request):
        context = {"error": error, "title": TITLES.get(error.status, TITLES[400])}
        return render(request, "errors/page.html", context, status=error.status)
    response = json_response(error.as_dict(), error.status)
    if error.status == HTTPStatus.UNAUTHORIZED:
        response["WWW-Authenticate"] = "Bearer"
    if isinstance(error, TooManyRequests):
        response["Retry-After"] = str(error.retry_after)
    return response


def _to_sign_in(request: HttpRequest) -> HttpResponse:
    if not is_partial(request):
        return HttpResponseRedirect(f"{settings.LOGIN_URL}?{urlencode({'next': request.get_full_path()})}")
    page = request.htmx.current_url_abs_path or "/"  # type: ignore[attr-defined]
    response = HttpResponse(status=HTTPStatus.UNAUTHORIZED)
    response["HX-Redirect"] = f"{settings.LOGIN_URL}?{urlencode({'next': page})}"
    return response


def _not_allowed(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    allowed = response["Allow"]
    answer = error_response(request, MethodNotAllowed(f"{request.method} does not work here; {allowed} does"))
    answer["Allow"] = allowed
    return answer


# ---- what Django itself refuses or cannot do: named in urls.py and settings.py --------------------------------------


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if isinstance(exception, RequestDataTooBig):
        return error_response(request, too_large())
    if isinstance(exception, DisallowedHost):
        return error_response(request, BadRequest("the console does not answer to this name: see ALLOWED_HOSTS"))
    return error_response(request, BadRequest("this request cannot be understood"))


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_response(request, Forbidden("you may not do this"))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_response(request, NotFound("there is no such address"))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return error_response(request, Forbidden("this form is too old or came from another site: reload and try again"))


def server_error(request: HttpRequest) -> HttpResponse:
    """A defect of ours: nothing of it is shown but an id to find it by in the log. Needs no database."""
    number = uuid.uuid4().hex[:12]
    log.error("Unexpected error %s at %s %s", number, request.method, request.path, exc_info=sys.exc_info())
    error = AstraError(f"an unexpected error; it is in the console's log as {number}")
    if is_for_programs(request) or is_partial(request):
        return error_response(request, error)
    return HttpResponse(render_to_string("errors/page.html", {"error": error, "title": TITLES[500]}), status=500)
