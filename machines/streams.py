"""Redis streams of which each cluster has one: what reports and samples have in common."""

from collections.abc import Callable, Iterable

import redis


def lengths(client: redis.Redis, stream: Callable[[int], str], cluster_ids: Iterable[int]) -> dict[int, int]:
    """Entries that wait, by cluster; `stream` names a cluster's. One round trip. Raises RedisError."""
    ids = list(cluster_ids)
    pipeline = client.pipeline(transaction=False)
    for cluster_id in ids:
        pipeline.xlen(stream(cluster_id))
    return dict(zip(ids, pipeline.execute(), strict=True))
