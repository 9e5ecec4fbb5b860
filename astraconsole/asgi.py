"""HTTP through Django; websockets straight to their consumers (agent frames never pass Django's middleware)."""

import os
from collections.abc import Callable
from functools import partialmethod
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from daphne.http_protocol import WebRequest
from django.conf import settings
from django.urls import path, re_path

from astraconsole.handler import get_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "astraconsole.settings")
http = get_application()  # sets Django up: what needs its apps is imported below
assert settings.SECRET_KEY  # without one Django raises ImproperlyConfigured: here, not at somebody's sign-in

from astraconsole.sockets import counted  # noqa: E402
from machines.consumers import AgentConsumer  # noqa: E402
from machines.presence import watched  # noqa: E402
from runs.consumers.event_stream import followed  # noqa: E402
from runs.consumers.logs import LogConsumer, RunLogConsumer  # noqa: E402
from runs.consumers.pages import GONE, RunConsumer, RunsConsumer, WorkerConsumer  # noqa: E402

# Django alone parses forms. Twisted would do so first, in memory, and answer a malformed one with a bare 400.
WebRequest.__init__ = partialmethod(WebRequest.__init__, parsePOSTFormSubmission=False)


async def nothing_here(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    """An address without a consumer: refused, where a router alone would raise."""
    await send({"type": "websocket.close", "code": GONE})


pages = [
    path("ws/o/<slug:org>/w/<slug:ws>/runs", RunsConsumer.as_asgi()),
    path("ws/o/<slug:org>/w/<slug:ws>/jobs/<slug:cluster>/<str:name>", RunConsumer.as_asgi()),
    path("ws/o/<slug:org>/w/<slug:ws>/workers/<slug:cluster>/<str:name>", WorkerConsumer.as_asgi()),
    path("ws/o/<slug:org>/w/<slug:ws>/workers/<slug:cluster>/<str:name>/log", LogConsumer.as_asgi()),
    path("ws/o/<slug:org>/w/<slug:ws>/jobs/<slug:cluster>/<str:name>/log", RunLogConsumer.as_asgi()),
    re_path("", nothing_here),
]
websocket = URLRouter(
    [
        path("agent/v1", AgentConsumer.as_asgi()),
        re_path("^", AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(pages)))),  # path("") would end there
    ]
)
application = watched(ProtocolTypeRouter({"http": followed(http), "websocket": counted(websocket)}))
