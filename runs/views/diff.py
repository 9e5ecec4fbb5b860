"""What differs between a run and the last good one of its kind."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from astraconsole.tenancy.pages import context_of
from astraconsole.tenancy.queries import get_access
from runs import comparing, queries
from runs.views.templates import shown

NAME_MAX = 200


@require_GET
def diff(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    access = get_access(request.user, org, ws)
    run = queries.get_run(access, cluster, name)
    against = request.GET.get("against", "").strip()[:NAME_MAX]
    compared = comparing.compare(access, run, against)
    context = context_of(
        access,
        cluster=cluster,
        run=run,
        compared=compared,
        against=against,
        sections=_sections(compared),
    )
    return render(request, "runs/diff.html", context)


def _sections(compared: comparing.Comparison) -> list[tuple[str, str, list[tuple[str, str | None, str | None]]]]:
    """(title, what is said where nothing differs, [(what, before, after)])."""
    found = compared.found
    if found is None:
        return []
    parts = (
        ("Specification", "The same specification.", found.spec),
        ("Image", "The same image, by its digest." if not found.unknown else " ".join(found.unknown), found.images),
        ("Machines and GPUs", "The same machines and GPU models.", found.places),
    )
    return [
        (title, same, [(one.what, _text(one.before), _text(one.after)) for one in its]) for title, same, its in parts
    ]


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "\n".join(value) or "none"
    return value if isinstance(value, str) else shown(value)
