"""How many passes the schedulers have made and how long they took, over all processes: for the console's own health."""

import logging
import time
from collections.abc import Callable, Iterable

import redis
from django.conf import settings

log = logging.getLogger(__name__)
_redis = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5)


def timed(cluster_id: int, run_pass: Callable[[], bool]) -> bool:
    """Run a pass and count it; what Redis does not count is not counted."""
    began = time.monotonic()
    try:
        return run_pass()
    finally:
        try:
            pipeline = _redis.pipeline(transaction=False)
            pipeline.hincrby(_key(cluster_id), "count", 1)
            pipeline.hincrbyfloat(_key(cluster_id), "seconds", time.monotonic() - began)
            pipeline.execute()
        except redis.RedisError as error:
            log.warning("A pass was not counted: %s", error)


def counted(cluster_ids: Iterable[int]) -> dict[int, tuple[int, float]]:
    """(passes, seconds) by cluster, since Redis was last empty. Raises RedisError."""
    ids = list(cluster_ids)
    pipeline = _redis.pipeline(transaction=False)
    for cluster_id in ids:
        pipeline.hmget(_key(cluster_id), "count", "seconds")
    rows = zip(ids, pipeline.execute(), strict=True)
    return {cluster_id: (int(count or 0), float(seconds or 0)) for cluster_id, (count, seconds) in rows}


def _key(cluster_id: int) -> str:
    return f"{settings.CHANNEL_PREFIX}:passes:{cluster_id}"
