"""Machines that fail whatever they are given are cordoned: the rules of `runs.quick_failures`, applied."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings

from machines import services as machine_services
from runs.quick_failures import strikes
from runs.services import rows
from runs.units import format_duration

MEMORY = timedelta(hours=1)  # older failures are no longer held against a machine


def look_at(machine_ids: Iterable[int], now: datetime) -> None:
    """Cordon those of these machines on which enough different runs failed quickly, one after the other."""
    for machine_id in sorted(machine_ids):
        failures = rows.quick_failures_on(machine_id, now - MEMORY, now)
        count = strikes(failures)
        if settings.MACHINE_CORDON_FAILURES and count >= settings.MACHINE_CORDON_FAILURES:
            machine_services.cordon_failing(machine_id, sentence(count), now)


def sentence(count: int) -> str:
    """Shown to everybody who uses the machine, so without names."""
    within = format_duration(int(settings.MACHINE_CORDON_SECONDS))
    return f"{count} different runs failed here within {within} of their start, and nothing went well since"
