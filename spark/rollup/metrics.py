"""The figures of the last run as a Prometheus textfile, which the broker's /metrics then shows."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from tailrace.spark.rollup.day_plan import day_start_us

LAST_SUCCESS = "tailrace_rollup_last_success_timestamp_seconds"


class RunFigures(NamedTuple):
    """`ended_s` is Unix time. `failures` counts streams that could not be read whole."""

    day: date
    ended_s: float
    duration_s: float
    is_success: bool
    messages: int
    rows: int
    failures: int
    kept_streams: int


def write_metrics(path: Path, figures: RunFigures) -> None:
    """Replace the file, whole. A run that failed leaves the time of the last success as it was. Raises OSError."""
    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float) -> None:
        Gauge(name, text, registry=registry).set(value)

    gauge("tailrace_rollup_last_run_timestamp_seconds", "When the last rollup ended.", figures.ended_s)
    gauge(
        "tailrace_rollup_last_run_success", "Whether the last rollup was committed (1) or not (0).", figures.is_success
    )
    gauge("tailrace_rollup_duration_seconds", "How long the last rollup took.", figures.duration_s)
    gauge("tailrace_rollup_day_timestamp_seconds", "When the day of the last rollup began.", _start_s(figures.day))
    gauge("tailrace_rollup_messages", "Messages that the last rollup read.", figures.messages)
    gauge("tailrace_rollup_rows", "Rows that the last rollup wrote.", figures.rows)
    gauge("tailrace_rollup_failures", "Streams that the last rollup could not read whole.", figures.failures)
    gauge(
        "tailrace_rollup_kept_streams",
        "Streams of which the last rollup kept older rows, as they have been trimmed since.",
        figures.kept_streams,
    )
    succeeded_s = figures.ended_s if figures.is_success else _last_success(path)
    if succeeded_s is not None:
        gauge(LAST_SUCCESS, "When the last rollup ended that was committed.", succeeded_s)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_to_textfile(str(path), registry)


def _start_s(day: date) -> float:
    return day_start_us(day) / 1_000_000


def _last_success(path: Path) -> float | None:
    """Reads the present file; None if it does not exist, or cannot be parsed."""
    try:
        families = list(text_string_to_metric_families(path.read_text()))
    except (OSError, ValueError):
        return None
    values = [sample.value for family in families for sample in family.samples if sample.name == LAST_SUCCESS]
    return values[0] if values else None
