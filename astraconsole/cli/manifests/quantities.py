"""Sizes and counts as other systems write them. Pure. What cannot be read is a ValueError with a sentence."""

import re
from decimal import Decimal, InvalidOperation

from runs.units import parse_duration

_KUBERNETES = re.compile(r"([+-]?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]{1,3})?|[0-9]+\.)([A-Za-z]*)")
_SCALES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000**power) for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: Decimal(1024**power) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_BINARY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt])?i?b?", re.IGNORECASE)


def kubernetes_quantity(value: object, field: str) -> Decimal:
    """`16Gi` is 16 × 2^30, `16G` 16 × 10^9, `500m` a half."""
    match = _KUBERNETES.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    if match is None or match[2] not in _SCALES:
        raise ValueError(f"{field} {value!r} is not a quantity: write 2, 500m, 16G (10^9) or 16Gi (2^30)")
    try:
        amount = Decimal(match[1]) * _SCALES[match[2]]
    except InvalidOperation as error:
        raise ValueError(f"{field} {value!r} is not a quantity") from error
    if amount < 0 or amount > Decimal(2**63):
        raise ValueError(f"{field} {value!r} is out of range")
    return amount


def binary_size(value: object, field: str, plain: str = "") -> int:
    """Bytes of `16GB`, `512MB`, `1.5TB`, all binary. `plain`: the unit of a bare number, where there is one."""
    match = _BINARY.fullmatch(str(value).strip())
    if match is None or not (match[2] or plain):
        raise ValueError(f"{field} {value!r} is not a size: write 16GB or 512MB")
    power = "kmgt".index((match[2] or plain).lower()) + 1
    return int(Decimal(match[1]) * 1024**power)


def decimal_cores(amount: Decimal) -> float | int:
    """Cores to a thousandth; whole ones stay whole in JSON."""
    milli = int((amount * 1000).to_integral_value())
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


def lower_bound(value: object) -> tuple[str, bool]:
    """(`4`, open) of `4+`, `4..`, `4..8`; closed for `4`."""
    text = str(value).strip()
    if text.endswith("+"):
        return text[:-1], True
    least, dots, most = text.partition("..")
    return least or most, bool(dots) and least != most


def seconds(value: object, field: str) -> int | None:
    """Seconds of `2h`, `90m`, `2w` or a number; None for `off` and -1."""
    text = str(value).strip().lower()
    if text in ("off", "false", "-1", "none"):
        return None
    try:
        if weeks := re.fullmatch(r"([0-9]{1,4})w", text):
            return int(weeks[1]) * 7 * 86400
        return parse_duration(text, plain="seconds")
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
