"""How replication stands on this node, for ASK: each worker's links, put together.

A link is to a node, however many of the two nodes' workers have connections to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tailrace.broker.access.policy import AccessPolicy
from tailrace.broker.access.rules import Right
from tailrace.broker.process.timers import now_us
from tailrace.broker.replication.upstream.connection import UpstreamPhase
from tailrace.protocol.replication import CLAIMS, LINKS_MAX, NodeLink
from tailrace.shard.errors import StorageError
from tailrace.shard.meta import Role
from tailrace.shard.names import is_reserved

if TYPE_CHECKING:
    from tailrace.broker.delivery.readers import StreamReaders
    from tailrace.broker.replication.downstream.session import FollowerSession, ReplicaFeed
    from tailrace.broker.replication.upstream.connection import UpstreamConnection
    from tailrace.broker.replication.upstream.fetchers import ReplicaFetcher
    from tailrace.broker.services import Services
    from tailrace.broker.streams.owner import Owner

MaySee = Callable[[bytes], bool]

UP = "up"
CLAIMED_PLACE = ("seq", 0)
"""Where a copy begins whose node turned to a claimant by itself."""
LAGS_MEASURED_MAX = 256
"""Streams of one worker whose lag in bytes and time is looked up in one answer; of more only the messages count."""
_ASKING = (Right.NODE, Right.ADMIN)
ROLES = (Role.MASTER, Role.SLAVE, Role.DISABLED)


def of_worker(
    owner: Owner,
    uplinks: Iterable[UpstreamConnection],
    followers: Iterable[FollowerSession],
    services: Services,
    name: bytes | None,
    asker: Sequence[Any] = (),
) -> list[Any]:
    """[rows of links, streams as master, as slave, disabled, turned by themselves], of one stream or of all: each
    worker's own business. asker: the identity, as exported, of somebody who may not know of all streams.
    """
    may_see = _seen_by(services.access, asker) if asker else None
    rows = [list(link) for link in (*_up(uplinks, name, may_see), *_down(followers, services.readers, name, may_see))]
    counts = dict.fromkeys(ROLES, 0)
    turned = 0
    if owner.catalog.owning:
        names = _shown(owner.catalog.names) if name is None else {name} & owner.catalog.names.keys()
        for each in names if may_see is None else filter(may_see, names):
            counts[owner.roles.role(each)] += 1
            turned += owner.settings.auto_master and _has_turned(owner, each)
    return [rows, *counts.values(), turned]


def _seen_by(access: AccessPolicy, asker: Sequence[Any]) -> MaySee:
    """Which streams count, and links of which are shown."""
    identity = access.restore([*asker])
    return lambda name: identity is not None and any(access.may(identity, right, name) for right in _ASKING)


def _has_turned(owner: Owner, name: bytes) -> bool:
    """Whether a stream follows a node that claimed it, while new streams like it would be this node's own."""
    meta = owner.roles.metas.get(name)
    if meta is None or meta.role is not Role.SLAVE or meta.upstream is None:
        return False
    return owner.roles.rules.match(name) is None and meta.upstream[2:] == CLAIMED_PLACE


def together(parts: Iterable[list[Any]]) -> tuple[list[NodeLink], list[int]]:
    """The links of all workers, one to a node, and the sums of their counts."""
    links: dict[tuple[str, ...], NodeLink] = {}
    counts = [0, 0, 0, 0]
    for rows, *part in parts:
        counts = [have + more for have, more in zip(counts, part, strict=True)]
        for row in rows:
            link = NodeLink(*row)
            key = (link.direction, link.node, link.address)
            links[key] = _joined(links[key], link) if key in links else link
    return list(links.values())[:LINKS_MAX], counts


def _joined(one: NodeLink, other: NodeLink) -> NodeLink:
    """The state is that of a connection that is not up, if one is not."""
    return one._replace(
        state=one.state if one.state != UP else other.state,
        streams=one.streams + other.streams,
        lag_messages=one.lag_messages + other.lag_messages,
        lag_bytes=one.lag_bytes + other.lag_bytes,
        lag_ms=max(one.lag_ms, other.lag_ms),
    )


def _up(uplinks: Iterable[UpstreamConnection], name: bytes | None, may_see: MaySee | None) -> Iterator[NodeLink]:
    for uplink in uplinks:
        copies, claimed = uplink.copies.by_name, set(uplink.claims) - uplink.copies.by_name.keys()
        if may_see is not None:
            copies = {each: copy for each, copy in copies.items() if may_see(each)}
            claimed = set(filter(may_see, claimed))
            if not (copies or claimed):
                continue
        if name is not None and name not in copies:
            if name not in claimed:
                continue
            copies, claimed = {}, {name}
        if claimed and not copies:
            why = f": {uplink.why}" if uplink.why and uplink.phase is not UpstreamPhase.UP else ""
            yield NodeLink("up", uplink.node, uplink.address, f"{CLAIMS}{len(claimed)}{why}", 0, 0, 0, 0)
            continue
        if uplink.phase is UpstreamPhase.UP:
            state = state_up(list(copies.values()) if name is None else [copies[name]])
        else:
            state = f"{uplink.phase}: {uplink.why}" if uplink.why else uplink.phase.value
        streams = sum(1 for _ in _shown(copies)) if name is None else 1
        yield NodeLink("up", uplink.node, uplink.address, state, streams, 0, 0, 0)


def _shown(names: Iterable[bytes]) -> Iterator[bytes]:
    """Those that an operator counts: not the broker's own, of which each goes with one of them."""
    return (name for name in names if not is_reserved(name))


def state_up(copies: Sequence[ReplicaFetcher]) -> str:
    """The state of a connection that is up: the reason why streams on it do not follow, if there is one."""
    waiting = [copy for copy in copies if copy.why]
    if not waiting:
        return UP
    first = f"{waiting[0].name.decode()}: {waiting[0].why}"
    return first if len(waiting) == 1 else f"{len(waiting)} streams wait, the first is {first}"


def _down(
    followers: Iterable[FollowerSession], readers: StreamReaders, name: bytes | None, may_see: MaySee | None
) -> Iterator[NodeLink]:
    left = LAGS_MEASURED_MAX
    for follower in followers:
        streams = messages = nbytes = age_ms = 0
        for following in follower.followings.values():
            if may_see is not None and not may_see(following.name):
                continue
            if name is not None and following.name != name:
                continue
            streams += name is not None or not is_reserved(following.name)
            behind = following.cursor.feed.end_seq - held_seq(following)
            if behind > 0:
                messages += behind
                lag = _measured(readers, following) if left > 0 else (0, 0)
                left -= 1
                nbytes, age_ms = nbytes + lag[0], max(age_ms, lag[1])
        if streams or (name is None and may_see is None):
            yield NodeLink("down", follower.node, follower.address, UP, streams, messages, nbytes, age_ms)


def held_seq(following: ReplicaFeed) -> int:
    """The end of the stream at the follower, by its own report; before its first report, the end of the frames sent."""
    row = following.rows.get(following.follower.node)
    return following.cursor.seq if row is None else row[0]


def _measured(readers: StreamReaders, following: ReplicaFeed) -> tuple[int, int]:
    """Bytes that the follower lacks, and the age in ms of the first message that it lacks; 0 if that is not known."""
    try:
        reader = readers.get(following.name)
        seq = max(held_seq(following), reader.first_seq())
        end_seq = reader.next_seq()
        if seq >= end_seq:
            return 0, 0
        first = reader.entry(seq)
        age_ms = (now_us() - first.timestamp_us) // 1_000
        return reader.offset_of(end_seq) - first.offset, max(age_ms, 0)
    except (StorageError, ValueError, OSError):
        return 0, 0
