"""The organisation that a local console starts with: made once; its credentials stay in the data folder."""

import json
import secrets
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from django.db import transaction

from astraconsole.errors import Unauthenticated
from astraconsole.private_files import write_private
from astraconsole.tenancy.models import Membership, Organisation, User, Workspace
from astraconsole.tenancy.permissions import Role
from astraconsole.tenancy.services import authenticate_token, create_token
from machines.models import Cluster, Namespace

ORGANISATION = "demo"
CLUSTER = "local"


@dataclass(frozen=True)
class Demo:
    """What the ready file repeats. `password` and `token` exist nowhere else in the clear."""

    organisation: str
    workspace: str
    cluster: str
    username: str
    password: str
    token: str


def ensure_demo(path: Path, now: datetime) -> Demo:
    """The demo's credentials, from `path` (mode 600) when they still work, else made anew and kept there."""
    with transaction.atomic():
        workspace = _workspace()
        cluster = _cluster(workspace)
        user = _user(workspace)
        known = _read(path)
        if known is not None and _works(known, user):
            return known
        password = secrets.token_urlsafe(12)
        user.set_password(password)
        user.save(update_fields=["password"])
        _, token = create_token(user, "local console", now)
        demo = Demo(workspace.organisation.slug, workspace.slug, cluster.slug, user.username, password, token)
        write_private(path, json.dumps(asdict(demo)))
        return demo


def _workspace() -> Workspace:
    organisation, _ = Organisation.objects.get_or_create(slug=ORGANISATION, defaults={"name": "Demo"})
    return Workspace.objects.get_or_create(organisation=organisation, slug="default", defaults={"name": "Default"})[0]


def _cluster(workspace: Workspace) -> Cluster:
    cluster, _ = Cluster.objects.get_or_create(organisation=workspace.organisation, slug=CLUSTER)
    Namespace.objects.get_or_create(workspace=workspace, cluster=cluster)
    return cluster


def _user(workspace: Workspace) -> User:
    user, _ = User.objects.get_or_create(username="demo", defaults={"is_staff": True, "is_superuser": True})
    Membership.objects.get_or_create(user=user, workspace=workspace, defaults={"role": Role.ADMIN})
    return user


def _works(demo: Demo, user: User) -> bool:
    try:
        return authenticate_token(f"Bearer {demo.token}") == user and user.check_password(demo.password)
    except Unauthenticated:
        return False


def _read(path: Path) -> Demo | None:
    try:
        return Demo(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
