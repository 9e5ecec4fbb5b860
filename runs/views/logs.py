"""Addresses below a log: what has come since, the download of what is shown, the whole log from its machine."""

from collections.abc import Iterator

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.views.decorators.http import require_GET

from astraconsole.tenancy.queries import get_access
from machines.protocol import LOG_CHUNK_BYTES, LogChunk
from runs import log_source, queries
from runs.log_follower import Position, advance, waiting_sentence
from runs.log_frames import Frame, frame_of, text_of
from runs.log_html import Mark, Owner
from runs.log_merged import advance_all, parse_positions
from runs.log_source import Source
from runs.names import rank_label
from runs.units import format_memory
from runs.views.log_panel import Shown, first_lines, shown_together, whole_number


@require_GET
def log_lines(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    """What has come since `from`, as the websocket would send it: for pages that none reaches. They ask again at once
    where there is `more`; with `hurry`, what is more than they can show is left out."""
    worker = queries.get_worker(get_access(request.user, org, ws), cluster, name)
    text = request.GET.get("from", "")
    position = Position.parse(text) if text else None
    batch = async_to_sync(advance)(log_source.look(worker.pk), position, log_source.read, "hurry" in request.GET)
    return _frames([frame_of(batch, worker.name)])


@require_GET
def run_log_lines(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    """The same of several workers: `from=<worker>~<position>,…`."""
    run = queries.get_run(get_access(request.user, org, ws), cluster, name)
    positions = parse_positions(request.GET.get("from", ""))
    ids = queries.worker_ids(run, list(positions))
    followed = log_source.look_at([ids[worker] for worker in positions])
    batches = async_to_sync(advance_all)(followed, positions, "hurry" in request.GET)
    pairs = zip(followed, batches, strict=True)
    return _frames([frame_of(batch, each.name, Owner(rank=rank_label(run.name, each.name))) for each, batch in pairs])


def _frames(frames: list[Frame]) -> HttpResponse:
    return HttpResponse(f"[{','.join(frame.text for frame in frames)}]", content_type="application/json")


@require_GET
def log_download(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    """What is shown, as `<worker>.log`."""
    worker = queries.get_worker(get_access(request.user, org, ws), cluster, name)
    shown = Shown.of(request)
    batch = first_lines(log_source.look(worker.pk), shown)
    unread = f"{Mark(batch.message).plain}\n" if batch.status == "reconnecting" else ""
    return _as_file(f"{text_of(batch.items, shown.filter)}{unread}", worker.name)


@require_GET
def run_log_download(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponse:
    """What is shown of several workers, as `<run>.log`."""
    run = queries.get_run(get_access(request.user, org, ws), cluster, name)
    chosen = Shown.of(request).filter
    parts = shown_together(run, request.GET.get("worker", ""))
    return _as_file("".join(text_of(part.batch.items, chosen, part.rank) for part in parts), run.name)


def _as_file(text: str, name: str) -> HttpResponse:
    response = HttpResponse(text, content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}.log"'
    return response


@require_GET
def log_whole(request: HttpRequest, org: str, ws: str, cluster: str, name: str) -> HttpResponseBase:
    """All that the machine has of an attempt's output (of the newest, without `attempt`), as it was printed: the bytes
    pass through here piece by piece."""
    worker = queries.get_worker(get_access(request.user, org, ws), cluster, name)
    followed = log_source.look(worker.pk)
    attempt = whole_number(request, "attempt")
    source = followed.newest if attempt is None else followed.source(attempt)
    if source is None:
        return _as_file(f"{Mark(waiting_sentence(followed)).plain}\n", name)
    first = async_to_sync(log_source.read)(source, 0, LOG_CHUNK_BYTES)  # what fails before it begins is a typed answer
    response = StreamingHttpResponse(_pieces(source, first), content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}-attempt-{source.number}.log"'
    return response


def _pieces(source: Source, chunk: LogChunk) -> Iterator[bytes]:
    """Up to the end as it is when it is reached. A machine that goes away breaks the download off: half a log must not
    look like a whole one."""
    at = 0
    while True:
        if chunk.start > at:
            yield f"{Mark(f'{format_memory(chunk.start - at)} not kept').plain}\n".encode()
        yield chunk.data
        at = chunk.next
        if len(chunk.data) < LOG_CHUNK_BYTES:
            return
        chunk = async_to_sync(log_source.read)(source, at, LOG_CHUNK_BYTES)
