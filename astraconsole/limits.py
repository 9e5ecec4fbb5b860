"""How often something may be tried, counted in Redis for a while. Without Redis nothing is counted, nobody kept out."""

import hashlib
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import redis
from django.conf import settings

from astraconsole.errors import TooManyRequests

log = logging.getLogger(__name__)
_redis = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5)


class Limit(NamedTuple):
    """At most `tries` of `what` in `seconds`, by whoever is counted. `refusal` begins the message."""

    what: str
    tries: int
    seconds: int
    refusal: str


def spend(limit: Limit, who: str) -> None:
    """Count one try. Raises TooManyRequests for one too many."""
    if _count(limit, who) > limit.tries:
        _refuse(limit, who)


def check(limit: Limit, who: str) -> None:
    """Where only failures count: whether another try is allowed. Raises TooManyRequests."""
    if _read(_key(limit, who)) >= limit.tries:
        _refuse(limit, who)


def record(limit: Limit, who: str) -> None:
    """Count a failure."""
    _count(limit, who)


def forget(limit: Limit, who: str) -> None:
    """After a success: earlier failures were slips."""
    _or_zero(lambda: _redis.delete(_key(limit, who)))


def _key(limit: Limit, who: str) -> str:
    return f"astra:limit:{limit.what}:{hashlib.sha256(who.encode()).hexdigest()}"


def _count(limit: Limit, who: str) -> int:
    pipeline = _redis.pipeline()
    pipeline.set(_key(limit, who), 0, ex=limit.seconds, nx=True)
    pipeline.incr(_key(limit, who))
    return _or_zero(lambda: pipeline.execute()[1])


def _read(key: str) -> int:
    return _or_zero(lambda: _redis.get(key) or 0)


def _refuse(limit: Limit, who: str) -> None:
    seconds = max(1, _or_zero(lambda: _redis.ttl(_key(limit, who))))
    wait = f"{seconds} s" if seconds < 100 else f"{-(-seconds // 60)} minutes"
    raise TooManyRequests(f"{limit.refusal}: try again in {wait}", seconds)


def _or_zero(ask: Callable[[], Any]) -> int:
    try:
        return int(ask())
    except redis.RedisError as error:
        log.warning("Tries were not counted: %s", error)
        return 0
