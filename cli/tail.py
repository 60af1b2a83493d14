"""`tailrace tail`: the messages of a stream, from its past and as they come."""

from __future__ import annotations

import math
import select
from collections.abc import Callable

import click

from tailrace import (
    NOW,
    Client,
    ConnectionLost,
    Message,
    OperationTimeout,
    Subscription,
    TailraceError,
    Trimmed,
)
from tailrace.cli.ending import NO_CONNECTION, OK, REFUSED, CommandError
from tailrace.cli.options import reconnect_option, server_options, stream_argument
from tailrace.cli.output import render_json, render_plain, write_all
from tailrace.cli.server import choose_server, connect
from tailrace.cli.start import FORMS, BadStart, parse_start
from tailrace.core.address import Address
from tailrace.core.places import StartPlace

EPILOG = """\b
Examples:
  tailrace tail access-log
  tailrace tail access-log --from new
  tailrace tail access-log --from "10m ago" --count 100
  tailrace tail access-log --from 2024-05-31T12:00:00Z --no-follow > noon.log
  tailrace tail access-log --from '#1000' --json | jq .payload

Each message is written byte for byte with a line feed after it. With --json each is an object on a line of its own:
stream, seq, timestamp_us, time, and payload, or payload_base64 where the message is not UTF-8. --headers puts the user
headers before each message, as a JSON object and a tab, or into its object as the member headers.

A lost connection is made again, and reading continues after the last message.

Exit codes: 0 done (or the reader of the output has gone), 1 refused by the broker, 2 wrong arguments, 4 no connection
or lost (the seq to continue from is shown), 130 interrupted.
"""

Deliver = Callable[[list[Message]], None]

STDOUT = 1
LOOK_S = 0.25  # how often the reader of the output is looked for while no message comes


def _check_start(_ctx: click.Context, _parameter: click.Parameter, value: str) -> StartPlace:
    try:
        return parse_start(value)
    except BadStart as error:
        raise click.BadParameter(str(error)) from None


@click.command("tail", epilog=EPILOG)
@stream_argument
@click.option(
    "--from", "start", default="0", show_default=True, callback=_check_start, metavar="FROM", help=f"{FORMS}."
)
@click.option("--count", "-n", type=click.IntRange(1), help="Stop after N messages.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each message.")
@click.option("--headers", "with_headers", is_flag=True, help="Show user headers too.")
@click.option("--follow/--no-follow", default=True, help="Continue with new messages, or stop at the current end.")
@reconnect_option
@server_options
def command(
    stream: str,
    start: StartPlace,
    count: int | None,
    as_json: bool,
    with_headers: bool,
    follow: bool,
    reconnect_s: float,
    server: str | None,
    host: str | None,
    port: int | None,
) -> int:
    """Print the messages of STREAM."""
    chosen = choose_server(server, host, port)

    def deliver(messages: list[Message]) -> None:
        render = render_json if as_json else render_plain
        write_all(STDOUT, render(messages, with_headers=with_headers))

    with connect(chosen, reconnect_s) as client:
        tail = Tail(client, chosen, stream)
        tail.run(start, follow=follow, count=count, deliver=deliver)
    return OK


class Tail:
    """One run of `tailrace tail`: yields messages in batches and turns the client's errors into the command's."""

    def __init__(self, client: Client, server: Address, stream: str) -> None:
        self._client = client
        self._server = server
        self._stream = stream
        self._next_seq = -1  # of the next message

    def run(
        self, start: StartPlace, *, follow: bool, count: int | None, deliver: Callable[[list[Message]], None]
    ) -> None:
        """Until `count` messages, the end as it is now, or for ever. Raises CommandError, BrokenPipeError."""
        left = math.inf if count is None else count
        try:
            subscription = self._client.subscribe(self._stream, start, None if follow else NOW)
            while left > 0 and (messages := self._next_batch(subscription)):
                del messages[int(min(left, len(messages))) :]
                left -= len(messages)
                self._next_seq = messages[-1].seq + 1
                deliver(messages)
        except ConnectionLost as error:
            raise CommandError(self._lost_text(error), NO_CONNECTION) from None
        except TailraceError as error:
            after = f" after seq {self._next_seq - 1}" if self._next_seq > 0 else ""
            raise CommandError(f"{self._server}: {error}{after}", REFUSED) from None

    def _next_batch(self, subscription: Subscription) -> list[Message]:
        """At least one message; [] at the end."""
        while True:
            try:
                return subscription.receive_batch(LOOK_S)
            except OperationTimeout:
                if reader_has_gone(STDOUT):
                    raise BrokenPipeError from None
            except Trimmed as trimmed:
                text = f"seqs {trimmed.first_seq} to {trimmed.last_seq} are missing: they were trimmed"
                click.echo(f"tailrace: {text}", err=True)

    def _lost_text(self, error: ConnectionLost) -> str:
        text = f"connection to {self._server} lost ({error})"
        if self._next_seq > 0:
            text += f" after seq {self._next_seq - 1}; continue with --from '#{self._next_seq}'"
        return text


def reader_has_gone(fd: int) -> bool:
    """Returns whether the output has no reader any more."""
    poller = select.poll()
    poller.register(fd, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poller.poll(0))
