"""What the log has of a session, and which log a client's session is in."""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgpack

from tailrace.shard.names import SESSION_LOGS
from tailrace.shard.replacing import replaceable

STEPWISE_FORMAT: Final = 2
"""The first number of a state that is stored before each step of its session is to be seen by the client."""
FOR_EVER_S: Final = 0xFFFFFFFF
"""As Session Expiry Interval: the session does not expire."""
SUBSCRIBED_BYTES_MAX: Final = 256 << 10
"""A SUBSCRIBE is refused if the state of the session would be larger."""
RECORD_BYTES_MAX: Final = 1 << 20
"""The state of a session has room for messages under way and for streams that are made later."""
MICROSECONDS: Final = 1_000_000


class Will(NamedTuple):
    """A will that is published `delay_s` after the connection has ended: an unstamped frame for a stream."""

    delay_s: int
    stream: bytes
    frame: bytes


class HolderProcess(NamedTuple):
    """The process that has the connection: its node's run, and its process id."""

    run: int
    pid: int


class Exactness(IntEnum):
    """Whether a state is all that the client may know, not that of some time before."""

    NO = 0
    HERE = 1
    """If no other node has taken this one's place since."""
    EVERYWHERE = 2
    """The client sees nothing before it is held by as many nodes as are configured, so one of these goes on exactly."""


@replaceable
class SessionRecord(NamedTuple):
    """`turn`: of the connection that has it; what older connections store counts no longer. `user`: its owner.

    left_us: since when it has no connection, 0 while it has one. exactness: of `state`, which is the subscriptions,
    positions and messages under way, in the form of `broker.connection.mqtt.session_state`.
    """

    turn: int
    user: str
    expiry_s: int
    holder: HolderProcess
    left_us: int
    exactness: Exactness
    will: Will | None
    state: bytes

    def ends_us(self) -> int | None:
        """When it expires; None while it has a connection, and if it never does."""
        if not self.left_us or self.expiry_s == FOR_EVER_S:
            return None
        return self.left_us + self.expiry_s * MICROSECONDS

    def has_expired(self, now_us: int) -> bool:
        end_us = self.ends_us()
        return end_us is not None and end_us <= now_us

    def will_due_us(self) -> int | None:
        """When its will is to be published: at the end of the session at the latest."""
        if self.will is None or not self.left_us:
            return None
        return self.left_us + min(self.will.delay_s, self.expiry_s) * MICROSECONDS


def is_stepwise(state: bytes) -> bool:
    """Whether the session stores each step before its client sees it, so that a crash leaves it exact."""
    return state[1:2] == bytes((STEPWISE_FORMAT,))


def log_of(client_id: bytes) -> bytes:
    """The name of the log that has this client's session."""
    return SESSION_LOGS[zlib.crc32(client_id) % len(SESSION_LOGS)]


def pack_record(client_id: bytes, record: SessionRecord | None) -> bytes:
    """A record of the log; None: the session is no more."""
    fields: list[Any] = [client_id] if record is None else [client_id, *record]
    packed: bytes = msgpack.packb(fields)
    return packed


def unpack_record(payload: bytes | memoryview) -> tuple[bytes, SessionRecord | None]:
    """Raises ValueError if this is no such record."""
    try:
        client_id, *fields = msgpack.unpackb(payload, use_list=False)
        if not fields:
            return client_id, None
        turn, user, expiry_s, holder, left_us, exactness, will, state = fields
        kept = None if will is None else Will(*will)
        known = HolderProcess(*holder), left_us, Exactness(exactness), kept, state
        return client_id, SessionRecord(turn, user, expiry_s, *known)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"this is not the record of a session: {error}") from error
