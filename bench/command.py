"""`python -m bench`: run the comparison, print the results, and write them to files."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.chart import NoChart, draw
from bench.contest import Cell, Results, run_contest
from bench.load.base import raise_open_files
from bench.load.limits import LoadError
from bench.machine import build_under, describe_machine
from bench.peers import make_peers
from bench.peers.base import Contestant, Unavailable
from bench.peers.tailrace import Tailrace
from bench.report import as_json, write_json
from bench.rows import make_rows
from bench.rows.base import BenchRow, replay_messages
from bench.scale import FULL, QUICK, Scale
from bench.table import results_tables, targets_table
from bench.targets import TargetResult, evaluate

RowOrPeer = TypeVar("RowOrPeer", BenchRow, Contestant)
RESULTS = Path(__file__).resolve().parent / "results"
_EPILOG = """\b
Examples:
  python -m bench --quick                          everything once, short
  python -m bench --rows ingest-1,fanout-100       two rows only
  python -m bench --peers tailrace,nats --rounds 3
  python -m bench --build interpreted
"""


@click.command(epilog=_EPILOG)
@click.option("--quick", is_flag=True, help="Short and small: to see that everything runs, not for its figures.")
@click.option("--rows", "row_names", default="", metavar="A,B", help="Only these rows.")
@click.option("--peers", "peer_names", default="", metavar="A,B", help="Only these peers.")
@click.option("--rounds", type=click.IntRange(1, 100), help="How often each is measured; the medians are reported.")
@click.option("--seconds", type=click.FloatRange(0.1, 60), help="How long each ingest and fan-out publishes.")
@click.option("--build", type=click.Choice(["compiled", "interpreted"]), default="compiled", show_default=True)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="tailrace's workers.")
@click.option(
    "--scratch",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(tempfile.gettempdir()),
    show_default=True,
    help="Where the servers keep their data while they run.",
)
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, help="Folder for the JSON and the chart.")
def main(
    quick: bool,
    row_names: str,
    peer_names: str,
    rounds: int | None,
    seconds: float | None,
    build: str,
    workers: int,
    scratch: Path,
    output: Path,
) -> None:
    """Compare tailrace with NATS, JetStream, Redis Streams and mosquitto, side by side on this machine."""
    raise_open_files()
    console = Console()
    scale = _scale(quick, rounds, seconds)
    peers = make_peers(
        interpreted=build == "interpreted",
        workers=workers,
        payload_bytes=scale.payload_bytes,
        replay_messages=replay_messages(scale),
        spark_messages=scale.spark_messages,
    )
    rows = _chosen(make_rows(scale), row_names)
    versions, peers = _installed(console, _chosen(peers, peer_names))
    _require_build(console, build, peers)
    results = _run(console, rows, peers, scale, scratch, build)
    outcomes = evaluate(results, build)
    _print(console, results, outcomes, quick)
    name = build + ("-quick" if quick else "") + ("-part" if row_names or peer_names else "")
    machine = describe_machine(scratch)
    write_json(output / f"{name}.json", as_json(results, outcomes, scale, machine, build, versions))
    console.print(f"wrote {output / name}.json")
    caption = f"tailrace, {build} build, {machine['when']}: {machine['processor']}, {machine['cores']} cores"
    try:
        draw(output / f"{name}.png", results, caption)
        console.print(f"wrote {output / name}.png")
    except NoChart as error:
        console.print(f"[yellow]{error}[/yellow]")
    if results.failures():
        raise SystemExit(1)


def _scale(quick: bool, rounds: int | None, seconds: float | None) -> Scale:
    scale = QUICK if quick else FULL
    if rounds is not None:
        scale = replace(scale, rounds=rounds)
    return replace(scale, seconds=seconds) if seconds is not None else scale


def _chosen(known: list[RowOrPeer], names: str) -> list[RowOrPeer]:
    """Those of a comma-separated list of names, or all of them if it is empty."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in [each.name for each in known]:
            raise click.UsageError(f"unknown name {name!r}; there are {', '.join(each.name for each in known)}")
    return [each for each in known if each.name in chosen] if chosen else known


def _installed(console: Console, peers: list[Contestant]) -> tuple[dict[str, str], list[Contestant]]:
    """Return the versions of the installed peers, and these; name the others."""
    versions: dict[str, str] = {}
    for peer in peers:
        try:
            versions[peer.name] = peer.version()
        except Unavailable as error:
            console.print(f"[yellow]without {peer.title}: {error}[/yellow]")
    return versions, [peer for peer in peers if peer.name in versions]


def _require_build(console: Console, build: str, peers: list[Contestant]) -> None:
    """Require that the wanted build is loaded; each measurement checks the running processes again."""
    ours = next((peer for peer in peers if isinstance(peer, Tailrace)), None)
    if ours is None:
        return
    try:
        loaded = build_under(ours.environment())
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    if loaded != build:
        raise click.ClickException(f"the {loaded} build is installed, not the {build} one (`make leaves`, or --build)")
    console.print(f"tailrace: the [bold]{loaded}[/bold] build")


def _run(
    console: Console, rows: list[BenchRow], peers: list[Contestant], scale: Scale, scratch: Path, build: str
) -> Results:
    total = scale.rounds * sum(row.kind in peer.kinds for row in rows for peer in peers)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Without a thread of its own: the generator's processes are forked from this one.
    with Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        begun = 0

        def progress(number: int, cell: Cell) -> None:
            nonlocal begun
            text = f"round {number + 1}: {cell.row.name}, {cell.peer.name}"
            bar.update(task, description=text, completed=begun, refresh=True)
            begun += 1
            if not console.is_terminal:
                console.print(f"{begun}/{total} {text}", highlight=False)

        results = run_contest(rows, peers, scale, scratch, build, progress)
        bar.update(task, description="done", completed=total, refresh=True)
    return results


def _print(console: Console, results: Results, outcomes: list[TargetResult], quick: bool) -> None:
    # A table that is cut at 80 columns is useless in a log file.
    wide = console if console.is_terminal else Console(width=200)
    for table in results_tables(results):
        wide.print(table)
    wide.print(targets_table(outcomes))
    if quick:
        wide.print("A quick run shows that everything works. Its figures mean nothing.")
    for failure in results.failures():
        wide.print(f"[red]failed:[/red] {failure}", highlight=False, markup=True)
