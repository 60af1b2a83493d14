"""What can go wrong on the wire: every error code with its one-line meaning, and the two kinds of error.

    Exception
    ├── PeerError    the peer sent something wrong: it hears code and text, and loses its connection when it is fatal
    └── UsageError   our own code used this package wrongly: a bug

Anything else that leaves this package because of bytes from the network is a bug too.
"""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """The machine-readable word of an `err` or ERROR. `meaning` says in one line what happened and what to do."""

    _value_: str
    meaning: str

    def __new__(cls, word: str, meaning: str = "") -> Code:
        member = str.__new__(cls, word)
        member._value_ = word
        member.meaning = meaning
        return member

    COMMAND = "command", "no such command; `help` lists them"
    USAGE = "usage", "what was asked lacks something, has too much or is malformed; the text says what"
    NAME = "name", "not a stream name: 1 to 200 bytes of UTF-8 without white space, control characters or `|`"
    RESERVED = "reserved", "names that begin with `$` belong to the broker; choose another"
    FROM = "from", "not a place in a stream: a time in microseconds, a seq or `new`"
    LINE = "line", "the line is longer than `max_line_bytes`; it was discarded"
    SIZE = "size", "the message is larger than `max_message_bytes`, or all that was sent with it; it was discarded"
    INCOMPLETE = "incomplete", "the connection ended in the middle of a line or an envelope; that was discarded"
    DENIED = "denied", "only connections from the broker's own machine, or with its token, may do this"
    DISABLED = "disabled", "the stream takes no messages here; an administrator can make this node its master"
    UNAVAILABLE = "unavailable", "the stream cannot be reached now; try again"
    FULL = "full", "the disk is full; publish again when there is space"
    DAMAGED = "damaged", "the stream's files are damaged; `tailrace check` shows where"
    UNKNOWN = "unknown", "there is no such stream"
    SUBSCRIBED = "subscribed", "this connection has a subscription of this stream; `unsub` it first"
    UNSUBSCRIBED = "unsubscribed", "this connection has no subscription of this stream"
    CONNECTIONS = "connections", "the node has reached `max_connections`; the connection is closed"
    SUBSCRIPTIONS = "subscriptions", "this connection has reached `max_subscriptions`"
    HANDLES = "handles", "this connection has reached `max_handles`"
    STREAMS = "streams", "this connection has made `max_streams_connection` streams and may make no more"
    NODESTREAMS = "nodestreams", "the node has reached `max_streams`"
    OVERLOADED = "overloaded", "the broker holds too much already; send this again, more slowly"
    UNSUPPORTED = "unsupported", "this broker does not do that"
    CLOSING = "closing", "the broker closes this connection because it stops or is told to; connect again"
    TRIMMED = "trimmed", "messages were dropped before they could be sent; the subscription goes on behind them"
    DIVERGED = "diverged", "messages that were sent are not in the stream any more; it goes on from the seq in the text"
    UNREPLICATED = "unreplicated", "the message is logged, but not held by as many nodes in time as was asked"
    GAP = "gap", "a producer's numbers have a gap before these messages, or those before them were lost"
    PRODUCER = "producer", "nothing is known of this producer here, or of these numbers any more; begin with a new id"
    CONSUMER = "consumer", "the stream has no such consumer; create it first"
    STALE = (
        "stale",
        "another member has these messages now, they were not given to this one, or they were lost and others have "
        "their seqs; what this one says of them does not count",
    )
    CYCLE = "cycle", "the nodes would follow each other in a circle; choose another to follow"
    BEHIND = "behind", "another node has more of the stream: promote that one, or add `force` and lose what is not here"
    SLOW = "slow", "this connection read too slowly and is closed; subscribe again from the last seq seen"
    PROTOCOL = "protocol", "these bytes are no protocol spoken here, or nothing that it says at this place"


def code_of(word: str) -> Code:
    """The code that another broker has answered with; `unavailable` for one that is not known here."""
    return Code(word) if word in Code._value2member_map_ else Code.UNAVAILABLE


class PeerError(Exception):
    """The peer sent something wrong. `text` says what, where and what to do; `fatal`: the connection must die."""

    def __init__(self, code: Code, text: str, *, fatal: bool = False) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text
        self.fatal = fatal

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class UsageError(Exception):
    """This package was used wrongly by its own side."""
