"""Signing a program in without typing a secret into it (`astra login`): it shows a code, a person approves the code on
a page, the program fetches a token of that person. Codes expire, are single-use, and are kept as digests."""

import secrets
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction
from django.db.models import QuerySet
from django.utils.crypto import salted_hmac

from astraconsole import limits, tokens
from astraconsole.errors import LoginDenied, LoginExpired, NotFound
from astraconsole.limits import Limit
from astraconsole.tenancy.models import DeviceLogin, User
from astraconsole.tenancy.services import create_token

LETTERS = "BCDFGHJKLMNPQRSTWXZ"  # no vowels, so no words; none that is read as another (I, O, U, V, Y)
CODE_LETTERS = 8
LIFETIME = timedelta(minutes=10)
KEPT = timedelta(days=1)
POLL_SECONDS = 2

BEGUN = Limit("login-begun", 30, 600, "too many logins from this address")
POLLED = Limit("login-polled", 60, 60, "asked too often whether the login is approved")
WRONG_BY_USER = Limit("login-wrong-user", 10, 600, "too many wrong codes")
WRONG_FROM_ADDRESS = Limit("login-wrong-address", 30, 600, "too many wrong codes from this address")


class Begun(NamedTuple):
    """`device_code` is the program's secret; `user_code` is shown: `QWRT-PLKM`."""

    device_code: str
    user_code: str


def begin(host: str, program: str, address: str, now: datetime) -> Begun:
    """Raises TooManyRequests."""
    limits.spend(BEGUN, address)
    DeviceLogin.objects.filter(expires_at__lt=now - KEPT).delete()
    letters = "".join(secrets.choice(LETTERS) for _ in range(CODE_LETTERS))
    begun = Begun(secrets.token_urlsafe(32), as_shown(letters))
    DeviceLogin.objects.create(
        device_digest=tokens.digest(begun.device_code),
        user_digest=_digest(letters),
        host=host,
        program=program,
        address=address,
        created_at=now,
        expires_at=now + LIFETIME,
    )
    return begun


def find(user: User, code: str, address: str, now: datetime) -> DeviceLogin:
    """The login that waits for a decision under this code, however it is typed. Raises NotFound, TooManyRequests."""
    tried = ((WRONG_BY_USER, str(user.pk)), (WRONG_FROM_ADDRESS, address))
    for limit, who in tried:
        limits.check(limit, who)
    found = _waiting(code, now).first()
    if found is None:
        for limit, who in tried:
            limits.record(limit, who)
        raise NotFound("no login waits under this code: it was mistyped, has expired, or is decided already")
    return found


@transaction.atomic
def decide(user: User, code: str, approve: bool, address: str, now: datetime) -> DeviceLogin:
    """Approve or deny. The first decision counts. Raises as `find`."""
    login = find(user, code, address, now)
    decision = {"approved_at": now} if approve else {"denied_at": now}
    if not _waiting(code, now).filter(pk=login.pk).update(user=user, **decision):
        raise NotFound("this login is decided already")
    return login


@transaction.atomic
def collect(device_code: str, now: datetime) -> str | None:
    """The token's secret, once and only once; None while nobody has decided.

    Raises LoginDenied; LoginExpired, also for a code that never was; TooManyRequests.
    """
    digest = tokens.digest(device_code)
    limits.spend(POLLED, digest)
    login = DeviceLogin.objects.select_for_update().filter(device_digest=digest, used_at=None).first()
    if login is None or login.expires_at <= now:
        raise LoginExpired("this login has expired: start another")
    if login.denied_at is not None:
        raise LoginDenied("the login was denied")
    if login.user_id is None:
        return None
    if not login.user.is_active:
        raise LoginDenied("whoever approved the login may not sign in any more")
    login.used_at = now
    login.save(update_fields=["used_at"])
    return create_token(login.user, login.host, now)[1]


def as_shown(code: str) -> str:
    """`QWRT-PLKM`, however it was typed."""
    letters = _letters(code)
    return f"{letters[:4]}-{letters[4:]}"


def _waiting(code: str, now: datetime) -> QuerySet[DeviceLogin]:
    undecided = DeviceLogin.objects.filter(approved_at=None, denied_at=None)
    return undecided.filter(user_digest=_digest(_letters(code)), expires_at__gt=now)


def _letters(code: str) -> str:
    return "".join(character for character in code.upper() if character.isalpha())


def _digest(letters: str) -> str:
    """With the console's key: eight letters alone could be tried through."""
    return salted_hmac("astra.device_login", letters, algorithm="sha256").hexdigest()
