"""The durable consumers of one stream, as the records of `$cursor/X` tell it. Pure: no clock, no file.

Whatever is applied gives the same state wherever it is applied, and what the owner decides (`broker.consumers.decide`)
is a record that it applies itself. So a state that was read from the log is the one that was lost.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from broker.consumers.records import Record
from shard.epochs import History

FLIGHT_MAX: Final = 65_536
"""Messages of one consumer that are in flight at once: a get gives no more than are missing to it."""


class DeadLetter(NamedTuple):
    """A message that is delivered no more. `deliveries`: how often it was. `number`: of this consumer's, from 0 on."""

    consumer: bytes
    era_us: int
    number: int
    seq: int
    epoch: int
    deliveries: int
    reason: str

    def producer_id(self, stream: bytes) -> bytes:
        """The id to publish it to X/$dead with, as message 0 of this producer: one for each letter.

        So it is published once however often that is tried, by whichever owner, and nothing is known wrongly where the
        record of a letter was lost with a machine.
        """
        told = repr((stream, self.consumer, self.era_us, self.seq, self.epoch))
        return hashlib.blake2b(told.encode(), digest_size=16).digest()


class Consumer:
    """One durable consumer. Read only, but for `broker.consumers`."""

    name: bytes
    created_us: int
    last_us: int
    """The time of the last create, reset or get that was logged; `decide.TOUCH_US` behind at most."""
    ack_wait_us: int
    deliveries_max: int
    dead: int
    redelivered: int

    @property
    def floor_seq(self) -> int:
        """Every message before it is finished."""
        raise NotImplementedError

    @property
    def spare_seq(self) -> int:
        """The first message that it still needs: its floor, or that of a dead letter which is not published yet."""
        raise NotImplementedError

    def lag_messages(self, next_seq: int) -> int:
        """How many messages of a stream with this next seq it has not finished."""
        raise NotImplementedError


class Consumers:
    """All consumers of one stream."""

    by_name: dict[bytes, Consumer]
    history: History
    """Of stream X, as the records know it."""

    def __init__(self) -> None:
        self.by_name = {}
        self.history = ()

    def apply(self, record: Record) -> None:
        """Raises BadRecord where it contradicts what was applied before; this state is worth nothing then.

        A checkpoint takes effect with its last record, `Ended`. One that was cut short does nothing.
        """
        raise NotImplementedError

    def checkpoint(self, part_max_bytes: int) -> list[Record]:
        """`Begun`, parts, `Ended`: applied to any state they give this one.

        Each is packed in about `part_max_bytes` at most (`Begun` in 64 KiB, as the history asks for).
        """
        raise NotImplementedError

    def unburied(self) -> list[DeadLetter]:
        """The letters that are to be published to X/$dead, or may be published: `decide.bury` is the end of each."""
        raise NotImplementedError

    def spare_seq(self, idle_since_us: int) -> int | None:
        """The first message that a consumer still needs which was not idle since then; None where there is none."""
        raise NotImplementedError
