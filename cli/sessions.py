"""`tailrace sessions`: the durable MQTT sessions of a node."""

from __future__ import annotations

from pathlib import Path

import click

from tailrace.cli.admin import ask, socket_option
from tailrace.cli.admin_answer import Answer, JsonAnswer, TableAnswer
from tailrace.cli.ending import OK, complain
from tailrace.cli.options import json_option, server_options
from tailrace.cli.tables import ago, make_table, plain, show, show_json, size
from tailrace.cli.values import FILLED

EPILOG = """\b
Examples:
  tailrace sessions ls
  tailrace sessions ls --json
  tailrace sessions rm sensor-7

A line shows a session: its client identifier, in which white space, control characters and % are written as in a URL;
the user it belongs to; whether the client is connected, or for how long it has been away; how long the session lasts
after its connection; and its size. Ask as an administrator, on the broker's own machine or with --user.

A session that is removed is not there when its client comes again: messages that it has not taken are not delivered.

Exit codes: 0 done, 1 refused by the broker, such as for a client without a session, 2 wrong arguments, 4 no connection.
"""


@click.group("sessions", epilog=EPILOG)
def command() -> None:
    """List and remove the durable MQTT sessions of a node."""


@command.command("ls", epilog=EPILOG)
@json_option
@server_options
@socket_option
def list_sessions(path: Path | None, as_json: bool) -> int:
    """List the durable MQTT sessions, in the order of their client identifiers."""
    table = make_table("client", "user", "away", "lasts", "size")
    after = ""
    while True:
        answer = TableAnswer()
        code = ask(f"sessions {after}".rstrip(), path, answer)
        if code != OK:
            return code
        if as_json:
            show_json(answer.rows)
        for row in answer.rows:
            away = "connected" if row["connected"] else ago(_number(row["away_s"]))
            cells = str(row["user"] or "-"), away, ago(_number(row["expiry_s"])), size(_number(row["bytes"]))
            table.add_row(plain(str(row["client"])), plain(cells[0]), *cells[1:])
        if not answer.rows:
            break
        after = str(answer.rows[-1]["client"])  # an answer has the first ones behind it
    if table.row_count and not as_json:
        show(table)
    elif not as_json:
        complain("tailrace: the node has no durable MQTT sessions")
    return OK


@command.command("rm", epilog=EPILOG)
@click.argument("client", type=FILLED)
@json_option
@server_options
@socket_option
def remove_session(client: str, path: Path | None, as_json: bool) -> int:
    """Remove the session of CLIENT, written as `ls` shows it."""
    if len(client.split()) != 1:
        raise click.UsageError("CLIENT must be written as `tailrace sessions ls` shows it: white space as in a URL")
    return ask(f"forget {client}", path, JsonAnswer("forget") if as_json else Answer())


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
