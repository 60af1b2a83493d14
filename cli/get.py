"""`tailrace get`: the next message of a durable consumer, for shells; it is finished when it is written or handled."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tailrace import Consumer
from tailrace.cli.consume import check_command, consume
from tailrace.cli.ending import OK, REFUSED, complain
from tailrace.cli.options import consumer_argument, json_option, server_options, start_option, stream_argument
from tailrace.cli.server import broker_client
from tailrace.cli.values import Seconds
from tailrace.core.places import START, StartPlace

EPILOG = """\b
Examples:
  tailrace get orders billing
  tailrace get orders billing --wait 60 --json
  tailrace get orders billing -- ./bill-one-order

GROUP is a durable consumer, made if it does not exist, to begin at --from; one that exists goes on where it was. The
message is finished once it is written, or when COMMAND, with the message on its standard input, ends with exit code 0;
the next get has the next message. `tailrace consume` goes on taking messages.

Exit codes: 0 done, 1 no message came in time, the command failed, or refused by the broker, 2 wrong arguments or a
command that cannot be run, 4 no connection or lost, 130 interrupted.
"""


@click.command("get", epilog=EPILOG)
@stream_argument
@consumer_argument
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@start_option("0")
@click.option(
    "--wait",
    "wait_s",
    type=Seconds(0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait this long for a message.",
)
@json_option
@server_options
def command(
    stream: str, group: str, words: tuple[str, ...], start: StartPlace | None, wait_s: float, as_json: bool
) -> int:
    """Take the next message of STREAM as a member of the durable consumer GROUP."""
    check_command(words, as_json=as_json)
    with (
        broker_client() as client,
        client.consumer(stream, group, start=start or START, batch=1) as consumer,
    ):
        return get(consumer, words, wait_s, as_json=as_json)


def get(consumer: Consumer, words: Sequence[str], wait_s: float, *, as_json: bool) -> int:
    """One message; returns the exit code."""
    taken, failed = consume(consumer, words, 1, wait_s, None, as_json=as_json)
    if not taken:
        complain(f"tailrace: no message of {consumer.stream} for {consumer.name} within {wait_s:g} s")
    return OK if taken and not failed else REFUSED
