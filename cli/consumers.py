"""`tailrace consumers`: the durable consumers of a stream, and how far each has come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tailrace import ConnectionLost, ConsumerInfo, TailraceError
from tailrace.cli.ending import NO_CONNECTION, OK, REFUSED, CommandError
from tailrace.cli.options import server_options, stream_argument
from tailrace.cli.server import choose_server, connect

if TYPE_CHECKING:
    from rich.table import Table

LINE_CHARACTERS_MAX = 10_000
UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))

EPILOG = """\b
Examples:
  tailrace consumers orders
  tailrace consumers orders --server 10.0.0.1:5050

A line shows a consumer: the seq of its first message that is not finished, how many follow up to the end of the
stream and how old the first is, how many its members have at this moment, how many members there are, how many
deliveries were not the first and how many messages were given up (they are in the stream STREAM/$dead), and how long
ago a member last asked.

Exit codes: 0 done, 1 refused by the broker, 2 wrong arguments, 4 no connection or lost.
"""


@click.command("consumers", epilog=EPILOG)
@stream_argument
@server_options
def command(stream: str, server: str | None, host: str | None, port: int | None) -> int:
    """List the durable consumers of STREAM and their lag."""
    chosen = choose_server(server, host, port)
    try:
        with connect(chosen) as client:
            infos = client.consumers(stream)
    except ConnectionLost as error:
        raise CommandError(f"connection to {chosen} lost ({error})", NO_CONNECTION) from None
    except TailraceError as error:
        raise CommandError(f"{chosen}: {error}", REFUSED) from None
    if not infos:
        click.echo(f"tailrace: {stream} has no durable consumers", err=True)
        return OK
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = LINE_CHARACTERS_MAX  # one line for each consumer, of any length, for programs that parse it
    console.print(table_of(infos))
    return OK


def table_of(infos: Iterable[ConsumerInfo]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("consumer", style="bold", no_wrap=True)
    for title in ("next", "lag", "lag time", "in flight", "members", "redelivered", "dead", "idle"):
        table.add_column(title, justify="right", no_wrap=True)
    for info in infos:
        lag = f"[yellow]{info.lag_messages:,}[/]" if info.lag_messages else "0"
        dead = f"[red]{info.dead:,}[/]" if info.dead else "0"
        numbers = (f"{each:,}" for each in (info.in_flight, info.members, info.redelivered))
        table.add_row(_plain(info.name), f"{info.next_seq}", lag, _ago(info.lag_s), *numbers, dead, _ago(info.idle_s))
    return table


def _plain(name: str) -> str:
    """Escapes markup in a name."""
    from rich.markup import escape

    return escape(name)


def _ago(seconds: float | None) -> str:
    """`2.5 s`, `3.0 min`, `1.5 d`; a dash for none."""
    if seconds is None:
        return "-"
    for unit, of_s in UNITS:
        if seconds >= of_s:
            return f"{seconds / of_s:,.1f} {unit}"
    return f"{seconds:.1f} s"
