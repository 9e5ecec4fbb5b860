"""The log of a worker: the tab on a run's and a worker's page, what has come since, the download."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.http import require_GET

from astraconsole.errors import ValidationError
from astraconsole.tenancy.queries import get_access
from runs import log_source, queries
from runs.log_errors import looks_like_error
from runs.log_follower import Batch, Position, advance, last_lines, lines_at
from runs.log_frames import Filter, frame_of, html_of, text_of
from runs.log_source import Followed
from runs.log_text import Line

if TYPE_CHECKING:
    from runs.models import Worker

PAGE_WAIT_SECONDS = 3.0  # for a machine, before a page is shown without its log
FIND_MAX = 200


@dataclass(frozen=True)
class LogPanel:
    """What `runs/_log.html` shows. `workers`: names to choose from; `attempts`: numbers, when there are several."""

    worker: "Worker"
    workers: Sequence[str]
    attempts: Sequence[int]
    attempt: int | None
    html: SafeString
    position: str
    status: str
    message: str
    follows: bool
    errors: int
    shown: Filter
    around: bool


def log_tab(request: HttpRequest, worker: "Worker | None", workers: Sequence[str] = ()) -> dict[str, Any]:
    """The context of `runs/_log.html`. `workers`: names of the run's, on a run's page.

    Reads the machine, for at most PAGE_WAIT_SECONDS a call. Raises NotFound, ValidationError."""
    if worker is None:
        return {}
    followed = log_source.look(worker.pk)
    number, offset = _whole(request, "attempt"), _whole(request, "at")
    if number not in {source.number for source in followed.sources}:
        number = None  # of another worker, which the form showed before
    shown = _filter(request)
    batch = _first(followed, number, offset)
    attempt = batch.position.attempt if batch.position else None
    is_newest = followed.newest is None or followed.newest.number == attempt
    flagged = sum(isinstance(item.content, Line) and looks_like_error(item.content.text) for item in batch.items)
    panel = LogPanel(
        worker=worker,
        workers=workers,
        attempts=[source.number for source in followed.sources] if len(followed.sources) > 1 else [],
        attempt=attempt,
        html=mark_safe(html_of(batch.items, shown)),  # escaped line by line
        position=str(batch.position or ""),
        status=batch.status,
        message=batch.message,
        follows=is_newest and offset is None and batch.status != "ended",
        errors=flagged,
        shown=shown,
        around=offset is not None,
    )
    return {"log": panel, "follow_seconds": settings.LOG_FOLLOW_SECONDS}


def _first(followed: Followed, number: int | None, offset: int | None) -> Batch:
    wait = min(PAGE_WAIT_SECONDS, settings.CALL_TIMEOUT_SECONDS)
    if offset is not None and number is not None:
        return async_to_sync(lines_at)(followed, number, offset, wait)
    return async_to_sync(last_lines)(followed, number, wait)


def _filter(request: HttpRequest) -> Filter:
    return Filter(request.GET.get("find", "")[:FIND_MAX], "errors" in request.GET)


def _whole(request: HttpRequest, name: str) -> int | None:
    text = request.GET.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise ValidationError(f"{name} must be a whole number", [{"field": name, "rule": "must be a whole number"}])
    return int(text)


@require_GET
def log_lines(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    """What has come since `from`, as the websocket would send it: for pages that none reaches."""
    worker = queries.get_worker(get_access(request.user, org, ws), cluster, name)
    text = request.GET.get("from", "")
    position = Position.parse(text) if text else None
    batch = async_to_sync(advance)(log_source.look(worker.pk), position, log_source.read)
    return HttpResponse(frame_of(batch).text, content_type="application/json")


@require_GET
def log_download(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    """What is shown, as `<worker>.log`."""
    worker = queries.get_worker(get_access(request.user, org, ws), cluster, name)
    batch = _first(log_source.look(worker.pk), _whole(request, "attempt"), _whole(request, "at"))
    text = text_of(batch.items, _filter(request))
    if batch.status == "reconnecting":
        text = f"— {batch.message} —\n"
    response = HttpResponse(text, content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{worker.name}.log"'
    return response
