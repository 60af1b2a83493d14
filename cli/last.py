"""`tailrace last`: the last value of each topic."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

import click

from tailrace.cli.ending import OK, complain
from tailrace.cli.options import check_stream, json_option, server_options
from tailrace.cli.output import render_json, render_plain, write_all
from tailrace.cli.server import broker_client

EPILOG = """\b
Examples:
  tailrace last sensors/7/temp
  tailrace last 'sensors/+/temp' --json
  tailrace last 'sensors/#'

NAME is that of a topic or a stream, or a filter or pattern of them. A line has the topic, a tab and the payload, by
stream and then by topic. A node keeps last values for the streams whose section in its configuration has last_values,
and those of messages that MQTT clients retain; of others nothing is printed.

Exit codes: 0 done, 1 refused by the broker, 2 wrong arguments, 4 no connection or lost.
"""
STDOUT = 1


@click.command("last", epilog=EPILOG)
@click.argument("name", metavar="NAME", callback=check_stream)
@json_option
@server_options
def command(name: str, as_json: bool) -> int:
    """Print the last message of each topic."""
    with broker_client() as client:
        messages = client.last(name)
    if not messages:
        complain(f"tailrace: no last values of {name}")
    for _stream, group in groupby(messages, attrgetter("stream")):
        of_stream = list(group)
        write_all(STDOUT, render_json(of_stream) if as_json else render_plain(of_stream, with_topic=True))
    return OK
