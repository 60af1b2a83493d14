"""The plots of a report, each a piece of SVG. No name of a stream is in them, whatever characters it has.

They are written as text: to import a library for plots takes longer than all else of a small day.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from tailrace.spark.rollup.summary import DayTotal, Minute

WIDTH: Final = 900
HEIGHT: Final = 240
LEFT: Final = 84
RIGHT: Final = 12
TOP: Final = 10
BOTTOM: Final = 26
BLUE: Final = "#2a6f97"
ORANGE: Final = "#e07a2f"
GREY: Final = "#666666"
MINUTES: Final = 1_440
TICKS: Final = 5
"""Lines across a plot, about."""
WAITS_S: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800)

_INNER_WIDTH: Final = WIDTH - LEFT - RIGHT
_INNER_HEIGHT: Final = HEIGHT - TOP - BOTTOM
_PREFIXES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
_STYLE: Final = 'font-family="sans-serif" font-size="12" fill="#222"'


def plot_messages(minutes: Sequence[Minute]) -> str:
    """Messages in each minute of the day."""
    return _over_the_day(minutes, [minute.messages for minute in minutes], BLUE, "messages a minute")


def plot_bytes(minutes: Sequence[Minute]) -> str:
    """Bytes in each minute of the day."""
    return _over_the_day(minutes, [minute.bytes for minute in minutes], ORANGE, "bytes a minute", "B")


def plot_streams(minutes: Sequence[Minute]) -> str:
    """In how many streams something came in each minute."""
    return _over_the_day(minutes, [minute.streams for minute in minutes], GREY, "streams with messages")


def plot_gaps(minutes: Sequence[Minute]) -> str:
    """The longest wait between two messages of a stream that ended in each minute, on a logarithmic scale."""
    waits = [(_place(minute.start), minute.gap_max_us / 1e6) for minute in minutes if minute.gap_max_us]
    lowest = min((seconds for _, seconds in waits), default=1.0)
    highest = max((seconds for _, seconds in waits), default=1.0)
    within = [tick for tick in WAITS_S if lowest / 10 < tick < highest * 10]
    ends = math.log10(min([lowest, *within])) - 0.1, math.log10(max([highest, *within])) + 0.1

    def down(seconds: float) -> float:
        return _down((math.log10(seconds) - ends[0]) / (ends[1] - ends[0]))

    dots = "".join(f'<circle cx="{_across(place):.1f}" cy="{down(each):.1f}" r="1.3"/>' for place, each in waits)
    lines = [(down(tick), show_seconds(tick)) for tick in within]
    return _svg("longest gap that ended", lines, _hours(), f'<g fill="{BLUE}">{dots}</g>')


def plot_growth(days: Sequence[DayTotal]) -> str:
    """Bytes of each day."""
    width = _INNER_WIDTH / max(len(days), 8)
    step = max(1, len(days) // 10)
    highest, lines = _scale([day.bytes for day in days], "B")
    bars, named = [], []
    for place, day in enumerate(days):
        height = _INNER_HEIGHT * day.bytes / highest
        color = ORANGE if place == len(days) - 1 else BLUE
        x = LEFT + width * (place + 0.15)
        bars.append(f'<rect x="{x:.1f}" y="{_down(0) - height:.1f}" width="{width * 0.7:.1f}" ')
        bars.append(f'height="{height:.1f}" fill="{color}"/>')
        if (len(days) - 1 - place) % step == 0:
            named.append((LEFT + width * (place + 0.5), f"{day.day:%d %b}"))
    return _svg("bytes a day", lines, named, "".join(bars))


def show_seconds(seconds: float) -> str:
    """A length of time, short."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= length * 0.9995:
            return f"{seconds / length:.3g} {unit}"
    return "0 s"


def show_number(number: float, unit: str = "") -> str:
    """With a prefix, such as 1.5 MB."""
    size, prefix = next((each for each in _PREFIXES if number >= each[0]), _PREFIXES[-1])
    return f"{number / size:.3g} {prefix}{unit}".rstrip()


def _over_the_day(minutes: Sequence[Minute], values: Sequence[int], color: str, label: str, unit: str = "") -> str:
    filled = [0] * MINUTES
    for minute, value in zip(minutes, values, strict=True):
        filled[_place(minute.start)] = value
    highest, lines = _scale(values, unit)
    steps = "".join(f"V{_down(value / highest):.1f}h{_INNER_WIDTH / MINUTES:.3f}" for value in filled)
    area = f'<path d="M{LEFT} {_down(0)}{steps}V{_down(0)}Z" fill="{color}" fill-opacity="0.35" stroke="{color}" '
    return _svg(label, lines, _hours(), f'{area}stroke-width="0.6"/>')


def _place(start: datetime) -> int:
    """Which minute of the day."""
    time = start.astimezone(UTC)
    return 60 * time.hour + time.minute


def _across(minute: float) -> float:
    return LEFT + _INNER_WIDTH * minute / MINUTES


def _down(part: float) -> float:
    """Of the height, from below."""
    return TOP + _INNER_HEIGHT * (1 - part)


def _scale(values: Sequence[int], unit: str) -> tuple[float, list[tuple[float, str]]]:
    """The highest value there is room for, and round numbers below it with their heights."""
    highest = 1.05 * max([*values, 4])
    rough = highest / TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    ticks = [step * place for place in range(int(highest / step) + 1)]
    return highest, [(_down(tick / highest), show_number(tick, unit)) for tick in ticks]


def _hours() -> list[tuple[float, str]]:
    return [(_across(60 * hour), f"{hour % 24:02}:00") for hour in range(0, 25, 3)]


def _svg(label: str, lines: Sequence[tuple[float, str]], named: Sequence[tuple[float, str]], drawn: str) -> str:
    """`lines` across, each with its height, and what is below, each with its place; both with a text."""
    parts = (*_across_lines(lines), drawn, *_below(named), _label(label))
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {_STYLE}>{"".join(parts)}</svg>'


def _across_lines(lines: Sequence[tuple[float, str]]) -> Iterator[str]:
    for y, text in lines:
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e4e4e4"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _below(named: Sequence[tuple[float, str]]) -> Iterator[str]:
    bottom = HEIGHT - BOTTOM
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="{GREY}"/>'
    for x, text in named:
        anchor = "end" if x > WIDTH - RIGHT - 1 else "middle"
        yield f'<path d="M{x:.1f} {bottom}v4" stroke="{GREY}"/>'
        yield f'<text x="{min(x, WIDTH - 1):.1f}" y="{bottom + 17}" text-anchor="{anchor}">{text}</text>'


def _label(text: str) -> str:
    middle = TOP + _INNER_HEIGHT / 2
    return f'<text transform="translate(14 {middle:.1f}) rotate(-90)" text-anchor="middle">{text}</text>'
