"""The values of sbatch's options: times, sizes, counts, GPUs, arrays, signals. Pure.

What cannot be read is a ValueError whose text goes on from the option: `is not …`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runs.names import WORKERS_MAX

INDEX_MAX = 4_000_000  # Slurm's highest array index
_POWERS = {"": 2, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE = re.compile(r"([0-9]{1,15})(?:([kmgtp])b?)?", re.ASCII | re.IGNORECASE)
_CLOCK = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?", re.ASCII)
_SIGNAL = re.compile(r"(?:([RB]{1,2}):?)?(?:SIG)?([A-Z][A-Z0-9+-]*|[0-9]{1,2})?(?:@([0-9]{1,5}))?", re.ASCII)
_GPU_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", re.ASCII)
_FAMILIES = {"kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "tesla", "titan"}
_SIGNALS = {"1": "HUP", "2": "INT", "9": "KILL", "10": "USR1", "12": "USR2", "15": "TERM", "18": "CONT"}
_SIGNAL_NAMES = {*_SIGNALS.values(), "QUIT", "ABRT", "ALRM", "CHLD", "STOP", "TSTP", "TTIN", "TTOU", "URG", "WINCH"}
_SIGNAL_MAX, _BEFORE_MAX = 64, 65535
_GRES = re.compile(r"(?:gres[:/=])?([A-Za-z_][A-Za-z0-9_-]*)(?:[:=](.*))?", re.ASCII)
_DEPENDENCY = re.compile(
    r"singleton|(?:after(?:any|burstbuffer|corr|notok|ok)?|expand)(?::[0-9]+(?:_(?:[0-9]+|\*))?(?:\+[0-9]+)?)+",
    re.ASCII,
)
_EXCLUSIVE = ("", "exclusive", "user", "mcs", "topo")


@dataclass(frozen=True)
class GpuAsk:
    """`model` is "" for any."""

    count: int
    model: str = ""


@dataclass(frozen=True)
class Array:
    """Indices in ascending order. `max_parallel`: None for no throttle."""

    indices: tuple[int, ...]
    max_parallel: int | None

    def spelled(self) -> str:
        """`1,3,5,7,9`; a longer one with an even step as `500,1500,...,16500`, else as ranges."""
        if len(self.indices) <= 10:
            return ",".join(map(str, self.indices))
        steps = {after - before for before, after in zip(self.indices, self.indices[1:], strict=False)}
        if len(steps) == 1:
            return f"{self.indices[0]},{self.indices[1]},...,{self.indices[-1]}"
        return self.expression()

    def expression(self) -> str:
        """As Slurm takes it, in ranges of step 1: `1-5,9,20-22`."""
        return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in self._stretches())

    def _stretches(self) -> Iterator[tuple[int, int]]:
        first = last = self.indices[0]
        for index in self.indices[1:]:
            if index != last + 1:
                yield first, last
                first = index
            last = index
        yield first, last


@dataclass(frozen=True)
class Signal:
    name: str
    before_s: int
    batch_only: bool


def parse_size(text: str) -> int:
    """Bytes of `16G`, `8000MB`, `1950M`; a plain number is MiB; 0 is the whole node."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("is not a size: write a whole number of MiB, or one with K, M, G or T")
    number, unit = match.groups()
    return int(number) * int(1024 ** _POWERS[(unit or "").lower()])


def parse_time(text: str) -> int | None:
    """Seconds of `30` (minutes), `m:s`, `h:m:s`, `d-h`, `d-h:m`, `d-h:m:s`; None, no limit, of 0, -1 and UNLIMITED."""
    if text.lower() in ("unlimited", "infinite", "-1"):
        return None
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError("is not a time: write minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s or UNLIMITED")
    days, *clock = match.groups()
    parts = [int(part) for part in clock if part is not None]
    if days is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds or None


def parse_count(text: str) -> int:
    """A whole number of at least 1."""
    if _COUNT.fullmatch(text) is None or int(text) == 0:
        raise ValueError("is not a whole number of at least 1")
    return int(text)


def parse_nodes(text: str) -> tuple[int, int]:
    """(least, most) of `2`, `2-4` and, as sizes that would do, `2,4` and `1-15:4`."""
    matches = [_RANGE.fullmatch(part) for part in text.split(",")]
    if not all(match and int(match[1]) for match in matches):
        raise ValueError("is not a number of nodes: write 2, or 2-4")
    if any(match and match[2] and int(match[2]) < int(match[1]) for match in matches):
        raise ValueError("has a maximum below its minimum")
    sizes = [int(size) for match in matches if match for size in match.group(1, 2) if size]
    return min(sizes), max(sizes)


def parse_gpus(text: str) -> GpuAsk:
    """`8`, `a100:4`, and, of one model only, lists of these."""
    asks = [_gpu_ask(part.split(":")) for part in text.split(",")]
    if len({ask.model for ask in asks}) > 1:
        raise ValueError("asks for several GPU models at once: a run's workers have one")
    return GpuAsk(sum(ask.count for ask in asks), asks[0].model)


def parse_gres(text: str) -> tuple[GpuAsk | None, list[str]]:
    """GPUs of `gpu`, `gpu:2`, `gpu:a100`, `gpu:a100:2`, `gres/gpu:a100=2`, and what else is asked for."""
    gpus, others = [], []
    for part in re.split(r",(?![^(]*\))", text):
        match = _GRES.fullmatch(re.sub(r"\(.*?\)", "", part))
        if match is None:
            raise ValueError("is not a resource: write gpu:2, or gpu:MODEL:2")
        if match[1] == "gpu":
            gpus.append(_gpu_ask(re.split("[:=]", match[2] or "1")))
        elif match[1].lower().startswith("gpu"):
            raise ValueError(f"is no resource that is known: {match[1]}: write gpu")
        elif match[1].lower() != "none":
            others.append(part)
    if len({ask.model for ask in gpus}) > 1:
        raise ValueError("asks for several GPU models at once: a run's workers have one")
    return (GpuAsk(sum(ask.count for ask in gpus), gpus[0].model) if gpus else None), others


def _gpu_ask(words: list[str]) -> GpuAsk:
    """`1080ti:1` is one 1080ti. A lone word is a model only if it looks like one: a slip must not become a GPU."""
    *model, count = words
    if len(model) > 1 or not all(_GPU_WORD.fullmatch(word) for word in words):
        raise ValueError("is not a number of GPUs: write 2, or MODEL:2")
    if _COUNT.fullmatch(count):
        return GpuAsk(int(count), model[0] if model else "")
    if not model and (any(letter.isdigit() for letter in count) or count.lower() in _FAMILIES):
        return GpuAsk(1, count)
    raise ValueError(f"is not a number of GPUs: {count} is neither a number nor a model")


def parse_array(text: str) -> Array:
    """`0-15`, `1,3,5-9:2`, `500-17000:1000%26`."""
    listed, throttled, limit = text.removeprefix("[").partition("%")
    indices: set[int] = set()
    for part in listed.removesuffix("]").split(","):
        indices.update(_array_range(part))
        if len(indices) > WORKERS_MAX:
            raise ValueError(f"has more than {WORKERS_MAX} indices")
    if throttled:
        try:
            return Array(tuple(sorted(indices)), parse_count(limit.removesuffix("]")))
        except ValueError as error:
            raise ValueError("has no whole number of at least 1 after %") from error
    return Array(tuple(sorted(indices)), None)


def _array_range(part: str) -> range:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise ValueError("is not an array: write 0-15, 1,3,5-9:2, and %4 for at most 4 at once")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first:
        raise ValueError(f"counts down: {part}")
    if step == 0:
        raise ValueError(f"has a step of 0: {part}")
    if last > INDEX_MAX:
        raise ValueError(f"has an index above {INDEX_MAX}")
    found = range(first, last + 1, step)
    if len(found) > WORKERS_MAX:
        raise ValueError(f"has more than {WORKERS_MAX} indices")
    return found


def parse_signal(text: str) -> Signal:
    """`USR1@60`, `B:TERM@300`, `10`; without @, 60 seconds before the limit."""
    match = _SIGNAL.fullmatch(text.upper())
    if match is None or match[2] is None or (match[1] is not None and ":" not in text):
        raise ValueError("is not a signal: write USR1@60, or B:USR1@60 for the script alone")
    options, name, before = match.groups()
    if name not in _SIGNAL_NAMES and not (name.isdigit() and 0 < int(name) <= _SIGNAL_MAX):
        raise ValueError(f"is not a signal: there is no {name}")
    if int(before or 0) > _BEFORE_MAX:
        raise ValueError(f"is more than {_BEFORE_MAX} seconds before the limit")
    return Signal(_SIGNALS.get(name, name), int(before or 60), "B" in (options or ""))


def parse_dependency(text: str) -> str:
    """`singleton`, `afterok:123:124`, several with `,` (all of them) or `?` (any of them)."""
    if not all(_DEPENDENCY.fullmatch(part) for part in re.split("[,?]", text)):
        raise ValueError("is not a dependency: write afterok:JOBID, several with a comma, or singleton")
    return text


def parse_exclusive(text: str) -> str:
    """`""` for the whole node; `user`, `mcs` and `topo` share it among some."""
    if text not in _EXCLUSIVE:
        raise ValueError(f"is not a way to be exclusive: write --exclusive, or one of {', '.join(_EXCLUSIVE[2:])}")
    return text.removeprefix("exclusive")
