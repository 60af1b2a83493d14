"""The report on the terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from bench import figures
from bench.contest import Cell, Results
from bench.targets import Outcome

OURS = ("tailrace", "tailrace-acks")
_HEADINGS = ("figure", "ours / theirs", "acks / theirs", "broker CPU, µs each", "ours / theirs", "peak RSS", "spread")
_EXTRAS = {
    "p99_us": ("p99", "µs"),
    "p99_9_us": ("p99.9", "µs"),
    "reached_per_s": ("sent", "msg/s"),
    "messages_per_s": ("", "msg/s"),
    "published_per_s": ("published", "msg/s"),
    "created_per_s": ("created", "streams/s"),
    "private_bytes_per_stream": ("idle stream", "bytes"),
    "open_files_max": ("open files of a process at most", ""),
    "stop_s": ("clean stop", "s"),
    "ready_clean_s": ("ready after it in", "s"),
    "ready_unclean_s": ("ready after a kill in", "s"),
}


def results_table(results: Results) -> Table:
    """A section a row. The ratios are ours divided by theirs, of the figure and of the processor time."""
    table = Table(title="tailrace and its peers, medians of the rounds", title_justify="left", expand=False)
    table.add_column("peer")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    table.add_column("further", overflow="fold")
    for row in dict.fromkeys(cell.row.name for cell in results.cells):
        cells = [cell for cell in results.cells if cell.row.name == row]
        title = f"[bold]{cells[0].row.title}[/bold] ({cells[0].row.unit}; CPU a {cells[0].row.counted})"
        table.add_row(title, *[""] * 8)
        for cell in cells:
            table.add_row(*_cell_texts(results, cell))
        table.add_section()
    return table


def _cell_texts(results: Results, cell: Cell) -> list[str]:
    name = f"  {cell.peer.title}"
    if not cell.rounds:
        return [name, "[red]failed[/red]", *[""] * 7]
    failed = f" [red]({len(cell.failures)} failed)[/red]" if cell.failures else ""
    return [
        name + failed,
        figures.count(cell.value),
        _over(results, cell, OURS[0], lambda of: of.value),
        _over(results, cell, OURS[1], lambda of: of.value),
        figures.digits(cell.cpu_us),
        _over(results, cell, OURS[0], lambda of: of.cpu_us),
        figures.mebibytes(cell.peak_rss_bytes),
        f"{cell.spread * 100:.0f} %",
        extras_text(cell),
    ]


def ratio_to(results: Results, cell: Cell, ours: str, figure: Callable[[Cell], float]) -> float | None:
    """Our figure divided by this cell's; None where there is no such cell of ours, or this one is ours."""
    our_cell = results.find(cell.row.name, ours)
    if our_cell is None or cell.peer.name in OURS or not figure(cell):
        return None
    return figure(our_cell) / figure(cell)


def _over(results: Results, cell: Cell, ours: str, figure: Callable[[Cell], float]) -> str:
    value = ratio_to(results, cell, ours, figure)
    return "" if value is None else figures.ratio(value)


def extras_text(cell: Cell) -> str:
    known = [(label, cell.extra(name), unit) for name, (label, unit) in _EXTRAS.items()]
    return ", ".join(
        f"{label} {figures.count(value)} {unit}".strip() for label, value, unit in known if value is not None
    )


def targets_table(outcomes: list[Outcome]) -> Table:
    table = Table(title="targets", title_justify="left")
    table.add_column("target")
    for heading in ("wanted", "measured", ""):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        sign = "≥" if outcome.target.at_least else "≤"
        show = figures.ratio if outcome.target.against else figures.digits
        measured = "" if outcome.measured is None else show(outcome.measured)
        verdict = {True: "[green]met[/green]", False: "[red]missed[/red]", None: "not measured"}[outcome.met]
        table.add_row(outcome.target.text, f"{sign} {show(outcome.target.bound)}", measured, verdict)
    return table
