"""People, roles, tokens and members, as pages and services."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from astraconsole.errors import Conflict, Forbidden, NotFound, Unauthenticated, ValidationError
from astraconsole.tenancy import services
from astraconsole.tenancy.models import ApiToken, Membership, Organisation, User, Workspace
from astraconsole.tenancy.permissions import ALLOWED, Action, Role, allows
from astraconsole.tenancy.queries import Access, get_access, workspaces_of

NOW = datetime(2026, 10, 1, 12, tzinfo=UTC)
pytestmark = pytest.mark.django_db


@pytest.fixture
def workspace() -> Workspace:
    organisation = Organisation.objects.create(slug="acme", name="Acme")
    return Workspace.objects.create(organisation=organisation, slug="vision", name="Vision")


def person(name: str, workspace: Workspace | None = None, role: Role = Role.EDITOR) -> User:
    user = User.objects.create_user(name, f"{name}@example.org")
    if workspace is not None:
        Membership.objects.create(user=user, workspace=workspace, role=role)
    return user


def with_password(name: str, workspace: Workspace | None = None) -> User:
    """Apart, since hashing a password takes its time on purpose."""
    user = person(name, workspace)
    user.set_password("a long password")
    user.save()
    return user


def access_of(user: User) -> Access:
    return get_access(user, "acme", "vision")


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize(
    ("role", "actions"),
    [
        (Role.VIEWER, {Action.READ}),
        (Role.EDITOR, {Action.READ, Action.WRITE}),
        (Role.ADMIN, {Action.READ, Action.WRITE, Action.MANAGE}),
    ],
)
def test_each_role_allows_what_the_table_says(role: Role, actions: set[Action]) -> None:
    assert {action for action in Action if allows(role, action)} == actions


def test_every_role_is_in_the_table() -> None:
    assert set(ALLOWED) == set(Role)


def test_a_member_has_access_in_their_role(workspace: Workspace) -> None:
    access = access_of(person("ada", workspace, Role.VIEWER))
    assert (access.workspace, access.role, access.actor) == (workspace, Role.VIEWER, "ada")
    with pytest.raises(Forbidden, match="viewers"):
        access.require(Action.WRITE)


def test_a_stranger_is_told_what_one_is_told_about_a_workspace_that_does_not_exist(workspace: Workspace) -> None:
    stranger = person("sam")
    with pytest.raises(NotFound) as other:
        get_access(stranger, "acme", "vision")
    with pytest.raises(NotFound) as none:
        get_access(stranger, "acme", "nothing")
    assert other.value.message.replace("vision", "nothing") == none.value.message


def test_a_member_of_one_organisation_does_not_reach_the_like_named_workspace_of_another(workspace: Workspace) -> None:
    other = Organisation.objects.create(slug="umbra", name="Umbra")
    Workspace.objects.create(organisation=other, slug="vision", name="Vision")
    with pytest.raises(NotFound):
        get_access(person("ada", workspace), "umbra", "vision")


def test_workspaces_are_listed_by_organisation_and_name_and_only_ones_own(workspace: Workspace) -> None:
    ada = person("ada", workspace)
    Workspace.objects.create(organisation=workspace.organisation, slug="nlp", name="Nlp")
    audio = Workspace.objects.create(organisation=workspace.organisation, slug="audio", name="Audio")
    Membership.objects.create(user=ada, workspace=audio, role=Role.VIEWER)
    assert workspaces_of(ada) == [audio, workspace]


# ---- tokens ----


def test_a_token_signs_its_person_in_and_its_secret_is_not_kept() -> None:
    ada = person("ada")
    token, secret = services.create_token(ada, "laptop", NOW)
    assert services.authenticate_token(f"Bearer {secret}") == ada
    assert secret.startswith(token.prefix)
    assert secret not in str(ApiToken.objects.filter(pk=token.pk).values())


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic {}", "{}", "Bearer {}x", "Bearer \udcff"]
)
def test_anything_but_a_bearer_token_that_exists_is_unauthenticated(header: str | None) -> None:
    _, secret = services.create_token(person("ada"), "laptop", NOW)
    with pytest.raises(Unauthenticated):
        services.authenticate_token(header and header.format(secret))


def test_a_revoked_token_stops_working_at_once() -> None:
    ada = person("ada")
    token, secret = services.create_token(ada, "laptop", NOW)
    services.revoke_token(ada, token.pk, NOW)
    services.revoke_token(ada, token.pk, NOW + timedelta(days=1))
    assert ApiToken.objects.get().revoked_at == NOW
    with pytest.raises(Unauthenticated):
        services.authenticate_token(f"Bearer {secret}")


def test_nobody_revokes_the_token_of_another() -> None:
    token, secret = services.create_token(person("ada"), "laptop", NOW)
    with pytest.raises(NotFound):
        services.revoke_token(person("sam"), token.pk, NOW)
    assert services.authenticate_token(f"Bearer {secret}").username == "ada"


def test_the_token_of_somebody_who_was_deactivated_does_not_work() -> None:
    ada = person("ada")
    _, secret = services.create_token(ada, "laptop", NOW)
    User.objects.filter(pk=ada.pk).update(is_active=False)
    with pytest.raises(Unauthenticated):
        services.authenticate_token(f"Bearer {secret}")


def test_use_is_noted_at_most_once_a_minute() -> None:
    token, secret = services.create_token(person("ada"), "laptop", NOW)
    services.authenticate_token(f"Bearer {secret}")
    first = ApiToken.objects.get().last_used_at
    assert first is not None
    services.authenticate_token(f"Bearer {secret}")
    assert ApiToken.objects.get().last_used_at == first
    ApiToken.objects.filter(pk=token.pk).update(last_used_at=timezone.now() - timedelta(seconds=61))
    services.authenticate_token(f"Bearer {secret}")
    assert ApiToken.objects.get().last_used_at >= first


def test_a_token_is_looked_up_by_one_query(django_assert_num_queries) -> None:
    _, secret = services.create_token(person("ada"), "laptop", NOW)
    services.authenticate_token(f"Bearer {secret}")
    with django_assert_num_queries(1):
        services.authenticate_token(f"Bearer {secret}")


@pytest.mark.parametrize("name", ["", "   ", "x" * 101, "a\0b"])
def test_a_token_needs_a_sensible_name(name: str) -> None:
    with pytest.raises(ValidationError) as refused:
        services.create_token(person("ada"), name, NOW)
    assert [entry["field"] for entry in refused.value.detail] == ["name"]


def test_the_tokens_page_shows_a_secret_once() -> None:
    ada = person("ada")
    client = signed_in(ada)
    made = client.post("/account/tokens", {"name": "laptop"})
    secret = made.context["secret"]
    assert secret in made.content.decode()
    assert "no-store" in made["Cache-Control"]
    assert services.authenticate_token(f"Bearer {secret}") == ada
    later = client.get("/account/tokens").content.decode()
    assert secret not in later
    assert "laptop" in later
    assert secret[:12] in later


def test_the_tokens_page_revokes_a_token_and_does_not_show_it_again() -> None:
    ada = person("ada")
    token, _ = services.create_token(ada, "old laptop", NOW)
    client = signed_in(ada)
    question = client.get(f"/account/tokens/{token.pk}/revoke").content.decode()
    assert "Revoke the token old laptop?" in question
    assert "old laptop" in client.get("/account/tokens").content.decode()
    assert client.post(f"/account/tokens/{token.pk}/revoke").url == "/account/tokens"
    assert client.get(f"/account/tokens/{token.pk}/revoke").status_code == 404
    assert "old laptop" not in client.get("/account/tokens").content.decode()


def test_the_tokens_page_of_one_person_shows_nothing_of_another() -> None:
    token, _ = services.create_token(person("ada"), "adas laptop", NOW)
    sam = signed_in(person("sam"))
    assert "adas laptop" not in sam.get("/account/tokens").content.decode()
    assert sam.get(f"/account/tokens/{token.pk}/revoke").status_code == 404
    assert sam.post(f"/account/tokens/{token.pk}/revoke").status_code == 404
    assert sam.post(f"/account/tokens/{10**30}/revoke").status_code == 404


def test_a_token_without_a_name_is_refused_beside_the_field() -> None:
    answer = signed_in(person("ada")).post("/account/tokens", {"name": " "})
    assert answer.status_code == 400
    assert answer.context["form"].errors["name"]
    assert not ApiToken.objects.exists()


# ---- signing in ----


def test_staff_reads_who_is_a_member_of_what_in_which_role(workspace: Workspace) -> None:
    person("ada", workspace)
    staff = signed_in(User.objects.create_superuser("root"))
    for page in (f"workspace/{workspace.pk}/change/", f"membership/{Membership.objects.get().pk}/change/"):
        assert "ada in acme/vision as editor" in staff.get(f"/admin/tenancy/{page}").content.decode()


def test_signing_in_leads_to_the_first_workspaces_runs(workspace: Workspace) -> None:
    with_password("ada", workspace)
    client = Client()
    answer = client.post("/sign-in", {"username": "ada", "password": "a long password"}, follow=False)
    assert answer.url == "/"
    assert client.get("/").url == "/o/acme/w/vision/runs"


def test_somebody_without_a_workspace_is_told_so() -> None:
    answer = signed_in(person("ada")).get("/")
    assert answer.status_code == 200
    assert "no workspace" in answer.content.decode()


def test_signing_in_goes_on_to_where_one_wanted_to_be() -> None:
    with_password("ada")
    wanted = Client().get("/account/tokens")
    assert wanted.url == "/sign-in?next=%2Faccount%2Ftokens"
    data = {"username": "ada", "password": "a long password", "next": "/account/tokens"}
    assert Client().post("/sign-in", data).url == "/account/tokens"


@pytest.mark.parametrize(
    "target",
    ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)", "http:///evil.example"],
)
def test_signing_in_never_leads_to_another_site(target: str) -> None:
    with_password("ada")
    data = {"username": "ada", "password": "a long password", "next": target}
    assert Client().post("/sign-in", data).url == "/"


def test_a_wrong_password_is_refused_without_saying_which_part_is_wrong() -> None:
    with_password("ada")
    known = Client().post("/sign-in", {"username": "ada", "password": "wrong"})
    unknown = Client().post("/sign-in", {"username": "nobody", "password": "wrong"})
    said = list(known.context["form"].non_field_errors())
    assert said
    assert said == list(unknown.context["form"].non_field_errors())


def test_signing_out_takes_a_post_and_ends_the_session() -> None:
    client = signed_in(person("ada"))
    assert client.get("/sign-out").status_code == 405
    assert client.post("/sign-out").url == "/sign-in"
    assert client.get("/account/tokens").status_code == 302


def test_a_form_without_its_csrf_token_changes_nothing() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(person("ada"))
    answer = client.post("/account/tokens", {"name": "laptop"})
    assert answer.status_code == 403
    assert "reload" in answer.content.decode()
    assert not ApiToken.objects.exists()


# ---- members ----


def test_an_admin_adds_a_member_by_name_or_address(workspace: Workspace) -> None:
    client = signed_in(person("ada", workspace, Role.ADMIN))
    person("bob")
    person("eve")
    assert client.post("/o/acme/w/vision/members", {"who": "bob", "role": "viewer"}).status_code == 302
    assert client.post("/o/acme/w/vision/members", {"who": "EVE@example.org", "role": "editor"}).status_code == 302
    assert dict(Membership.objects.values_list("user__username", "role")) == {
        "ada": "admin",
        "bob": "viewer",
        "eve": "editor",
    }


@pytest.mark.parametrize(
    ("who", "said"), [("nobody", "no user"), ("shared@example.org", "several"), ("ada", "already")]
)
def test_a_member_who_cannot_be_added_is_explained_beside_the_field(workspace: Workspace, who: str, said: str) -> None:
    client = signed_in(person("ada", workspace, Role.ADMIN))
    for name in ("bob", "eve"):
        User.objects.create_user(name, "shared@example.org")
    answer = client.post("/o/acme/w/vision/members", {"who": who, "role": "viewer"})
    assert answer.status_code == 400
    assert said in " ".join(answer.context["form"].errors["who"])
    assert Membership.objects.count() == 1


def test_a_role_that_does_not_exist_is_refused(workspace: Workspace) -> None:
    ada = person("ada", workspace, Role.ADMIN)
    client = signed_in(ada)
    person("bob")
    assert client.post("/o/acme/w/vision/members", {"who": "bob", "role": "owner"}).status_code == 400
    member = ada.memberships.get()
    assert client.post(f"/o/acme/w/vision/members/{member.pk}/role", {"role": "owner"}).status_code == 400


@pytest.mark.parametrize("role", [Role.VIEWER, Role.EDITOR])
def test_only_admins_manage_members(workspace: Workspace, role: Role) -> None:
    admin = person("ada", workspace, Role.ADMIN)
    access = access_of(person("bob", workspace, role))
    person("eve")
    member = admin.memberships.get()
    for attempt in (
        lambda: services.add_member(access, "eve", Role.ADMIN),
        lambda: services.change_role(access, member.pk, Role.VIEWER),
        lambda: services.remove_member(access, member.pk),
    ):
        with pytest.raises(Forbidden):
            attempt()
    page = signed_in(access.user).get("/o/acme/w/vision/members").content.decode()
    assert "ada" in page
    assert "Remove" not in page


def test_the_last_admin_stays(workspace: Workspace) -> None:
    ada = person("ada", workspace, Role.ADMIN)
    bob = person("bob", workspace, Role.EDITOR)
    member = ada.memberships.get()
    for attempt in (
        lambda: services.change_role(access_of(ada), member.pk, Role.EDITOR),
        lambda: services.remove_member(access_of(ada), member.pk),
    ):
        with pytest.raises(Conflict, match="needs an admin"):
            attempt()
    services.change_role(access_of(ada), member.pk, Role.ADMIN)
    services.change_role(access_of(ada), bob.memberships.get().pk, Role.ADMIN)
    services.remove_member(access_of(ada), member.pk)
    assert [member.user for member in workspace.memberships.all()] == [bob]


def test_removing_a_member_asks_first(workspace: Workspace) -> None:
    bob = person("bob", workspace, Role.EDITOR)
    client, page = signed_in(person("ada", workspace, Role.ADMIN)), "/o/acme/w/vision/members"
    address = f"{page}/{bob.memberships.get().pk}/remove"
    assert "Remove bob?" in client.get(address).content.decode()
    assert bob.memberships.exists()
    assert client.post(address).headers["Location"] == page
    assert not bob.memberships.exists()


def test_the_members_page_says_why_the_last_admin_stays(workspace: Workspace) -> None:
    ada = person("ada", workspace, Role.ADMIN)
    member = ada.memberships.get()
    answer = signed_in(ada).post(f"/o/acme/w/vision/members/{member.pk}/remove")
    assert answer.status_code == 409
    assert "needs an admin" in answer.content.decode()


def test_an_admin_of_one_workspace_cannot_touch_the_members_of_another(workspace: Workspace) -> None:
    other = Workspace.objects.create(organisation=workspace.organisation, slug="nlp", name="Nlp")
    victim = person("bob", other, Role.EDITOR).memberships.get()
    client = signed_in(person("ada", workspace, Role.ADMIN))
    assert client.post(f"/o/acme/w/vision/members/{victim.pk}/remove").status_code == 404
    assert client.post(f"/o/acme/w/vision/members/{victim.pk}/role", {"role": "viewer"}).status_code == 404
    assert client.post(f"/o/acme/w/nlp/members/{victim.pk}/remove").status_code == 404
    assert Membership.objects.filter(pk=victim.pk, role=Role.EDITOR).exists()


# ---- staff ----


def test_staff_see_tokens_but_nothing_of_their_secrets(admin_client: Client) -> None:
    token, secret = services.create_token(person("ada"), "laptop", NOW)
    for address in ("/admin/tenancy/apitoken/", f"/admin/tenancy/apitoken/{token.pk}/change/"):
        page = admin_client.get(address).content.decode()
        assert "laptop" in page
        assert token.digest not in page
        assert secret not in page
    assert admin_client.get("/admin/tenancy/apitoken/add/").status_code == 403


def test_staff_set_up_an_organisation_and_a_workspace(admin_client: Client) -> None:
    admin_client.post("/admin/tenancy/organisation/add/", {"slug": "acme", "name": "Acme"})
    organisation = Organisation.objects.get()
    forms = {"memberships-TOTAL_FORMS": 1, "memberships-INITIAL_FORMS": 0}
    ada = person("ada")
    first = {"memberships-0-user": ada.pk, "memberships-0-role": "admin"}
    workspace = {"organisation": organisation.pk, "slug": "vision", "name": "Vision"}
    admin_client.post("/admin/tenancy/workspace/add/", {**workspace, **forms, **first})
    assert access_of(ada).role == Role.ADMIN
