"""`tailrace cluster`: the state of a cluster in etcd, and the decisions of its operator."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import click

from tailrace.cli.ending import NO_CONNECTION, OK, REFUSED, CommandError
from tailrace.cli.etcd import etcd_options, make_etcd
from tailrace.cli.options import json_option
from tailrace.cli.tables import make_table, plain, show, show_json
from tailrace.cli.values import FILLED
from tailrace.cluster.etcd import EtcdAway
from tailrace.cluster.store import ClusterStore, ClusterView

F = TypeVar("F", bound=Callable[..., Any])

ETCD_TIMEOUT_S: Final = 2.0
SWITCH_S: Final = 15
"""For which a node is named as the next leader; then the name is gone from etcd."""
LOOK_EVERY_S: Final = 0.1

EPILOG = """\b
Examples:
  tailrace cluster status --cluster orders --etcd 10.0.0.9:2379
  tailrace cluster switchover 10.0.0.2:5050
  tailrace cluster leave 10.0.0.3:5050
  tailrace cluster pause

NODE is the id of a node or its address, as in the status. TAILRACE_CLUSTER and TAILRACE_ETCD in the environment give
--cluster and --etcd. With TLS and a user of etcd see `--help` of a command.

Exit codes: 0 done, 1 not done, 2 wrong arguments, 4 etcd does not answer.
"""


class ClusterNodeRow(NamedTuple):
    """A line of the status."""

    node: str
    address: str
    role: str
    in_sync: bool
    agent: str
    term: int


class _EtcdCommands(click.Group):
    """Ends with an error of its own if etcd does not answer."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EtcdAway as away:
            raise CommandError(f"etcd does not answer: {away}", NO_CONNECTION) from None


@click.group("cluster", cls=_EtcdCommands, epilog=EPILOG)
def command() -> None:
    """Show a cluster, and pause it, hand its lead over, or let nodes leave it."""


def cluster_options(function: F) -> F:
    """--cluster, and those for etcd."""
    cluster = click.option("--cluster", "name", required=True, type=FILLED, envvar="TAILRACE_CLUSTER", help="Its name.")
    return cluster(etcd_options(function))


@command.command("status", epilog=EPILOG)
@json_option
@cluster_options
def status(name: str, as_json: bool) -> int:
    """Show the nodes of the cluster: who leads, who is in sync, and whose agents live."""
    view = _view(_store(name))
    rows, is_paused = rows_of(view), view.group is not None and view.group.paused
    if as_json:
        show_json([{**row._asdict(), "paused": is_paused} for row in rows])
        return OK
    table = make_table("node", *ClusterNodeRow._fields[1:])
    for row in rows:
        cells = (row.address, row.role, "yes" if row.in_sync else "no", row.agent, str(row.term))
        table.add_row(plain(row.node), *map(plain, cells))
    show(table)
    if is_paused:
        click.echo("paused: nobody is elected, and the in-sync replicas stay as they are", err=True)
    return OK


def rows_of(view: ClusterView) -> list[ClusterNodeRow]:
    leader = _leader(view)
    state = None if view.group is None else view.group.state
    rows = []
    for node, address in sorted(view.addresses.items()):
        holds = state is not None and node in state.replicas
        role = "leader" if node == leader else "left" if node in view.left else "replica" if holds else "joining"
        is_ready = view.group is not None and node in view.group.ready
        agent = "ready" if is_ready else "lives" if node in view.members else "away"
        rows.append(
            ClusterNodeRow(
                node, address, role, state is not None and node in state.isr, agent, state.term if state else 0
            )
        )
    return rows


@command.command("pause", epilog=EPILOG)
@json_option
@cluster_options
def pause(name: str, as_json: bool) -> int:
    """Let nobody be elected until `resume`; a leader goes on."""
    _store(name).put("paused", b"")
    return _done("pause", "", as_json)


@command.command("resume", epilog=EPILOG)
@json_option
@cluster_options
def resume(name: str, as_json: bool) -> int:
    """End a pause."""
    _store(name).remove("paused")
    return _done("resume", "", as_json)


@command.command("switchover", epilog=EPILOG)
@click.argument("node", type=FILLED)
@json_option
@cluster_options
def switchover(name: str, node: str, as_json: bool) -> int:
    """Hand the lead over to NODE, which must be in sync."""
    store = _store(name)
    view = _view(store)
    chosen, group = _named(view, node), view.group
    if group is None or chosen not in group.state.isr or chosen not in view.members:
        raise CommandError(f"{node} is not in sync, or its agent does not live", REFUSED)
    if group.paused:
        raise CommandError("the cluster is paused; end that with tailrace cluster resume", REFUSED)
    lease = store.etcd.grant(SWITCH_S)
    store.put("switchover", chosen.encode(), lease)
    try:
        _wait(store, lambda now: _leader(now) == chosen, f"{node} does not lead after {SWITCH_S} s")
    finally:
        store.etcd.revoke(lease)
    return _done("switchover", chosen, as_json)


@command.command("leave", epilog=EPILOG)
@click.argument("node", type=FILLED)
@json_option
@cluster_options
def leave(name: str, node: str, as_json: bool) -> int:
    """Let NODE leave: its lead goes to another node first. Stop its agent and the node afterwards."""
    store = _store(name)
    view = _view(store)
    chosen = _named(view, node)
    if view.group is None or not set(view.group.state.isr) - {chosen} - view.left:
        raise CommandError(f"no other node than {node} is in sync", REFUSED)
    store.put(f"left/{chosen}", b"")
    _wait(store, lambda now: _has_left(now, chosen), f"{node} has not left after {SWITCH_S} s; it leaves later")
    return _done("leave", chosen, as_json)


@command.command("join", epilog=EPILOG)
@click.argument("node", type=FILLED)
@json_option
@cluster_options
def join(name: str, node: str, as_json: bool) -> int:
    """Let NODE, which has left, come back. A new node joins by the start of its agent."""
    store = _store(name)
    chosen = _named(_view(store), node)
    store.remove(f"left/{chosen}")
    return _done("join", chosen, as_json)


def _done(verb: str, node: str, as_json: bool) -> int:
    if as_json:
        show_json([{"done": verb, "node": node}])
    return OK


# --- etcd -----------------------------------------------------------------------------------------------------------


def _store(name: str) -> ClusterStore:
    etcd = make_etcd(ETCD_TIMEOUT_S)
    click.get_current_context().call_on_close(etcd.close)
    return ClusterStore(etcd, name, "")


def _view(store: ClusterStore) -> ClusterView:
    view = store.read()
    if view.group is None and not view.addresses:
        raise CommandError("etcd knows no cluster of this name", REFUSED)
    return view


def _named(view: ClusterView, node: str) -> str:
    found = [each for each, address in view.addresses.items() if node in (each, address)]
    if len(found) != 1:
        raise CommandError(f"{node} is not the id or the address of a node of the cluster", REFUSED)
    return found[0]


def _leader(view: ClusterView) -> str:
    return view.group.leader.node if view.group is not None and view.group.leader is not None else ""


def _has_left(view: ClusterView, node: str) -> bool:
    return view.group is not None and node not in (*view.group.state.replicas, *view.group.state.isr, _leader(view))


def _wait(store: ClusterStore, is_done: Callable[[ClusterView], bool], late: str) -> None:
    end_s = time.monotonic() + SWITCH_S
    while not is_done(store.read()):
        if time.monotonic() > end_s:
            raise CommandError(late, REFUSED)
        time.sleep(LOOK_EVERY_S)
