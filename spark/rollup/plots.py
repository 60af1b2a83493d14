"""The plots of a report, each a piece of SVG. No name of a stream is in them, whatever characters it has."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import matplotlib as mpl
from matplotlib import dates
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from spark.rollup.summary import DayTotal, Minute

INCHES: Final = (9.0, 2.6)
BLUE: Final = "#2a6f97"
ORANGE: Final = "#e07a2f"
GREY: Final = "#666666"
MINUTES: Final = 1_440
WAITS_S: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800)

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tailrace",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
}


def plot_messages(minutes: Sequence[Minute]) -> str:
    """Messages in each minute of the day."""
    return _over_the_day(minutes, [minute.messages for minute in minutes], BLUE, "messages a minute", EngFormatter())


def plot_bytes(minutes: Sequence[Minute]) -> str:
    """Bytes in each minute of the day."""
    values = [minute.bytes for minute in minutes]
    return _over_the_day(minutes, values, ORANGE, "bytes a minute", EngFormatter(unit="B"))


def plot_streams(minutes: Sequence[Minute]) -> str:
    """In how many streams something came in each minute."""
    return _over_the_day(minutes, [minute.streams for minute in minutes], GREY, "streams with messages", EngFormatter())


def plot_gaps(minutes: Sequence[Minute]) -> str:
    """The longest wait between two messages of a stream that ended in each minute, on a logarithmic scale."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes()
        waits = [(minute.start, minute.gap_max_us / 1e6) for minute in minutes if minute.gap_max_us]
        axes.scatter([at for at, _ in waits], [seconds for _, seconds in waits], s=4, color=BLUE, linewidths=0)
        axes.set_yscale("log")
        lowest = min((seconds for _, seconds in waits), default=1)
        highest = max((seconds for _, seconds in waits), default=1)
        within = [tick for tick in WAITS_S if lowest / 10 < tick < highest * 10]
        axes.set_yticks(within, [show_seconds(tick) for tick in within])
        axes.set_yticks([], minor=True)
        axes.set_ylabel("longest gap that ended")
        _hours(axes, minutes)
        return _svg(figure)


def plot_growth(days: Sequence[DayTotal]) -> str:
    """Bytes of each day."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes()
        places = range(len(days))
        axes.bar(places, [day.bytes for day in days], color=[BLUE] * (len(days) - 1) + [ORANGE], width=0.7)
        step = max(1, len(days) // 10)
        shown = [place for place in places if (len(days) - 1 - place) % step == 0]
        axes.set_xticks(shown, [f"{days[place].day:%d %b}" for place in shown])
        axes.set_xlim(-0.6, max(len(days), 8) - 0.4)
        axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
        axes.set_ylabel("bytes a day")
        return _svg(figure)


def show_seconds(seconds: float) -> str:
    """A length of time, short."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= length * 0.9995:
            return f"{seconds / length:.3g} {unit}"
    return "0 s"


def _over_the_day(minutes: Sequence[Minute], values: Sequence[int], color: str, label: str, form: Any) -> str:
    with mpl.rc_context(_STYLE):
        figure, axes = _axes()
        times, filled = _every_minute(minutes, values)
        axes.fill_between(times, filled, step="post", color=color, alpha=0.35, linewidth=0)
        axes.step(times, filled, where="post", color=color, linewidth=0.8)
        axes.set_ylim(0, max([*filled, 4]) * 1.05)
        axes.yaxis.set_major_formatter(form)
        axes.set_ylabel(label)
        _hours(axes, minutes)
        return _svg(figure)


def _every_minute(minutes: Sequence[Minute], values: Sequence[int]) -> tuple[list[datetime], list[int]]:
    """Zeros where nothing came."""
    if not minutes:
        return [], []
    start = _midnight(minutes)
    known = dict(zip((minute.start for minute in minutes), values, strict=True))
    times = [start + timedelta(minutes=place) for place in range(MINUTES)]
    return times, [known.get(time, 0) for time in times]


def _hours(axes: Any, minutes: Sequence[Minute]) -> None:
    if minutes:
        start = _midnight(minutes)
        axes.set_xlim(start, start + timedelta(days=1))
    typed: Any = dates  # they have no types
    axes.xaxis.set_major_locator(typed.HourLocator(byhour=range(0, 24, 3), tz=UTC))
    axes.xaxis.set_major_formatter(typed.DateFormatter("%H:%M", tz=UTC))


def _midnight(minutes: Sequence[Minute]) -> datetime:
    return minutes[0].start.astimezone(UTC).replace(hour=0, minute=0)


def _axes() -> tuple[Figure, Any]:
    figure = Figure(figsize=INCHES, layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
