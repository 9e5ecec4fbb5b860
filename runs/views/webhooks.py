"""Pages of a workspace's webhooks, for its admins: what there is, what came of deliveries, trying and sending again."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from astraconsole.errors import AstraError
from astraconsole.tenancy.pages import ask, context_of
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access, get_access
from astraconsole.web import is_partial
from runs.event_queries import KINDS
from runs.services import webhooks as hooks

if TYPE_CHECKING:
    from runs.models import Webhook

SHOWN = 50


@require_http_methods(["GET", "POST"])
def webhooks(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """The list; a POST adds one, and shows its secret."""
    access = _access(request, org, ws)
    if request.method == "GET":
        return _list(request, access)
    given = {"url": request.POST.get("url", "").strip(), "kinds": request.POST.getlist("kinds")}
    try:
        made, secret = hooks.create_webhook(access, given["url"], given["kinds"], timezone.now())
    except AstraError as error:
        return _list(request, access, given, error)
    return _one(request, access, made, secret=secret)


def _list(
    request: HttpRequest, access: Access, given: dict[str, Any] | None = None, error: AstraError | None = None
) -> HttpResponse:
    rules = {entry["field"]: entry["rule"] for entry in error.detail} if error else {}
    context = context_of(access, webhooks=hooks.webhooks_of(access), given=given or {}, error=error, rules=rules)
    context |= {"kinds": KINDS}
    template = "webhooks/_list.html" if is_partial(request) else "webhooks/list.html"
    return render(request, template, context, status=error.status if error else 200)


@require_GET
def webhook(request: HttpRequest, org: str, ws: str, webhook: str) -> HttpResponse:
    """One, with its newest deliveries."""
    access = _access(request, org, ws)
    return _one(request, access, hooks.get_webhook(access, webhook))


def _one(request: HttpRequest, access: Access, found: "Webhook", **more: Any) -> HttpResponse:
    context = context_of(access, webhook=found, deliveries=hooks.deliveries_of(found, SHOWN), **more)
    template = "webhooks/_webhook.html" if is_partial(request) else "webhooks/webhook.html"
    return render(request, template, context)


@require_POST
def renew_secret(request: HttpRequest, org: str, ws: str, webhook: str) -> HttpResponse:
    access = _access(request, org, ws)
    found = hooks.get_webhook(access, webhook)
    return _one(request, access, found, secret=hooks.renew_secret(access, found, timezone.now()))


@require_POST
def send_test(request: HttpRequest, org: str, ws: str, webhook: str) -> HttpResponse:
    return _do(request, org, ws, webhook, lambda access, found: hooks.send_test(access, found, timezone.now()))


@require_POST
def enable(request: HttpRequest, org: str, ws: str, webhook: str) -> HttpResponse:
    return _do(request, org, ws, webhook, lambda access, found: hooks.set_enabled(access, found, True, timezone.now()))


@require_POST
def disable(request: HttpRequest, org: str, ws: str, webhook: str) -> HttpResponse:
    return _do(request, org, ws, webhook, lambda access, found: hooks.set_enabled(access, found, False, timezone.now()))


@require_POST
def replay(request: HttpRequest, org: str, ws: str, webhook: str, delivery: str) -> HttpResponse:
    return _do(
        request,
        org,
        ws,
        webhook,
        lambda access, found: hooks.replay(access, found, hooks.get_delivery(found, delivery), timezone.now()),
    )


def _do(
    request: HttpRequest, org: str, ws: str, webhook: str, act: Callable[[Access, "Webhook"], object]
) -> HttpResponse:
    access = _access(request, org, ws)
    act(access, hooks.get_webhook(access, webhook))
    return redirect("webhook", org, ws, webhook)


@require_http_methods(["GET", "POST"])
def remove(request: HttpRequest, org: str, ws: str, webhook: str) -> HttpResponse:
    access = _access(request, org, ws)
    found = hooks.get_webhook(access, webhook)
    if request.method == "POST":
        hooks.remove_webhook(access, found, timezone.now())
        messages.success(request, "The webhook was removed")
        return redirect("webhooks", org, ws)
    return ask(
        request,
        access,
        section=("Webhooks", "webhooks"),
        name=str(found),
        question=f"Remove the webhook to {found}?",
        consequence="Its log of deliveries goes with it, and its secret signs nothing more. Events stay.",
        verb="Remove webhook",
        back=reverse("webhook", args=[org, ws, webhook]),
        dangerous=True,
    )


def _access(request: HttpRequest, org: str, ws: str) -> Access:
    """Addresses of webhooks may hold secrets: only admins see them. Raises NotFound, Forbidden."""
    access = get_access(request.user, org, ws)
    access.require(Action.MANAGE)
    return access
