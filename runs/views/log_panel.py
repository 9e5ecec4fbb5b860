"""The log tab of a run's and of a worker's page: whose log, which part of it, filtered how."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from asgiref.sync import async_to_sync
from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe

from astraconsole.errors import ValidationError
from runs import log_source, queries
from runs.log_errors import looks_like_error
from runs.log_follower import Batch, Item, last_lines, lines_at
from runs.log_frames import Filter, html_of
from runs.log_html import Owner
from runs.log_merged import TOGETHER_MAX, last_lines_of_all
from runs.log_source import Followed
from runs.log_text import Line
from runs.names import rank_label

if TYPE_CHECKING:
    from runs.models import Run, Worker

PAGE_WAIT_SECONDS = 3.0  # for a machine, before a page is shown without its log
FIND_MAX = 200
CONTEXTS = (0, 2, 5, 20)  # lines on each side
CHOICES_MAX = 1000  # workers in the selector; of a larger run their names are typed
ATTEMPTS_MAX = 100  # in the selector: the newest


@dataclass(frozen=True)
class Part:
    """One worker's part of what is shown."""

    followed: Followed
    batch: Batch
    rank: str = ""  # told before each line, where there are several parts


@dataclass(frozen=True)
class Choice:
    value: str
    label: str
    chosen: bool


@dataclass(frozen=True)
class Shown:
    """What an address asks for. `attempt`, `offset`: null where it does not say. `linked`: that very line."""

    attempt: int | None
    offset: int | None
    linked: bool
    filter: Filter

    @classmethod
    def of(cls, request: HttpRequest) -> "Shown":
        """Raises ValidationError."""
        errors, context = "errors" in request.GET, whole_number(request, "context") or 0
        found = Filter(request.GET.get("find", "")[:FIND_MAX], errors, min(context, CONTEXTS[-1]))
        at, near = whole_number(request, "at"), whole_number(request, "near")
        return cls(whole_number(request, "attempt"), near if at is None else at, at is not None, found)


@dataclass(frozen=True)
class LogPanel:
    """What `runs/_log.html` shows. `lines`, `errors`, `matches` are counts. `earlier`, `later`, `latest`: queries of
    other parts of the log; `socket`, `poll`, `download`, `whole`: addresses; "" where there is none."""

    name: str
    choices: Sequence[Choice]
    typed: str  # the worker's name, where there are too many to choose from
    attempts: Sequence[int]
    attempt: int | None
    html: SafeString
    positions: str
    status: str
    message: str
    follows: bool
    lines: int
    errors: int
    matches: int
    shown: Filter
    contexts: Sequence[int]
    around: bool
    earlier: str
    later: str
    latest: str
    socket: str
    poll: str
    download: str
    whole: str


def worker_log(request: HttpRequest, worker: "Worker") -> dict[str, Any]:
    """The context of `runs/_log.html` on a worker's page. Reads the machine, for at most PAGE_WAIT_SECONDS a call.
    Raises NotFound, ValidationError."""
    return _context(request, "?", _worker_address(request, worker.name), [_one(request, worker)], ())


def run_log(request: HttpRequest, run: "Run", failed: "Worker | None") -> dict[str, Any]:
    """On a run's page: of the worker that was asked for, or of several together (`*`, `*64`: from the 64th on); where
    none was, of the one that failed first, whose log has the cause, or else of the first. Empty without workers. Raises
    as `worker_log` does."""
    names = [name for name, _ in queries.names_and_states(run)]
    if not names:
        return {}
    wanted = request.GET.get("worker", "")
    choices = _choices(run.name, names, wanted)
    if wanted.startswith("*") and len(names) > 1:
        parts = shown_together(run, wanted)
        address = f"{reverse('run', kwargs=request.resolver_match.kwargs)}/log"  # type: ignore[union-attr]
        return _context(request, f"?tab=logs&worker={quote(wanted)}&", address, parts, choices)
    first = failed.name if failed else names[0]
    name = wanted if wanted and not wanted.startswith("*") else first
    worker = queries.get_worker_of(run, name)
    link = f"?tab=logs&worker={quote(name)}&"
    return _context(request, link, _worker_address(request, name), [_one(request, worker)], choices)


def _worker_address(request: HttpRequest, name: str) -> str:
    kwargs = {**request.resolver_match.kwargs, "name": name}  # type: ignore[union-attr]
    return f"{reverse('worker', kwargs=kwargs)}/log"


def _choices(run: str, names: Sequence[str], wanted: str) -> list[Choice]:
    if len(names) == 1:
        return [Choice(names[0], names[0], True)]
    spans = range(0, len(names), TOGETHER_MAX)
    several = []
    for first in spans:
        together, value = [rank_label(run, name) for name in names[first : first + TOGETHER_MAX]], f"*{first or ''}"
        label = "All workers" if len(spans) == 1 else f"Workers {together[0]} to {together[-1]}"
        several.append(Choice(value, label, wanted == value))
    return [*several, *(Choice(name, name, name == wanted) for name in names[:CHOICES_MAX])]


def _one(request: HttpRequest, worker: "Worker") -> Part:
    followed = log_source.look(worker.pk)
    return Part(followed, first_lines(followed, Shown.of(request)))


def first_lines(followed: Followed, shown: Shown) -> Batch:
    """What a page or a download of it shows. An attempt that is none of this worker's was another's: it is left out."""
    attempt = shown.attempt if shown.attempt in {source.number for source in followed.sources} else None
    wait = min(PAGE_WAIT_SECONDS, settings.CALL_TIMEOUT_SECONDS)
    if shown.offset is not None and attempt is not None:
        return async_to_sync(lines_at)(followed, attempt, shown.offset, wait)
    return async_to_sync(last_lines)(followed, attempt, wait)


def shown_together(run: "Run", wanted: str) -> list[Part]:
    """The workers that `*` names, or `*64`: from the 64th on."""
    names = [name for name, _ in queries.names_and_states(run)]
    start = re.fullmatch(r"\*([0-9]{1,6})", wanted)
    first = int(start[1]) if start else 0
    names = names[first : first + TOGETHER_MAX] or names[:TOGETHER_MAX]
    ids = queries.worker_ids(run, names)
    followed = log_source.look_at([ids[name] for name in names])
    wait = min(PAGE_WAIT_SECONDS, settings.CALL_TIMEOUT_SECONDS)
    batches = async_to_sync(last_lines_of_all)(followed, wait)
    return [Part(f, b, rank_label(run.name, f.name)) for f, b in zip(followed, batches, strict=True)]


def _context(
    request: HttpRequest, link: str, address: str, parts: Sequence[Part], choices: Sequence[Choice]
) -> dict[str, Any]:
    shown, alone = Shown.of(request), parts[0] if len(parts) == 1 and not parts[0].rank else None
    position = alone.batch.position if alone else None
    attempt = position.attempt if position else None
    items = [item for part in parts for item in part.batch.items]
    texts = [item.content.text for item in items if isinstance(item.content, Line)]
    newest = alone is None or alone.followed.newest is None or alone.followed.newest.number == attempt
    around = alone is not None and shown.offset is not None and shown.attempt is not None
    status = _status([part.batch for part in parts])
    panel = LogPanel(
        name=alone.followed.name if alone else "all workers",
        choices=choices,
        typed=alone.followed.name if alone and len(choices) > CHOICES_MAX else "",
        attempts=_attempts(alone.followed, attempt) if alone else [],
        attempt=attempt,
        html=mark_safe("".join(_html(part, shown, link) for part in parts)),  # escaped line by line
        positions=json.dumps({part.followed.name: str(part.batch.position or "") for part in parts}),
        status=status,
        message=_message(parts, status),
        follows=newest and not around and status != "ended",
        lines=len(texts),
        errors=sum(map(looks_like_error, texts)),
        matches=sum(shown.filter.matches(item) for item in items),
        shown=shown.filter,
        contexts=CONTEXTS,
        around=around,
        **_elsewhere(link, alone, around, items),
        socket=f"/ws{address}",
        poll=f"{address}/lines",
        download=f"{address}/download?{_query(request.GET)}",
        whole=f"{address}/whole?attempt={attempt}" if attempt else "",
    )
    return {"log": panel, "follow_seconds": settings.LOG_FOLLOW_SECONDS}


def _html(part: Part, shown: Shown, link: str) -> str:
    if part.rank:  # a line's address is in its own worker's log
        link = f"?tab=logs&worker={quote(part.followed.name)}&"
    linked = shown.offset if shown.linked and not part.rank else None
    return html_of(part.batch.items, shown.filter, Owner(link, part.rank), linked)


def _status(batches: Sequence[Batch]) -> str:
    statuses = {batch.status for batch in batches}
    return next(status for status in ("reconnecting", "live", "waiting", "ended") if status in statuses)


def _message(parts: Sequence[Part], status: str) -> str:
    said = [part.batch.message for part in parts if part.batch.status == status and part.batch.message]
    return said[0] if len(parts) == 1 and said else f"{len(said)} of {len(parts)}: {said[0]}" if said else ""


def _attempts(followed: Followed, shown: int | None) -> list[int]:
    """To choose from, where there are several."""
    numbers = [source.number for source in followed.sources]
    newest = numbers[-ATTEMPTS_MAX:]
    return sorted({*newest, *({shown} if shown else ())}) if len(numbers) > 1 else []


def _elsewhere(link: str, part: Part | None, around: bool, items: Sequence[Item]) -> dict[str, str]:
    """Addresses of what was printed before and after, and of the end; "" where that is all there is."""
    lines = [(item.attempt, item.content.offset) for item in items if isinstance(item.content, Line)]
    if part is None or not lines:
        return {"earlier": "", "later": "", "latest": link if around else ""}
    (attempt, first), (newest, last) = lines[0], lines[-1]
    return {
        "earlier": f"{link}attempt={attempt}&near={first - 1}" if first > 0 and not part.batch.oldest else "",
        "later": f"{link}attempt={newest}&near={last}" if around else "",
        "latest": link if around else "",
    }


def _query(given: Mapping[str, str]) -> str:
    names = ("worker", "attempt", "at", "near", "find", "errors", "context")
    return urlencode({name: given[name] for name in names if name in given})


def whole_number(request: HttpRequest, name: str) -> int | None:
    """Raises ValidationError."""
    text = request.GET.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise ValidationError(f"{name} must be a whole number", [{"field": name, "rule": "must be a whole number"}])
    return int(text)
