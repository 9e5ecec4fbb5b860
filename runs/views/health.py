"""`/metrics`: the console's own health, for Prometheus."""

import hmac

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from astraconsole.errors import Forbidden, Unauthenticated
from astraconsole.tokens import bearer
from runs import health


@never_cache
@require_GET
def metrics(request: HttpRequest) -> HttpResponse:
    """For whoever has METRICS_TOKEN, as bearer, and for staff who are signed in. It names clusters, and no run."""
    token = bearer(request.headers.get("Authorization"))
    if token is not None:
        if not settings.METRICS_TOKEN or not hmac.compare_digest(token.encode(), settings.METRICS_TOKEN.encode()):
            raise Unauthenticated("this is not the token of METRICS_TOKEN")
    elif not request.user.is_authenticated:
        raise Unauthenticated("give METRICS_TOKEN: Authorization: Bearer <token>")
    elif not request.user.is_staff:
        raise Forbidden("the console's own health is for staff")
    return HttpResponse(health.exposition(), content_type=health.CONTENT_TYPE)
