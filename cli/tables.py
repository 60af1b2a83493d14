"""Aligned tables and numbers for people, the same in every command; JSON lines for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from tailrace.protocol.names import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LINE_CHARACTERS_MAX = 10_000
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))
SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def make_table(first: str, *others: str) -> Table:
    """A table whose first column is a name, to the left; the others are numbers, to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(first, style="bold", no_wrap=True)
    for title in others:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def show(table: Table) -> None:
    """Prints it; for programs, a row is one line of any length."""
    make_console().print(table)


def make_console() -> Console:
    """Prints to standard output. If its reader has gone it raises BrokenPipeError; rich would end the process."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich calls this where it has caught the error

    console = PipeConsole(highlight=False)
    if not console.is_terminal:
        console.width = LINE_CHARACTERS_MAX
    return console


def show_json(rows: Iterable[Any]) -> None:
    """Prints each dataclass or dict as an object in a line."""
    for row in rows:
        fields = dataclasses.asdict(row) if dataclasses.is_dataclass(row) and not isinstance(row, type) else row
        click.echo(json.dumps(fields, ensure_ascii=False))


def plain(text: str) -> str:
    """Escapes markup, and characters that cannot be seen, in a name."""
    from rich.markup import escape

    return escape(printable(text))


def count(number: int) -> str:
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """`1 message`, `1,000 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ago(seconds: float | None) -> str:
    """`2.5 s`, `3.0 min`, `1.5 d`; a dash for none."""
    if seconds is None:
        return "-"
    for unit, of_s in UNITS:
        if seconds >= of_s:
            return f"{seconds / of_s:,.1f} {unit}"
    return f"{seconds:.1f} s"


def size(nbytes: float) -> str:
    """`12 B`, `1.5 KiB`, `3.0 GiB`."""
    for unit, of_bytes in SIZES:
        if nbytes >= of_bytes:
            return f"{nbytes / of_bytes:,.1f} {unit}"
    return f"{nbytes:.0f} B"


def rate(per_s: float) -> str:
    """`0`, `0.25`, `1,250`: events in a second."""
    return f"{per_s:,.0f}" if per_s >= 10 or not per_s else f"{per_s:.2g}"


def warn(text: str, number: int) -> str:
    """A number that is better 0."""
    return f"[{text}]{number:,}[/]" if number else "0"


def columns(rows: Sequence[tuple[str, str]]) -> Table:
    """Names and values, one pair in a row."""
    table = make_table("field")
    table.show_header = False
    table.add_column("value", no_wrap=True)
    for name, value in rows:
        table.add_row(plain(name), plain(value))
    return table
