"""Where a durable session is in its streams, in a form that holds over a promotion.

The promoted node may lack the newest messages, and gives their seqs to others. So a position is stored with the term
of the message before it: if the stream has messages of later terms before it, it goes on with the first of them.
"""

from __future__ import annotations

from tailrace.broker.delivery.readers import StreamReaders
from tailrace.shard.epochs import NEVER_SEQ
from tailrace.shard.errors import StorageError

UNKNOWN_TERM = 0


class PositionTerms:
    """The terms of the messages before the positions of one session; each is looked up once."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, int]] = {}

    def before(self, readers: StreamReaders, stream: bytes, seq: int) -> int:
        """The term of the message before `seq`."""
        known = self._known.get(stream)
        if known is not None and known[0] == seq:
            return known[1]
        term = _term_of(readers, stream, seq - 1) if seq else UNKNOWN_TERM
        self._known[stream] = seq, term
        return term


def _term_of(readers: StreamReaders, stream: bytes, seq: int) -> int:
    try:
        return readers.get(stream).entry(seq).epoch
    except (StorageError, ValueError, OSError):  # it is trimmed, or the stream is gone
        return UNKNOWN_TERM


def parting_seq(readers: StreamReaders, stream: bytes, seq: int, term: int) -> int:
    """The first message of a stream that a session has not had, if the stream has others than those before its position
    `seq`, whose last one was of `term`. NEVER_SEQ if it has the same.
    """
    if not seq or term == UNKNOWN_TERM:
        return NEVER_SEQ
    try:
        reader = readers.get(stream)
        first_seq, next_seq = reader.first_seq(), reader.next_seq()
        if first_seq < seq <= next_seq and reader.entry(seq - 1).epoch == term:
            return NEVER_SEQ
        later = [start.first_seq for start in reader.epochs() if start.epoch > term]
    except (StorageError, ValueError, OSError):
        return NEVER_SEQ
    parting = later[0] if later else next_seq
    return parting if parting < seq else NEVER_SEQ


def end_of(readers: StreamReaders, stream: bytes) -> int:
    """The seq behind the last message of a stream; 0 if it cannot be read."""
    try:
        return readers.get(stream).next_seq()
    except (StorageError, ValueError, OSError):
        return 0
