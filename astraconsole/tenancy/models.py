"""Who works where: people, organisations, workspaces, memberships, API tokens."""

from django.contrib.auth.models import AbstractUser
from django.db import models

from astraconsole.sql import TransactionId
from astraconsole.tenancy.permissions import ROLE_CHOICES


class User(AbstractUser):
    """A person. Our own class from the first migration, since it cannot be swapped in later."""


class Organisation(models.Model):
    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.slug


class Workspace(models.Model):
    organisation = models.ForeignKey(Organisation, on_delete=models.PROTECT, related_name="workspaces")
    slug = models.SlugField(max_length=40)
    name = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["organisation", "slug"], name="workspace_slug_unique")]

    def __str__(self) -> str:
        return f"{self.organisation.slug}/{self.slug}"


class Membership(models.Model):
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=ROLE_CHOICES)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "workspace"], name="membership_unique")]

    def __str__(self) -> str:
        return f"{self.user} in {self.workspace} as {self.role}"


class ApiToken(models.Model):
    """A bearer token of a person. Shown once; only its SHA-256 is kept (a token is 32 random bytes, so no salt)."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16)  # what lists show to tell tokens apart
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)


class DeviceLogin(models.Model):
    """Somebody's `astra login` under way: asked for by a program that has `device_code`, decided by a person who was
    shown `user_code`. Of both only digests are kept, and the token is made when the program fetches it."""

    device_digest = models.CharField(max_length=64, unique=True)
    user_digest = models.CharField(max_length=64, unique=True)
    host = models.CharField(max_length=100)  # as it says itself
    program = models.CharField(max_length=100)
    address = models.CharField(max_length=45)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(db_index=True)
    user = models.ForeignKey(User, null=True, on_delete=models.CASCADE, related_name="device_logins")  # who decided
    approved_at = models.DateTimeField(null=True)
    denied_at = models.DateTimeField(null=True)
    used_at = models.DateTimeField(null=True)


class AuditEvent(models.Model):
    """What somebody did to what a workspace has beside runs and machines, which keep histories of their own."""

    workspace = models.ForeignKey(Workspace, on_delete=models.CASCADE, related_name="+", db_index=False)
    tx = models.BigIntegerField(db_default=TransactionId())
    kind = models.CharField(max_length=12)  # astraconsole.tenancy.audit.Kind
    name = models.CharField(max_length=200)
    state = models.CharField(max_length=12)  # Added, Replaced, …
    reason = models.CharField(max_length=400)
    actor = models.CharField(max_length=150)
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["workspace", "tx", "id"], name="audit_event")]
