"""One question of a probe, put to a runtime."""

import asyncio
import logging

from machines.agent.probes import ProbeKind
from machines.agent.runtimes.base import CannotProbe, Runtime
from machines.orders import Order, Probe

log = logging.getLogger(__name__)


async def answer_of(runtime: Runtime, order: Order, kind: ProbeKind, probe: Probe) -> str | None:
    """Why it failed; empty: it succeeded; None: it could not be asked, which says nothing of the worker."""
    try:
        async with asyncio.timeout(probe.timeout_seconds):
            return await runtime.probe(order, kind, probe)
    except TimeoutError:
        return f"no answer within {probe.timeout_seconds:g} s"
    except CannotProbe as error:
        log.info("%s of attempt %s cannot be asked: %s", kind, order.attempt, error)
    except Exception:
        log.exception("%s of attempt %s cannot be asked", kind, order.attempt)
    return None
