"""The GPUs page: a map of machines and slots, and a line for each GPU."""

from collections.abc import Sequence
from itertools import groupby

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from astraconsole.tenancy.pages import context_of
from astraconsole.tenancy.queries import get_access
from astraconsole.web import is_partial
from runs.gpus import SeenGpu, gpus_for

LINES_SHOWN = 512


@require_GET
def gpus(request: HttpRequest, org: str, ws: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    found = gpus_for(access, None, timezone.now())
    shown = [seen for seen in found if seen.unused or not seen.gpu.healthy] if "look" in request.GET else found
    context = context_of(
        access,
        machines=_by_machine(found),
        lines=shown[:LINES_SHOWN],
        more=max(0, len(shown) - LINES_SHOWN),
        only_look="look" in request.GET,
        counts=_counts(found),
        simulated=any(seen.gpu.simulated for seen in found),
        clusters=list(dict.fromkeys(seen.machine.cluster.slug for seen in found)),
    )
    return render(request, "runs/_gpus.html" if is_partial(request) else "runs/gpus.html", context)


def _by_machine(found: Sequence[SeenGpu]) -> list[list[SeenGpu]]:
    return [list(group) for _, group in groupby(found, key=lambda seen: seen.machine.pk)]


def _counts(found: Sequence[SeenGpu]) -> dict[str, int]:
    busy = [seen.utilization for seen in found if seen.holder and seen.utilization is not None and seen.known]
    return {
        "all": len(found),
        "held": sum(seen.holder is not None for seen in found),
        "unused": sum(bool(seen.unused) for seen in found),
        "sick": sum(not seen.gpu.healthy for seen in found),
        "busy": round(100 * sum(busy) / len(busy)) if busy else -1,
    }
