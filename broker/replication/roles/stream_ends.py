"""The ends of this node's copies of streams, as an owner reports them for ASK and for the check before a promotion.

`ends` is a verb of `broker.streams.owner_calls`.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.streams.owner import OpenStream, Owner, Refused
from tailrace.broker.streams.refused import CallArgs
from tailrace.protocol.replication import CopyEnd
from tailrace.shard.epochs import EpochStart, term_at
from tailrace.shard.errors import StorageError

NO_TERM: Final = EpochStart(0, 0)


def ends(owner: Owner, args: CallArgs) -> list[list[Any]]:
    """[streams] -> an `CopyEnd` for each of them and their companions that is here and can be opened."""
    found = []
    for asked in args[0]:
        for name in (asked, *owner.catalog.companions.of(asked)):
            if name in owner.catalog.names:
                try:
                    found.append(list(end_of(owner, name)))
                except (Refused, StorageError, OSError):
                    continue  # a damaged stream has no end that a promotion could go by
    return found


def end_of(owner: Owner, name: bytes) -> CopyEnd:
    """Raises Refused, StorageError, OSError."""
    stream, meta = owner.stream(name), owner.roles.meta(name)
    epoch = stream_roles.term(meta, stream_roles.history_of(owner, stream))[0]
    last = last_term(owner, stream)
    return CopyEnd(name.decode(), meta.role.value, epoch, last.epoch, stream.log.next_seq, last.master)


def last_term(owner: Owner, stream: OpenStream) -> EpochStart:
    """The latest term whose beginning the copy has reached: that of its last message, or a later one of its line that
    begins right behind that. NO_TERM if it never had a message.

    With all messages before its beginning a copy has all that were acknowledged in earlier terms. So it ranks above
    copies in those from there on, and not only from the term's first message on, which may never come.
    """
    next_seq = stream.log.next_seq
    return (term_at(stream_roles.history_of(owner, stream), next_seq) if next_seq else None) or NO_TERM
