"""A workspace's events as they happen: read on over breaks of the network, without loss and without repetition."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from astraconsole.cli.client import Client
from astraconsole.cli.following import FIRST_WAIT, LONGEST_WAIT, PASSING
from astraconsole.cli.problems import Refused, Unreachable


@dataclass
class EventStream:
    """`say`: what to tell when the console is away, and when it is back."""

    client: Client
    filters: Mapping[str, str]
    tail: int
    say: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    position: str = ""  # the last id that was heard of
    _away: bool = False

    def events(self) -> Iterator[dict[str, Any]]:
        """Without end. Raises Refused for what does not pass by itself."""
        wait = FIRST_WAIT
        while True:
            try:
                for event in self._once():
                    wait = FIRST_WAIT
                    if event is not None:
                        yield event
                self._is_away("the connection was closed")
            except Unreachable as error:
                self._is_away(str(error))
            except Refused as refusal:
                if refusal.code not in PASSING:
                    raise
                self._is_away(str(refusal))
            self.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)

    def _once(self) -> Iterator[dict[str, Any] | None]:
        """The events of one connection; None for a sign of life."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": self.position} if self.position else {})}
        fields: dict[str, str] = {}
        for line in self.client.lines("events", {**self.filters, "tail": self.tail}, headers):
            name, _, value = line.partition(":")
            if line:
                fields[name] = value.removeprefix(" ")
                continue
            if fields.get("event") == "end":
                error = json.loads(fields["data"])
                raise Refused(error["code"], error["message"], error.get("detail", []))
            self._is_back()
            self.position = fields.get("id", self.position)
            yield json.loads(fields["data"]) if "data" in fields else None
            fields = {}

    def _is_away(self, why: str) -> None:
        if not self._away:
            self.say(f"{why}; trying again until it answers")
        self._away = True

    def _is_back(self) -> None:
        if self._away:
            self.say("the console answers again")
        self._away = False
