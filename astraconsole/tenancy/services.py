"""Changes of tenancy: API tokens and memberships."""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from astraconsole import tokens
from astraconsole.errors import Conflict, NotFound, Unauthenticated, ValidationError
from astraconsole.sql import prepared
from astraconsole.tenancy import audit
from astraconsole.tenancy.audit import Did, Kind
from astraconsole.tenancy.models import ApiToken, Membership, User, Workspace
from astraconsole.tenancy.permissions import Action, Role
from astraconsole.tenancy.queries import Access

TOKEN_PREFIX = "astra_"
TOKEN_NAME_LENGTH = 100
LAST_USED_PRECISION = timedelta(minutes=1)
# Written out for the reason given at `queries.ACCESS_SQL`. The person's other columns are read when they are asked for.
TOKEN_SQL = """
    SELECT t.id, t.last_used_at, u.id, u.is_superuser, u.username, u.is_staff, u.is_active
    FROM tenancy_apitoken t JOIN tenancy_user u ON u.id = t.user_id
    WHERE t.digest = %s AND t.revoked_at IS NULL AND u.is_active
"""
USER_COLUMNS = ["id", "is_superuser", "username", "is_staff", "is_active"]


def create_token(user: User, name: str, now: datetime) -> tuple[ApiToken, str]:
    """The token's row, and its secret: shown once, kept nowhere. Raises ValidationError."""
    name = name.strip()
    if not 1 <= len(name) <= TOKEN_NAME_LENGTH or "\0" in name:
        rule = f"must have 1 to {TOKEN_NAME_LENGTH} characters"
        raise ValidationError(f"name {rule}", [{"field": "name", "rule": rule}])
    secret = tokens.new_secret(TOKEN_PREFIX)
    shown = secret[: len(TOKEN_PREFIX) + 6]
    token = ApiToken.objects.create(user=user, name=name, prefix=shown, digest=tokens.digest(secret), created_at=now)
    return token, secret


def revoke_token(user: User, token_id: int, now: datetime) -> None:
    """At once; revoking again changes nothing. Raises NotFound when the person has no such token."""
    if not user.api_tokens.filter(pk=token_id).exists():
        raise NotFound("there is no such token")
    user.api_tokens.filter(pk=token_id, revoked_at=None).update(revoked_at=now)


def authenticate_token(header: str | None) -> User:
    """The person of an `Authorization: Bearer <token>` header's value, by one query. Raises Unauthenticated."""
    secret = tokens.bearer(header)
    if secret is None:
        raise Unauthenticated("send an API token: Authorization: Bearer <token>")
    with prepared() as cursor:
        cursor.execute(TOKEN_SQL, [tokens.digest(secret)])
        row = cursor.fetchone()
    if row is None:
        raise Unauthenticated("this API token is unknown or was revoked")
    _note_use(row[0], row[1], timezone.now())
    return User.from_db("default", USER_COLUMNS, row[2:])


def presented_token(header: str | None) -> ApiToken:
    """The row of a token that `authenticate_token` let in. Raises Unauthenticated: it may be revoked by now."""
    token = ApiToken.objects.filter(digest=tokens.digest(tokens.bearer(header) or ""), revoked_at=None).first()
    if token is None:
        raise Unauthenticated("this API token is unknown or was revoked")
    return token


def _note_use(token_id: int, last_used_at: datetime | None, now: datetime) -> None:
    """To the minute: a busy token costs one write a minute."""
    before = now - LAST_USED_PRECISION
    if last_used_at is None or last_used_at < before:
        stale = Q(last_used_at=None) | Q(last_used_at__lt=before)
        ApiToken.objects.filter(stale, pk=token_id).update(last_used_at=now)


def hold(workspace: Workspace) -> None:
    """Until the transaction ends nobody else holds it: what is counted and looked up in it stays so."""
    Workspace.objects.select_for_update(no_key=True).get(pk=workspace.pk)


@transaction.atomic
def add_member(access: Access, who: str, role: Role) -> Membership:
    """`who`: a user name or an e-mail address. Raises Forbidden, ValidationError, Conflict."""
    access.require(Action.MANAGE)
    user = _find_user(who.strip())
    membership, created = Membership.objects.get_or_create(
        user=user, workspace=access.workspace, defaults={"role": role}
    )
    if not created:
        raise Conflict(f"{user.username} is a member already")
    audit.record(access, Kind.MEMBER, user.username, Did.ADDED, f"As {role}", timezone.now())
    return membership


def _find_user(who: str) -> User:
    people = User.objects.filter(is_active=True)
    found = list(people.filter(username=who))
    if not found and who:
        found = list(people.filter(email__iexact=who)[:2])
    if len(found) == 1:
        return found[0]
    rule = "several people have this address: give the user name" if found else "no user has this name or address"
    raise ValidationError(rule, [{"field": "who", "rule": rule}])


@transaction.atomic
def change_role(access: Access, membership_id: int, role: Role) -> None:
    """Raises Forbidden, NotFound; Conflict when the workspace would be left without an admin."""
    membership = _locked_member(access, membership_id)
    if role != Role.ADMIN:
        _require_another_admin(membership)
    before, membership.role = membership.role, role
    membership.save(update_fields=["role"])
    if role != before:
        reason = f"From {before} to {role}"
        audit.record(access, Kind.MEMBER, membership.user.username, Did.CHANGED, reason, timezone.now())


@transaction.atomic
def remove_member(access: Access, membership_id: int) -> None:
    """Raises Forbidden, NotFound; Conflict when the workspace would be left without an admin."""
    membership = _locked_member(access, membership_id)
    _require_another_admin(membership)
    membership.delete()
    audit.record(access, Kind.MEMBER, membership.user.username, Did.REMOVED, f"Was {membership.role}", timezone.now())


def _locked_member(access: Access, membership_id: int) -> Membership:
    """Under the workspace's lock, so that two admins cannot each remove the other."""
    access.require(Action.MANAGE)
    hold(access.workspace)
    membership = access.workspace.memberships.select_related("user").filter(pk=membership_id).first()
    if membership is None:
        raise NotFound("there is no such member")
    return membership


def _require_another_admin(membership: Membership) -> None:
    others = Membership.objects.filter(workspace_id=membership.workspace_id, role=Role.ADMIN).exclude(pk=membership.pk)
    if membership.role == Role.ADMIN and not others.exists():
        raise Conflict("a workspace needs an admin: make somebody else admin first")
