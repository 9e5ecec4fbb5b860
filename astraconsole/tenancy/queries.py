"""Reads of tenancy. `Access` is what every other query and service starts from: a person inside a workspace."""

from dataclasses import dataclass

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet

from astraconsole.errors import Forbidden, NotFound, Unauthenticated
from astraconsole.tenancy.models import ApiToken, Membership, User, Workspace
from astraconsole.tenancy.permissions import REFUSALS, Action, Role, allows


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

    @property
    def actor(self) -> str:
        """What history shows as the doer."""
        return self.user.username


def get_access(user: User | AnonymousUser, org_slug: str, ws_slug: str) -> Access:
    """One query. Raises Unauthenticated for nobody; NotFound for a stranger, as for a workspace that does not exist."""
    if not isinstance(user, User):
        raise Unauthenticated("sign in first")
    membership = (
        Membership.objects.select_related("workspace__organisation")
        .filter(user=user, workspace__slug=ws_slug, workspace__organisation__slug=org_slug)
        .first()
    )
    if membership is None:
        raise NotFound(f"there is no workspace {org_slug}/{ws_slug}")
    return Access(user, membership.workspace, Role(membership.role))


def workspaces_of(user: User) -> list[Workspace]:
    """Those the person is a member of, with their organisations, in the order they are shown."""
    return list(
        Workspace.objects.select_related("organisation")
        .filter(memberships__user=user)
        .order_by("organisation__slug", "slug")
    )


def members_of(access: Access) -> QuerySet[Membership]:
    """The workspace's memberships with their people, by user name."""
    return access.workspace.memberships.select_related("user").order_by("user__username")


def tokens_of(user: User) -> QuerySet[ApiToken]:
    """The person's tokens that still work, newest first."""
    return user.api_tokens.filter(revoked_at=None).order_by("-created_at", "-id")
