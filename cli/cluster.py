"""`tailrace cluster`: the state of a cluster in etcd, and the decisions of its operator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

import click

from tailrace.cli.ending import NO_CONNECTION, OK, REFUSED, CommandError, complain
from tailrace.cli.etcd import etcd_options, make_etcd
from tailrace.cli.options import json_option
from tailrace.cli.tables import make_table, plain, show, show_json
from tailrace.cli.values import FILLED
from tailrace.cluster.balance import swaps
from tailrace.cluster.etcd import EtcdAway
from tailrace.cluster.replicas import ReplicaChange, final_targets, replica_changes
from tailrace.cluster.store import ClusterStore, ClusterView, InvalidCluster

F = TypeVar("F", bound=Callable[..., Any])

ETCD_TIMEOUT_S: Final = 2.0
SWITCH_S: Final = 15
"""For which a command waits, and a node is named as the next leader; then the name is gone from etcd."""
CHANGE_S: Final = 5
"""For which a command waits in addition for each group whose replicas change, since only some do at a time."""
LOOK_EVERY_S: Final = 0.1

EPILOG = """\b
Examples:
  tailrace cluster status --cluster orders --etcd 10.0.0.9:2379
  tailrace cluster groups
  tailrace cluster drain 10.0.0.2:5050 --plan
  tailrace cluster leave 10.0.0.3:5050
  tailrace cluster pause

NODE is the id of a node or its address, as in the status. TAILRACE_CLUSTER and TAILRACE_ETCD in the environment give
--cluster and --etcd. With TLS and a user of etcd see `--help` of a command.

Exit codes: 0 done, 1 not done, 2 wrong arguments, 4 etcd does not answer.
"""


class ClusterNodeRow(NamedTuple):
    """A line of the status. leads: the number of groups; term: the latest of a group."""

    node: str
    address: str
    role: str
    in_sync: bool
    agent: str
    term: int
    leads: int


class GroupRow(NamedTuple):
    """A line about a group. leader: the address of a node, "-" without one, as all of these. replicas: the nodes that
    are in sync or on the way to that.
    """

    group: int
    leader: str
    preferred: str
    term: int
    in_sync: str
    replicas: str


class PlanRow(NamedTuple):
    """A change of a group that a command would bring about. successor: "-" if the leader stays. replicas: nodes that
    become one, with a +, and nodes that cease to be, with a -.
    """

    group: int
    leader: str
    successor: str
    replicas: str


class _EtcdCommands(click.Group):
    """Ends with an error of its own if etcd does not answer."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EtcdAway as away:
            raise CommandError(f"etcd does not answer: {away}", NO_CONNECTION) from None
        except InvalidCluster as invalid:
            raise CommandError(str(invalid)) from None


@click.group("cluster", cls=_EtcdCommands, epilog=EPILOG)
def command() -> None:
    """Show a cluster, and pause it, hand its leads over, or let nodes leave it."""


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
    rows = rows_of(view)
    if as_json:
        show_json([{**row._asdict(), "paused": view.paused} for row in rows])
        return OK
    table = make_table("node", *ClusterNodeRow._fields[1:])
    for row in rows:
        cells = (row.address, row.role, "yes" if row.in_sync else "no", row.agent, str(row.term), str(row.leads))
        table.add_row(plain(row.node), *map(plain, cells))
    show(table)
    if view.paused:
        complain("paused: nobody is elected, and the in-sync replicas stay as they are")
    return OK


def rows_of(view: ClusterView) -> list[ClusterNodeRow]:
    groups = view.groups.values()
    term = max((group.state.term for group in groups), default=0)
    rows = []
    for node, address in sorted(view.addresses.items()):
        leads = len(_led(view, node))
        role = "leader" if leads else _role_without_leads(view, node)
        is_ready = any(node in group.ready for group in groups)
        agent = "ready" if is_ready else "lives" if node in view.members else "away"
        own = [group for group in groups if node in group.state.replicas or not view.replicas]
        in_sync = bool(own) and all(node in group.state.isr for group in own)
        rows.append(ClusterNodeRow(node, address, role, in_sync, agent, term, leads))
    return rows


def _role_without_leads(view: ClusterView, node: str) -> str:
    if node in view.left:
        return "left"
    return "replica" if _holds(view, node) else "observer" if view.replicas else "joining"


@command.command("groups", epilog=EPILOG)
@json_option
@cluster_options
def groups(name: str, as_json: bool) -> int:
    """Show the groups of streams: who leads each of them, who should, who is in sync, and its replicas."""
    view = _view(_store(name))
    rows = [
        GroupRow(
            group,
            view.addresses.get(each.leader.node, "-") if each.leader is not None else "-",
            view.addresses.get(each.target[0], "-") if each.target else "-",
            each.state.term,
            _listed(view, each.state.isr),
            _listed(view, each.state.replicas),
        )
        for group, each in sorted(view.groups.items())
    ]
    _show_rows(rows, GroupRow._fields, as_json)
    return OK


def _listed(view: ClusterView, nodes: Sequence[str], sign: str = "") -> str:
    return " ".join(sign + view.addresses.get(node, node) for node in nodes)


def _show_rows(rows: Sequence[GroupRow | PlanRow], columns: Sequence[str], as_json: bool) -> None:
    if as_json:
        show_json([row._asdict() for row in rows])
        return
    table = make_table(*columns)
    for row in rows:
        table.add_row(*map(plain, map(str, row)))
    show(table)


def _show_plan(view: ClusterView, as_json: bool) -> int:
    _show_rows(plan_of(view), PlanRow._fields, as_json)
    return OK


def plan_of(view: ClusterView) -> list[PlanRow]:
    """The leaders and replicas that change until the groups are as they should be."""
    wanted = final_targets(view.groups, view.placed_nodes(), view.replicas, view.pinned)
    leads = {each.group: each.successor for each in swaps(view.groups, wanted, len(view.groups))}
    changes = replica_changes(view.groups, wanted)
    return [
        _plan_row(view, group, leads.get(group, ""), changes.get(group, ReplicaChange((), ())))
        for group in sorted(leads.keys() | changes.keys())
    ]


def _plan_row(view: ClusterView, group: int, successor: str, change: ReplicaChange) -> PlanRow:
    leader = view.groups[group].leader
    changes = [_listed(view, change.added, "+"), _listed(view, change.dropped, "-")]
    return PlanRow(
        group,
        view.addresses.get(leader.node, leader.node) if leader is not None else "-",
        view.addresses.get(successor, successor) or "-",
        " ".join(filter(None, changes)) or "-",
    )


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
    """Hand the lead over to NODE, which must be in sync. Of a cluster with several groups use drain or move."""
    store = _store(name)
    view = _view(store)
    if len(view.groups) > 1:
        raise CommandError("the leads of several groups are spread over the nodes: use drain, or move", REFUSED)
    chosen = _named(view, node)
    _require_ready(view, chosen, 0)
    lease = store.etcd.grant(SWITCH_S)
    store.put("switchover", chosen.encode(), lease)
    try:
        _wait(store, lambda now: _led(now, chosen) == [0], f"{node} does not lead after {SWITCH_S} s")
    finally:
        store.etcd.revoke(lease)
    return _done("switchover", chosen, as_json)


def _require_ready(view: ClusterView, node: str, group: int) -> None:
    found = view.groups.get(group)
    if found is None or node not in found.state.isr or node not in view.members:
        raise CommandError(f"{view.addresses[node]} is not in sync, or its agent does not live", REFUSED)
    if view.paused:
        raise CommandError("the cluster is paused; end that with tailrace cluster resume", REFUSED)


@command.command("move", epilog=EPILOG)
@click.argument("group", type=click.IntRange(0))
@click.argument("node", type=FILLED, required=False)
@json_option
@cluster_options
def move(name: str, group: int, node: str | None, as_json: bool) -> int:
    """Let NODE, which must be in sync, lead GROUP from now on whenever it can; without NODE let it be chosen again."""
    store = _store(name)
    view = _view(store)
    if group not in view.groups:
        raise CommandError(f"the cluster has {len(view.groups)} groups, from 0 on", REFUSED)
    if node is None:
        store.remove(f"pins/{group}")
        return _done("move", "", as_json)
    chosen = _named(view, node)
    _require_ready(view, chosen, group)
    if chosen in view.draining:
        raise CommandError(f"{node} is draining; end that with tailrace cluster join {node}", REFUSED)
    store.put(f"pins/{group}", chosen.encode())
    _wait(store, lambda now: group in _led(now, chosen), f"{node} does not lead it after {SWITCH_S} s; it will later")
    return _done("move", chosen, as_json)


def _plan_option(function: F) -> F:
    return click.option(
        "--plan", "only_plan", is_flag=True, help="Show which leaders and replicas would change; change nothing."
    )(function)


@command.command("drain", epilog=EPILOG)
@click.argument("node", type=FILLED)
@_plan_option
@json_option
@cluster_options
def drain(name: str, node: str, only_plan: bool, as_json: bool) -> int:
    """Let NODE lead nothing from now on, though it keeps its copies: other nodes take over. End it by join."""
    store, view, chosen = _found(name, node)
    after = replace(view, draining=view.draining | {chosen})
    if all(each.draining for each in after.placed_nodes()):
        raise CommandError(f"no other node than {node} can lead", REFUSED)
    if only_plan:
        return _show_plan(after, as_json)
    store.put(f"draining/{chosen}", b"")
    _wait(store, lambda now: not _led(now, chosen), f"{node} leads still after {SWITCH_S} s; it is drained later")
    return _done("drain", chosen, as_json)


@command.command("leave", epilog=EPILOG)
@click.argument("node", type=FILLED)
@_plan_option
@json_option
@cluster_options
def leave(name: str, node: str, only_plan: bool, as_json: bool) -> int:
    """Let NODE leave: its leads go to other nodes first. Stop its agent and the node afterwards."""
    store, view, chosen = _found(name, node)
    if not view.groups or not all(set(group.state.isr) - {chosen} - view.left for group in view.groups.values()):
        raise CommandError(f"no other node than {node} is in sync", REFUSED)
    if only_plan:
        return _show_plan(replace(view, left=view.left | {chosen}), as_json)
    store.put(f"left/{chosen}", b"")
    changing = [group for group in view.groups.values() if view.replicas and chosen in group.state.replicas]
    limit_s = SWITCH_S + CHANGE_S * len(changing)
    _wait(store, lambda now: _has_left(now, chosen), f"{node} has not left after {limit_s} s; it leaves later", limit_s)
    return _done("leave", chosen, as_json)


@command.command("join", epilog=EPILOG)
@click.argument("node", type=FILLED)
@_plan_option
@json_option
@cluster_options
def join(name: str, node: str, only_plan: bool, as_json: bool) -> int:
    """Let NODE, which has left or was drained, come back. A new node joins by the start of its agent."""
    store, view, chosen = _found(name, node)
    if only_plan:
        return _show_plan(replace(view, left=view.left - {chosen}, draining=view.draining - {chosen}), as_json)
    store.remove(f"left/{chosen}")
    store.remove(f"draining/{chosen}")
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
    view = store.read().planned()
    if not view.groups and not view.addresses:
        raise CommandError("etcd knows no cluster of this name", REFUSED)
    return view


def _found(name: str, node: str) -> tuple[ClusterStore, ClusterView, str]:
    """The cluster, and the id of the node of it that is named by its id or address."""
    store = _store(name)
    view = _view(store)
    return store, view, _named(view, node)


def _named(view: ClusterView, node: str) -> str:
    found = [each for each, address in view.addresses.items() if node in (each, address)]
    if len(found) != 1:
        raise CommandError(f"{node} is not the id or the address of a node of the cluster", REFUSED)
    return found[0]


def _led(view: ClusterView, node: str) -> list[int]:
    """The groups that a node leads."""
    return [group for group, each in view.groups.items() if each.leader is not None and each.leader.node == node]


def _holds(view: ClusterView, node: str) -> bool:
    return any(node in (*group.state.replicas, *group.state.isr) for group in view.groups.values())


def _has_left(view: ClusterView, node: str) -> bool:
    return bool(view.groups) and not _holds(view, node) and not _led(view, node)


def _wait(store: ClusterStore, is_done: Callable[[ClusterView], bool], late: str, limit_s: float = SWITCH_S) -> None:
    end_s = time.monotonic() + limit_s
    while not is_done(store.read()):
        if time.monotonic() > end_s:
            raise CommandError(late, REFUSED)
        time.sleep(LOOK_EVERY_S)
