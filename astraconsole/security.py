"""The content security policy of pages: everything comes from this console itself, nothing is inline."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

POLICY = "; ".join(
    (
        "default-src 'self'",
        "connect-src 'self' ws: wss:",  # not every browser counts websockets of its own origin as 'self'
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
# Pages with charts: plotly makes empty style elements and fills them through the object model. These are their hashes.
_STYLES = ("sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o=")
CHARTS_POLICY = "; ".join((POLICY, " ".join(("style-src 'self'", *(f"'{style}'" for style in _STYLES)))))
EXEMPT = ("/api/",)  # its documentation page begins with an inline script of its library


class ContentSecurityPolicyMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if not request.path_info.startswith(EXEMPT):
            response.headers.setdefault("Content-Security-Policy", POLICY)
        return response


def with_charts(answer: HttpResponse) -> HttpResponse:
    """The answer as a page that plotly may draw on."""
    answer.headers["Content-Security-Policy"] = CHARTS_POLICY
    return answer
