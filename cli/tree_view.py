"""The replication tree as lines, a node each: rich's trees from what `tree_walk` has found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.filesize import decimal
from rich.text import Text
from rich.tree import Tree

from tailrace.cli.tree_walk import LINK_UP, Found, Node, Tie
from tailrace.protocol.replication import CLAIMS, CopyEnd, Told
from tailrace.shard.meta import Role
from tailrace.shard.names import base_of

DEPTH_MAX = 100
"""Levels of a tree; a longer chain goes on in a tree of its own, since each level is drawn by a call within a call."""


def draw(found: Found, stream: str | None = None) -> list[Tree]:
    """Draws a tree below each node that follows nobody; if all follow somebody, below the node that was asked first."""
    below: dict[str, list[str]] = {}
    for (upstream, slave), tie in found.ties.items():
        if _counts(found.nodes[slave], tie):
            below.setdefault(upstream, []).append(slave)
    drawn: set[str] = set()
    return [_branch(found, name, None, stream, below, drawn, 1) for name in _roots(found, below, drawn)]


def _counts(slave: Node, tie: Tie) -> bool:
    """Whether a link determines a node's place in the tree. A link without streams does so only for a node without
    streams: other nodes use it to notify a former upstream of a new master, or to learn of new streams.
    """
    told = slave.told
    is_empty = told is not None and not told.masters + told.slaves + told.disabled
    return is_empty or any(link is not None and link.streams for link in tie)


def _roots(found: Found, below: dict[str, list[str]], drawn: set[str]) -> Iterator[str]:
    """Each after the ones before it were drawn. Nodes may follow each other, in different streams."""
    slaves = {slave for slaves in below.values() for slave in slaves}
    for name in [*(name for name in found.nodes if name not in slaves), found.start, *found.nodes]:
        if name is not None and name not in drawn:
            yield name


def _branch(
    found: Found,
    name: str,
    tie: Tie | None,
    stream: str | None,
    below: dict[str, list[str]],
    drawn: set[str],
    depth: int,
) -> Tree:
    node = found.nodes[name]
    label = _label(node, tie, stream)
    for warning in warnings(found, name):
        label.append(f"  {warning}", style="not bold red")
    tree = Tree(label, guide_style="dim")
    slaves = below.get(name, [])
    if name in drawn:
        label.append("  (as above)" if slaves else "", style="dim")
        return tree
    drawn.add(name)
    if depth == DEPTH_MAX and slaves:
        tree.add(Text("goes on below", style="dim"))
        return tree
    for slave in sorted(slaves, key=lambda each: found.nodes[each].address):
        tree.children.append(_branch(found, slave, found.ties[name, slave], stream, below, drawn, depth + 1))
    return tree


def warnings(found: Found, name: str) -> list[str]:
    """Warnings about a node: another node claims its streams, or streams made on it would not be replicated."""
    told, lines = found.nodes[name].told, []
    for (upstream, claimant), tie in found.ties.items():
        state = "" if tie.by_slave is None else tie.by_slave.state
        if upstream == name and state.startswith(CLAIMS) and (told is None or told.masters):
            count = state.removeprefix(CLAIMS).partition(":")[0]
            rival = "RIVAL" if told is not None else "perhaps a RIVAL"
            lines.append(f"{rival}: {found.nodes[claimant].address} claims {count} of its streams, not confirmed yet")
    for other, stream in _masters_beside(found, name):
        lines.append(f"RIVAL: {found.nodes[other].address} is a master of {stream} too")
    if told is not None and told.turned:
        above = [found.nodes[up].address for (up, slave), tie in found.ties.items() if slave == name and _carries(tie)]
        lines.append(f"new streams made here are not replicated: make it follow {', '.join(above)} for * (`slave`)")
    return lines


def _masters_beside(found: Found, name: str) -> Iterator[tuple[str, str]]:
    """The other nodes that are a master of the stream that was asked for, if this one is."""
    mine = _mastered(found.nodes[name].told)
    for other, node in found.nodes.items():
        if other != name:
            yield from ((other, stream) for stream in mine & _mastered(node.told))


def _mastered(told: Told | None) -> set[str]:
    ends = () if told is None else told.ends
    return {
        end.stream for end in ends if end.role == Role.MASTER and base_of(end.stream.encode()) == end.stream.encode()
    }


def _carries(tie: Tie) -> bool:
    return tie.by_slave is not None and tie.by_slave.streams > 0


def _label(node: Node, tie: Tie | None, stream: str | None) -> Text:
    label = Text(node.address or "address unknown", style="bold")
    if node.name != node.address:
        label.append(f"  {node.name}", style="not bold dim")
    if node.told is None:
        label.append(f"  {node.problem}", style="not bold red")
    else:
        label.append(f"  {_roles(node.told, stream)}", style="not bold")
    for text, style in () if tie is None else _link(tie, stream):
        label.append(f"  {text}", style=f"not bold {style}")
    return label


def _roles(told: Told, stream: str | None) -> str:
    roles = {"master": told.masters, "slave": told.slaves, "disabled": told.disabled}
    if stream is not None:
        role = next((role for role, count in roles.items() if count), "does not have it")
        end = next((end for end in told.ends if end.stream == stream), None)
        return role if end is None else f"{role}, {_end(end)}"
    named = [f"{role} of {count:,}" for role, count in roles.items() if count]
    return f"{', '.join(named)} {'stream' if sum(roles.values()) == 1 else 'streams'}" if named else "no streams"


def _end(end: CopyEnd) -> str:
    return f"epoch {end.epoch}, last_epoch {end.last_epoch}, next_seq {end.next_seq:,}"


def candidates(found: Found, stream: str) -> str:
    """Returns the nodes that can be promoted to master of the stream without losing replicated messages.

    No node is ahead of those (`CopyEnd.is_ahead_of`) in the stream and in its companions. "" if none has the stream.
    """
    told = {node.name: node.told for node in found.nodes.values() if node.told is not None and node.told.ends}
    best: dict[str, dict[str, CopyEnd]] = {}
    for node, each in told.items():
        for end in each.ends:
            best.setdefault(end.stream, {})[node] = end
    if stream not in best:
        return ""
    leaders = {
        name: {node for node, end in ends.items() if not any(other.is_ahead_of(end) for other in ends.values())}
        for name, ends in best.items()
    }
    common = set.intersection(*leaders.values())
    if common:
        return f"may be promoted: {_names(found, common)}, with the most of {_all_of(best)}, of nodes that answered"
    parts = [f"most of {name}: {_names(found, nodes)}" for name, nodes in sorted(leaders.items())]
    return f"no node has most of {_all_of(best)}; {'; '.join(parts)}"


def _all_of(streams: Iterable[str]) -> str:
    return " and ".join(sorted(streams))


def _names(found: Found, nodes: Iterable[str]) -> str:
    return " or ".join(sorted(found.nodes[name].address or name for name in nodes))


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count:,} streams"


def _link(tie: Tie, stream: str | None) -> Iterator[tuple[str, str]]:
    """Yields (text, style): the link's state as the slave reports it, and the lag as the upstream does, if reported."""
    link = tie.by_slave or tie.by_upstream
    measured = tie.by_upstream or tie.by_slave
    assert link is not None and measured is not None
    known_by = "" if tie.by_slave else ", as the node above reports"
    state = link.state
    if stream is None and link.streams:
        streams = _streams(link.streams)
        state = f"{LINK_UP}, {streams}" if state == LINK_UP else f"{streams}, {state}"
    yield f"{state}{known_by}", "" if link.state == LINK_UP else "red"
    if measured.lag_messages or measured.lag_bytes or measured.lag_ms:
        yield lag_text(measured.lag_messages, measured.lag_bytes, measured.lag_ms), "yellow"
    elif link.state == LINK_UP:
        yield "caught up", "green"


def lag_text(messages: int, nbytes: int, ms: int) -> str:
    """`1,204 messages, 3.1 MB, 4.2 s behind`."""
    return f"{messages:,} messages, {decimal(nbytes)}, {ms / 1_000:,.1f} s behind"
