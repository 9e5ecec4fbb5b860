"""Where an event stands among all: its id, which is also where a list or a stream goes on. Pure."""

from dataclasses import dataclass
from enum import IntEnum

from astraconsole.errors import ValidationError

LAST = 2**63 - 1


class Source(IntEnum):
    """Which history an event stands in. Part of its id: never renumber."""

    MOVES = 0  # of runs and workers
    MACHINES = 1
    AUDIT = 2


@dataclass(frozen=True, order=True)
class Position:
    """Events are in the order of the transactions that wrote them: `tx`, then within each by source and row."""

    tx: int
    source: int
    row: int

    def __str__(self) -> str:
        return f"{self.tx}.{self.source}.{self.row}"

    def before(self, source: Source) -> tuple[int, int]:
        """(tx, row) below which rows of a source stand before this position."""
        return self.tx, self.row if source == self.source else LAST if source < self.source else 0

    def after(self, source: Source) -> tuple[int, int]:
        """(tx, row) above which rows of a source stand after this position."""
        return self.before(source)


END = Position(LAST, LAST, LAST)


def before_transaction(tx: int) -> Position:
    """Everything that earlier transactions wrote stands at or before it."""
    return Position(tx - 1, LAST, LAST)


def parse_position(text: str, field: str) -> Position:
    """Raises ValidationError, naming the field."""
    parts = text.split(".")
    numbers = [int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) <= 19]
    if len(parts) != 3 or len(numbers) != 3 or max(numbers) > LAST:
        rule = "must be the id of an event, or the `next` of an earlier page"
        raise ValidationError(f"{field} {rule}", [{"field": field, "rule": rule}])
    return Position(*numbers)
