"""Errors on the wire: every error code with its one-line meaning, and the two exception classes.

    Exception
    ├── PeerError    the peer sent something wrong: it receives code and text, and is disconnected if it is fatal
    └── UsageError   our own code used this package wrongly: a bug

Anything else that leaves this package because of bytes from the network is a bug too.
"""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """The machine-readable word of an `err` or ERROR. `meaning`: one line about cause and remedy."""

    _value_: str
    meaning: str

    def __new__(cls, word: str, meaning: str = "") -> Code:
        member = str.__new__(cls, word)
        member._value_ = word
        member.meaning = meaning
        return member

    COMMAND = "command", "no such command; `help` lists them"
    USAGE = "usage", "an argument is missing, superfluous or malformed; the text names it"
    NAME = "name", "not a stream name: 1 to 200 bytes of UTF-8 without white space, control characters or `|`"
    TOPIC = "topic", "not a topic, or not a topic filter; the text gives the rule"
    RESERVED = "reserved", "names that begin with `$` belong to the broker; choose another"
    FROM = "from", "not a position in a stream: a time in microseconds, a seq or `new`"
    LINE = "line", "the line is longer than `max_line_bytes`; it was discarded"
    SIZE = "size", "the message is larger than `max_message_bytes`, or all that was sent with it; it was discarded"
    INCOMPLETE = "incomplete", "the connection ended in the middle of a line or an envelope; that was discarded"
    DENIED = "denied", "the connection has not this right: log in, or connect from the broker's own machine"
    DISABLED = "disabled", "the stream takes no messages here; an administrator can make this node its master"
    UNAVAILABLE = "unavailable", "the stream cannot be reached now; try again"
    FULL = "full", "the disk is full, or a bound on disk space is met; publish again when there is space"
    DAMAGED = "damaged", "the stream's files are damaged; `tailrace check` shows where"
    UNKNOWN = "unknown", "the stream does not exist"
    DELETED = "deleted", "the stream was deleted; a publish makes another of that name, which begins at 0"
    SUBSCRIBED = "subscribed", "this connection has a subscription of this stream; `unsub` it first"
    UNSUBSCRIBED = "unsubscribed", "this connection has no subscription of this stream"
    CONNECTIONS = (
        "connections",
        "the node, or the peer's address, has as many connections as it may; the connection is closed",
    )
    SUBSCRIPTIONS = "subscriptions", "this connection has reached `max_subscriptions`"
    HANDLES = "handles", "this connection has reached `max_handles`, or its address `max_address_handles`"
    STREAMS = (
        "streams",
        "this connection has made `max_streams_connection` streams, or its address `max_address_streams` in an hour",
    )
    NODESTREAMS = "nodestreams", "the node has reached `max_streams`"
    OVERLOADED = "overloaded", "the broker has reached a memory limit; send this again, more slowly"
    UNSUPPORTED = "unsupported", "this broker does not support that"
    CLOSING = "closing", "the broker closes this connection because it stops or is stopped; connect again"
    TRIMMED = "trimmed", "messages were dropped before they could be sent; the subscription continues after them"
    DIVERGED = "diverged", "messages that were sent are no longer in the stream; it continues from the seq in the text"
    UNREPLICATED = "unreplicated", "the message is logged, but too few nodes confirmed it in time"
    GAP = "gap", "a producer's numbers have a gap before these messages, or those before them were lost"
    PRODUCER = "producer", "this producer, or these numbers, are no longer known here; begin with a new id"
    CONSUMER = "consumer", "the stream has no such consumer; create it first"
    STALE = (
        "stale",
        "another member has these messages now, they were not delivered to this one, or they were lost and others have "
        "their seqs; the request has no effect on them",
    )
    CYCLE = "cycle", "the nodes would follow each other in a circle; choose another to follow"
    BEHIND = (
        "behind",
        "another node has more of the stream: promote that one, or add `force` and lose the messages that are not here",
    )
    SLOW = "slow", "this connection read too slowly and is closed; subscribe again from the last seq seen"
    TIMEOUT = "timeout", "the first byte, the login or the rest of a request did not come in time; connect again"
    PROTOCOL = "protocol", "unknown protocol, or a message that is not valid here"


def code_of(word: str) -> Code:
    """The code that another broker has answered with; `unavailable` for one that is not known here."""
    return Code(word) if word in Code._value2member_map_ else Code.UNAVAILABLE


class PeerError(Exception):
    """The peer sent something wrong. `text`: fault, place and remedy; `fatal`: the connection must be closed."""

    def __init__(self, code: Code, text: str, *, fatal: bool = False) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text
        self.fatal = fatal

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class UsageError(Exception):
    """This package was used wrongly by its own side."""
