"""The page where a person approves or denies what `astra login` asks for."""

from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from astraconsole.errors import NotFound, TooManyRequests
from astraconsole.tenancy.device import as_shown, decide, find
from astraconsole.tenancy.views import signed_in
from astraconsole.web import client_address

DECISIONS = {"approve": True, "deny": False}


@never_cache
@require_http_methods(["GET", "POST"])
def device(request: HttpRequest) -> HttpResponse:
    """With a code: who asks, from where; a POST decides. Without one: where to type it."""
    user, address, now = signed_in(request), client_address(request), timezone.now()
    code = (request.POST if request.method == "POST" else request.GET).get("code", "").strip()
    try:
        if request.method == "POST" and request.POST.get("decision") in DECISIONS:
            login = decide(user, code, DECISIONS[request.POST["decision"]], address, now)
            return redirect(f"{request.path}?done={request.POST['decision']}")
        login = find(user, code, address, now) if code else None
    except (NotFound, TooManyRequests) as error:
        return _page(request, {"code": code, "error": error}, error.status)
    return _page(request, {"code": code, "shown": as_shown(code), "login": login, "done": request.GET.get("done")})


def _page(request: HttpRequest, context: dict[str, Any], status: int = HTTPStatus.OK) -> HttpResponse:
    return render(request, "tenancy/device.html", context, status=status)
