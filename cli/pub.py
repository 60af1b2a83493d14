"""`tailrace pub`: one message from the command line, or the lines of standard input, each a message."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict

import click

from tailrace import Ack, InvalidArgument, Receipt
from tailrace.cli.ending import OK, REFUSED, CommandError, complain
from tailrace.cli.options import check_stream, reconnect_option, server_options
from tailrace.cli.progress import ProgressBar, input_size
from tailrace.cli.publishing import Publisher, PublishOutcome
from tailrace.cli.server import broker_errors, choose_server, connect
from tailrace.cli.tables import counted, show_json
from tailrace.cli.template import BadTemplate, parse_template
from tailrace.core.arguments import REPLICAS_MAX
from tailrace.core.headers import KEY_HEADER, pack_headers
from tailrace.core.values import PublishOptions

EPILOG = """\b
Examples:
  tailrace pub greetings 'hello world'
  tailrace pub orders '{"id": 7}' --key customer-7
  tailrace pub access-log < access.log
  tail -F /var/log/syslog | tailrace pub syslog --quiet
  zcat old.gz | tailrace pub old --server broker.example:5050
  tailrace pub sensors --topic sensors/7/temp 21.5
  tailrace pub --stream 'access.{1}' --headers source=web1 < access.log
  tailrace pub orders -K : < orders.txt

With TEXT one message is published, and its seq printed on standard error.

Without TEXT each line of standard input is a message. Only the line feed of a line is taken off: any other byte, a
carriage return too, is part of the message. A last line without a line feed is a message as well.

Messages with the same key reach the members of a durable consumer in their order. With -K a line is the key, SEP and
the message; a line without SEP is a message without a key.

With --stream each line goes to a stream of its own: {1} is its first word, {2} its second; with {name} each line is a
JSON object, and this the member of that name.

Every acknowledgement is checked, unless --ack none. With --ack replicated a line is acknowledged when so many nodes
(--replicas) below the stream's master hold it; one that is logged, but held by fewer, is reported as refused, with its
seq. When the connection breaks, what was not acknowledged is sent again on the next one, and is in the stream once.

Exit codes: 0 all lines are in the stream, 1 some were refused or not replicated (the first few are shown with their
line numbers), 2 wrong arguments, 4 no connection or lost (how much was acknowledged is shown), 130 interrupted.
"""

ACKS = {ack.name.lower(): ack for ack in Ack}


def _parse_headers(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str | bytes]:
    headers: dict[str, str | bytes] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        if key in headers:
            raise click.BadParameter(f"the header {key!r} is given twice")
        headers[key] = text
    try:
        pack_headers(headers)
    except InvalidArgument as error:
        raise click.BadParameter(str(error)) from None
    return headers


def _check_topic(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    try:
        pack_headers(None, topic=value)
    except InvalidArgument as error:
        raise click.BadParameter(str(error)) from None
    return value


@click.command("pub", epilog=EPILOG)
@click.argument("stream", required=False, callback=check_stream)
@click.argument("text", required=False)
@click.option("--key", "-k", help="The key of every message.")
@click.option("--topic", "-t", callback=_check_topic, help="The topic of every message.")
@click.option("-K", "separator", metavar="SEP", help="Each line begins with the key of its message and SEP.")
@click.option("--stream", "template", metavar="TEMPLATE", help="The stream of each line, made from the line.")
@click.option("--ack", type=click.Choice(list(ACKS)), help="What each publish waits for.  [default: appended]")
@click.option(
    "--replicas",
    type=click.IntRange(1, REPLICAS_MAX),
    metavar="N",
    help="With --ack replicated: number of other nodes that must hold each message.  [default: 1]",
)
@click.option("--no-ack", is_flag=True, help="Same as --ack none: faster, but losses go unnoticed.")
@click.option(
    "--headers", "-H", multiple=True, metavar="KEY=VALUE", callback=_parse_headers, help="A header for every message."
)
@click.option("--quiet", "-q", is_flag=True, help="Show no progress and no report.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@reconnect_option
@server_options
def command(
    stream: str | None,
    text: str | None,
    key: str | None,
    topic: str | None,
    separator: str | None,
    template: str | None,
    ack: str | None,
    replicas: int | None,
    no_ack: bool,
    headers: dict[str, str | bytes],
    quiet: bool,
    as_json: bool,
    reconnect_s: float,
) -> int:
    """Publish TEXT, or each line of standard input, to STREAM."""
    streams = _streams(stream, template)
    if no_ack and ack not in (None, "none"):
        raise click.UsageError(f"--no-ack is --ack none, and contradicts --ack {ack}")
    level = Ack.NONE if no_ack else ACKS[ack or "appended"]
    if replicas and level is not Ack.REPLICATED:
        raise click.UsageError("--replicas goes with --ack replicated")
    if separator is not None and (text is not None or key is not None or not separator):
        raise click.UsageError("-K SEP, at least one character, goes with lines of standard input and without --key")
    headers = _with_key(headers, key, separator)
    chosen = choose_server()
    if text is not None and stream is not None:
        with broker_errors(chosen), connect(chosen, reconnect_s) as client:
            options: PublishOptions = {"headers": headers, "topic": topic, "ack": level, "replicas": replicas or 0}
            receipt = client.publish(stream, os.fsencode(text), **options)
            client.close()  # errors without an acknowledgement come until then
            if client.refused:
                raise CommandError(f"{chosen}: {client.last_refusal}")
        if as_json:
            show_json([{"stream": stream, "seq": receipt.seq, "subscribers": receipt.subscribers}])
        elif not quiet:
            complain(shown_receipt(receipt))
        return OK
    title, total = stream or template or "", _size()
    wanted = not quiet and not os.isatty(0)  # a bar would overwrite the line that is being typed
    with connect(chosen, reconnect_s) as client, ProgressBar(title, total, is_bytes=True, wanted=wanted) as bar:
        publisher = Publisher(
            client,
            chosen,
            0,
            streams,
            ack=level,
            replicas=replicas or 0,
            headers=headers,
            topic=topic,
            separator=None if separator is None else os.fsencode(separator),
            tick=lambda so_far: bar.show(so_far.input_bytes, counted(so_far.lines, "line")),
        )
        outcome = publisher.run()
    for refusal in outcome.refusals:
        where = f"line {refusal.line:,}: " if refusal.line else ""
        complain(f"tailrace: {where}{refusal.code}: {refusal.text}")
    if outcome.full_at >= 0:
        where = f"at line {outcome.full_at:,}" if outcome.full_at else "early"
        complain(f"tailrace: stopped {where}: the node has no space for more; the rest of the input was not read")
    if as_json:
        show_json([{"stream": stream, **asdict(outcome)}])
    elif not quiet:
        complain(report(outcome, ack=level is not Ack.NONE, one_stream=stream is not None))
    return REFUSED if outcome.refused else OK


def _with_key(headers: dict[str, str | bytes], key: str | None, separator: str | None) -> dict[str, str | bytes]:
    if KEY_HEADER in headers and (key is not None or separator is not None):
        option = "-K" if key is None else "--key"
        raise click.UsageError(f"{option} and the header {KEY_HEADER!r}: pass one of them")
    if key is None:
        return headers
    return {**headers, KEY_HEADER: key}


def shown_receipt(receipt: Receipt) -> str:
    """`seq 7 of orders`, or that it is not known."""
    return f"seq {receipt.seq:,} of {receipt.stream}" if receipt.seq >= 0 else "1 message, not acknowledged"


def _size() -> int | None:
    """Bytes of the input, if it is a file. Raises CommandError."""
    try:
        return input_size(0)
    except OSError as error:
        raise CommandError(f"cannot read standard input: {error.strerror}") from None


def _streams(stream: str | None, template: str | None) -> str | Callable[[bytes], str]:
    if (stream is None) == (template is None):
        raise click.UsageError("one of STREAM and --stream TEMPLATE is needed")
    if stream is not None:
        return stream
    assert template is not None
    try:
        return parse_template(template)
    except BadTemplate as error:
        raise click.UsageError(str(error)) from None


def report(outcome: PublishOutcome, *, ack: bool, one_stream: bool = True) -> str:
    """One line: how much, how fast, and at which seqs."""
    rate = outcome.lines / outcome.seconds if outcome.seconds > 0 else 0.0
    sizes = f"{counted(outcome.lines, 'line')}, {counted(outcome.input_bytes, 'byte')}"
    text = f"{sizes} in {outcome.seconds:.2f} s ({rate:,.0f} lines/s)"
    if not ack:
        return f"{text}, not acknowledged, {counted(outcome.refused, 'error')}"
    text += f", {outcome.acknowledged:,} acknowledged"
    if outcome.refused:
        text += f", {outcome.refused:,} refused"
    if outcome.acknowledged and one_stream:
        text += f", seq {outcome.first_seq:,} to {outcome.last_seq:,}"
    return text
