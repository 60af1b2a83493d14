"""What the owner does about each request of a consumer. Pure: the time and the stream come in, records go out.

Each function applies the records that it gives, so `Decision.value` may be taken at once for what is so. The caller

1. appends `records`, in their order, to `$cursor/X` (there are none where nothing has changed), and answers when that is
   logged as was asked for;
2. publishes each letter of `dead` to X/$dead (`DeadLetter.producer_id`, number 0), after the records are appended, and
   then calls `bury`; `Consumers.unburied` has those that are left, also after a load. A letter that cannot be published
   now may be tried again at any time; one whose message is not kept any more is buried without;
3. throws the state away and loads it anew when the append fails, or when anything but Refused is raised here.

Refused is raised before anything was changed. After a load, after the stream's role or term has changed, and before its
first new message is appended, call `rewind`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from broker.consumers.records import Record
from broker.consumers.state import Consumers, DeadLetter
from broker.protocol.consuming import ACK_WAIT_MAX_S, GET_BYTES_MAX
from shard.epochs import History

ACK_WAIT_US: Final = 30_000_000
"""Where a consumer was made without one."""
ACK_WAIT_MIN_US: Final = 1_000
ACK_WAIT_MAX_US: Final = ACK_WAIT_MAX_S * 1_000_000
GRACE_US: Final = 5_000_000
"""What a member that went away has in flight is its own for so long."""
PRESENT_US: Final = 120_000_000
"""A member without a get for so long, and with nothing in flight, is none any more: twice the longest wait."""
TOUCH_US: Final = 60_000_000
"""A get that changes nothing is logged nevertheless where the last record of its consumer is older."""
MEMBERS_MAX: Final = 1_000
"""Of one consumer."""
WINDOW: Final = 4_096
"""Messages that one get looks at, for those whose key is in flight at no other member."""
EXPIRED_MAX: Final = 256
"""Consumers that one call of `expire` looks at."""

T = TypeVar("T")


class Look(Protocol):
    """Stream X as it is now. What these raise goes on to the caller (none of them raises Refused)."""

    @property
    def first_seq(self) -> int: ...

    @property
    def next_seq(self) -> int: ...

    @property
    def history(self) -> History:
        """Best the same object each time as long as it has not changed."""

    def fit(self, first_seq: int, last_seq: int, max_bytes: int) -> tuple[int, int]:
        """How many of these messages, from the first on, have frames of at most `max_bytes` together; and how many.

        (0, 0) where the first alone is longer. All of them are kept: first_seq <= these < next_seq of the stream.
        """

    def keys(self, first_seq: int, last_seq: int) -> Sequence[bytes | None]:
        """The key of each; None where it has none, or is not kept. Asked where a consumer has several members, and of
        what was given together with messages that have failed."""


class Decision(NamedTuple, Generic[T]):
    records: tuple[Record, ...]
    value: T
    dead: tuple[DeadLetter, ...] = ()


class Placed(NamedTuple):
    """`next_seq`: the first message that is not finished."""

    next_seq: int
    created: bool = False


class Given(NamedTuple):
    """`runs`: first seq, messages, how often they were delivered before. `stale`: first seq, last seq.

    `trimmed`: how many messages it lost since they are not kept any more.
    """

    runs: tuple[tuple[int, int, int], ...] = ()
    stale: tuple[tuple[int, int], ...] = ()
    trimmed: int = 0


class Ask(NamedTuple):
    """The arguments of a get. `finished`: first seq, last seq. `failed`: seq, reason.

    Bounds are those of `broker.protocol.consuming`; beyond them it is refused. Where `max_messages` is 0, nothing is
    given.
    """

    name: bytes
    member: bytes
    finished: Sequence[Sequence[int]] = ()
    failed: Sequence[tuple[int, str]] = ()
    max_messages: int = 0
    max_bytes: int = GET_BYTES_MAX
    fresh: bool = False


class Listed(NamedTuple):
    """As `broker.protocol.consuming.Standing`, but for `lag_us`: the age of message `next_seq` is the caller's."""

    name: bytes
    next_seq: int
    lag_messages: int
    in_flight: int
    members: int
    redelivered: int
    dead: int
    idle_us: int
    ack_wait_us: int
    deliveries_max: int


def create(
    consumers: Consumers,
    name: bytes,
    seq: int,
    now_us: int,
    ack_wait_us: int | None = None,
    deliveries_max: int | None = None,
) -> Decision[Placed]:
    """Make a consumer whose first message is `seq`. Where it is there with these settings (None: any), that is fine.

    Raises Refused: USAGE for a name or settings that cannot be, or where it has others; OVERLOADED at CONSUMERS_MAX.
    """
    raise NotImplementedError


def reset(consumers: Consumers, name: bytes, seq: int, now_us: int) -> Decision[Placed]:
    """Go on at `seq`; what is in flight is nobody's. Raises Refused: CONSUMER, USAGE."""
    raise NotImplementedError


def delete(consumers: Consumers, name: bytes) -> Decision[bool]:
    """Whether it existed."""
    raise NotImplementedError


def listing(consumers: Consumers, look: Look, now_us: int) -> list[Listed]:
    """All consumers, by name."""
    raise NotImplementedError


def get(consumers: Consumers, ask: Ask, look: Look, now_us: int) -> Decision[Given]:
    """Finish and fail what the member says, then give it messages.

    Where it has some in flight and does not ask for fresh ones, it gets those again and no others. Nothing to give is an
    answer without runs: to wait is the caller's, who asks again, without `finished` and `failed`, when messages were
    appended, or when a decision about the same consumer had records.

    Raises Refused: CONSUMER no such consumer; USAGE; OVERLOADED at MEMBERS_MAX.
    """
    raise NotImplementedError


def away(consumers: Consumers, name: bytes, member: bytes, now_us: int) -> None:
    """The member's connection is gone. What it has in flight is returned after GRACE_US unless it comes back.

    This is no record: `expire` makes one of it. `next_deadline_us` may be earlier now. Nothing for unknown ones.
    """
    raise NotImplementedError


def expire(consumers: Consumers, look: Look, now_us: int) -> Decision[frozenset[bytes]]:
    """Return what was in flight for too long, or whose member is gone; the consumers that have something again.

    At most EXPIRED_MAX consumers: call it again when `next_deadline_us` is still past.
    """
    raise NotImplementedError


def next_deadline_us(consumers: Consumers) -> int | None:
    """When to call `expire`; None for never, as things are."""
    raise NotImplementedError


def bury(consumers: Consumers, letter: DeadLetter) -> Decision[None]:
    """The letter is in X/$dead. No records where that was known."""
    raise NotImplementedError


def rewind(consumers: Consumers, look: Look) -> Decision[int]:
    """Go back to where stream X has other messages, or none, than the consumers were given; how many went back.

    Each decision that reads the stream does this where the history is another than the last time. That the stream has
    lost its end without a new term shows only before it has grown again: so this is to be called after each load.
    """
    raise NotImplementedError
