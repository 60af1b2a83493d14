"""`tailrace consumers`: the durable consumers of a stream: their lag, and making, moving and ending them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tailrace import ConsumerInfo
from tailrace.cli.ending import OK, REFUSED, complain, did_you_mean
from tailrace.cli.options import (
    check_filter,
    consumer_argument,
    json_option,
    server_options,
    start_option,
    stream_argument,
)
from tailrace.cli.server import broker_client
from tailrace.cli.tables import ago, make_table, plain, show, show_json, warn
from tailrace.cli.values import Seconds
from tailrace.core.places import Seq, StartPlace
from tailrace.protocol.consuming import ACK_WAIT_MAX_S, DELIVERIES_MAX

if TYPE_CHECKING:
    from rich.table import Table

EPILOG = """\b
Examples:
  tailrace consumers orders
  tailrace consumers ls orders --json
  tailrace consumers create orders billing --from new
  tailrace consumers reset orders billing --from "1h ago"
  tailrace consumers rm orders billing

A line shows a consumer: the seq of its first message that is not finished, how many follow up to the end of the
stream and how old the first is, how many its members have at this moment, how many members there are, how many
deliveries were not the first and how many messages were given up (they are in the stream STREAM/$dead), how long ago a
member last asked, and its topic filter. "<=" before the lag: the broker is counting what the filter matches; ask again.

Exit codes: 0 done, 1 refused by the broker, 2 wrong arguments, 4 no connection or lost.
"""
LIST = "ls"
OTHER_WORDS = {
    **dict.fromkeys(("list", "show", "describe"), LIST),
    **dict.fromkeys(("add", "make", "new"), "create"),
    **dict.fromkeys(("delete", "remove", "del", "drop"), "rm"),
    **dict.fromkeys(("seek", "move", "rewind"), "reset"),
}
"""What other systems call a command."""


class ListedByDefault(click.Group):
    """`consumers STREAM` is `consumers ls STREAM`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        completes = ctx.resilient_parsing and not args  # a shell asks for the first word
        if not completes and args[:1] not in [[word] for word in (*self.commands, *ctx.help_option_names)]:
            words = [arg for arg in args[:2] if not arg.startswith("-")]
            hint = did_you_mean(words[0], tuple(self.commands), OTHER_WORDS) if len(words) > 1 else ""
            if hint:
                raise click.UsageError(f"No such command {words[0]!r}{hint}", ctx)
            args = [LIST, *args]
        return super().parse_args(ctx, args)


@click.group("consumers", cls=ListedByDefault, epilog=EPILOG)
def command() -> None:
    """List, make, move and end the durable consumers of a stream."""


@command.command(LIST, epilog=EPILOG)
@stream_argument
@json_option
@server_options
def list_consumers(stream: str, as_json: bool) -> int:
    """List the durable consumers of STREAM and their lag."""
    with broker_client() as client:
        infos = client.consumers(stream)
    if as_json:
        show_json(infos)
    elif infos:
        show(table_of(infos))
    else:
        complain(f"tailrace: {stream} has no durable consumers")
    return OK


@command.command("create", epilog=EPILOG)
@stream_argument
@consumer_argument
@start_option("0")
@click.option(
    "--ack-wait",
    "ack_wait_s",
    type=Seconds(0, ACK_WAIT_MAX_S, min_open=True),
    metavar="SECONDS",
    help="Deliver a message again after this time.",
)
@click.option(
    "--retry",
    "retry_s",
    type=Seconds(0, ACK_WAIT_MAX_S),
    metavar="SECONDS",
    help="Wait so long after a first failure; doubles.",
)
@click.option(
    "--retry-max",
    "retry_max_s",
    type=Seconds(0, ACK_WAIT_MAX_S),
    metavar="SECONDS",
    help="Wait at most so long.",
)
@click.option(
    "--deliveries",
    type=click.IntRange(0, DELIVERIES_MAX),
    metavar="N",
    help="Deliver a message at most N times; 0: no end.",
)
@click.option("--topics", callback=check_filter, metavar="FILTER", help="Only messages of topics that FILTER matches.")
@json_option
@server_options
def create_consumer(
    stream: str,
    group: str,
    start: StartPlace,
    ack_wait_s: float | None,
    retry_s: float | None,
    retry_max_s: float | None,
    deliveries: int | None,
    topics: str | None,
    as_json: bool,
) -> int:
    """Make the durable consumer GROUP of STREAM. One that exists with these settings goes on as it is."""
    if retry_s is not None and retry_max_s is not None and retry_s > retry_max_s:
        raise click.UsageError(f"--retry {retry_s:g} is more than --retry-max {retry_max_s:g}")
    with broker_client() as client:
        next_seq = client.create_consumer(
            *(stream, group, start),
            ack_wait_s=ack_wait_s,
            deliveries_max=deliveries,
            retry_s=retry_s,
            retry_max_s=retry_max_s,
            topics=topics or "",
        )
    _show_place(stream, group, next_seq, as_json)
    return OK


@command.command("reset", epilog=EPILOG)
@stream_argument
@consumer_argument
@start_option(None)
@json_option
@server_options
def reset_consumer(
    stream: str,
    group: str,
    start: StartPlace | None,
    as_json: bool,
) -> int:
    """Move the durable consumer GROUP of STREAM to --from, earlier or later."""
    if start is None:
        raise click.UsageError("--from FROM is needed: where the consumer is to continue")
    with broker_client() as client:
        next_seq = client.reset_consumer(stream, group, start)
    if isinstance(start, Seq) and next_seq < start.seq:
        complain(f"tailrace: seq {start.seq:,} is beyond the end of the stream")
    _show_place(stream, group, next_seq, as_json)
    return OK


@command.command("rm", epilog=EPILOG)
@stream_argument
@consumer_argument
@json_option
@server_options
def delete_consumer(stream: str, group: str, as_json: bool) -> int:
    """End the durable consumer GROUP of STREAM. The stream's messages stay."""
    with broker_client() as client:
        existed = client.delete_consumer(stream, group)
    if as_json:
        show_json([{"stream": stream, "consumer": group, "deleted": existed}])
    elif existed:
        click.echo(f"consumer {group} of {stream} is deleted")
    else:
        complain(f"tailrace: {stream} has no durable consumer {group}")
    return OK if existed else REFUSED


def _show_place(stream: str, group: str, next_seq: int, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"stream": stream, "consumer": group, "next_seq": next_seq}, ensure_ascii=False))
    else:
        click.echo(f"consumer {group} of {stream}: seq {next_seq} is next")


def table_of(infos: Iterable[ConsumerInfo]) -> Table:
    table = make_table(
        *("consumer", "next", "lag", "lag time", "in flight", "members", "redelivered", "dead", "idle", "topics"),
    )
    for info in infos:
        numbers = (f"{each:,}" for each in (info.in_flight, info.members, info.redelivered))
        lag = "<= " * info.lag_at_most + warn("yellow", info.lag_messages)
        times = ago(info.lag_s), *numbers, warn("red", info.dead), ago(info.idle_s)
        table.add_row(plain(info.name), f"{info.next_seq}", lag, *times, plain(info.topics))
    return table
