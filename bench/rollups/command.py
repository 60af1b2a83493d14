"""`python -m bench.rollups`: makes the days, times the engines in turn, prints a table."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from bench.rollups.data import Shape, make_day
from bench.rollups.engines import Engine, make_engines
from bench.statistics import median

MESSAGES = 40_000_000
STREAMS = (8, 10_000)


@click.command()
@click.option("--messages", default=MESSAGES, show_default=True, help="Of each day.")
@click.option("--streams", multiple=True, type=int, default=STREAMS, show_default=True, help="Of a day, one each.")
@click.option("--rounds", default=3, show_default=True, help="Warm runs of each engine; their median counts.")
@click.option("--engine", "names", multiple=True, help="Only these.")
@click.option("--scratch", type=click.Path(path_type=Path), default=None, help="Where the days are made.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(
    messages: int, streams: Sequence[int], rounds: int, names: Sequence[str], scratch: Path | None, target: Path | None
) -> None:
    """Roll up days of 100-byte messages, and compare."""
    figures = []
    for each in streams:
        folder = Path(tempfile.mkdtemp(prefix="rollups-", dir=scratch))
        try:
            figures += measure(Shape(each, messages), folder, rounds, names)
        finally:
            shutil.rmtree(folder)
    if target is not None:
        target.write_text(json.dumps(figures, indent=1))


def measure(shape: Shape, folder: Path, rounds: int, names: Sequence[str]) -> list[dict[str, object]]:
    """All engines over one day."""
    begun_s = time.monotonic()
    make_day(folder / "data", shape)
    os.sync()
    click.echo(f"{shape.name}: {shape.messages:,} messages, made in {time.monotonic() - begun_s:.0f} s")
    figures: list[dict[str, object]] = []
    for engine in make_engines():
        if names and engine.name not in names:
            continue
        engine.prepare(folder / "data", folder)
        engine.run()  # to warm up
        times_s = [timed(engine) for _ in range(rounds)]
        rate = shape.messages / median(times_s)
        click.echo(
            f"{shape.name:14} {engine.name:15} {rate / 1e6:6.2f} M msg/s  {median(times_s):7.2f} s "
            f"({min(times_s):.2f} to {max(times_s):.2f})  {engine.rows:>10,} rows  {engine.title}"
        )
        figures.append({"row": shape.name, "engine": engine.name, "times_s": times_s, "messages": shape.messages})
    return figures


def timed(engine: Engine) -> float:
    begun_s = time.monotonic()
    engine.run()
    return time.monotonic() - begun_s
