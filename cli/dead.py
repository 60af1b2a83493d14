"""`tailrace dead`: the dead letters of a stream, which its durable consumers have given up."""

from __future__ import annotations

import math

import click

from tailrace import NOW, Client, Message, StreamBehind, UnknownStream
from tailrace.cli.ending import OK, REFUSED, CommandError
from tailrace.cli.options import json_option, server_options, stream_argument
from tailrace.cli.output import render_json, write_all
from tailrace.cli.server import broker_client
from tailrace.cli.start import to_iso
from tailrace.core.places import START, Seq
from tailrace.shard.names import dead_name

EPILOG = """\b
Examples:
  tailrace dead orders
  tailrace dead orders --count 10
  tailrace dead orders --seq 3
  tailrace dead orders --json | jq .headers

A line shows a dead letter: its seq among the dead letters, when it became one, the consumer that gave it up after how
many deliveries, its seq in the stream, the reason, and the start of its payload. --seq writes the payload of one, byte
for byte. --json writes an object with all headers for each.

Exit codes: 0 done, also if there are none, 1 refused by the broker, 2 wrong arguments, 4 no connection or lost.
"""

STDOUT = 1
PAYLOAD_CHARACTERS = 40  # that a line shows


@click.command("dead", epilog=EPILOG)
@stream_argument
@click.option("--count", "-n", type=click.IntRange(1), help="Stop after N dead letters.")
@click.option("--seq", type=click.IntRange(0), help="Write the payload of this dead letter alone.")
@json_option
@server_options
def command(
    stream: str,
    count: int | None,
    seq: int | None,
    as_json: bool,
) -> int:
    """List the dead letters of STREAM."""
    with broker_client() as client:
        _show(client, stream, count, seq, as_json)
    return OK


def _show(client: Client, stream: str, count: int | None, seq: int | None, as_json: bool) -> None:
    left = 1 if seq is not None else math.inf if count is None else count
    name = dead_name(stream.encode()).decode()
    shown = 0
    try:
        subscription = client.subscribe(name, START if seq is None else Seq(seq), NOW, on_trimmed="skip")
        while left > 0 and (letters := subscription.receive_batch()):
            del letters[int(min(left, len(letters))) :]
            left -= len(letters)
            shown += len(letters)
            _write(letters, seq, as_json)
    except UnknownStream:
        client.consumers(stream)  # raises if the stream itself is unknown
        click.echo(f"tailrace: {stream} has no dead letters", err=True)
        return
    except StreamBehind:
        shown = 0
    if seq is not None and not shown:
        raise CommandError(f"{stream} has no dead letter {seq}", REFUSED)


def _write(letters: list[Message], seq: int | None, as_json: bool) -> None:
    if as_json:
        write_all(STDOUT, render_json(letters, with_headers=True))
    elif seq is not None:
        write_all(STDOUT, letters[0].payload)
    else:
        write_all(STDOUT, "".join(map(line_of, letters)).encode())


def line_of(letter: Message) -> str:
    """Columns with tabs between them, for people and for `cut`."""
    headers = letter.headers
    fields = (headers.get(f"dead-{name}", "-") for name in ("consumer", "deliveries", "seq", "reason"))
    columns = (letter.seq, to_iso(letter.timestamp_us), *map(_shown, fields), _start_of(letter.payload))
    return "\t".join(map(str, columns)) + "\n"


def _start_of(payload: bytes) -> str:
    text = _shown(payload[: 4 * PAYLOAD_CHARACTERS])
    return text if len(text) <= PAYLOAD_CHARACTERS else f"{text[:PAYLOAD_CHARACTERS]}…"


def _shown(value: str | bytes) -> str:
    """As one word of a line; control characters would do things to a terminal."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return "".join(character if character.isprintable() else "." for character in text)
