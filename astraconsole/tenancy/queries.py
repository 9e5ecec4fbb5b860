"""Reads of tenancy. `Access` is what every other query and service starts from: a person inside a workspace."""

from dataclasses import dataclass

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet

from astraconsole.errors import Forbidden, NotFound, Unauthenticated
from astraconsole.sql import prepared
from astraconsole.tenancy.models import ApiToken, Membership, Organisation, User, Workspace
from astraconsole.tenancy.permissions import REFUSALS, Action, Role, allows

# Written out, since every request asks it: composing a query takes the ORM longer than PostgreSQL takes to answer it.
ACCESS_SQL = """
    SELECT m.role, w.id, w.organisation_id, w.slug, w.name, w.created_at, o.id, o.slug, o.name, o.created_at
    FROM tenancy_membership m
    JOIN tenancy_workspace w ON w.id = m.workspace_id
    JOIN tenancy_organisation o ON o.id = w.organisation_id
    WHERE m.user_id = %s AND w.slug = %s AND o.slug = %s
"""
WORKSPACE_COLUMNS = ["id", "organisation_id", "slug", "name", "created_at"]
ORGANISATION_COLUMNS = ["id", "slug", "name", "created_at"]


@dataclass(frozen=True)
class Access:
    """A person at work in a workspace, in a role. `workspace.organisation` is loaded."""

    user: User
    workspace: Workspace
    role: Role

    def allows(self, action: Action) -> bool:
        return allows(self.role, action)

    def require(self, action: Action) -> None:
        """Raises Forbidden."""
        if not self.allows(action):
            raise Forbidden(REFUSALS[action])

    def require_staff(self) -> None:
        """Raises Forbidden."""
        if not self.user.is_staff:
            raise Forbidden("only staff may do this")

    @property
    def actor(self) -> str:
        """What history shows as the doer."""
        return self.user.username


def get_access(user: User | AnonymousUser, org_slug: str, ws_slug: str) -> Access:
    """One query. Raises Unauthenticated for nobody; NotFound for a stranger, as for a workspace that does not exist."""
    if not isinstance(user, User):
        raise Unauthenticated("sign in first")
    with prepared() as cursor:
        cursor.execute(ACCESS_SQL, [user.pk, ws_slug, org_slug])
        row = cursor.fetchone()
    if row is None:
        raise NotFound(f"there is no workspace {org_slug}/{ws_slug}")
    workspace = Workspace.from_db("default", WORKSPACE_COLUMNS, row[1:6])
    workspace.organisation = Organisation.from_db("default", ORGANISATION_COLUMNS, row[6:])
    return Access(user, workspace, Role(row[0]))


def workspaces_of(user: User) -> list[Workspace]:
    """Those the person is a member of, with their organisations, in the order they are shown."""
    return list(
        Workspace.objects.select_related("organisation")
        .filter(memberships__user=user)
        .order_by("organisation__slug", "slug")
    )


def memberships_of(user: User) -> list[Membership]:
    """With their workspaces and organisations, in the order of `workspaces_of`."""
    memberships = user.memberships.select_related("workspace__organisation")
    return list(memberships.order_by("workspace__organisation__slug", "workspace__slug"))


def members_of(access: Access) -> QuerySet[Membership]:
    """The workspace's memberships with their people, by user name."""
    return access.workspace.memberships.select_related("user").order_by("user__username")


def get_member(access: Access, membership_id: int) -> Membership:
    """Raises NotFound."""
    membership = members_of(access).filter(pk=membership_id).first()
    if membership is None:
        raise NotFound("there is no such member")
    return membership


def tokens_of(user: User) -> QuerySet[ApiToken]:
    """The person's tokens that still work, newest first."""
    return user.api_tokens.filter(revoked_at=None).order_by("-created_at", "-id")


def get_token(user: User, token_id: int) -> ApiToken:
    """One of the person's that still work. Raises NotFound."""
    found = tokens_of(user).filter(pk=token_id).first()
    if found is None:
        raise NotFound("there is no such token")
    return found
