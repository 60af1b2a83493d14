"""`tailrace streams`: the streams of a node with their sizes, rates and lag."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tailrace import StreamInfo
from tailrace.cli.ending import OK, complain, topic_hint
from tailrace.cli.options import json_option, server_options
from tailrace.cli.server import broker_client
from tailrace.cli.tables import ago, make_table, plain, rate, show, show_json, size, warn

if TYPE_CHECKING:
    from rich.table import Table

EPILOG = """\b
Examples:
  tailrace streams
  tailrace streams 'orders.*'
  tailrace streams --json | jq 'select(.consumer_lag_messages > 1000) | .name'

A line shows a stream: its role here and the epoch, its messages and the seq of the next, the size of the messages and
of the files on the disk, messages in a second over the last minute, the age of the last message, its durable consumers
and how many messages the one furthest behind has not finished. A copy of another node's stream shows how many messages
it lacks. With a $ in NAMES the broker's own streams and dead letters are shown as well.

Exit codes: 0 done, 1 refused by the broker, 2 wrong arguments, 4 no connection or lost.
"""


@click.command("streams", epilog=EPILOG)
@click.argument("names", required=False, default="", metavar="[NAMES]")
@json_option
@server_options
def command(names: str, as_json: bool) -> int:
    """List the streams whose names begin with NAMES, or are of that pattern."""
    with broker_client() as client:
        infos = client.streams(names)
    if as_json:
        show_json(json_of(info) for info in infos)
    elif infos:
        show(table_of(infos, time.time_ns() // 1_000))
    else:
        complain("tailrace: no streams" + (f" of {names}{topic_hint(names)}" if names else ""))
    return OK


def json_of(info: StreamInfo) -> dict[str, object]:
    return {**asdict(info), "rate_per_s": round(info.rate_per_s, 3), "bytes_per_s": round(info.bytes_per_s, 1)}


def table_of(infos: Iterable[StreamInfo], now_us: int) -> Table:
    table = make_table(
        "stream", "role", "messages", "next", "size", "disk", "rate/s", "age", "consumers", "lag", "copy lag"
    )
    for info in infos:
        table.add_row(
            plain(info.name),
            f"{info.role} {info.epoch}" if info.role != "damaged" else "[red]damaged[/]",
            f"{info.messages:,}",
            f"{info.next_seq}",
            size(info.content_bytes),
            size(info.disk_bytes),
            rate(info.rate_per_s),
            ago(info.age_s(now_us)),
            f"{info.consumers:,}",
            warn("yellow", info.consumer_lag_messages) if info.consumers else "-",
            warn("yellow", info.lag_messages) if info.role == "slave" else "-",
        )
    return table
