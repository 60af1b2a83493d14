"""Where this node's copies of streams end: what an owner reports of them for ASK, and for the check before a promotion.

`ends` is a verb of `broker.owner_calls`.
"""

from __future__ import annotations

from typing import Any

from broker.owner import OpenStream, Owner, Refused
from broker.protocol.replication import End
from broker.replication import roles
from shard.epochs import epoch_at
from shard.errors import StorageError

Args = list[Any]


def ends(owner: Owner, args: Args) -> list[list[Any]]:
    """[streams] -> an `End` for each of them and their companions that is here and can be opened."""
    found = []
    for asked in args[0]:
        for name in (asked, *owner.companions.of(asked)):
            if name in owner.names:
                try:
                    found.append(list(end_of(owner, name)))
                except (Refused, StorageError, OSError):
                    continue  # a damaged stream has no end that a promotion could go by
    return found


def end_of(owner: Owner, name: bytes) -> End:
    """Raises Refused, StorageError, OSError."""
    stream, meta = owner.stream(name), owner.meta(name)
    epoch = roles.term(meta, roles.history_of(owner, stream))[0]
    return End(name.decode(), meta.role.value, epoch, last_epoch(owner, stream), stream.log.next_seq)


def last_epoch(owner: Owner, stream: OpenStream) -> int:
    """The term of the stream's last message, also if that was trimmed; 0 if there never was one."""
    log = stream.log
    if log.first_seq < log.next_seq:
        return log.last_epoch
    return epoch_at(roles.history_of(owner, stream), log.next_seq - 1) if log.next_seq else 0
