"""The report of a day: one HTML page that needs nothing else, neither scripts nor the network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from tailrace.spark.rollup import plots
from tailrace.spark.rollup.forecast import Removal
from tailrace.spark.rollup.plots import show_seconds
from tailrace.spark.rollup.summary import Summary

TEMPLATE = "report.html"
NOTES_SHOWN = 50
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


class Told(NamedTuple):
    """Something about a stream that the page should say."""

    stream: str
    text: str


def render(
    summary: Summary, removals: Sequence[Removal] | None, notes: Sequence[Told], made_at: str, node: str = ""
) -> str:
    """The page. `removals` is None where nobody knows the configuration; `node` is where the streams are."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"size": show_size, "count": show_count, "gap": _show_gap}
    template = environment.from_string(files("tailrace.spark.rollup").joinpath(TEMPLATE).read_text("utf-8"))
    return template.render(
        summary=summary,
        charts=_charts(summary),
        removals=removals,
        notes=notes[:NOTES_SHOWN],
        more_notes=max(0, len(notes) - NOTES_SHOWN),
        made_at=made_at,
        node=node,
    )


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
