"""`astra astraeus events -f` over breaks: goes on from the last id, says so once, gives up only where that helps."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pytest

from astraconsole.cli.event_stream import EventStream
from astraconsole.cli.problems import Refused, Unreachable


class Connections:
    """Stands for the client: each call of `lines` plays the next connection, which may break off with an error."""

    def __init__(self, *connections: list[Any]) -> None:
        self.connections = list(connections)
        self.asked: list[str] = []

    def lines(self, below: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[str]:
        self.asked.append(headers.get("Last-Event-ID", ""))
        for line in self.connections.pop(0):
            if isinstance(line, Exception):
                raise line
            yield line


def event(number: int) -> list[str]:
    return [f"id: 1.0.{number}", f'data: {{"id": "1.0.{number}"}}', ""]


def stream(connections: Connections, said: list[str], slept: list[float]) -> EventStream:
    return EventStream(connections, {}, 20, said.append, slept.append)  # type: ignore[arg-type]


def test_a_break_is_gone_over_from_the_last_id_and_told_once() -> None:
    away = Unreachable("no answer")
    connections = Connections(
        [*event(1), "id: 1.0.9", "", "id: 1.0.10", away], [away], [away], [*event(10)], [*event(11)]
    )
    said: list[str] = []
    slept: list[float] = []
    heard = [one["id"] for one in islice(stream(connections, said, slept).events(), 3)]
    assert heard == ["1.0.1", "1.0.10", "1.0.11"]
    assert connections.asked == ["", "1.0.9", "1.0.9", "1.0.9", "1.0.10"]
    assert said == [
        "no answer; trying again until it answers",
        "the console answers again",
        "the connection was closed; trying again until it answers",
        "the console answers again",
    ]
    assert slept == sorted(slept[:3]) + slept[3:]


def test_a_stream_that_the_console_ends_for_good_is_not_asked_for_again() -> None:
    end = ["event: end", 'data: {"code": "NOT_FOUND", "message": "there is no workspace acme/vision"}', ""]
    connections = Connections([*event(1), *end])
    with pytest.raises(Refused, match="there is no workspace"):
        list(stream(connections, [], []).events())
    assert connections.asked == [""]
