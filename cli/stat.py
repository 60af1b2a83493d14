"""`tailrace stat`: one stream in numbers, and its durable consumers."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import click

from tailrace import ConsumerInfo, StreamInfo
from tailrace.cli import consumers
from tailrace.cli.ending import OK, CommandError, topic_hint
from tailrace.cli.options import server_options
from tailrace.cli.server import broker_client
from tailrace.cli.start import to_iso
from tailrace.cli.streams import json_of
from tailrace.cli.tables import ago, columns, counted, rate, show, size

EPILOG = """\b
Examples:
  tailrace stat orders
  tailrace stat orders --json
  tailrace stat 'orders/$dead'

Rates are those of the last minute. `tailrace admin stat STREAM` has what only an administrator of the node needs, such
as its copies on other nodes and how far it is on the disk.

Exit codes: 0 done, 1 there is no such stream, or refused by the broker, 2 wrong arguments, 4 no connection or lost.
"""


@click.command("stat", epilog=EPILOG)
@click.argument("stream")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@server_options
def command(stream: str, as_json: bool) -> int:
    """Show one STREAM in numbers."""
    with broker_client() as client:
        info = next((each for each in client.streams(stream) if each.name == stream), None)
        if info is None:
            raise CommandError(f"unknown: there is no stream {stream!r} here{topic_hint(stream)}")
        groups = client.consumers(stream) if info.consumers else []
    if as_json:
        click.echo(json.dumps({**json_of(info), "groups": [asdict(each) for each in groups]}, ensure_ascii=False))
    else:
        _show(info, groups)
    return OK


def _show(info: StreamInfo, groups: list[ConsumerInfo]) -> None:
    age = ago(info.age_s(time.time_ns() // 1_000))
    rows = [
        ("stream", info.name),
        ("role", f"{info.role}, epoch {info.epoch}"),
        ("messages", f"{info.messages:,}, seq {info.first_seq} to {info.next_seq - 1}" if info.messages else "0"),
        ("size", f"{size(info.content_bytes)}, {size(info.disk_bytes)} on the disk"),
        ("rate", f"{rate(info.rate_per_s)} messages/s, {size(info.bytes_per_s)}/s"),
    ]
    if info.messages:
        rows += [("first", to_iso(info.first_timestamp_us)), ("last", f"{to_iso(info.last_timestamp_us)}, {age} ago")]
    if info.role == "slave":
        rows.append(("copy lag", counted(info.lag_messages, "message")))
    rows.append(("consumers", f"{info.consumers:,}, lag {counted(info.consumer_lag_messages, 'message')}"))
    show(columns(rows))
    if groups:
        click.echo()
        show(consumers.table_of(groups))
