"""Raw statements of the hot paths: bound and prepared by the server, which then plans each once per connection.

Planning takes PostgreSQL longer than running them, and the ORM's cursors, which put values into the text, cannot
be prepared.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connection
from django.db.backends.utils import CursorWrapper
from django.db.models import BigIntegerField, Func


class PreparedCursor(psycopg.Cursor):
    def execute(
        self, query: Any, params: Any = None, *, prepare: bool | None = True, binary: bool | None = None
    ) -> "PreparedCursor":
        return super().execute(query, params, prepare=prepare, binary=binary)


def prepared() -> CursorWrapper:
    """A cursor for statements whose text is always the same; values go into its parameters."""
    connection.ensure_connection()
    with connection.wrap_database_errors:
        cursor = PreparedCursor(connection.connection)
    return connection.make_debug_cursor(cursor) if connection.queries_logged else connection.make_cursor(cursor)


def fetch(sql: str, parameters: Any) -> list[tuple[Any, ...]]:
    with prepared() as cursor:
        cursor.execute(sql, parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def fetch_binary(sql: str, parameters: Any) -> list[tuple[Any, ...]]:
    """As `fetch`; the answer travels in binary, which halves what bytes cost."""
    connection.ensure_connection()
    with connection.wrap_database_errors, PreparedCursor(connection.connection) as cursor:
        return cursor.execute(sql, parameters, binary=True).fetchall()


def execute(sql: str, parameters: Any) -> None:
    with prepared() as cursor:
        cursor.execute(sql, parameters)


@contextmanager
def together() -> Iterator[None]:
    """Statements whose answers nobody waits for travel to PostgreSQL together; an error of one comes at the next fetch,
    at the latest at the end."""
    connection.ensure_connection()
    with connection.wrap_database_errors, connection.connection.pipeline():
        yield


class TransactionId(Func):
    """The number of the transaction that writes a row. Numbers are given out in order, rows are seen in another: what
    reads on from a position stops below `SETTLED`, or it would pass over rows that are committed later."""

    template = "((pg_current_xact_id())::text)::bigint"
    output_field = BigIntegerField()
    allowed_default = True


SETTLED = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"  # every transaction before it has ended
