"""What `tailrace rollup` prints of each day, for people and as JSON."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tailrace.cli.ending import complain
from tailrace.cli.tables import show_json

if TYPE_CHECKING:
    from tailrace.spark.rollup.engine import EngineError
    from tailrace.spark.rollup.job import Outcome
    from tailrace.spark.rollup.nightly import NightResult
    from tailrace.spark.rollup.periods import Period

NOTES_SHOWN: Final = 20
_WORKER: Final = re.compile(r"^\s*worker: (\S+)$", re.MULTILINE)


def print_day(done: NightResult, out: str, as_json: bool) -> None:
    """The result of a day, or why it failed."""
    if done.error is not None:
        text = show_error(done.error, out)
        complain(f"tailrace: {done.day}: {text}")
        if as_json:
            show_json([{"day": str(done.day), "error": text}])
    elif done.outcome is not None:
        if as_json:
            show_json([outcome_fields(done.outcome, done.day, done.report)])
        else:
            print_outcome(done.outcome, done.day, done.report)


def print_period(period: Period, first: date, path: Path, rows: int, as_json: bool) -> None:
    """The table of a week or a month."""
    if as_json:
        show_json([{"period": period, "first": str(first), "rows": rows, "path": str(path)}])
    else:
        click.echo(f"{period} of {first}: {rows:,} rows: {path}")


def outcome_fields(outcome: Outcome, day: date, report: str | None) -> dict[str, object]:
    """All names and notes, however many they are."""
    return {
        "day": str(day),
        "messages": outcome.messages,
        "streams": outcome.streams,
        "rows": outcome.rows,
        "report": report,
        "kept": outcome.kept,
        "others": outcome.others,
        "copies": outcome.copies,
        "cleared": outcome.was_cleared,
        "failed": sorted(outcome.failed),
        "notes": [{"stream": note.stream, "text": note.text} for note in outcome.notes],
    }


def print_outcome(outcome: Outcome, day: date, report: str | None) -> None:
    """Prints the results on standard output, and what needs attention on standard error."""
    for note in outcome.notes[:NOTES_SHOWN]:
        complain(f"tailrace: {note.stream}: {note.text}")
    if len(outcome.notes) > NOTES_SHOWN:
        complain(f"tailrace: and {len(outcome.notes) - NOTES_SHOWN:,} more of that kind")
    if outcome.kept:
        click.echo(f"trimmed since an earlier run, whose rows are kept: {some(outcome.kept)}")
    if outcome.others:
        text = "rows of another node, or of earlier streams of the same names, are kept (--replace removes them)"
        click.echo(f"{text}: {some(outcome.others)}")
    if outcome.copies:
        click.echo(f"also held by another node, and counted once: {some(outcome.copies)}")
    if outcome.was_cleared:
        click.echo(f"{day} no longer has messages: its tables were removed")
    rows = ", ".join(f"{count:,} {table}" for table, count in outcome.rows.items())
    click.echo(f"{day}: {outcome.messages:,} messages, {outcome.streams:,} streams; rows: {rows}")
    if report is not None:
        click.echo(f"report: {report}")


def some(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - NOTES_SHOWN:,} more" if len(names) > NOTES_SHOWN else ""
    return ", ".join(names[:NOTES_SHOWN]) + more


def show_error(error: OSError | EngineError, out: str) -> str:
    """In a line."""
    if isinstance(error, OSError):
        return f"{error.filename or out}: {error.strerror or error}"
    return f"{error.name}: {find_cause(error.text)}"


def find_cause(text: str) -> str:
    """The cause in an error of Spark, which holds traces of Java and Python: the line that ends Python's first trace,
    and where the task ran; else the first line.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.endswith("Traceback (most recent call last):")]
    for start in starts[:1]:
        # The whole trace may be indented; its frames are indented by two blanks more than its last line.
        frames = lines[start + 1 :]
        indent = _indent(frames[0]) - 2 if frames else 0
        cause = next((line.strip() for line in frames if _indent(line) <= indent), "")
        if cause:
            worker = _WORKER.search(text)
            return f"{cause} (on {worker[1]})" if worker else cause
    return lines[0].strip() if lines else "failed without a message"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
