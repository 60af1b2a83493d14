"""`$sessions/N`, a log of sessions: the newest record of each counts, and is in memory too."""

from __future__ import annotations

from itertools import islice
from typing import Final

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


class SessionLog(RecordLog):
    """`nbytes`: memory that its sessions take, about. `epoch`: the term in which this node was its master when it was
    read, 0 if it was not. The oldest records come first in `_entries`.
    """

    __slots__ = ("_entries", "_sharing", "epoch", "nbytes")

    def __init__(self, owner: Owner, name: bytes) -> None:
        super().__init__(owner, name)
        self._entries: dict[bytes, tuple[int, bytes]] = {}
        self._sharing: dict[bytes, None] = {}  # clients with shared subscriptions
        self.nbytes = self.epoch = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, client_id: bytes) -> bool:
        return client_id in self._entries

    def client_ids(self) -> list[bytes]:
        return list(self._entries)

    def get(self, client_id: bytes) -> SessionRecord | None:
        entry = self._entries.get(client_id)
        return None if entry is None else unpack_record(entry[1])[1]

    def shares(self, packed_filter: bytes) -> bool:
        """Whether a session has this shared subscription."""
        return any(packed_filter in self._entries[client_id][1] for client_id in self._sharing)

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
                self._note(client_id, seq, None if kept is None else record)

    def put(self, client_id: bytes, record: SessionRecord | None, now_s: float) -> int:
        """What the session is now; None: it is no more. Returns the seq of the record. Raises Refused."""
        packed = pack_record(client_id, record)
        if self.name not in self._owner.catalog.names:
            self._owner.create(self.name, by_command=True)
        seq = self.append_records([pack_frame(packed)], now_s)
        self._note(client_id, seq, None if record is None else packed)
        return seq

    def _note(self, client_id: bytes, seq: int, packed: bytes | None) -> None:
        before = self._entries.pop(client_id, None)
        if before is not None:
            self.nbytes -= ENTRY_BYTES + len(client_id) + len(before[1])
        self._sharing.pop(client_id, None)
        if packed is not None:
            if SHARE_PREFIX in packed:
                self._sharing[client_id] = None
            self._entries[client_id] = seq, packed
            self.nbytes += ENTRY_BYTES + len(client_id) + len(packed)

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
        return next(iter(self._entries.values()), (end_seq, b""))[0]

    def _append_again(self, now_s: float) -> None:
        some = [(client_id, packed) for client_id, (_seq, packed) in islice(self._entries.items(), AGAIN)]
        if some:
            seq = self.append_records([pack_frame(packed) for _client_id, packed in some], now_s)
            for place, (client_id, packed) in enumerate(some):
                self._note(client_id, seq + place, packed)
