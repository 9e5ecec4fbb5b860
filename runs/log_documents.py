"""The documents of the JSON API about logs."""

import base64
from typing import TYPE_CHECKING, Any, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from astraconsole.json_bodies import moment
from runs.api_documents import WorkerStatus

if TYPE_CHECKING:
    from runs.log_answers import Slice


class Log(TypedDict):
    """The end of a worker's output. `archived`: its container no longer exists. `cut`: what is missing of the lines
    that were asked for."""

    task_name: str
    logs: str
    archived: NotRequired[bool]
    cut: NotRequired[str]


class LogAttempt(TypedDict):
    """One placement of a worker. `over`: nothing that it prints counts any more."""

    attempt: int
    machine: str
    placed_at: str
    over: bool


class LogGap(TypedDict):
    """Bytes that were asked for and are not kept."""

    start: int
    end: int


class LogSlice(TypedDict):
    """A log from a position on. `start` and `next` are byte offsets in the attempt's output; go on with `from=<next>`.
    `ended`: nothing will follow `next` in this attempt; the worker may have a later one, or get it while its state is
    not an end. `data` is what the program printed, decoded, terminal codes and all; with `encoding=base64`
    `bytes_base64` is there instead, exact to the byte."""

    task_name: str
    attempt: int
    start: int
    next: int
    data: NotRequired[str]
    bytes_base64: NotRequired[str]
    ended: bool
    archived: bool
    gap: LogGap | None
    attempts: list[LogAttempt]
    status: WorkerStatus


def log_slice(name: str, piece: "Slice", encoding: str) -> dict[str, Any]:
    """A LogSlice. `encoding`: text | base64."""
    chunk, text = piece.as_text() if encoding == "text" else (piece.chunk, None)
    content = {"data": text} if text is not None else {"bytes_base64": base64.b64encode(chunk.data).decode()}
    return {
        "task_name": name,
        "attempt": piece.source.number,
        "start": chunk.start,
        "next": chunk.next,
        **content,
        "ended": chunk.ended,
        "archived": chunk.archived,
        "gap": {"start": piece.asked, "end": piece.chunk.start} if piece.gap else None,
        "attempts": [
            {
                "attempt": source.number,
                "machine": source.machine_name,
                "placed_at": moment(source.placed_at),
                "over": source.over,
            }
            for source in piece.followed.sources
        ],
        "status": {"state": piece.followed.state, "reason": piece.followed.reason},
    }
