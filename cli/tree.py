"""`tailrace tree`: shows which node replicates from which, as the nodes report it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from tailrace.cli.asking import AskFailed, ask_node
from tailrace.cli.credentials import TOKEN_VARIABLE, client_options
from tailrace.cli.ending import NO_CONNECTION, OK, CommandError, complain
from tailrace.cli.options import check_stream, json_option, server_options
from tailrace.cli.server import choose_server, context_of, has_server_option
from tailrace.cli.tables import make_console, show_json
from tailrace.cli.tree_walk import Node, walk
from tailrace.cli.values import FILLED
from tailrace.core.address import Address
from tailrace.core.options import ClientOptions
from tailrace.protocol.replication import Told

ASKED_AT_ONCE = 16

EPILOG = """\b
Examples:
  tailrace tree
  tailrace tree 10.0.0.1:5050
  tailrace tree 10.0.0.1:5050 --stream orders

Asks the node for its upstreams and its slaves, then each of those, and so on. Every line is a node: its address,
its id, what it is to its streams, and how far it is behind the node above it. One that cannot be asked is shown with
the reason, and with its neighbours' reports. With --stream, the last line says which of them may be promoted.

Exit codes: 0 done, 2 wrong arguments, 4 the first node cannot be asked.
"""


@click.command("tree", epilog=EPILOG)
@click.argument("address", required=False, type=FILLED, metavar="[HOST:PORT]")
@click.option("--stream", "-t", callback=check_stream, help="Only the tree of this stream.")
@json_option
@server_options
@click.option("--token", type=FILLED, help=f"The token that the nodes require [env: {TOKEN_VARIABLE}].")
def command(address: str | None, stream: str | None, as_json: bool, token: str | None) -> int:
    """Draw the replication tree that the node at HOST:PORT is in."""
    if address is not None and has_server_option():
        raise click.UsageError("HOST:PORT and --server, --host or --port: pass one of them")
    options = ClientOptions(token=token) if token else client_options()
    start = choose_server(address)
    tls = context_of(start)
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:

        def ask(address: Address) -> Told | str:
            try:
                return ask_node(address, stream, options, tls=tls)
            except AskFailed as error:
                return str(error)

        def ask_all(addresses: Sequence[Address]) -> list[Told | str]:
            return list(pool.map(ask, addresses))

        found = walk(start, ask_all)
    if found.start is None:
        raise CommandError(f"{start}: {found.problem}", NO_CONNECTION)
    if as_json:
        show_json(map(node_fields, found.nodes.values()))
        return OK
    from tailrace.cli.tree_view import candidates, draw

    console = make_console()
    for each in draw(found, stream):
        console.print(each)
    advice = "" if stream is None else candidates(found, stream)
    if advice:
        click.echo(advice)
    if found.is_cut:
        complain("tailrace: there are more nodes than are shown")
    return OK


def node_fields(node: Node) -> dict[str, Any]:
    """A node for --json: without `told` if it could not be asked, and then with the reason in `problem`."""
    told = node.told
    if told is None:
        return {"node": node.name, "address": node.address, "problem": node.problem}
    links, ends = ([row._asdict() for row in rows] for rows in (told.links, told.ends))
    roles = {"masters": told.masters, "slaves": told.slaves, "disabled": told.disabled}
    return {"node": node.name, "address": node.address, **roles, "links": links, "ends": ends}
