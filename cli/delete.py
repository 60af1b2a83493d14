"""`tailrace delete`: a stream goes, with its messages, consumers and dead letters."""

from __future__ import annotations

import click

from tailrace.cli.ending import OK, is_somebody_there
from tailrace.cli.options import json_option, server_options, stream_argument
from tailrace.cli.server import broker_client
from tailrace.cli.tables import show_json

EPILOG = """\b
Examples:
  tailrace delete orders
  tailrace delete orders --yes

The stream's messages, its durable consumers and its dead letters are removed, here and on the nodes that follow it.
Readers are told, with the error "deleted". A publish to the name makes another stream, which begins at seq 0. Ask the
master of the stream, as an administrator. Without --yes the name is asked for once more.

Exit codes: 0 done, 1 refused by the broker, 2 wrong arguments, 4 no connection or lost.
"""


@click.command("delete", epilog=EPILOG)
@stream_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@server_options
def command(stream: str, yes: bool, as_json: bool) -> int:
    """Delete STREAM for good."""
    if not yes:
        if not is_somebody_there():
            raise click.UsageError("nobody is there to be asked: add --yes")
        if click.prompt("Everything in this stream will be lost. Type its name to go on", err=True) != stream:
            raise click.UsageError("that is another name; nothing is deleted")
    with broker_client() as client:
        client.delete_stream(stream)
    if as_json:
        show_json([{"stream": stream, "deleted": True}])
    else:
        click.echo(f"{stream} is deleted")
    return OK
