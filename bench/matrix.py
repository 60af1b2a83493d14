"""A run's JSON as one table for a page of documentation: a line for each row, those that tailrace loses first.

`python -m bench.matrix bench/results/compiled.json`
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from bench import figures

_COLUMNS: Final = {
    "lines": ("tailrace", "tailrace-acks"),
    "binary": (
        "tailrace-binary",
        "tailrace-binary-acks",
        "tailrace-slaves",
        "tailrace-slaves-held",
        "tailrace-cluster",
    ),
    "binary, one a request": ("tailrace-single", "tailrace-single-acks"),
    "MQTT": ("tailrace-mqtt", "tailrace-mqtt-qos1"),
    "UDP": ("tailrace-udp",),
    "NATS": ("nats",),
    "JetStream": ("jetstream", "jetstream-r3"),
    "Redis": ("redis", "redis-silent", "redis-pubsub"),
    "mosquitto": ("mosquitto", "mosquitto-qos1"),
    "rumqttd": ("rumqttd", "rumqttd-qos1"),
    "NATS's MQTT": ("nats-mqtt", "nats-mqtt-qos1"),
    "Kafka": ("kafka", "kafka-r3"),
    "no broker": ("plain", "plain-acks", "plain-udp", "sendfile", "sendfile-read"),
}
_OURS: Final = ("lines", "binary", "binary, one a request", "MQTT", "UDP")
_LIMIT: Final = "no broker"
_ANSWERED: Final = ("ingest", "turns", "round-robin", "replicated")
"""Kinds of row in which answered and silent publishes are lines of their own."""
_BATCHED: Final = ("ingest", "round-robin", "replicated", "cluster")
"""Kinds of row in which batches are never beside single messages."""
_QUANTILES: Final = {"p99": "p99_us", "p99.9": "p99_9_us"}
_NEAR: Final = 0.75
"""From this part of what the load generator alone reaches, a figure may be the generator's."""
_WHOLE_ROW: Final = 1e9
"""Where a line stands that nobody else is in: after all that have a ratio."""


@dataclass(frozen=True, slots=True)
class MatrixLine:
    """The figures of one line by column; `cpu_us`: processor time of the broker, if the line has it."""

    title: str
    values: Mapping[str, float]
    cpu_us: Mapping[str, float]
    lower_is_better: bool

    @property
    def ratio(self) -> float:
        """Our best divided by the best of the others, so that more than 1 is better; _WHOLE_ROW without others."""
        ours = [value for column, value in self.values.items() if column in _OURS]
        others = [value for column, value in self.values.items() if column not in (*_OURS, _LIMIT)]
        if not ours or not others:
            return _WHOLE_ROW
        return min(others) / min(ours) if self.lower_is_better else max(ours) / max(others)


def matrix_lines(report: Mapping[str, Any]) -> list[MatrixLine]:
    """Each row of the report: answered, silent and batched publishes apart; latency by its quantiles too."""
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell in report["rows"]:
        if "value" in cell and _column(cell["peer"]):
            grouped.setdefault((cell["row"], _way(cell)), []).append(cell)
    lines = [line for (_, way), cells in grouped.items() for line in _lines(cells, way)]
    return sorted((line for line in lines if _has_ours(line)), key=lambda line: line.ratio)


def markdown(lines: Iterable[MatrixLine]) -> str:
    """The table. In brackets: microseconds of the broker's processors for each message. A star: near `_LIMIT`."""
    rows = [["row", "best of ours against the best", *_COLUMNS], ["---"] * (2 + len(_COLUMNS))]
    for line in lines:
        ratio = "" if line.ratio == _WHOLE_ROW else figures.digits(line.ratio)
        rows.append([line.title, ratio, *(_text(line, column) for column in _COLUMNS)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _column(peer: str) -> str:
    return next((column for column, peers in _COLUMNS.items() if peer in peers), "")


def _has_ours(line: MatrixLine) -> bool:
    return any(column in _OURS for column in line.values)


def _way(cell: Mapping[str, Any]) -> str:
    ways = []
    if cell["kind"] in _BATCHED and cell["batches"]:
        ways.append("batches")
    if cell["kind"] in _ANSWERED:
        ways.append("acknowledged" if cell["acknowledged"] else "silent")
    return ", ".join(ways)


def _lines(cells: list[Mapping[str, Any]], way: str) -> list[MatrixLine]:
    """One, and one for each of _QUANTILES if that is what the row is about."""
    first = cells[0]
    title = f"`{first['row']}`{', ' if way else ''}{way}: {first['unit']}"
    best = max if not first["lower_is_better"] else min
    values: dict[str, float] = {}
    cpu_us: dict[str, float] = {}
    for cell in cells:
        column = _column(cell["peer"])
        if column not in values or best(cell["value"], values[column]) != values[column]:
            values[column], cpu_us[column] = cell["value"], cell["cpu_us"]
    made = [MatrixLine(title, values, cpu_us, first["lower_is_better"])]
    if first["kind"] == "latency":
        titles = {key: f"`{first['row']}`: {name} µs" for name, key in _QUANTILES.items()}
        made += [MatrixLine(titles[key], _extras(cells, key), {}, True) for key in titles]
    return made


def _extras(cells: list[Mapping[str, Any]], key: str) -> dict[str, float]:
    values: dict[str, float] = {}
    for cell in cells:
        column = _column(cell["peer"])
        values[column] = min(cell["extras"][key], values.get(column, cell["extras"][key]))
    return values


def _text(line: MatrixLine, column: str) -> str:
    if column not in line.values:
        return ""
    value = line.values[column]
    text = figures.digits(value) if line.lower_is_better else figures.count(value)
    if not line.lower_is_better and column != _LIMIT and value >= _NEAR * line.values.get(_LIMIT, math.inf):
        text += " *"
    cpu_us = line.cpu_us.get(column)
    return f"{text} ({figures.digits(cpu_us)})" if cpu_us else text


@click.command()
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(report: Path) -> None:
    """Print the table of a run whose JSON is REPORT."""
    click.echo(markdown(matrix_lines(json.loads(report.read_text(encoding="utf-8")))), nl=False)


if __name__ == "__main__":
    main()
