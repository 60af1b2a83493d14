"""Numbers as people read them: three significant digits, thousands apart, ratios with a cross."""

from __future__ import annotations


def count(value: float) -> str:
    """1,234,567 -> 1.23 M; 12,345 -> 12.3 k; below a thousand three significant digits."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{digits(value / limit)}{suffix}"
    return digits(value)


def digits(value: float) -> str:
    """Three significant digits, never in scientific notation; whole numbers from 100 on."""
    if value == 0:
        return "0"
    size = abs(value)
    places = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:,.{places}f}"


def ratio(value: float) -> str:
    return f"{digits(value)}×"


def microseconds(value_us: float) -> str:
    return f"{digits(value_us)} µs" if value_us < 1000 else f"{digits(value_us / 1000)} ms"


def mebibytes(value_bytes: float) -> str:
    return f"{value_bytes / 1048576:,.0f} MiB"
