"""`tailrace top`: a node at a glance, refreshed each second: its workers, busiest streams and laggards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from tailrace import Client, Denied, StreamInfo
from tailrace.cli.ending import OK
from tailrace.cli.options import server_options
from tailrace.cli.server import broker_errors, choose_server, connect
from tailrace.cli.start import to_iso
from tailrace.cli.tables import ago, counted, make_console, make_table, plain, rate, show_json, size, warn
from tailrace.cli.values import Seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tailrace.protocol.listing import WorkerRow

EPILOG = """\b
Examples:
  tailrace top
  tailrace top 'orders.*'
  tailrace top --server broker.example:5050
  tailrace top --once > now.txt
  tailrace top --json --interval 10 >> load.jsonl

Rates are those since the last refresh. The workers are shown to those who may administer the node: on its own machine,
or logged in as a user with that right. With --once, or if the output is no terminal, it is printed once. With --json it
is one object in a line, each interval: time, server, node, streams (the busiest first, with messages_per_s and
bytes_per_s) and workers (null if they are not shown).

Exit codes: 0 done, 1 refused by the broker, 2 wrong arguments, 4 no connection or lost, 130 interrupted.
"""
ROWS = 15
FIRST_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class NodeSample:
    """What a node said at one time. `workers` is None if it does not show them to this client."""

    at_s: float
    streams: dict[str, StreamInfo]
    workers: list[WorkerRow] | None


@dataclass(frozen=True, slots=True)
class StreamActivity:
    """A stream, and its messages and bytes in a second between two samples."""

    info: StreamInfo
    messages_per_s: float
    bytes_per_s: float


@click.command("top", epilog=EPILOG)
@click.argument("names", required=False, default="", metavar="[NAMES]")
@click.option("--interval", "interval_s", type=Seconds(0.1), default=1.0, show_default=True, metavar="SECONDS")
@click.option("--once", is_flag=True, help="Print it once.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object each interval, in a line.")
@server_options
def command(names: str, interval_s: float, once: bool, as_json: bool) -> int:
    """Watch a node: its workers, its busiest streams, and who is behind."""
    chosen = choose_server()
    console = make_console()
    with broker_errors(chosen), connect(chosen) as client:
        before = sample(client, names)
        time.sleep(min(interval_s, FIRST_LOOK_S))
        after = sample(client, names)
        if as_json:
            show_json([as_object(str(chosen), client, before, after)])
            while not once:
                time.sleep(interval_s)
                before, after = after, sample(client, names)
                show_json([as_object(str(chosen), client, before, after)])
            return OK
        if once or not console.is_terminal:
            console.print(view(str(chosen), client, before, after))
            return OK
        from rich.live import Live

        with Live(view(str(chosen), client, before, after), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval_s)
                before, after = after, sample(client, names)
                live.update(view(str(chosen), client, before, after), refresh=True)


def as_object(server: str, client: Client, before: NodeSample, after: NodeSample) -> dict[str, Any]:
    """All streams and workers, for --json."""
    streams = [
        {**asdict(each.info), "messages_per_s": each.messages_per_s, "bytes_per_s": each.bytes_per_s}
        for each in activity(before, after)
    ]
    workers = None if after.workers is None else [asdict(row) for row in after.workers]
    now = to_iso(time.time_ns() // 1_000)
    return {"time": now, "server": server, "node": client.node, "streams": streams, "workers": workers}


def sample(client: Client, names: str) -> NodeSample:
    """Raises TailraceError."""
    try:
        workers = client.workers()
    except Denied:
        workers = None
    streams = {info.name: info for info in client.streams(names)}
    return NodeSample(time.monotonic(), streams, workers)


def activity(before: NodeSample, after: NodeSample) -> list[StreamActivity]:
    """The busiest first."""
    passed_s = max(after.at_s - before.at_s, 1e-3)
    found = []
    for name, info in after.streams.items():
        known = before.streams.get(name)
        grown = info.next_seq - (info.first_seq if known is None else known.next_seq)
        nbytes = info.content_bytes - (0 if known is None else known.content_bytes)
        found.append(StreamActivity(info, max(grown, 0) / passed_s, max(nbytes, 0) / passed_s))
    return sorted(found, key=lambda each: (-each.messages_per_s, -each.info.last_timestamp_us))


def laggards(after: NodeSample) -> list[StreamInfo]:
    """Streams whose consumers or copy are behind, the furthest first."""
    behind = [info for info in after.streams.values() if info.consumer_lag_messages or info.lag_messages]
    return sorted(behind, key=lambda info: -max(info.consumer_lag_messages, info.lag_messages))


def view(server: str, client: Client, before: NodeSample, after: NodeSample) -> RenderableType:
    """Everything that is shown."""
    from rich.console import Group
    from rich.text import Text

    active, behind = activity(before, after), laggards(after)
    head = Text.assemble(
        (server, "bold"),
        f"  {client.software}  node {client.node}  {time.strftime('%H:%M:%S')}\n",
        f"{counted(len(active), 'stream')}  {rate(sum(each.messages_per_s for each in active))} messages/s  "
        f"{size(sum(each.bytes_per_s for each in active))}/s  "
        f"{size(sum(each.info.disk_bytes for each in active))} on the disk\n",
    )
    parts: list[RenderableType] = [head, _workers(after.workers), "", _busiest(active[:ROWS])]
    if behind:
        parts += ["", _behind(behind[:ROWS])]
    return Group(*parts)


def _workers(rows: Sequence[WorkerRow] | None) -> RenderableType:
    if rows is None:
        return "The workers are shown to administrators."
    table = make_table("worker", "pid", "state", "beat", "connections", "subscriptions", "streams", "restarts")
    for row in rows:
        numbers = (f"{each:,}" for each in (row.connections, row.subscriptions, row.streams))
        state = row.state if row.state == "ready" else f"[yellow]{plain(row.state)}[/]"
        beat = ago(row.beat_age_us / 1e6)
        table.add_row(f"{row.worker}", f"{row.pid}", state, beat, *numbers, warn("yellow", row.restarts))
    return table


def _busiest(found: Sequence[StreamActivity]) -> Table:
    table = make_table("busiest streams", "messages/s", "bytes/s", "messages", "size", "age", "consumers", "role")
    now_us = time.time_ns() // 1_000
    for each in found:
        info = each.info
        table.add_row(
            plain(info.name),
            rate(each.messages_per_s),
            f"{size(each.bytes_per_s)}/s",
            f"{info.messages:,}",
            size(info.content_bytes),
            ago(info.age_s(now_us)),
            f"{info.consumers:,}",
            info.role,
        )
    return table


def _behind(found: Sequence[StreamInfo]) -> Table:
    table = make_table("behind", "consumers", "their lag", "copy lag")
    for info in found:
        lags = (warn("yellow", each) for each in (info.consumer_lag_messages, info.lag_messages))
        table.add_row(plain(info.name), f"{info.consumers:,}", *lags)
    return table
