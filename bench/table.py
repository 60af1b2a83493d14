"""Results and targets as tables on the terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table

from bench import figures
from bench.contest import Cell, Results
from bench.targets import TargetResult

# Each of ours, and the heading of the column with its figure divided by the peer's.
OURS = {"tailrace": "line÷", "tailrace-acks": "acks÷", "tailrace-binary": "bin÷", "tailrace-binary-acks": "b.acks÷"}
OUR_CPU = {"tailrace": "line÷ ", "tailrace-binary": "bin÷ "}
_WIDTHS = {"peer": 26, "figure": 8, **dict.fromkeys(OURS.values(), 7)}
_WIDTHS |= {"CPU µs": 8, **dict.fromkeys(OUR_CPU.values(), 7), "peak RSS": 9, "spread": 6, "further": 50}
_EXTRAS = {
    "cipher_rate_percent": ("of the rate of openssl's AES-256-GCM", "%"),
    "cipher_percent": ("of it by processor time", "%"),
    "p50_us": ("p50", "µs"),
    "p50_alone_us": ("alone", "µs"),
    "p99_us": ("p99", "µs"),
    "p99_alone_us": ("p99 alone", "µs"),
    "noise_bytes_per_s": ("noise", "bytes/s"),
    "connects_per_s": ("beside", "connects/s"),
    "master_p50_us": ("at the master", "µs"),
    "master_p99_us": ("p99", "µs"),
    "leader_p50_us": ("at the leader", "µs"),
    "leader_p99_us": ("p99", "µs"),
    "other_p50_us": ("at the other node", "µs"),
    "other_p99_us": ("p99", "µs"),
    "percent_quarter_below": ("a quarter of the turns below", "%"),
    "percent_quarter_above": ("a quarter above", "%"),
    "without_cpu_us": ("CPU without", "µs"),
    "slave_p50_us": ("at the slave", "µs"),
    "slave_p99_us": ("p99", "µs"),
    "all_hold_ms": ("all hold it after", "ms"),
    "p99_9_us": ("p99.9", "µs"),
    "best_pair_us": ("medians of the pairs from", "µs"),
    "worst_pair_us": ("to", "µs"),
    "one_per_s": ("1 stream", "msg/s"),
    "many_per_s": ("many", "msg/s"),
    "joined_per_s": ("joined", "connections/s"),
    "resident_bytes_per_connection": ("a connection", "bytes"),
    "idle_cpu_percent": ("idle", "% of a core"),
    "quiet_after_s": ("quiet after", "s"),
    "reached_per_s": ("sent", "msg/s"),
    "messages_per_s": ("", "msg/s"),
    "client_cpu_us": ("the client's CPU", "µs"),
    "published_per_s": ("published", "msg/s"),
    "created_per_s": ("created", "streams/s"),
    "private_bytes_per_stream": ("idle stream", "bytes"),
    "open_files_max": ("open files of a process at most", ""),
    "stop_s": ("clean stop", "s"),
    "hour_s": ("an hour of it", "s"),
    "batch_median_s": ("median", "s"),
    "batch_p95_s": ("p95", "s"),
    "batches": ("batches", ""),
    "all_levels_s": ("with hours and days", "s"),
    "export_s": ("exported before in", "s"),
    "ready_clean_s": ("ready after it in", "s"),
    "ready_unclean_s": ("ready after a kill in", "s"),
}


def results_tables(results: Results) -> list[Table]:
    """Return a table per row. A heading with ÷ is the figure of that one of ours (see OURS) divided by the peer's."""
    return [_row_table(results, row) for row in dict.fromkeys(cell.row.name for cell in results.cells)]


def _row_table(results: Results, row_name: str) -> Table:
    cells = [cell for cell in results.cells if cell.row.name == row_name]
    row = cells[0].row
    better = ", less is better" if row.lower_is_better else ""
    title = f"{row.title} \\[{row.name}]: {row.unit}{better}; broker CPU a {row.counted}"
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading, width in _WIDTHS.items():
        table.add_column(heading, width=width, justify="left" if heading in ("peer", "further") else "right")
    for cell in cells:
        table.add_row(*_cell_texts(results, cell), style="cyan" if cell.peer.name in OURS else None)
    return table


def _cell_texts(results: Results, cell: Cell) -> list[str]:
    if not cell.rounds:
        return [cell.peer.title, "[red]failed[/red]", *[""] * (len(_WIDTHS) - 2)]
    failed = f" [red]({len(cell.failures)} failed)[/red]" if cell.failures else ""
    return [
        cell.peer.title + failed,
        value_text(cell),
        *(_over(results, cell, ours, lambda of: of.value) for ours in OURS),
        figures.digits(cell.cpu_us),
        *(_over(results, cell, ours, lambda of: of.cpu_us) for ours in OUR_CPU),
        figures.mebibytes(cell.peak_rss_bytes),
        f"{cell.spread * 100:.0f} %",
        extras_text(cell),
    ]


def ratio_to(results: Results, cell: Cell, ours: str, figure: Callable[[Cell], float]) -> float | None:
    """Our figure divided by this cell's; None if we have no such cell, or this one is ours."""
    our_cell = results.find(cell.row.name, ours)
    if our_cell is None or cell.peer.name in OURS or not figure(cell):
        return None
    return figure(our_cell) / figure(cell)


def _over(results: Results, cell: Cell, ours: str, figure: Callable[[Cell], float]) -> str:
    value = ratio_to(results, cell, ours, figure)
    return "" if value is None else figures.ratio(value)


def extras_text(cell: Cell) -> str:
    known = [(label, cell.extra(name), unit) for name, (label, unit) in _EXTRAS.items()]
    return ", ".join(f"{label} {_with_unit(value, unit)}".strip() for label, value, unit in known if value is not None)


def value_text(cell: Cell) -> str:
    return figures.digits(cell.value) if cell.row.lower_is_better else figures.count(cell.value)


def _with_unit(value: float, unit: str) -> str:
    return figures.microseconds(value) if unit == "µs" else f"{figures.count(value)} {unit}"


def targets_table(outcomes: list[TargetResult]) -> Table:
    """Those that were missed first, and those that were not measured last."""
    table = Table(title="targets", title_justify="left", title_style="bold")
    table.add_column("target")
    for heading in ("wanted", "measured", ""):
        table.add_column(heading, justify="right")
    for outcome in sorted(outcomes, key=lambda each: (each.met is None, each.met)):
        sign = "≥" if outcome.target.at_least else "≤"
        show = figures.ratio if outcome.target.against else figures.digits
        measured = "" if outcome.measured is None else show(outcome.measured)
        verdict = {True: "[green]met[/green]", False: "[red]missed[/red]", None: "not measured"}[outcome.met]
        table.add_row(outcome.target.text, f"{sign} {show(outcome.target.bound)}", measured, verdict)
    return table
