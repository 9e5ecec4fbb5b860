"""What machines say they hold of credentials, drives and models: the only writer of `DataOnMachine`."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from django.db import transaction

from astraconsole.sql import prepared
from machines.protocol import DataState


class Told(NamedTuple):
    """All that a machine holds, as a connection of it said."""

    machine_id: int
    connection_id: str
    received_at: datetime
    items: Sequence[DataState]


# A connection that is no longer its machine's changes nothing. The machine's row is locked, so that two daphnes do not
# write the same machine's rows at once.
_TOLD = """
WITH told AS (
    SELECT m.id AS machine_id, t.received_at, t.items
    FROM jsonb_to_recordset(%s::jsonb) AS t (machine_id bigint, connection text, received_at timestamptz, items jsonb)
    JOIN machines_machine m ON m.id = t.machine_id AND m.connection = t.connection
), item AS (
    SELECT told.machine_id, told.received_at, i.*
    FROM told, jsonb_to_recordset(told.items)
        AS i (kind text, uid uuid, state text, message text, done_bytes bigint, total_bytes bigint)
)
"""
_DELETE_GONE = f"""{_TOLD}
DELETE FROM machines_dataonmachine d USING told WHERE d.machine_id = told.machine_id AND NOT EXISTS (
    SELECT FROM item WHERE item.machine_id = d.machine_id AND item.kind = d.kind AND item.uid = d.uid
)"""
_WRITE_CHANGED = f"""{_TOLD}
INSERT INTO machines_dataonmachine AS d
    (machine_id, kind, uid, state, message, done_bytes, total_bytes, changed_at)
SELECT DISTINCT ON (machine_id, kind, uid)
    machine_id, kind, uid, state, coalesce(message, ''), coalesce(done_bytes, 0), coalesce(total_bytes, 0), received_at
FROM item ORDER BY machine_id, kind, uid
ON CONFLICT (machine_id, kind, uid) DO UPDATE SET
    changed_at = CASE WHEN d.state <> excluded.state THEN excluded.changed_at ELSE d.changed_at END,
    state = excluded.state, message = excluded.message,
    done_bytes = excluded.done_bytes, total_bytes = excluded.total_bytes
WHERE (d.state, d.message, d.done_bytes, d.total_bytes) IS DISTINCT FROM
    (excluded.state, excluded.message, excluded.done_bytes, excluded.total_bytes)"""
_LOCK = "SELECT id FROM machines_machine WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE"


@transaction.atomic
def write(told: Sequence[Told]) -> None:
    """What each of these machines holds, whole: rows that it no longer names go. Three statements for any number."""
    rows = [
        {
            "machine_id": one.machine_id,
            "connection": one.connection_id,
            "received_at": one.received_at.isoformat(),
            "items": one.items,
        }
        for one in told
    ]
    encoded = msgspec.json.encode(rows).decode()
    with prepared() as cursor:
        cursor.execute(_LOCK, [[one.machine_id for one in told]])
        cursor.execute(_DELETE_GONE, [encoded])
        cursor.execute(_WRITE_CHANGED, [encoded])
