"""The report of a day: one HTML page that needs nothing else, neither scripts nor the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from tailrace.spark.rollup import plots
from tailrace.spark.rollup.forecast import Removal
from tailrace.spark.rollup.nodes import NodeRow
from tailrace.spark.rollup.plots import show_seconds
from tailrace.spark.rollup.summary import DayTotal, Summary

TEMPLATE = "report.html"
NOTES_SHOWN = 50
NAMES_SHOWN = 5
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


class Compared(NamedTuple):
    """A row of the comparison, as it is shown."""

    name: str
    now: str
    before: str
    week_before: str


class Told(NamedTuple):
    """A note on a stream for the page."""

    stream: str
    text: str


def render(
    summary: Summary, removals: Sequence[Removal] | None, notes: Sequence[Told], made_at: str, node: str = ""
) -> str:
    """The page. `removals` is None if the configuration is unknown; `node` is the origin of the streams."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    named = show_names(summary.nodes)
    environment.filters |= {"size": show_size, "count": show_count, "gap": _show_gap}
    template = environment.from_string(files("tailrace.spark.rollup").joinpath(TEMPLATE).read_text("utf-8"))
    return template.render(
        summary=summary,
        charts=_charts(summary),
        names=named,
        show_nodes=len(summary.nodes) > 1 or any(row.state != "whole" for row in summary.nodes),
        headline=show_headline(summary),
        compared=compare(summary),
        removals=removals,
        notes=notes[:NOTES_SHOWN],
        more_notes=max(0, len(notes) - NOTES_SHOWN),
        made_at=made_at,
        node=node,
    )


def show_names(nodes: Sequence[NodeRow]) -> str:
    """The title of the page: the node's name, or those of a fleet."""
    names = [row.name for row in nodes]
    if not names:
        return "tailrace"
    if len(names) == 1:
        return names[0] if names[0] != nodes[0].node else f"node {names[0]}"
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return f"fleet of {', '.join(names[:NAMES_SHOWN])}{more}"


def show_headline(summary: Summary) -> str:
    """The day in a sentence, for a reader who looks at nothing else."""
    if not summary.minutes:
        return ""
    first, last = summary.minutes[0].start, summary.minutes[-1].start + timedelta(minutes=1)
    peak = max(summary.minutes, key=lambda minute: minute.messages)
    count = f"{summary.total.messages:,} {_plural(summary.total.messages, 'message')}"
    streams = f"{summary.total.streams:,} {_plural(summary.total.streams, 'stream')}"
    until = "24:00" if last.date() != summary.day else f"{last:%H:%M}"
    busiest = f"{peak.start:%H:%M} with {peak.messages:,}"
    return f"{count} in {streams}, between {first:%H:%M} and {until}. The busiest minute was {busiest}."


def compare(summary: Summary) -> list[Compared]:
    """The totals of the day beside those of earlier days."""
    shown: tuple[tuple[str, Callable[[DayTotal], int | None], Callable[[Any], str]], ...] = (
        ("messages", lambda day: day.messages, show_count),
        ("bytes", lambda day: day.bytes, show_size),
        ("streams", lambda day: day.streams, show_count),
        ("longest gap", lambda day: day.gap_max_us, _show_gap),
    )
    return [
        Compared(
            name, show(value(summary.total)), *(_change(summary.total, day, value, show) for day in summary.earlier)
        )
        for name, value, show in shown
    ]


def _change(
    total: DayTotal, earlier: DayTotal | None, value: Callable[[DayTotal], int | None], show: Callable[[Any], str]
) -> str:
    """The earlier value, and by how much the day's is above or below it."""
    if earlier is None:
        return "–"
    now, then = value(total), value(earlier)
    if now is None or not then:
        return show(then)
    percent = 100 * (now - then) / then
    return f"{show(then)} ({round(percent):+,} %)"


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _charts(summary: Summary) -> dict[str, str]:
    if not summary.minutes:
        return {}
    return {
        "messages": plots.plot_messages(summary.minutes),
        "bytes": plots.plot_bytes(summary.minutes),
        "streams": plots.plot_streams(summary.minutes),
        "gaps": plots.plot_gaps(summary.minutes),
        "growth": plots.plot_growth(summary.growth),
    }


def show_size(nbytes: float) -> str:
    """Bytes in the unit that reads best."""
    for unit in UNITS:
        if nbytes < 999.5 or unit == UNITS[-1]:
            break
        nbytes /= 1_000
    return f"{nbytes:.3g} {unit}" if unit != "B" else f"{nbytes:.0f} B"


def show_count(number: Any) -> str:
    return f"{number:,}"


def _show_gap(gap_us: int | None) -> str:
    return "–" if gap_us is None else show_seconds(gap_us / 1e6)
