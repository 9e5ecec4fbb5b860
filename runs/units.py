"""Sizes, durations, cores and counts: one parser and one spelling each, for every door and page. Pure.

A value that cannot be read is a ValueError whose text is a sentence; it never becomes "no limit".
"""

import re
from typing import Literal

_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(?:([kmgtp])(?:i?b?)?|(b))?", re.ASCII | re.IGNORECASE)
_SIZE_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_LARGEST = 2**63 - 1
TIME_LIMIT_MIN, TIME_LIMIT_MAX = 60, 366 * 86400  # seconds a worker may be given

_UNITS_IN_ORDER = re.compile(
    r"(?:([0-9]{1,12})\s*d)?\s*(?:([0-9]{1,12})\s*h)?\s*(?:([0-9]{1,12})\s*m)?\s*(?:([0-9]{1,12})\s*s)?",
    re.ASCII | re.IGNORECASE,
)
_LONGEST = 60  # characters of a duration; bounds the work of the pattern above
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_PLAIN = re.compile(r"[0-9]{1,12}", re.ASCII)
_CLOCK = re.compile(r"([0-9]{1,9}):([0-9]{1,2})(?::([0-9]{1,2}))?", re.ASCII)
_DAYS_CLOCK = re.compile(r"([0-9]{1,9})-([0-9]{1,2})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?", re.ASCII)

_CORES = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,3})?|\.[0-9]{1,3}", re.ASCII)


def parse_memory(text: str, plain: Literal["bytes", "MiB"]) -> int:
    """Bytes of `512Mi`, `64Gi`, `64G`, `1.5GiB` (all binary); a number without a unit is in `plain`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{_shown(text)} is not a size: write 512Mi, 64Gi or a number of {plain}")
    number, power, bytes_mark = match.groups()
    if power:
        scale: int = 1024 ** _SIZE_POWERS[power.lower()]
    else:
        scale = 1024**2 if plain == "MiB" and not bytes_mark else 1
    whole, _, fraction = number.partition(".")
    size = int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)
    if size == 0:
        raise ValueError("a size must be more than 0")
    if size > _LARGEST:
        raise ValueError(f"{_shown(text)} is larger than any memory")
    return size


def format_memory(size: int) -> str:
    """`64 GiB`, `1.5 GiB`, `512 MiB`, `100 bytes`: two decimals at most."""
    power = 0
    while power + 1 < len(_SIZE_UNITS) and abs(round(size / 1024**power, 2)) >= 1024:
        power += 1
    return f"{_decimal(size / 1024**power)} {_SIZE_UNITS[power]}"


def parse_duration(text: str, plain: Literal["seconds", "minutes"], slurm: bool = False) -> int:
    """Seconds of `90m`, `2h`, `1h30m`, `1d`; a number without a unit is in `plain`.

    With `slurm`, also `m:s`, `h:m:s`, `d-h`, `d-h:m` and `d-h:m:s`.
    """
    seconds = _seconds(text.strip(), plain, slurm) if len(text) <= _LONGEST else None
    if seconds is None:
        forms = "2h, 1h30m, 1d, 02:00:00, 1-12:00:00" if slurm else "90m, 2h, 1h30m, 1d"
        raise ValueError(f"{_shown(text)} is not a duration: write {forms} or a number of {plain}")
    if seconds == 0:
        raise ValueError("a duration must be more than 0")
    return seconds


def format_duration(seconds: int) -> str:
    """`12h`, `1h30m`, `1m`, `90s`, `1d12h`."""
    if seconds < 120 and seconds != 60:
        return f"{seconds}s"
    parts = []
    for unit, size in _SECONDS.items():
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_cores(text: str) -> int:
    """Thousandths of a core of `4` or `0.5`."""
    if _CORES.fullmatch(text.strip()) is None:
        raise ValueError(f"{_shown(text)} is not a number of cores: write 4 or 0.5, to a thousandth")
    whole, _, fraction = text.strip().partition(".")
    milli = int(whole or 0) * 1000 + int(fraction.ljust(3, "0"))
    if milli == 0:
        raise ValueError("cores must be more than 0")
    return milli


def format_cores(milli: int) -> str:
    """`4`, `0.5`."""
    return f"{milli / 1000:.3f}".rstrip("0").rstrip(".")


def counted(count: int, noun: str) -> str:
    """`1 worker`, `3 workers`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _seconds(text: str, plain: Literal["seconds", "minutes"], slurm: bool) -> int | None:
    if _PLAIN.fullmatch(text):
        return int(text) * (60 if plain == "minutes" else 1)
    if text and (match := _UNITS_IN_ORDER.fullmatch(text)):
        return sum(int(count or 0) * size for count, size in zip(match.groups(), _SECONDS.values(), strict=True))
    return _slurm_seconds(text) if slurm else None


def _slurm_seconds(text: str) -> int | None:
    """A part after the first must be below its unit: `00:75` is more likely a slip than 75 seconds."""
    if match := _CLOCK.fullmatch(text):
        first, second, third = match.groups()
        parts = [0, int(first), int(second), int(third)] if third else [0, 0, int(first), int(second)]
    elif match := _DAYS_CLOCK.fullmatch(text):
        parts = [int(part or 0) for part in match.groups()]
        if parts[1] > 23:
            return None
    else:
        return None
    if parts[3] > 59 or (parts[2] > 59 and (parts[0] or parts[1])):
        return None
    return sum(count * size for count, size in zip(parts, _SECONDS.values(), strict=True))


def _decimal(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
