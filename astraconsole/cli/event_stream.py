"""A workspace's events as they happen: read on over breaks of the network, without loss and without repetition."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

from astraconsole.cli.client import Client
from astraconsole.cli.following import FIRST_WAIT, LONGEST_WAIT, Contact
from astraconsole.cli.problems import Refused


@dataclass
class EventStream:
    """`say`: what to tell when the console is away, and when it is back."""

    client: Client
    filters: Mapping[str, str]
    tail: int
    say: InitVar[Callable[[str], None]]
    sleep: Callable[[float], None] = time.sleep
    position: str = ""  # the last id that was heard of
    _contact: Contact = field(init=False)

    def __post_init__(self, say: Callable[[str], None]) -> None:
        self._contact = Contact(say)

    def events(self) -> Iterator[dict[str, Any]]:
        """Without end. Raises Refused for what does not pass by itself."""
        wait = FIRST_WAIT
        while True:
            with self._contact.outliving():
                for event in self._once():
                    wait = FIRST_WAIT
                    if event is not None:
                        yield event
                self._contact.lost("the connection was closed")
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
            self._contact.back()
            self.position = fields.get("id", self.position)
            yield json.loads(fields["data"]) if "data" in fields else None
            fields = {}
