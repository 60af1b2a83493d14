"""What may be asked of an owner besides publishing, by its own clients and, over a link, by its siblings' clients.

Each verb is a function (owner, arguments) -> value made of what msgpack carries; a failure is `Refused`. The table at
the end is all there is, and `call` the way in.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from broker.owner import OpenStream, Owner, Refused
from broker.protocol.errors import Code
from shard.errors import StorageError, StreamDamaged
from shard.meta import Role, StreamMeta, write_meta
from shard.stream_files import StreamPaths, stream_paths

log = logging.getLogger(__name__)

Args = list[Any]

STREAMS_ROWS_MAX = 200_000  # of one worker in one answer
BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own

# How a place in a stream is written in a call: ["time", us], ["seq", n] or ["new", 0] (broker.protocol.commands.From).


def locate(stream: OpenStream, place: list[Any], skip: int = 0) -> int:
    """The seq that a FROM means in this stream, never before what is kept nor after the end."""
    kind: str = place[0]
    value: int = place[1]
    if kind == "new":
        return stream.log.next_seq
    if kind == "seq":
        return min(max(value, stream.log.first_seq), stream.log.next_seq)
    return stream.log.seq_at(value, skip)


def ensure(owner: Owner, args: Args) -> int:
    """[stream, whether its asker may make streams] -> next seq, -1 when the stream was made for this."""
    name, may_create = args
    if name not in owner.names:
        if not may_create:
            raise Refused(Code.STREAMS, "this connection has made as many streams as it may")
        owner.create(name)
        return -1
    return owner.stream(name).log.next_seq


def master(owner: Owner, args: Args) -> int:
    """[stream] -> epoch. Makes the stream, or gives a disabled one its next term."""
    name = args[0]
    if name not in owner.names:
        owner.create(name, by_command=True)
    if owner.role(name) is not Role.MASTER:
        _set_role(owner, name, Role.MASTER, owner.epoch(name) + 1)
    return owner.epoch(name)


def unmaster(owner: Owner, args: Args) -> int:
    """[stream] -> epoch. The stream stays readable and takes no more messages."""
    name = args[0]
    if name not in owner.names:
        raise Refused(Code.UNKNOWN, "no such stream here")
    if owner.role(name) is Role.MASTER:
        _set_role(owner, name, Role.DISABLED, owner.epoch(name))
    return owner.epoch(name)


def _set_role(owner: Owner, name: bytes, role: Role, epoch: int) -> None:
    old = owner.metas.get(name) or StreamMeta(name.decode())
    meta = replace(old, role=role, epoch=epoch)
    try:
        write_meta(owner.shard_path(name), meta)
    except OSError as error:
        raise Refused(Code.FULL, f"the role could not be written down: {error.strerror}") from error
    owner.metas[name] = meta
    stream = owner.open.get(name)
    if stream is not None:
        stream.epoch = epoch if role is Role.MASTER else 0


def trim(owner: Owner, args: Args) -> list[int]:
    """[stream, place] -> [first seq, messages dropped]. The space comes back after a grace period."""
    name, place = args
    stream = owner.stream(name)
    seq = locate(stream, place)
    dropped = max(seq - stream.log.first_seq, 0)
    if dropped:
        owner.trim(stream, seq)
    return [stream.log.first_seq, dropped]


def stat(owner: Owner, args: Args) -> dict[str, int | str]:
    """[stream] -> the numbers an operator asks for. Sizes in bytes, times in microseconds since the epoch."""
    name = args[0]
    stream = owner.stream(name)
    found = stream.log
    empty = found.next_seq == found.first_seq
    return {
        "stream": name.decode(),
        "role": owner.role(name).value,
        "epoch": owner.epoch(name),
        "first_seq": found.first_seq,
        "next_seq": found.next_seq,
        "messages": found.next_seq - found.first_seq,
        "content_bytes": 0 if empty else found.end_offset - found.entry(found.first_seq).offset,
        "disk_bytes": disk_bytes(stream_paths(owner.shard_path(name), name.decode())),
        "first_timestamp_us": 0 if empty else found.entry(found.first_seq).timestamp_us,
        "last_timestamp_us": 0 if empty else found.last_timestamp_us,
        "synced_seq": found.synced_seq,
        "durability": stream.policy.durability.value,
        "shard": owner.directory.shard_of(name.decode()),
    }


def disk_bytes(paths: StreamPaths) -> int:
    """What a stream's two files take on the disk; a file that is not there, or cannot be asked, takes nothing."""
    total = 0
    for file in (paths.content_file, paths.index_file):
        try:
            total += os.stat(file).st_blocks * BLOCK_BYTES
        except OSError:
            continue
    return total


def streams(owner: Owner, args: Args) -> list[list[Any]]:
    """[prefix] -> rows of [name, role, epoch], in no order. Opens nothing, however many there are."""
    prefix = args[0]
    found = sum(1 for name in owner.names if name.startswith(prefix))
    if found > STREAMS_ROWS_MAX:
        raise Refused(Code.OVERLOADED, f"{found} streams of one worker are too many to list; give a longer prefix")
    return [[name, owner.role(name).value, owner.epoch(name)] for name in owner.names if name.startswith(prefix)]


CALLS: Mapping[str, Callable[[Owner, Args], Any]] = {
    "ensure": ensure,
    "master": master,
    "unmaster": unmaster,
    "trim": trim,
    "stat": stat,
    "streams": streams,
}


def call(owner: Owner, verb: str, args: Args) -> Any:
    """Do one of `CALLS`. Raises Refused, whatever is wrong with the stream's files or the disk."""
    try:
        return CALLS[verb](owner, args)
    except StreamDamaged as damage:
        log.error("cannot do %s: %s", verb, damage)
        raise Refused(Code.DAMAGED, str(damage)) from damage
    except (StorageError, OSError) as error:
        log.error("cannot do %s: %s", verb, error)
        raise Refused(Code.UNAVAILABLE, f"the owner of this stream cannot do this: {error}") from error
