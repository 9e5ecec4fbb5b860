"""How many websockets this process serves, by who is at the other end: for the console's own health."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

Application = Callable[..., Awaitable[Any]]
open_sockets: Counter[str] = Counter()


def counted(application: Application) -> Application:
    """The application of websockets, with what is open counted: agents, followers of logs, pages."""

    async def serve(scope: dict[str, Any], receive: Any, send: Any) -> None:
        kind = kind_of(scope["path"])
        open_sockets[kind] += 1
        try:
            await application(scope, receive, send)
        finally:
            open_sockets[kind] -= 1

    return serve


def kind_of(path: str) -> str:
    if not path.startswith("/ws/"):
        return "agent"
    return "log" if path.endswith("/log") else "page"
