"""Samples in an engine that speaks Prometheus' API (METRICS_URL): remote write in, range queries out.

The engine knows series by metric, attempt and GPU only: names of runs, workers and machines are given on reading, and
who may read what is decided here. What a remote write holds is encoded by hand: a few fields of protocol buffers, in
snappy's frame for incompressible bytes.
"""

import itertools
import json
import logging
import math
import struct
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any
from uuid import UUID

import numpy as np
from django.conf import settings

from astraconsole.errors import Unavailable
from machines.metrics.align import Agg, Array
from machines.metrics.names import Kind, Metric, series_of
from machines.metrics.store import Block

log = logging.getLogger(__name__)
WRITE_SECONDS, READ_SECONDS = 10, 30
SERIES_PER_WRITE = 2_000
ATTEMPTS_PER_QUERY = 200  # of one regular expression
OVER_TIME = {Agg.MIN: "min_over_time", Agg.MAX: "max_over_time"}


class EngineAway(Exception):
    """It did not take a write, and may take it later."""


# ---- writing ---------------------------------------------------------------------------------------------------------


def write(blocks: Iterable[Block]) -> None:
    """Safe to repeat. Raises EngineAway; what the engine refuses for good (too old, say) is logged and dropped."""
    series = _series(blocks)
    while batch := b"".join(itertools.islice(series, SERIES_PER_WRITE)):
        _send(batch)


def _send(body: bytes) -> None:
    headers = {
        "Content-Type": "application/x-protobuf",
        "Content-Encoding": "snappy",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    request = urllib.request.Request(f"{settings.METRICS_URL}/api/v1/write", _snappy(body), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=WRITE_SECONDS):
            return
    except urllib.error.HTTPError as error:
        words = error.read(300).decode(errors="replace").strip()
        if error.code < HTTPStatus.INTERNAL_SERVER_ERROR and error.code != HTTPStatus.TOO_MANY_REQUESTS:
            log.warning("The metrics engine refuses samples: HTTP %s: %s", error.code, words)
            return
        raise EngineAway(f"HTTP {error.code}: {words}") from error
    except OSError as error:
        raise EngineAway(str(getattr(error, "reason", error))) from error


def _series(blocks: Iterable[Block]) -> Iterator[bytes]:
    """Field 1 of a WriteRequest each: one TimeSeries."""
    for block in blocks:
        times = np.rint(block.table[:, 0] * 1000).astype(np.int64).tolist()
        for place, key in enumerate(block.keys, 1):
            if (found := series_of(key)) is None:
                continue
            metric, gpu = found
            labels = {"__name__": metric.name, "attempt": block.attempt.hex}
            if gpu is not None:
                labels["gpu"] = str(gpu)
            pairs = zip(times, block.table[:, place].tolist(), strict=True)
            samples = b"".join(_field(2, _sample(at, value)) for at, value in pairs if not math.isnan(value))
            if samples:
                named = b"".join(_field(1, _field(1, k.encode()) + _field(2, v.encode())) for k, v in labels.items())
                yield _field(1, named + samples)


def _sample(at: int, value: float) -> bytes:
    return b"\x09" + struct.pack("<d", value) + b"\x10" + _varint(at)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _snappy(data: bytes) -> bytes:
    """As literals of 64 KiB: snappy's block format allows bytes that are not compressed."""
    parts = [_varint(len(data))]
    for start in range(0, len(data), 65536):
        piece = data[start : start + 65536]
        parts += [b"\xf4", struct.pack("<H", len(piece) - 1), piece]
    return b"".join(parts)


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(
    metric: Metric, agg: Agg, attempts: Sequence[UUID], edges: Array, step: float
) -> Iterator[tuple[UUID, int | None, Array, Array]]:
    """(attempt, GPU index, times, values) of each series: one value for each step that has samples, at its start (of a
    gauge) or its end (of a counter). Raises Unavailable."""
    counter = metric.kind == Kind.COUNTER
    over_time = "last_over_time" if counter else OVER_TIME.get(agg, "avg_over_time")
    first = edges[0] if counter else edges[1]  # a counter from one step earlier: for its first rate
    for start in range(0, len(attempts), ATTEMPTS_PER_QUERY):
        some = "|".join(uid.hex for uid in attempts[start : start + ATTEMPTS_PER_QUERY])
        parameters = {
            "query": f'{over_time}({metric.name}{{attempt=~"{some}"}}[{round(step * 1000)}ms])',
            "start": f"{first:.3f}",
            "end": f"{edges[-1]:.3f}",
            "step": f"{step:.3f}",
        }
        for series in _asked("query_range", parameters):
            labels, points = series["metric"], np.array(series["values"], dtype=np.float64).reshape(-1, 2)
            gpu = int(labels["gpu"]) if metric.per_gpu else None
            times = points[:, 0] - (1e-3 if counter else step)
            yield UUID(labels["attempt"]), gpu, times, points[:, 1]


def _asked(what: str, parameters: dict[str, str]) -> list[dict[str, Any]]:
    body = urllib.parse.urlencode(parameters).encode()
    request = urllib.request.Request(f"{settings.METRICS_URL}/api/v1/{what}", body, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=READ_SECONDS) as response:
            result: list[dict[str, Any]] = json.load(response)["data"]["result"]
            return result
    except urllib.error.HTTPError as error:
        words = error.read(300).decode(errors="replace").strip()
        log.warning("The metrics engine does not answer: HTTP %s: %s", error.code, words)
        raise Unavailable(f"the metrics engine answers with HTTP {error.code}") from error
    except (OSError, ValueError, KeyError) as error:
        log.warning("The metrics engine does not answer: %s", error)
        raise Unavailable("the metrics engine does not answer just now") from error
