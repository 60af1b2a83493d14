"""`$sessions/N`, a log of sessions: the newest record of each counts, and is in memory too."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Final, NamedTuple

from tailrace.broker.sessions.record import Exactness, SessionRecord, pack_record, unpack_record
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.record_log import RecordLog
from tailrace.protocol.topics import SHARE_PREFIX
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load

SLACK: Final = 1_024
"""Records beyond twice those that count, from which on the log is made shorter."""
AGAIN: Final = 256
"""Records that are appended again at a time."""
ENTRY_BYTES: Final = 400
"""Of memory for a session, beyond its identifier and its record, about."""

_parse = load("tailrace.shard.frame_cy").parse


class SessionEntry(NamedTuple):
    """`packed`: the record at `seq`. `user`: of the session."""

    seq: int
    packed: bytes
    user: str


class SessionLog(RecordLog):
    """`nbytes`: memory that its sessions take, about; `held`: how many each user has, and their memory. `epoch`: the
    term in which this node was its master when it was read, 0 if it was not. The oldest records come first in
    `_entries`.
    """

    __slots__ = ("_entries", "_sharing", "epoch", "held", "nbytes")

    def __init__(self, owner: Owner, name: bytes) -> None:
        super().__init__(owner, name)
        self._entries: dict[bytes, SessionEntry] = {}
        self._sharing: dict[bytes, None] = {}  # clients with shared subscriptions
        self.held: dict[str, tuple[int, int]] = {}
        self.nbytes = self.epoch = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, client_id: bytes) -> bool:
        return client_id in self._entries

    def client_ids(self) -> list[bytes]:
        return list(self._entries)

    def get(self, client_id: bytes) -> SessionRecord | None:
        entry = self._entries.get(client_id)
        return None if entry is None else unpack_record(entry.packed)[1]

    def shares(self, packed_filter: bytes) -> bool:
        """Whether a session has this shared subscription."""
        return any(packed_filter in self._entries[client_id].packed for client_id in self._sharing)

    def read(self) -> None:
        """All that the log has. What is of an earlier term may not be the last that its master stored.

        Raises Refused, StorageError, OSError, ValueError.
        """
        self.epoch = self._owner.roles.open_epoch(self.name)
        if self.name not in self._owner.catalog.names:
            return
        stream_log = self.stream().log
        for run in stream_log.walk(stream_log.first_seq):
            for seq, _time_us, epoch, _flags, _metadata, payload in _parse(run.frames, 0, len(run.frames), False):
                record = bytes(payload)
                client_id, kept = unpack_record(record)
                if kept is not None and kept.exactness is Exactness.HERE and epoch != self.epoch:
                    record = pack_record(client_id, kept._replace(exactness=Exactness.NO))
                self._note(client_id, None if kept is None else SessionEntry(seq, record, sys.intern(kept.user)))

    def put(self, client_id: bytes, record: SessionRecord | None, now_s: float) -> int:
        """What the session is now; None: it is no more. Returns the seq of the record. Raises Refused."""
        packed = pack_record(client_id, record)
        if self.name not in self._owner.catalog.names:
            self._owner.create(self.name, by_command=True)
        seq = self.append_records([pack_frame(packed)], now_s)
        self._note(client_id, None if record is None else SessionEntry(seq, packed, sys.intern(record.user)))
        return seq

    def _note(self, client_id: bytes, entry: SessionEntry | None) -> None:
        before = self._entries.pop(client_id, None)
        if before is not None:
            self._count(before.user, -1, -ENTRY_BYTES - len(client_id) - len(before.packed))
        self._sharing.pop(client_id, None)
        if entry is not None:
            if SHARE_PREFIX in entry.packed:
                self._sharing[client_id] = None
            self._entries[client_id] = entry
            self._count(entry.user, 1, ENTRY_BYTES + len(client_id) + len(entry.packed))

    def _count(self, user: str, sessions: int, nbytes: int) -> None:
        self.nbytes += nbytes
        before, bytes_before = self.held.pop(user, (0, 0))
        if before + sessions:
            self.held[user] = before + sessions, bytes_before + nbytes

    def tidy(self, now_s: float) -> None:
        """Make the log shorter, if most of it counts no longer. Raises Refused, StorageError, OSError."""
        if self.name not in self._owner.catalog.names:
            return
        stream_log = self.stream().log
        excess = stream_log.next_seq - stream_log.first_seq - 2 * len(self._entries) - SLACK
        if excess > 0:
            if self._oldest(stream_log.next_seq) - stream_log.first_seq < excess // 2:
                self._append_again(now_s)
            self.trim_later(self._oldest(stream_log.next_seq), now_s)
        self.trim()

    def _oldest(self, end_seq: int) -> int:
        """The seq of the oldest record that counts."""
        return next((entry.seq for entry in self._entries.values()), end_seq)

    def _append_again(self, now_s: float) -> None:
        some = list(islice(self._entries.items(), AGAIN))
        if some:
            seq = self.append_records([pack_frame(entry.packed) for _client_id, entry in some], now_s)
            for place, (client_id, entry) in enumerate(some):
                self._note(client_id, SessionEntry(seq + place, entry.packed, entry.user))
