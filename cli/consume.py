"""`tailrace consume`: a member of a durable consumer, for shells; a message is finished when a command succeeds."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Sequence

import click

from tailrace import ConsumedMessage, Consumer, OperationTimeout, Trimmed
from tailrace.cli.ending import OK, REFUSED, USAGE, CommandError, complain
from tailrace.cli.notes import notes_shown
from tailrace.cli.options import (
    check_consumer,
    check_filter,
    consumer_argument,
    json_option,
    reconnect_option,
    server_options,
    start_option,
    stream_argument,
)
from tailrace.cli.output import render_json, render_plain, write_all
from tailrace.cli.server import broker_client
from tailrace.cli.values import Seconds
from tailrace.core.places import START, StartPlace
from tailrace.protocol.consuming import ACK_WAIT_MAX_S

EPILOG = """\b
Examples:
  tailrace consume orders billing
  tailrace consume orders billing -- ./bill-one-order
  tailrace consume mails sender --from new --ack-wait 120 -- sendmail -t
  tailrace consume orders billing --count 100 --wait 5 --json

GROUP is a durable consumer, made if it does not exist, to begin at --from; one that exists goes on where it was. Run
the same command several times, on any machines, and the messages are shared among them.

With a command after --, it is run once for each message, one at a time, with the message on its standard input and
TAILRACE_MESSAGE_STREAM, _SEQ, _TIMESTAMP_US, _DELIVERIES and, if it has a key, _KEY in its environment. A message is
finished when the command ends with exit code 0; any other end reports a failure, and the message is delivered again
later: after a second, then two, and so on to a minute, or as the consumer was made, or after --retry-after.
Without a command each message is printed, and finished once it is written.

Exit codes: 0 done, 1 refused by the broker, or the command failed for some message, 2 wrong arguments or a command
that cannot be run, 4 no connection or lost, 130 interrupted.
"""
STDOUT = 1


@click.command("consume", epilog=EPILOG, context_settings={"allow_interspersed_args": True})
@stream_argument
@consumer_argument
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@start_option("0")
@click.option("--count", "-n", type=click.IntRange(1), help="Stop after N messages.")
@click.option("--wait", "wait_s", type=Seconds(0), metavar="SECONDS", help="Stop if none comes for so long.")
@click.option(
    "--ack-wait",
    "ack_wait_s",
    type=Seconds(0, ACK_WAIT_MAX_S, min_open=True),
    metavar="SECONDS",
    help="The longest that COMMAND may take.",
)
@click.option(
    "--retry-after",
    "retry_s",
    type=Seconds(0, ACK_WAIT_MAX_S),
    metavar="SECONDS",
    help="A failed message's wait, each time.",
)
@click.option("--topics", callback=check_filter, metavar="FILTER", help="Only messages of topics that FILTER matches.")
@click.option("--member", callback=check_consumer, metavar="NAME", help="This member's name, for one that comes back.")
@json_option
@reconnect_option
@server_options
def command(
    stream: str,
    group: str,
    words: tuple[str, ...],
    start: StartPlace,
    count: int | None,
    wait_s: float | None,
    ack_wait_s: float | None,
    retry_s: float | None,
    topics: str | None,
    member: str | None,
    as_json: bool,
    reconnect_s: float,
) -> int:
    """Take messages of STREAM as a member of the durable consumer GROUP."""
    check_command(words, as_json=as_json)
    if retry_s is not None and not words:
        raise click.UsageError("--retry-after is for messages that COMMAND fails for, and there is no COMMAND")
    with (
        notes_shown(),
        broker_client(reconnect_s) as client,
        client.consumer(
            *(stream, group),
            start=start or START,
            member=member,
            batch=1 if words else 100,
            ack_wait_s=ack_wait_s,
            topics=topics or "",
        ) as consumer,
    ):
        _taken, failed = consume(consumer, words, count, wait_s, retry_s, as_json=as_json)
    return REFUSED if failed else OK


def check_command(words: Sequence[str], *, as_json: bool) -> None:
    """Raises UsageError if these do not go together."""
    if words and not words[0]:
        raise click.UsageError("COMMAND must not be empty")
    if words and as_json:
        raise click.UsageError("--json is for messages that are printed; COMMAND gets the message as it is")


def consume(
    consumer: Consumer,
    words: Sequence[str],
    count: int | None,
    wait_s: float | None,
    retry_s: float | None,
    *,
    as_json: bool,
) -> tuple[int, int]:
    """Until `count` messages, or until none has come for `wait_s`. Returns how many came, and how many of them failed.

    `retry_s`: how long a failed message waits; None as the consumer was made.
    """
    failed = taken = 0
    while (count is None or taken < count) and (message := _next(consumer, wait_s)) is not None:
        taken += 1
        if words:
            failed += not _handle(message, words, retry_s)
            consumer.flush()
        else:
            write_all(STDOUT, render_json([message]) if as_json else render_plain([message]))
            message.ack()
    return taken, failed


def _next(consumer: Consumer, wait_s: float | None) -> ConsumedMessage | None:
    """The next message; None if none comes in time."""
    while True:
        try:
            return consumer.receive(math.inf if wait_s is None else wait_s)
        except OperationTimeout:
            return None
        except Trimmed as trimmed:
            complain(f"tailrace: {trimmed}")


def _handle(message: ConsumedMessage, words: Sequence[str], retry_s: float | None) -> bool:
    """Runs the command for one message, and settles it; whether it succeeded. Raises CommandError."""
    try:
        code = subprocess.run(words, input=message.payload, env=environment_of(message), check=False).returncode
    except OSError as error:
        raise CommandError(f"cannot run {words[0]}: {error.strerror}", USAGE) from None
    if not code:
        message.ack()
        return True
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    message.nack(f"{words[0]}: {how}", retry_s)
    complain(f"tailrace: seq {message.seq}: {words[0]}: {how}")
    return False


def environment_of(message: ConsumedMessage) -> dict[str, str]:
    """The environment of a command for this message."""
    facts = {
        "STREAM": message.stream,
        "SEQ": str(message.seq),
        "TIMESTAMP_US": str(message.timestamp_us),
        "DELIVERIES": str(message.deliveries),
    }
    key = message.key
    if key is not None:
        facts["KEY"] = key if isinstance(key, str) else os.fsdecode(key)
    return {**os.environ, **{f"TAILRACE_MESSAGE_{name}": value for name, value in facts.items() if "\0" not in value}}
