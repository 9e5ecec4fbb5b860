"""Django behind ASGI, for a project whose middleware and views are synchronous.

Django's own ASGI handler changes between the event loop and threads half a dozen times for each request, starts a
thread for each, and with it a database connection: more work than most of our answers. Here a request is answered in
one piece by one thread of a pool.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import IO, Any

import django
from django.conf import settings
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.urls import set_script_prefix


class Gate:
    """Closed while the server holds more of a response than its client takes: a slow client must not fill our memory.

    ASGI has no word for this. Daphne's `send` is bound to the Twisted request, which tells a producer to pause.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self._open = asyncio.Event()
        self.gone = False
        self.resumeProducing()
        request.registerProducer(self, True)

    async def passed(self) -> None:
        await self._open.wait()

    def remove(self) -> None:
        if self._request.channel is not None:  # else its client has gone
            self._request.unregisterProducer()

    # ---- Twisted's IPushProducer ----

    def pauseProducing(self) -> None:
        self._open.clear()

    def resumeProducing(self) -> None:
        self._open.set()

    def stopProducing(self) -> None:
        self.gone = True
        self._open.set()


class ThreadedHandler(ASGIHandler):
    """An ASGI application of HTTP alone."""

    def __init__(self) -> None:
        super().__init__()
        self._threads = ThreadPoolExecutor(settings.HTTP_THREADS, thread_name_prefix="http")

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(self._threads, self._answer, scope, body)
        if not response.streaming:
            await self.send_response(response, send)  # to a client that has gone, the server drops it
            return
        response.streaming_content = self._parts(iter(response.streaming_content), send)
        try:
            await self.send_response(response, send)
        finally:
            await loop.run_in_executor(self._threads, response.close)

    def _answer(self, scope: dict[str, Any], body: IO[bytes]) -> Any:
        """The response to the whole request, ended: also when nobody waits for the answer any more."""
        with body:
            set_script_prefix(get_script_prefix(scope))
            signals.request_started.send(sender=self.__class__, scope=scope)
            request, refusal = self.create_request(scope, body)
            response: Any = refusal if request is None else self.get_response(request)
            response._handler_class = self.__class__
            if not response.streaming:
                response.close()
            return response

    async def _parts(self, parts: Iterator[bytes], send: Callable[[Any], Awaitable[None]]) -> AsyncIterator[bytes]:
        """Made by the threads, since a disk may be slow; each when the client has taken those before."""
        loop = asyncio.get_running_loop()
        part = await loop.run_in_executor(self._threads, next, parts, None)
        gate = None
        try:
            while part is not None and not (gate and gate.gone):
                yield part
                if gate is None and isinstance(send, partial):
                    gate = Gate(send.args[0])
                if gate is not None:
                    await gate.passed()
                part = await loop.run_in_executor(self._threads, next, parts, None)
        finally:
            if gate is not None:
                gate.remove()


def get_application() -> ThreadedHandler:
    """With Django set up, as `django.core.asgi.get_asgi_application`."""
    django.setup(set_prefix=False)
    return ThreadedHandler()
