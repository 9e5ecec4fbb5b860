"""How errors are rendered (JSON for the API, a page or a fragment for people), partial requests, paging."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse


class ErrorMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)
