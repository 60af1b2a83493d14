"""What may be asked of an owner besides publishing, by its own clients and, over a link, by its siblings' clients.

Each verb is a function (owner, arguments) -> value made of what msgpack carries; a failure is `Refused`. The table at
the end is all there is, and `call` the way in.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tailrace.broker.replication.downstream import catalog, replica_state
from tailrace.broker.replication.downstream.in_sync import InSyncRow
from tailrace.broker.replication.roles import apply_rules, stream_ends, stream_roles
from tailrace.broker.replication.status.lag import stat_of_slaves
from tailrace.broker.streams import listing
from tailrace.broker.streams.listing import disk_bytes
from tailrace.broker.streams.owner import OpenStream, Owner, Refused
from tailrace.broker.streams.refused import CallArgs
from tailrace.protocol.errors import Code
from tailrace.shard.diverged import count_tails
from tailrace.shard.errors import StorageError, StreamDamaged, peer_text
from tailrace.shard.names import group_key, is_reserved
from tailrace.shard.stream_files import StreamPaths, stream_paths

log = logging.getLogger(__name__)


STREAMS_ROWS_MAX = 200_000  # of one worker in one answer

# A place in a stream in a call: ["time", us], ["seq", n], ["last", n] or ["new", 0] (protocol.places.From).


def locate(stream: OpenStream, place: list[Any], skip: int = 0) -> int:
    """The seq that a FROM means in this stream, never before the first kept message nor after the end."""
    kind: str = place[0]
    value: int = place[1]
    if kind == "new":
        return stream.log.next_seq
    if kind == "last":
        return max(stream.log.next_seq - value, stream.log.first_seq)
    if kind == "seq":
        return min(max(value, stream.log.first_seq), stream.log.next_seq)
    return stream.log.seq_at(value, skip)


def end(owner: Owner, args: CallArgs) -> int:
    """[stream] -> its next seq."""
    return owner.stream(args[0]).log.next_seq


def copied(owner: Owner, args: CallArgs) -> bool:
    """[stream] -> whether it is here. Answered when a copy that is made for readers has all messages."""
    return args[0] in owner.catalog.names


def trim(owner: Owner, args: CallArgs) -> list[int]:
    """[stream, place, whether to spare what consumers need] -> [first seq, messages dropped].

    The space comes back after a grace period.
    """
    name, place, spares = args
    stream = owner.stream(name)
    seq = locate(stream, place)
    if spares:
        seq = spare(seq, owner.context.spared_seq(name))
    dropped = max(seq - stream.log.first_seq, 0)
    if dropped:
        owner.trim(stream, seq)
    return [stream.log.first_seq, dropped]


def spare(seq: int, spared_seq: int | None) -> int:
    """The seq at which a trim to `seq` ends if messages from `spared_seq` on must stay."""
    return seq if spared_seq is None else min(seq, spared_seq)


def stat(owner: Owner, args: CallArgs) -> dict[str, int | str]:
    """[stream] -> the numbers an operator asks for. Sizes in bytes, times in microseconds since the epoch."""
    name = args[0]
    stream = owner.stream(name)
    paths = stream_paths(owner.catalog.shard_path(name), name.decode())
    found = stream.log
    last = stream_ends.last_term(owner, stream)
    empty = found.next_seq == found.first_seq
    return {
        "stream": name.decode(),
        "role": owner.roles.role(name).value,
        "epoch": owner.roles.epoch(name),
        "last_epoch": last.epoch,
        **({"last_master": last.master} if last.master else {}),
        "first_seq": found.first_seq,
        "next_seq": found.next_seq,
        "messages": found.next_seq - found.first_seq,
        "content_bytes": 0 if empty else found.end_offset - found.entry(found.first_seq).offset,
        "disk_bytes": disk_bytes(paths),
        **dict(zip(("diverged_tails", "diverged_messages"), tails_of(paths), strict=True)),
        "first_timestamp_us": 0 if empty else found.entry(found.first_seq).timestamp_us,
        "last_timestamp_us": 0 if empty else found.last_timestamp_us,
        "synced_seq": found.durable.seq,
        **({} if found.sync_failed_seq is None else {"sync_failed_seq": found.sync_failed_seq}),
        "durability": stream.policy.durability.value,
        "shard": owner.catalog.directory.shard_of(name.decode()),
        **owner.context.stat_upstream(stream),
        **stat_of_slaves(stream, owner.replicas.streams.get(name), owner.clock_us()),
    }


def tails_of(paths: StreamPaths) -> tuple[int, int]:
    """How many tails of a stream are set aside, and their messages. A file that cannot be read counts as a tail."""
    try:
        return count_tails(paths)
    except (StorageError, OSError) as error:
        log.warning("what was set aside of stream %r cannot be read: %s", paths.name, error)
        return 1, 0


def streams(owner: Owner, args: CallArgs) -> list[list[Any]]:
    """[prefix] -> rows of [name, role, epoch], in no order. Opens nothing, however many there are.

    The broker's own are listed only where the prefix begins as they do.
    """
    prefix = args[0]
    found = [name for name in owner.catalog.names if name.startswith(prefix) and (prefix or not is_reserved(name))]
    if len(found) > STREAMS_ROWS_MAX:
        raise Refused(Code.OVERLOADED, f"{len(found)} streams of one worker are too many to list; give a longer prefix")
    return [[name, owner.roles.role(name).value, owner.roles.epoch(name)] for name in found]


def grown(owner: Owner, args: CallArgs) -> list[Any]:
    """[mark] -> [next mark, number of streams, names of those that have grown since the mark or None if unknown]."""
    found = owner.growth_log.since(args[0])
    return [found.mark, len(owner.catalog.names), None if owner.roles.copies.unready else found.streams]


def in_sync(owner: Owner, _args: CallArgs) -> list[Any]:
    """[] -> rows of a group and the fields of `InSyncRow`, of the streams of this worker. This node has a row if it
    copies streams of the group on demand, or has done so and lacks messages of them.
    """
    partial = Counter(group_key(name) % owner.replicas.lease.groups for name in owner.roles.copies.filling)
    partial.update(owner.roles.rules.groups_on_demand())
    own = [InSyncRow(owner.catalog.directory.node_id, 0.0, streams, False) for streams in partial.values()]
    rows = [*zip(partial, own, strict=True), *owner.replicas.in_sync_rows()]
    return [[group, *row] for group, row in rows]


CALLS: Mapping[str, Callable[[Owner, CallArgs], Any]] = {
    "end": end,
    "copied": copied,
    "master": stream_roles.master,
    "promote": stream_roles.promote,
    "fence": stream_roles.fence,
    "unmaster": stream_roles.unmaster,
    "slave": stream_roles.slave,
    "unslave": stream_roles.unslave,
    "claim": stream_roles.claimed,
    "follow": replica_state.follow,
    "ends": stream_ends.ends,
    "names": catalog.names,
    "in_sync": in_sync,
    "rule": apply_rules.rule,
    "rules": apply_rules.rules,
    "followed": apply_rules.followed,
    "trim": trim,
    "stat": stat,
    "streams": streams,
    "list_names": listing.list_names,
    "list_grown": listing.list_grown,
    "list_ends": listing.list_ends,
    "list_stream": listing.list_stream,
    "grown": grown,
}


def call(owner: Owner, verb: str, args: CallArgs) -> Any:
    """Do one of `CALLS`. Raises Refused, also for faults of the stream's files or the disk."""
    with refusals(verb):
        return CALLS[verb](owner, args)


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn a fault of a stream's files or the disk into a `Refused`."""
    try:
        yield
    except StreamDamaged as damage:
        log.error("cannot do %s: %s", what, damage)
        raise Refused(Code.DAMAGED, peer_text(damage)) from damage
    except (StorageError, OSError) as error:
        log.error("cannot do %s: %s", what, error)
        raise Refused(Code.UNAVAILABLE, f"the owner of this stream cannot do this: {peer_text(error)}") from error
