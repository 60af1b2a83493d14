"""`tailrace udp`: publish and subscribe by datagrams."""

from __future__ import annotations

import errno
import os
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import click

from tailrace.cli.ending import OK, complain
from tailrace.cli.options import json_option, server_options
from tailrace.cli.output import write_all
from tailrace.cli.server import broker_errors, choose_servers
from tailrace.cli.tables import show_json
from tailrace.cli.values import Filled
from tailrace.core.datagram_nodes import PING_S, SILENT_PINGS
from tailrace.core.datagram_state import checked_filter, checked_topic
from tailrace.errors import InvalidTopic, ReservedName
from tailrace.udp import TIMEOUT_S, DatagramMessage, UdpClient

EPILOG = """\b
Examples:
  tailrace udp pub weather/rome 21.5
  tailrace udp pub weather/rome --ask < reading
  tailrace udp sub 'weather/+' --count 10
  tailrace udp sub 'weather/+' --server 10.0.0.1:5050,10.0.0.2:5050

The broker must have been started with udp = true in [listen]. A datagram may be lost: pub --ask waits for the answer.
sub prints a topic, a tab and the message in a line each; it asks for its subscription again three times in a lease.
With several addresses, with commas in between, the first node that answers is used; sub goes on at the next one when
its node is silent for three seconds.
Options of TLS and of logging in have no effect: datagrams are not encrypted, and the broker goes by addresses.

Exit codes: 0 done, 1 refused or not answered by the broker, or no such host, 2 wrong arguments.
"""
STDOUT = 1


class _Topic(Filled):
    """A topic, or a filter, that datagrams may have."""

    def __init__(self, check: Callable[[bytes], bytes]) -> None:
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            self._check(os.fsencode(super().convert(value, param, ctx)))
        except (InvalidTopic, ReservedName) as error:
            self.fail(str(error), param, ctx)
        return value


@click.group("udp", epilog=EPILOG)
def command() -> None:
    """Publish and subscribe by UDP."""


@command.command("pub", epilog=EPILOG)
@click.argument("topic", type=_Topic(checked_topic))
@click.argument("payload", required=False)
@click.option("--ask", "is_asked", is_flag=True, help="Wait for the answer, and print the seq.")
@json_option
@server_options
def publish(topic: str, payload: str | None, is_asked: bool, as_json: bool) -> int:
    """Publish PAYLOAD, or the whole of standard input, as one message."""
    if as_json and not is_asked:
        raise click.UsageError("--json prints the answer, which only --ask waits for")
    body = _standard_input() if payload is None else payload.encode("utf-8", "surrogateescape")
    with _client() as client:
        if is_asked:
            seq = client.publish_asked(topic, body)
            if as_json:
                show_json([{"topic": topic, "seq": seq}])
            else:
                click.echo(seq)
        else:
            client.publish(topic, body)
    return OK


def _standard_input() -> bytes:
    """All of it. Python has none if it was closed when the process began."""
    standard_input: TextIO | None = sys.stdin
    if standard_input is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return standard_input.buffer.read()


@command.command("sub", epilog=EPILOG)
@click.argument("topic", type=_Topic(checked_filter))
@click.option("--count", type=click.IntRange(1), help="End after this many messages.")
@json_option
@server_options
def subscribe(topic: str, count: int | None, as_json: bool) -> int:
    """Print the messages of a topic, or of those that a filter matches, from now on."""
    with _client() as client:
        client.subscribe(topic)
        complain(f"tailrace: subscribed to {topic}")
        for number, message in enumerate(client, start=1):
            if as_json:
                show_json([_object_of(message)])
            else:
                write_all(STDOUT, message.topic + b"\t" + message.body + b"\n")
            if number == count:
                break
    return OK


@contextmanager
def _client() -> Iterator[UdpClient]:
    """A client of the nodes that the options name. If there are several, one has answered. Raises CommandError."""
    servers = [str(each) for each in choose_servers()]
    timeout_s = TIMEOUT_S + SILENT_PINGS * PING_S * (len(servers) - 1)
    with broker_errors(", ".join(servers)), UdpClient(servers, timeout_s=timeout_s) as client:
        if len(servers) > 1:
            client.reach()
        yield client


def _object_of(message: DatagramMessage) -> dict[str, str]:
    """Topic, and payload (text) or payload_base64 (not UTF-8)."""
    topic = message.topic.decode("utf-8", "replace")
    try:
        return {"topic": topic, "payload": message.body.decode()}
    except UnicodeDecodeError:
        return {"topic": topic, "payload_base64": b64encode(message.body).decode()}
