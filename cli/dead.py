"""`tailrace dead`: the dead letters of a stream: list them, show one, publish them again, drop them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Final

import click

from tailrace import Client, Message
from tailrace.cli.ending import OK, REFUSED, CommandError, complain
from tailrace.cli.options import json_option, server_options, stream_argument
from tailrace.cli.output import render_json, write_all
from tailrace.cli.server import broker_client
from tailrace.cli.start import to_iso
from tailrace.cli.tables import counted, show_json
from tailrace.protocol.fields import NUMBER_MAX

EPILOG = """\b
Examples:
  tailrace dead orders
  tailrace dead orders --count 10
  tailrace dead orders --seq 3
  tailrace dead orders --json | jq .headers
  tailrace dead orders --redrive --seq 3
  tailrace dead orders --redrive --seq 10-99
  tailrace dead orders --purge --all

A line shows a dead letter: its seq among the dead letters, when it became one, the consumer that gave it up after how
many deliveries, its seq in the stream, the reason, and the start of its payload. --seq N writes the payload of one,
byte for byte. --json writes an object with all headers for each.

--redrive publishes dead letters to the stream again, with their keys and headers, as new messages for all its
consumers, and removes them. Each is published once, also if the command is repeated after an error. --purge removes
them for good. Both need --seq or --all, and print how many letters were removed.

Exit codes: 0 done, also if there are none, 1 refused by the broker, 2 wrong arguments, 4 no connection or lost.
"""

STDOUT = 1
PAYLOAD_CHARACTERS = 40  # that a line shows
LETTERS_A_WRITE: Final = 100
_SEQS = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")


class LetterRange(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    name = "seqs"

    def convert(self, value: str | range, param: click.Parameter | None, ctx: click.Context | None) -> range:
        if isinstance(value, range):
            return value
        match = _SEQS.fullmatch(value)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not 0 <= first <= last < NUMBER_MAX:
            self.fail(f"{value!r} is not a seq, such as 3, or two with a - between, such as 3-9", param, ctx)
        return range(first, last + 1)


@click.command("dead", epilog=EPILOG)
@stream_argument
@click.option("--count", "-n", type=click.IntRange(1), help="Stop after N dead letters.")
@click.option("--seq", "seqs", type=LetterRange(), metavar="N[-M]", help="Write the payload of this dead letter alone.")
@click.option("--redrive", is_flag=True, help="Publish dead letters to STREAM again, and remove them.")
@click.option("--purge", is_flag=True, help="Remove dead letters.")
@click.option("--all", "everything", is_flag=True, help="With --redrive and --purge: all of them.")
@json_option
@server_options
def command(
    stream: str,
    count: int | None,
    seqs: range | None,
    redrive: bool,
    purge: bool,
    everything: bool,
    as_json: bool,
) -> int:
    """List the dead letters of STREAM."""
    changes = redrive or purge
    if (redrive and purge) or changes != (everything or (changes and seqs is not None)):
        raise click.UsageError("--redrive or --purge needs --all or --seq, and --all one of them")
    if changes and ((everything and seqs is not None) or count is not None):
        raise click.UsageError("--redrive and --purge take --all or --seq, and not --count")
    with broker_client() as client:
        if redrive:
            _report(stream, "redriven", client.redrive(stream, seqs), f"published to {stream} again", as_json)
        elif purge:
            _report(stream, "purged", client.purge(stream, seqs), f"of {stream} removed", as_json)
        else:
            _show(client, stream, count, seqs, as_json)
    return OK


def _report(stream: str, deed: str, letters: int, text: str, as_json: bool) -> None:
    if as_json:
        show_json([{"stream": stream, deed: letters}])
    else:
        click.echo(f"{counted(letters, 'dead letter')} {text}")


def _show(client: Client, stream: str, count: int | None, seqs: range | None, as_json: bool) -> None:
    wanted = seqs or range(NUMBER_MAX)
    one = len(wanted) == 1
    letters = itertools.takewhile(lambda letter: letter.seq < wanted.stop, client.dead_letters(stream, wanted.start))
    shown = 0
    for batch in _batches(letters, math.inf if count is None else count):
        shown += len(batch)
        _write(batch, one, as_json)
    if not shown and seqs is not None:
        raise CommandError(f"{stream} has no dead letter {seqs.start}{'' if one else f' to {seqs.stop - 1}'}", REFUSED)
    if not shown:
        complain(f"tailrace: {stream} has no dead letters")


def _batches(letters: Iterator[Message], left: float) -> Iterator[list[Message]]:
    while batch := list(itertools.islice(letters, int(min(left, LETTERS_A_WRITE)))):
        yield batch
        left -= len(batch)


def _write(letters: list[Message], one: bool, as_json: bool) -> None:
    if as_json:
        write_all(STDOUT, render_json(letters, with_headers=True))
    elif one:
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
