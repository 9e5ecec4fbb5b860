"""Who a websocket speaks for, looked up anew: a socket outlives the session that opened it."""

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest

from astraconsole.tenancy.models import User

_store = import_module(settings.SESSION_ENGINE).SessionStore


def user_of(scope: dict[str, Any]) -> User | AnonymousUser:
    """Nobody once the session has ended: signed out, expired, password changed, or the person deactivated."""
    request = HttpRequest()
    request.session = _store(scope["session"].session_key)
    return get_user(request)  # type: ignore[return-value]
