"""Walks from one node along its links to all other nodes of the tree. Asks through a function and is pure otherwise.

A node is identified by its id. While the id is unknown, as of an upstream that was never reached, its address stands
for it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailrace.core.address import Address
from tailrace.protocol.replication import NodeLink, Told

NODES_MAX: Final = 1_000
"""Addresses that are asked; a tree with more of them is shown in part."""
NOT_ASKED = f"not asked: there are more than {NODES_MAX} addresses"
LINK_UP: Final = "up"
NO_ADDRESS = "it has not announced its address"

AskAll = Callable[[Sequence[Address]], Sequence[Told | str]]
"""What each of these nodes tells, or why it does not."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node found; if it could not be asked, `told` is None and `problem` gives the reason."""

    name: str
    address: str
    told: Told | None = None
    problem: str = ""


class Tie(NamedTuple):
    """A node and the one that it follows, as each of the two sees the link."""

    by_slave: NodeLink | None = None
    by_upstream: NodeLink | None = None


@dataclass(slots=True)
class Found:
    """`ties` by (upstream, slave). `start` is None if the first node could not be asked; `problem` gives the reason."""

    start: str | None = None
    problem: str = ""
    nodes: dict[str, Node] = field(default_factory=dict)
    ties: dict[tuple[str, str], Tie] = field(default_factory=dict)
    is_cut: bool = False


def walk(start: Address, ask_all: AskAll, nodes_max: int = NODES_MAX) -> Found:
    """Asks `start`, then each node that an answer names, until all are known or `nodes_max` addresses were asked."""
    asked: dict[Address, Told | str] = {}
    told: dict[str, tuple[Address, Told]] = {}
    frontier = [start]
    while frontier and len(asked) < nodes_max:
        batch = frontier[: nodes_max - len(asked)]
        answers = list(zip(batch, ask_all(batch), strict=True))
        asked.update(answers)
        for address, answer in answers:
            if isinstance(answer, Told):
                told.setdefault(answer.node, (address, answer))
        frontier = _unknown(asked, told)
    return _gather(start, asked, told, is_cut=bool(frontier))


def reached_at(text: str, asked_at: Address) -> Address | None:
    """Returns `text`, an address in an answer of the node reached at `asked_at`, as seen from here; None without a
    host.

    127.0.0.1 in its answer is its own machine.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit():
        return None
    if _is_loopback(host) and not _is_loopback(asked_at.host):
        host = asked_at.host
    return Address(host, int(port), asked_at.tls)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unknown(asked: dict[Address, Told | str], told: dict[str, tuple[Address, Told]]) -> list[Address]:
    """Addresses named by answers, of nodes that have not answered yet."""
    found: dict[Address, None] = {}
    for address, answer in told.values():
        for link in answer.links:
            target = reached_at(link.address, address)
            if target is not None and target not in asked and link.node not in told:
                found[target] = None
    return list(found)


def _gather(
    start: Address, asked: dict[Address, Told | str], told: dict[str, tuple[Address, Told]], *, is_cut: bool
) -> Found:
    first = asked[start]
    if isinstance(first, str):
        return Found(problem=first)
    found = Found(start=first.node, is_cut=is_cut)
    for name, (address, answer) in told.items():
        found.nodes[name] = Node(name, str(address), answer)
    links = [(name, link, reached_at(link.address, at)) for name, (at, answer) in told.items() for link in answer.links]
    named = {target: link.node for _, link, target in links if link.node}
    for name, link, target in links:
        other = _other_end(link, target, named.get(target, ""), None if target is None else asked.get(target))
        found.nodes.setdefault(other.name, other)
        _tie(found, name, other.name, link)
    return found


def _other_end(link: NodeLink, target: Address | None, named: str, answer: Told | str | None) -> Node:
    """Returns the name of the node at the far end of a link, which another answer may have `named`. A node that has
    answered is already known.
    """
    answering = answer.node if isinstance(answer, Told) else ""
    name = link.node or answering or named or str(target or link.address)
    shown = str(target or link.address)
    if isinstance(answer, str):
        return Node(name, shown, problem=answer)
    if answering and answering != link.node:
        return Node(name, shown, problem=f"another node ({answering}) answers at this address")
    return Node(name, shown, problem=NOT_ASKED if target else NO_ADDRESS)


def _tie(found: Found, name: str, other: str, link: NodeLink) -> None:
    """Each worker of a node has its own link; show one that is not up, if there is any."""
    ends = (other, name) if link.direction == "up" else (name, other)
    tie = found.ties.get(ends, Tie())
    before = tie.by_slave if link.direction == "up" else tie.by_upstream
    if before is None or before.state == LINK_UP:
        found.ties[ends] = tie._replace(by_slave=link) if link.direction == "up" else tie._replace(by_upstream=link)
