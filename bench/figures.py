"""Medians and quantiles, and numbers as people read them: three significant digits, ratios with a cross."""

from __future__ import annotations

import math
from collections.abc import Sequence

ROUNDS_UP = 0.9995  # from here on three digits of a number are those of 1


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the middle two. Raises ValueError if there are no values."""
    if not values:
        raise ValueError("the median of no values")
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 < share <= 1) of the values do not exceed."""
    if not values or not 0 < share <= 1:
        raise ValueError(f"the {share} quantile of {len(values)} values")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def spread(values: Sequence[float]) -> float:
    """Return (greatest - least) / median; 0 if the median is 0."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def count(value: float) -> str:
    """Format 1,234,567 as 1.23 M, 12,345 as 12.3 k; below a thousand three significant digits."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit * ROUNDS_UP:
            return f"{digits(value / limit)}{suffix}"
    return digits(value)


def digits(value: float) -> str:
    """Format three significant digits, never in scientific notation; whole numbers from 100 on."""
    if value == 0:
        return "0"
    exponent = int(f"{value:.2e}".partition("e")[2])  # of the rounded value
    return f"{value:,.{max(2 - exponent, 0)}f}"


def ratio(value: float) -> str:
    return f"{digits(value)}×"


def microseconds(value_us: float) -> str:
    return f"{digits(value_us)} µs" if value_us < 1000 * ROUNDS_UP else f"{digits(value_us / 1000)} ms"


def mebibytes(value_bytes: float) -> str:
    return f"{value_bytes / 1048576:,.0f} MiB"
