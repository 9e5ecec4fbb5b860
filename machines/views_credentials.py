"""Pages of a workspace's credentials: what there is, whether its machines can fetch it; adding, replacing, removing."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from astraconsole.errors import AstraError
from astraconsole.tenancy.pages import ask, context_of
from astraconsole.tenancy.permissions import Action
from astraconsole.tenancy.queries import Access, get_access
from astraconsole.web import is_partial
from machines import queries
from machines.credentials import save_credential
from machines.syncs import views_of
from runs.services.credentials import delete_credential

FIELDS = ("name", "provider", "reference")
PROVIDERS = (
    ("file", "File on the machine", "hf/token"),
    ("environment", "Environment of the agent", "ASTRA_CREDENTIAL_HF"),
    ("command", "Command of the machine", "pass gpu/hf-token"),
    ("vault", "HashiCorp Vault", "gpu/hf#token"),
)


@require_http_methods(["GET", "POST"])
def credentials(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    """The list; a POST creates one or replaces what it says."""
    access = get_access(request.user, org, ws)
    if request.method == "GET":
        return _list(request, access)
    access.require(Action.MANAGE)
    given = {name: request.POST.get(name, "").strip() for name in FIELDS}
    try:
        made, is_new = save_credential(access, *given.values(), timezone.now())
    except AstraError as error:
        return _list(request, access, given=given, error=error)
    messages.success(request, f"{made.name} was {'added' if is_new else 'replaced'}: its machines look for it now")
    return redirect("credential", org, ws, made.name)


def _list(
    request: HttpRequest, access: Access, given: dict[str, str] | None = None, error: AstraError | None = None
) -> HttpResponse:
    rules = {entry["field"]: entry["rule"] for entry in error.detail} if error else {}
    views = views_of(access, queries.credentials_of(access))
    context = context_of(access, views=views, given=given or {}, error=error, rules=rules, providers=PROVIDERS)
    template = "credentials/_list.html" if is_partial(request) else "credentials/list.html"
    return render(request, template, context, status=error.status if error else 200)


@require_GET
def credential(request: HttpRequest, org: str, ws: str, name: str) -> HttpResponse:
    """One, and whether each machine can fetch it."""
    access = get_access(request.user, org, ws)
    (view,) = views_of(access, [queries.get_credential(access, name)])
    template = "credentials/_credential.html" if is_partial(request) else "credentials/credential.html"
    return render(request, template, context_of(access, view=view))


@require_http_methods(["GET", "POST"])
def remove_credential(request: HttpRequest, org: str, ws: str, name: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    access.require(Action.MANAGE)
    found = queries.get_credential(access, name)
    if request.method == "GET":
        return _ask(request, access, found.name)
    try:
        delete_credential(access, found.name)
    except AstraError as error:
        return _ask(request, access, found.name, error)
    messages.success(request, f"{found.name} was removed")
    return redirect("credentials", org, ws)


def _ask(request: HttpRequest, access: Access, name: str, error: AstraError | None = None) -> HttpResponse:
    workspace = access.workspace
    return ask(
        request,
        access,
        section=("Credentials", "credentials"),
        name=name,
        question=f"Remove {name}?",
        consequence="Workers that start later and need it wait until there is a credential of this name again.",
        warning="What machines fetch it from is left as it is.",
        verb="Remove credential",
        back=reverse("credential", args=[workspace.organisation.slug, workspace.slug, name]),
        error=error,
        dangerous=True,
    )
