"""`tailrace pub`: the lines of standard input, each a message."""

from __future__ import annotations

import click

from tailrace.command.ending import OK, REFUSED, CommandError
from tailrace.command.options import server_options, stream_argument
from tailrace.command.progress import ProgressBar, input_size
from tailrace.connection import choose_server, connect
from tailrace.publisher import Outcome, Publisher

EPILOG = """\b
Examples:
  tailrace pub access-log < access.log
  tail -F /var/log/syslog | tailrace pub syslog --quiet
  zcat old.gz | tailrace pub old --server broker.example:5050

Only the line feed of a line is taken off: any other byte, a carriage return too, is part of the message. A last line
without a line feed is a message as well.

Every acknowledgement is checked, unless --no-ack. Exit codes: 0 all lines are in the stream, 1 some were refused (the
first few are told with their line numbers), 2 wrong arguments, 4 no connection or lost (how much was acknowledged is
told), 130 interrupted.
"""


@click.command("pub", epilog=EPILOG)
@stream_argument
@click.option("--no-ack", is_flag=True, help="Do not ask for acknowledgements: faster, and losses go unseen.")
@click.option("--quiet", "-q", is_flag=True, help="No progress, no report.")
@server_options
def command(stream: str, no_ack: bool, quiet: bool, server: str | None, host: str | None, port: int | None) -> int:
    """Publish the lines of standard input to STREAM."""
    chosen = choose_server(server, host, port)
    try:
        total = input_size(0)
    except OSError as error:
        raise CommandError(f"cannot read standard input: {error.strerror}") from None
    with connect(chosen) as sock, ProgressBar(stream, total, is_bytes=True, wanted=not quiet) as bar:
        publisher = Publisher(
            sock, chosen, 0, stream, ack=not no_ack, tick=lambda so_far: bar.show(so_far.input_bytes, _note(so_far))
        )
        outcome = publisher.run()
    for refusal in outcome.refusals:
        where = f"line {refusal.line:,}: " if refusal.line else ""
        click.echo(f"tailrace: {where}{refusal.code}: {refusal.text}", err=True)
    if not quiet:
        click.echo(report(outcome, ack=not no_ack), err=True)
    return REFUSED if outcome.refused else OK


def _note(outcome: Outcome) -> str:
    return f"{outcome.lines:,} lines"


def report(outcome: Outcome, *, ack: bool) -> str:
    """One line: how much, how fast, and where it is."""
    rate = outcome.lines / outcome.seconds if outcome.seconds > 0 else 0.0
    text = f"{outcome.lines:,} lines, {outcome.input_bytes:,} bytes in {outcome.seconds:.2f} s ({rate:,.0f} lines/s)"
    if not ack:
        return f"{text}, not acknowledged, {outcome.refused:,} errors"
    text += f", {outcome.acknowledged:,} acknowledged"
    if outcome.refused:
        text += f", {outcome.refused:,} refused"
    if outcome.acknowledged:
        text += f", seq {outcome.first_seq:,} to {outcome.last_seq:,}"
    return text
