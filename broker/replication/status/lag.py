"""How far copies are behind, for `stat`: nodes below this one, by their reports; this node, by its upstream's.

A lag in time is the age of the first message that is missing: the copy is as the stream was that long ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.broker.replication.downstream.replica_acks import ReplicaAcks
from tailrace.broker.replication.upstream.connection import UpstreamConnection, UpstreamPhase
from tailrace.broker.streams.owner import OpenStream, Owner
from tailrace.shard.log import StreamLog

if TYPE_CHECKING:
    from tailrace.broker.replication.upstream.fetchers import ReplicaFetcher

UP = "up"
Field = int | str


class Lag(NamedTuple):
    """The lag of a copy: messages, bytes of whole frames, and microseconds. Zeros if it has all messages."""

    messages: int
    nbytes: int
    age_us: int


NO_LAG = Lag(0, 0, 0)


def lag_of(log: StreamLog, held_seq: int, now_us: int) -> Lag:
    """The lag of a copy that has the messages before `held_seq`. Messages not kept any more do not count.

    Raises OSError, StreamDamaged.
    """
    seq = max(held_seq, log.first_seq)
    if seq >= log.next_seq:
        return NO_LAG
    first = log.entry(seq)
    return Lag(log.next_seq - seq, log.end_offset - first.offset, max(now_us - first.timestamp_us, 0))


def stat_of_slaves(stream: OpenStream, holders: ReplicaAcks | None, now_us: int) -> dict[str, Field]:
    """The rows of `stat` on the nodes below. Raises as `lag_of`."""
    nodes = {} if holders is None else holders.nodes
    lags = {node: lag_of(stream.log, held.next_seq, now_us) for node, held in sorted(nodes.items())}
    rows: dict[str, Field] = {
        "slaves": len(lags),
        "slaves_caught_up": sum(lag == NO_LAG for lag in lags.values()),
    }
    for node, lag in lags.items():
        held = nodes[node]
        rows[f"slave:{node}"] = (
            f"next_seq={held.next_seq},synced_seq={held.synced_seq},lag_messages={lag.messages},"
            f"lag_bytes={lag.nbytes},lag_s={lag.age_us / 1e6:.3f}"
        )
    return rows


def stat_of_upstream(
    found: tuple[UpstreamConnection, ReplicaFetcher] | None, owner: Owner, stream: OpenStream, now_us: int
) -> dict[str, Field]:
    """The rows of `stat` on the node that this one follows; none for a master.

    `found`: how the stream follows (`Uplinks.copy_of`). The lag is what the upstream sent last; while the link is down
    the real one may be larger.
    """
    upstream = owner.roles.meta(stream.name).upstream
    if upstream is None or found is None:
        return {}
    uplink, copy = found
    behind = max(copy.end_seq - stream.log.next_seq, 0)
    return {
        "upstream": uplink.address,
        "upstream_node": uplink.node,
        "link": UP if uplink.phase is UpstreamPhase.UP else f"{uplink.phase} {uplink.why}",
        "copy": f"{copy.state} {copy.why}",
        "lag_messages": behind,
        "lag_s": f"{max(now_us - stream.log.last_timestamp_us, 0) / 1e6 if behind else 0:.3f}",
    }
