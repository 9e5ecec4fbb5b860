"""Pages of accounts: sign in and out, API tokens, a workspace's members, and where `/` leads."""

from http import HTTPStatus

from django.contrib.auth.views import LoginView, LogoutView
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from astraconsole.errors import AstraError, Conflict, Unauthenticated, ValidationError
from astraconsole.tenancy.forms import LimitedTries, MemberForm, RoleForm, TokenForm
from astraconsole.tenancy.models import User
from astraconsole.tenancy.pages import ask, context_of
from astraconsole.tenancy.permissions import ROLE_CHOICES, Action
from astraconsole.tenancy.queries import Access, get_access, get_member, get_token, members_of, tokens_of, workspaces_of
from astraconsole.tenancy.services import add_member, change_role, create_token, remove_member, revoke_token


class SignIn(LoginView):
    template_name = "tenancy/sign_in.html"
    form_class = LimitedTries
    redirect_authenticated_user = True

    def form_invalid(self, form: LimitedTries) -> HttpResponse:
        response = super().form_invalid(form)
        response.status_code = HTTPStatus.TOO_MANY_REQUESTS if form.too_many else HTTPStatus.OK
        return response


sign_in = SignIn.as_view()
sign_out = LogoutView.as_view()


def signed_in(request: HttpRequest) -> User:
    """Raises Unauthenticated."""
    if not isinstance(request.user, User):
        raise Unauthenticated("sign in first")
    return request.user


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    """The first workspace's runs."""
    workspaces = workspaces_of(signed_in(request))
    if not workspaces:
        return render(request, "tenancy/no_workspace.html")
    first = workspaces[0]
    return redirect(f"/o/{first.organisation.slug}/w/{first.slug}/runs")


@never_cache
@require_http_methods(["GET", "POST"])
def tokens(request: HttpRequest) -> HttpResponse:
    """The list; a POST makes a token and shows its secret on the page it answers with, the only time."""
    user = signed_in(request)
    form = TokenForm(request.POST or None)
    secret = None
    if request.method == "POST" and form.is_valid():
        _, secret = create_token(user, form.cleaned_data["name"], timezone.now())
        form = TokenForm()
    context = {"tokens": tokens_of(user), "form": form, "secret": secret}
    return render(request, "tenancy/tokens.html", context, status=_status(form))


@require_http_methods(["GET", "POST"])
def revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    user = signed_in(request)
    if request.method == "POST":
        revoke_token(user, token_id, timezone.now())
        return redirect("tokens")
    token = get_token(user, token_id)
    return ask(
        request,
        None,
        section=("API tokens", "tokens"),
        question=f"Revoke the token {token.name}?",
        consequence="Whatever uses it is refused from then on. There is no undo: make a new one instead.",
        verb="Revoke token",
        back=reverse("tokens"),
        dangerous=True,
    )


@require_http_methods(["GET", "POST"])
def members(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    if request.method == "GET":
        return _members_page(request, access, MemberForm())
    access.require(Action.MANAGE)
    form = MemberForm(request.POST)
    if form.is_valid():
        try:
            add_member(access, form.cleaned_data["who"], form.cleaned_data["role"])
        except (ValidationError, Conflict) as error:
            form.add_error("who", error.message)
        else:
            return redirect("members", org, ws)
    return _members_page(request, access, form)


@require_POST
def member_role(request: HttpRequest, org: str, ws: str, member_id: int) -> HttpResponse:
    access = get_access(request.user, org, ws)
    access.require(Action.MANAGE)
    form = RoleForm(request.POST)
    if not form.is_valid():
        raise ValidationError("role must be viewer, editor or admin")
    try:
        change_role(access, member_id, form.cleaned_data["role"])
    except Conflict as error:
        return _members_page(request, access, MemberForm(), error)
    return redirect("members", org, ws)


@require_http_methods(["GET", "POST"])
def member_remove(request: HttpRequest, org: str, ws: str, member_id: int) -> HttpResponse:
    access = get_access(request.user, org, ws)
    access.require(Action.MANAGE)
    if request.method == "GET":
        name = get_member(access, member_id).user.username
        return ask(
            request,
            access,
            section=("Members", "members"),
            question=f"Remove {name}?",
            consequence=f"{name} no longer sees this workspace. What they have started goes on.",
            verb="Remove member",
            back=reverse("members", args=[org, ws]),
            dangerous=True,
        )
    try:
        remove_member(access, member_id)
    except Conflict as error:
        return _members_page(request, access, MemberForm(), error)
    return redirect("members", org, ws)


def _members_page(request: HttpRequest, access: Access, form: Form, error: AstraError | None = None) -> HttpResponse:
    context = context_of(access, members=members_of(access), form=form, roles=ROLE_CHOICES, error=error)
    return render(request, "tenancy/members.html", context, status=error.status if error else _status(form))


def _status(form: Form) -> int:
    return HTTPStatus.BAD_REQUEST if form.is_bound and not form.is_valid() else HTTPStatus.OK
