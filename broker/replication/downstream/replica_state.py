"""The state of a stream that its owner sends to the workers that serve its followers.

`follow` is a verb of `broker.streams.owner_calls`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.broker.streams.refused import CallArgs
from tailrace.protocol.address import join_address
from tailrace.protocol.errors import Code
from tailrace.shard.epochs import EpochStart, History
from tailrace.shard.errors import StorageError
from tailrace.shard.meta import Role
from tailrace.shard.names import base_of
from tailrace.shard.replacing import replaceable

log = logging.getLogger(__name__)


LINEAGES_MAX = 256
"""Streams of one WANT or NEWS."""


@replaceable
class ReplicaState(NamedTuple):
    """A node's copy of a stream: its role, its terms, the node ids from this one up to the master, its kept seqs.

    line: goes with the reports of nodes that hold the stream, see `broker.replication.downstream.replica_acks`.
    awaited: publishes wait for these reports, or may; False only on the master.
    """

    role: str
    history: History
    path: tuple[str, ...]
    first_seq: int
    next_seq: int
    line: int
    contacts: tuple[str, ...] = ()  # addresses of former upstreams that do not know of the latest term yet
    awaited: bool = True

    def reported(self) -> tuple[str, History, tuple[str, ...], tuple[str, ...], bool]:
        """The parts whose changes are sent to followers."""
        return self.role, self.history, self.path, self.contacts, self.awaited


def unpack(row: Sequence[Any]) -> ReplicaState:
    """From what `follow` gave, which msgpack has made lists of."""
    role, history, path, first_seq, next_seq, line, contacts, awaited = row
    starts = tuple([EpochStart(*start) for start in history])
    return ReplicaState(role, starts, tuple(path), first_seq, next_seq, line, tuple(contacts), awaited)


def of(owner: Owner, name: bytes) -> ReplicaState:
    """From here on an account is kept of who holds the stream. Raises Refused, StorageError, OSError."""
    stream = owner.stream(name)
    history, first_seq, next_seq = stream_roles.history_of(owner, stream), stream.log.first_seq, stream.log.next_seq
    path = (owner.catalog.directory.node_id, *owner.context.path_above(name))
    holders = owner.replicas.holders(name)
    holders.end_seq = next_seq
    contacts = tuple(
        [join_address(each.host, each.port) for each in stream_roles.to_be_told(owner, name) if each.was_above]
    )
    role = owner.roles.role(name)
    awaited = role is not Role.MASTER or owner.replicas.is_awaited(name)
    return ReplicaState(role.value, history, path, first_seq, next_seq, holders.line, contacts, awaited)


def follow(owner: Owner, args: CallArgs) -> list[Any]:
    """[stream, the follower's highest term: epoch, master] -> lineage. The stream is made when it is not there.

    A master of an earlier epoch than the follower knows gives in before it answers. Of the same epoch it stays: the
    follower acts on a command, be it a former master or one with a copy of another stream of that name; two masters of
    one epoch settle it when one claims the stream.
    """
    name, epoch, _master = args
    deleted = owner.catalog.deleted.get(base_of(name))
    if deleted is not None and deleted.epoch > epoch:
        raise Refused(Code.DELETED, "the stream was deleted")
    if name not in owner.catalog.names:
        owner.create(name, by_command=base_of(name) in owner.catalog.names)  # a companion, of which there is more below
    stream_roles.record_term(owner, name, epoch, "")
    return list(of(owner, name))


def lineages(owner: Owner, names: Sequence[bytes]) -> list[tuple[bytes, list[Any]]]:
    """The states of those of the streams that can be read, as `sibling.pack_news` takes them."""
    found: list[tuple[bytes, list[Any]]] = []
    for name in names:
        try:
            found.append((name, list(of(owner, name))))
        except (Refused, StorageError, OSError) as error:
            log.warning("cannot tell the followers of stream %r how it is: %s", name, error)
    return found


def require_no_cycle(node: str, path: Sequence[str]) -> None:
    """Raises Refused when the node that is to follow, or goes on following, is one of those above it."""
    found = circle(node, path)
    if found:
        raise Refused(Code.CYCLE, f"the nodes would follow each other in a circle: {found}")


def circle(node: str, path: Sequence[str]) -> str:
    """The nodes that follow each other when `node` follows the first of a path that has it, "" for one that has not."""
    return " -> ".join((node, *path[: path.index(node) + 1])) if node in path else ""
