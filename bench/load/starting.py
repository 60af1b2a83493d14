"""How long a broker takes to start and to stop, as tests of applications do it; `python -m bench.load.starting`.

With --beside PYTHON it takes turns with the tailrace of another environment, such as an older version.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

import click

from tailrace.testing import Server

ROUNDS = 11
FIELDS = ("ready_s", "closed_s", "processor_s")
_CHILD_TIMEOUT_S = 120.0
_ONE = "import json; from bench.load.starting import start_once; print(json.dumps(start_once()))"


@click.command()
@click.option("--rounds", type=click.IntRange(1, 1000), default=ROUNDS, show_default=True)
@click.option("--beside", metavar="PYTHON", help="Another environment's Python, by turns with this one.")
def main(rounds: int, beside: str | None) -> None:
    """Start a broker ROUNDS times and print the medians. The first start, which may compile, does not count."""
    pythons = [sys.executable, *([beside] if beside else [])]
    found: dict[str, list[dict[str, float]]] = {python: [] for python in pythons}
    for number in range(rounds + 1):
        for python in pythons:
            figures = _in_child(python)
            if number:
                found[python].append(figures)
    click.echo(f"load {os.getloadavg()[0]:.1f}, {len(os.sched_getaffinity(0))} processors, {rounds} rounds")
    for python in pythons:
        click.echo(f"{python}: {describe(found[python])}")


def start_once() -> dict[str, float]:
    """Times of a start and a stop, and the processor time of all of the broker's processes."""
    began_s, used_s = time.perf_counter(), _processor_s()
    server = Server()
    server.start()
    ready_s = time.perf_counter()
    server.close()
    closed_s = time.perf_counter()
    return dict(zip(FIELDS, (ready_s - began_s, closed_s - ready_s, _processor_s() - used_s), strict=True))


def describe(rows: Sequence[dict[str, float]]) -> str:
    """Medians in a line; the range of the time to start."""
    ready_s, closed_s, processor_s = ([row[field] for row in rows] for field in FIELDS)
    return (
        f"ready after {median(ready_s):.3f} s ({min(ready_s):.3f} to {max(ready_s):.3f}), closed after "
        f"{median(closed_s):.3f} s, {median(processor_s):.3f} s of a processor for both"
    )


def _in_child(python: str) -> dict[str, float]:
    """The code of the harness comes from here, tailrace from that environment."""
    done = subprocess.run([python, "-c", _ONE], capture_output=True, text=True, timeout=_CHILD_TIMEOUT_S, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
