"""The lane of samples, from the agents' connections to whoever stores them: one bounded Redis stream a cluster.

Apart from the inbox, so that samples never hold up a report; what does not fit is dropped, oldest first. All frames of
a second travel as one entry.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import redis
import redis.asyncio
from django.conf import settings
from django.db import transaction

from astraconsole.sql import fetch
from machines import streams

_redis = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=30)

MAX_ENTRIES = 600  # of a stream: the frames of about ten minutes
MAX_ENTRY_BYTES = 8 * 1024 * 1024
BATCH = 10  # entries

Frame: TypeAlias = tuple[int, float, bytes]  # machine id, when it was received (Unix seconds), protocol.Samples encoded
Store: TypeAlias = Callable[[Sequence[Frame]], bool]
_frames = msgspec.msgpack.Decoder(list[Frame])


def stream(cluster_id: int) -> str:
    return f"{settings.CHANNEL_PREFIX}:samples:{cluster_id}"


async def append(client: redis.asyncio.Redis, frames: Mapping[int, Sequence[Frame]]) -> None:
    """By cluster id; one round trip. Raises RedisError: then they are lost."""
    async with client.pipeline(transaction=False) as pipeline:
        for cluster_id, those in frames.items():
            fields = {b"frames": msgspec.msgpack.encode(those)}
            pipeline.xadd(stream(cluster_id), fields, maxlen=MAX_ENTRIES, approximate=True)
        await pipeline.execute()


def lengths(cluster_ids: Iterable[int]) -> dict[int, int]:
    """Entries that wait, by cluster. Raises RedisError."""
    return streams.lengths(_redis, stream, cluster_ids)


def drain(cluster_id: int, store: Store) -> int:
    """Give what waits to `store`, batch by batch, each in one transaction; returns how many entries were done with.

    An entry is taken off the stream after the commit, so `store` may be given it twice; where it says False, entries
    stay to be given again. Leaves at once where another process is at it, and after as many entries as a stream holds:
    the rest is the next tick's.
    """
    done = 0
    while done < MAX_ENTRIES and _redis.xlen(stream(cluster_id)):
        with transaction.atomic():
            if not fetch("SELECT pg_try_advisory_xact_lock(hashtext('samples'), %s)", [cluster_id])[0][0]:
                break
            entries = _redis.xrange(stream(cluster_id), count=BATCH)
            taken = store([frame for _, fields in entries for frame in _frames.decode(fields[b"frames"])])
        if not taken:
            break
        if entries:
            _redis.xdel(stream(cluster_id), *(id for id, _ in entries))
        done += len(entries)
    return done
