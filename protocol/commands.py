"""The requests of a peer: one small immutable class per command. Stream names are bytes of valid UTF-8.

A codec's output is a list of these, in the order of the bytes. Besides the peer's requests it may hold `Reply` (bytes
to send back: telnet's option answers) and `Invalid` (the error for a bad line).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tailrace.protocol.errors import PeerError
from tailrace.protocol.names import ALL_STREAMS, StreamGroup
from tailrace.protocol.places import FROM_NEW as FROM_NEW
from tailrace.protocol.places import From as From


@dataclass(slots=True)
class Staged:
    """A run of `pub` lines. Not frozen, because it is made once a read and freezing doubles its cost.

    groups: (stream, messages, unstamped frames back to back), one a stream, in order of first appearance;
    order: the index into `groups` of each message, when it was asked for, else empty;
    placed: names that are topics have been placed in their streams; is_topic: the only name can be no stream's.
    """

    groups: list[tuple[bytes, int, bytearray]]
    order: list[int]
    placed: bool = False
    is_topic: bool = False


@dataclass(frozen=True, slots=True)
class Subscribe:
    """`skip`: messages at exactly the time `start` that are left out (only with a time). `wait`: the stream may be
    made later. `topics`: the filter for the topics of its messages; empty for all messages. `name`: as it was written,
    if that is the name of a topic, or a filter, in this stream."""

    stream: bytes
    start: From
    skip: int = 0
    wait: bool = False
    topics: bytes = b""
    name: bytes = b""

    @property
    def key(self) -> bytes:
        """What the peer knows the subscription by."""
        return self.name or self.stream


@dataclass(frozen=True, slots=True)
class ReadLast:
    """The last values of what `stream` names, which may be a topic, a filter or a pattern, behind the topic `after` of
    the stream `after_stream`; both may be empty.
    """

    stream: bytes
    after_stream: bytes = b""
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    stream: bytes


@dataclass(frozen=True, slots=True)
class Ack:
    """Turns answers to publishes on or off."""

    on: bool


@dataclass(frozen=True, slots=True)
class Consume:
    """Let there be a durable consumer of the stream, whose first message is at `start`. `topics`: its filter."""

    stream: bytes
    name: bytes
    start: From
    topics: bytes = b""


@dataclass(frozen=True, slots=True)
class Unconsume:
    """End a durable consumer."""

    stream: bytes
    name: bytes


@dataclass(frozen=True, slots=True)
class Leave:
    """This connection leaves a durable consumer; other members may have its unfinished messages."""

    stream: bytes
    name: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """Deliver up to `count` messages of a durable consumer to this connection; wait at most `wait_ms` for the first."""

    stream: bytes
    name: bytes
    wait_ms: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Finish:
    """A durable consumer has finished the messages from seq `first` to `last`."""

    stream: bytes
    name: bytes
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Nack:
    """A message has failed, and is to be delivered again, `delay_ms` later (-1: the consumer's own wait)."""

    stream: bytes
    name: bytes
    seq: int
    reason: str = ""
    delay_ms: int = -1


@dataclass(frozen=True, slots=True)
class Reset:
    """Let a durable consumer go on at `start`."""

    stream: bytes
    name: bytes
    start: From


@dataclass(frozen=True, slots=True)
class Consumers:
    """List those of a stream."""

    stream: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Auth:
    """Log in."""

    user: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Help:
    word: bytes = b""


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection. `word` is how the peer called it, which the answer repeats."""

    word: str = "quit"


@dataclass(frozen=True, slots=True)
class Master:
    """`force`: although another node may have more of the stream, as in Promote."""

    stream: bytes
    force: bool = False


@dataclass(frozen=True, slots=True)
class Unmaster:
    """`stream` may be a pattern, as in Slave."""

    stream: bytes


@dataclass(frozen=True, slots=True)
class Slave:
    """`stream` may be a pattern, as in Unslave and Promote: `*`, a prefix and `*`, or a group of streams.

    on_demand: of a pattern, each stream is copied only while it is read.
    """

    host: str
    port: int
    stream: bytes
    start: From
    on_demand: bool = False


@dataclass(frozen=True, slots=True)
class Unslave:
    stream: bytes


@dataclass(frozen=True, slots=True)
class Promote:
    """`epoch`: the term to begin; 0 for the next one."""

    stream: bytes
    epoch: int = 0
    force: bool = False


@dataclass(frozen=True, slots=True)
class Fence:
    """Acknowledge nothing in an earlier term."""

    stream: bytes
    epoch: int


@dataclass(frozen=True, slots=True)
class GrantLease:
    """This node may take and acknowledge messages in `term` until that time of the machine's CLOCK_BOOTTIME."""

    term: int
    until_ms: int
    group: StreamGroup = ALL_STREAMS


@dataclass(frozen=True, slots=True)
class ShowLease:
    """This node's lease and promise."""

    group: StreamGroup = ALL_STREAMS


@dataclass(frozen=True, slots=True)
class ShowGroups:
    """This node's lease, promise and in-sync replicas in each group of streams."""


@dataclass(frozen=True, slots=True)
class RequestPromises:
    """Ask the nodes at these addresses to lead in no later term than `term` for a while."""

    term: int
    length_ms: int
    nodes: tuple[tuple[str, int], ...]
    group: StreamGroup = ALL_STREAMS


@dataclass(frozen=True, slots=True)
class InSyncNodes:
    """The nodes that must hold a message before it is acknowledged as replicated, by their ids; none: list them."""

    nodes: tuple[str, ...] = ()
    group: StreamGroup = ALL_STREAMS


@dataclass(frozen=True, slots=True)
class Delete:
    """A stream is deleted, with its consumers and dead letters."""

    stream: bytes


@dataclass(frozen=True, slots=True)
class Trim:
    """Drop messages before `start` (a time or a seq); `spare`: except those that a durable consumer has not
    finished."""

    stream: bytes
    start: From
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Streams:
    prefix: bytes = b""


@dataclass(frozen=True, slots=True)
class GrownStreams:
    """Which streams have grown since `mark`, which an earlier answer had; b"": only a mark to begin with."""

    mark: bytes = b""


@dataclass(frozen=True, slots=True)
class Stat:
    stream: bytes


@dataclass(frozen=True, slots=True)
class Workers:
    pass


@dataclass(frozen=True, slots=True)
class Space:
    """The disk space of the node, and its bounds."""


@dataclass(frozen=True, slots=True)
class Conns:
    pass


@dataclass(frozen=True, slots=True)
class Pull:
    """The subscriptions by UDP and the wants of other nodes, from a place on that an earlier answer has."""

    place: int = 0


@dataclass(frozen=True, slots=True)
class Sessions:
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class ForgetSession:
    client_id: bytes


@dataclass(frozen=True, slots=True)
class Shutdown:
    node: bytes = b""
    """Stop the node."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """A line that is not a command. The peer receives `error`; the connection stays open unless it is fatal."""

    error: PeerError


@dataclass(frozen=True, slots=True)
class Foreign:
    """The peer speaks another protocol. `refusal` is the answer in that protocol's words; the connection ends."""

    refusal: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """Bytes to send back before anything else is done."""

    data: bytes


Command: TypeAlias = (
    Staged
    | Subscribe
    | ReadLast
    | Unsubscribe
    | Ack
    | Consume
    | Unconsume
    | Leave
    | Get
    | Finish
    | Nack
    | Reset
    | Consumers
    | Ping
    | Auth
    | Help
    | Close
    | Master
    | Unmaster
    | Slave
    | Unslave
    | Promote
    | Fence
    | GrantLease
    | ShowLease
    | ShowGroups
    | RequestPromises
    | InSyncNodes
    | Trim
    | Delete
    | Streams
    | GrownStreams
    | Stat
    | Workers
    | Space
    | Conns
    | Pull
    | Sessions
    | ForgetSession
    | Shutdown
    | Invalid
    | Foreign
    | Reply
)

ADMIN: frozenset[type] = frozenset(
    {
        Master,
        Unmaster,
        Slave,
        Unslave,
        Promote,
        Fence,
        GrantLease,
        ShowLease,
        ShowGroups,
        RequestPromises,
        InSyncNodes,
        Trim,
        Delete,
    }
    | {Streams, GrownStreams, Stat, Workers, Space, Conns, Pull, Sessions, ForgetSession, Shutdown}
)
"""The commands that only a peer on the same machine may give, on a connection that has sent only commands."""
