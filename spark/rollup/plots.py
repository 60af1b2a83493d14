"""The plots of a report, each a piece of SVG. Stream names are left out, since they may have any characters.

They are written as text: to import a library for plots takes longer than all else of a small day.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

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
MINUTES_MIN: Final = 60
"""A plot over the day shows at least so much of it."""
STEPS: Final = (10, 15, 30, 60, 180)
"""Minutes between two times below a plot. All divide the day."""
TIMES_SHOWN: Final = 8
TICKS: Final = 5
"""Lines across a plot, about."""
WAITS_S: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800)

_INNER_WIDTH: Final = WIDTH - LEFT - RIGHT
_INNER_HEIGHT: Final = HEIGHT - TOP - BOTTOM
_PREFIXES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
_STYLE: Final = 'font-family="sans-serif" font-size="12" fill="#222"'


class Window(NamedTuple):
    """Minutes of the day that a plot shows, from `first` to before `end`, with a time below it each `step`."""

    first: int
    end: int
    step: int


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
    window = find_window(minutes)
    waits = [(_place(minute.start), minute.gap_max_us / 1e6) for minute in minutes if minute.gap_max_us]
    lowest = min((seconds for _, seconds in waits), default=1.0)
    highest = max((seconds for _, seconds in waits), default=1.0)
    within = [tick for tick in WAITS_S if lowest / 10 < tick < highest * 10]
    ends = math.log10(min([lowest, *within])) - 0.1, math.log10(max([highest, *within])) + 0.1

    def down(seconds: float) -> float:
        return _down((math.log10(seconds) - ends[0]) / (ends[1] - ends[0]))

    radius = 1.3 if window.end - window.first > MINUTES // 2 else 2.5
    places = [(_across(place + 0.5, window), down(each)) for place, each in waits]
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in places)
    lines = [(down(tick), show_seconds(tick)) for tick in within]
    return _svg("longest gap that ended", lines, _times(window), f'<g fill="{BLUE}">{dots}</g>')


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
    window = find_window(minutes)
    width = _INNER_WIDTH / (window.end - window.first)
    steps = "".join(f"V{_down(value / highest):.1f}h{width:.3f}" for value in filled[window.first : window.end])
    area = f'<path d="M{LEFT} {_down(0)}{steps}V{_down(0)}Z" fill="{color}" fill-opacity="0.35" stroke="{color}" '
    return _svg(label, lines, _times(window), f'{area}stroke-width="0.6"/>')


def find_window(minutes: Sequence[Minute]) -> Window:
    """The part of the day that has messages, so that the few minutes of a short day can be seen; at least an hour."""
    first = min((_place(minute.start) for minute in minutes), default=0)
    end = 1 + max((_place(minute.start) for minute in minutes), default=MINUTES - 1)
    step = next(step for step in STEPS if step * TIMES_SHOWN >= end - first)
    first = min(first // step * step, MINUTES - MINUTES_MIN)
    return Window(first, max(-(-end // step) * step, first + MINUTES_MIN), step)


def _place(start: datetime) -> int:
    """The minute of the day."""
    time = start.astimezone(UTC)
    return 60 * time.hour + time.minute


def _across(minute: float, window: Window) -> float:
    return LEFT + _INNER_WIDTH * (minute - window.first) / (window.end - window.first)


def _down(part: float) -> float:
    """Fractions of the height, from below."""
    return TOP + _INNER_HEIGHT * (1 - part)


def _scale(values: Sequence[int], unit: str) -> tuple[float, list[tuple[float, str]]]:
    """The highest value there is room for, and round numbers below it with their heights."""
    highest = 1.05 * max([*values, 4])
    rough = highest / TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    ticks = [step * place for place in range(int(highest / step) + 1)]
    return highest, [(_down(tick / highest), show_number(tick, unit)) for tick in ticks]


def _times(window: Window) -> list[tuple[float, str]]:
    minutes = range(window.first, window.end + 1, window.step)
    return [(_across(minute, window), f"{minute // 60 % 24:02}:{minute % 60:02}") for minute in minutes]


def _svg(label: str, lines: Sequence[tuple[float, str]], named: Sequence[tuple[float, str]], drawn: str) -> str:
    """`lines` across, each with its height, and labels below, each with its position; both with a text."""
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
