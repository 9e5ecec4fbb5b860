"""The fewest of some amounts that together suffice. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

Amounts: TypeAlias = tuple[int, int, int]  # GPUs, cores, memory

SUBSETS_TRIED = 5000  # before the first that suffice are taken


def fewest_covering(amounts: Sequence[Amounts], short: Amounts, most: int) -> tuple[int, ...] | None:
    """Which of `amounts`, at most `most` of them, sum up to `short` in everything; of equally few those whose last one
    comes first. After SUBSETS_TRIED, the first ones that suffice, without those that are not needed."""
    tried = 0
    for size in range(_at_least(amounts, short), most + 1):
        for chosen in _subsets(len(amounts), size):
            tried += 1
            if tried > SUBSETS_TRIED:
                return _first_covering(amounts, short)
            if _cover(amounts, short, chosen):
                return chosen
    return None


def _at_least(amounts: Sequence[Amounts], short: Amounts) -> int:
    """So many are needed even if the largest of each kind were all in the same ones."""
    needed = 1
    for kind, lacking in enumerate(short):
        count, left = 0, lacking
        for amount in sorted((amount[kind] for amount in amounts), reverse=True):
            if left <= 0:
                break
            left -= amount
            count += 1
        needed = max(needed, count if left <= 0 else len(amounts) + 1)
    return needed


def _cover(amounts: Sequence[Amounts], short: Amounts, chosen: Iterable[int]) -> bool:
    gpus, cpu_milli, memory_bytes = short
    for number in chosen:
        amount = amounts[number]
        gpus, cpu_milli, memory_bytes = gpus - amount[0], cpu_milli - amount[1], memory_bytes - amount[2]
    return gpus <= 0 and cpu_milli <= 0 and memory_bytes <= 0


def _subsets(count: int, size: int) -> Iterator[tuple[int, ...]]:
    """Subsets of 0…count-1, those first whose last member comes first."""
    if size == 0:
        yield ()
        return
    for last in range(size - 1, count):
        for rest in _subsets(last, size - 1):
            yield (*rest, last)


def _first_covering(amounts: Sequence[Amounts], short: Amounts) -> tuple[int, ...] | None:
    chosen: list[int] = []
    for number in range(len(amounts)):
        chosen.append(number)
        if _cover(amounts, short, chosen):
            for idle in reversed(chosen[:-1]):
                fewer = [other for other in chosen if other != idle]
                if _cover(amounts, short, fewer):
                    chosen = fewer
            return tuple(chosen)
    return None
