"""`tailrace tail`: the messages of a stream, from its past and as they come."""

from __future__ import annotations

import click

from tailrace.command.ending import OK
from tailrace.command.options import server_options, stream_argument
from tailrace.connection import choose_server, connect
from tailrace.line_client import Message
from tailrace.output import render_json, render_plain, write_all
from tailrace.start import FORMS, BadStart, parse_start
from tailrace.subscriber import Subscriber

EPILOG = """\b
Examples:
  tailrace tail access-log
  tailrace tail access-log --from new
  tailrace tail access-log --from "10m ago" --count 100
  tailrace tail access-log --from 2024-05-31T12:00:00Z --no-follow > noon.log
  tailrace tail access-log --from '#1000' --json | jq .payload

Each message is written byte for byte with a line feed after it. With --json each is an object on a line of its own:
stream, seq, timestamp_us, time, and payload, or payload_base64 where the message is not UTF-8.

Exit codes: 0 done (or the reader of the output has gone), 1 refused by the broker, 2 wrong arguments, 4 no connection
or lost (the seq to go on from is told), 130 interrupted.
"""

STDOUT = 1


def _check_start(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    try:
        return parse_start(value)
    except BadStart as error:
        raise click.BadParameter(str(error)) from None


@click.command("tail", epilog=EPILOG)
@stream_argument
@click.option(
    "--from", "start", default="0", show_default=True, callback=_check_start, metavar="FROM", help=f"{FORMS}."
)
@click.option("--count", "-n", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a message.")
@click.option("--follow/--no-follow", default=True, help="Go on with new messages, or stop at the end as it is now.")
@server_options
def command(
    stream: str,
    start: str,
    count: int | None,
    as_json: bool,
    follow: bool,
    server: str | None,
    host: str | None,
    port: int | None,
) -> int:
    """Print the messages of STREAM."""
    chosen = choose_server(server, host, port)

    def deliver(messages: list[Message]) -> None:
        write_all(STDOUT, render_json(messages, stream) if as_json else render_plain(messages))

    def warn(text: str) -> None:
        click.echo(f"tailrace: {text}", err=True)

    with connect(chosen) as sock:
        subscriber = Subscriber(sock, chosen, stream, warn=warn, watch_fd=STDOUT)
        end_seq = None if follow else subscriber.find_end()
        subscriber.begin(start)
        subscriber.follow(deliver, count=count, end_seq=end_seq)
    return OK
