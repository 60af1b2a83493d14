"""The datagrams of the UDP door: one message each, in text. Pure; docs/udp.md draws them.

    PUB TOPIC LF BODY    PUB? TOPIC LF BODY    SUB TOPIC LF    UNSUB TOPIC LF    PING LF    to the broker
    MSG TOPIC LF BODY    OK ...    ERR CODE TEXT LF    COOKIE HEX LF    PONG LF            from the broker

A verb, white space, a topic, one white space (CR LF counts as one), a body of any bytes. White space is what the
regular expressions take for it: blank, tab, LF, VT, FF, CR.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

from tailrace.protocol.errors import Code
from tailrace.protocol.names import shown
from tailrace.shard.names import DEAD_SUFFIX, REPLIES_PREFIX, is_reserved

DATAGRAM_BYTES_MAX: Final = 65_507
"""Of one datagram by IPv4, which is what this protocol sends at most."""
WHITE_SPACE: Final = b" \t\n\v\f\r"

_REQUEST = re.compile(
    rb"(PUB\??|SUB|UNSUB)[ \t\n\v\f\r]+([^ \t\n\v\f\r]+)(?:\r\n|[ \t\n\v\f\r]|\Z)(.*)\Z|(PING)[ \t\n\v\f\r]*\Z",
    re.DOTALL,
)
_ANSWER = re.compile(rb"(MSG)[ \t\n\v\f\r]+([^ \t\n\v\f\r]+)(?:\r\n|[ \t\n\v\f\r]|\Z)(.*)\Z", re.DOTALL)
_WHITE = re.compile(rb"[ \t\n\v\f\r]")


class DatagramVerb(StrEnum):
    """What a client sends."""

    PUB = "PUB"
    PUB_ASKED = "PUB?"
    SUB = "SUB"
    UNSUB = "UNSUB"
    PING = "PING"


class DatagramRequest(NamedTuple):
    verb: DatagramVerb
    topic: bytes
    body: bytes


class DatagramMessage(NamedTuple):
    """A message to a subscriber."""

    topic: bytes
    body: bytes


class DatagramAnswer(NamedTuple):
    """An answer of the broker. `words`: all of them, the first one too; of ERR the last is the rest of the text."""

    kind: str
    words: tuple[str, ...]


def parse_request(data: bytes) -> DatagramRequest | None:
    """What a client sent; None for anything else."""
    found = _REQUEST.match(data)
    if found is None:
        return None
    verb, topic, body, ping = found.groups()
    return (
        DatagramRequest(DatagramVerb.PING, b"", b"")
        if ping
        else DatagramRequest(DatagramVerb(verb.decode()), topic, body)
    )


def parse_answer(data: bytes) -> DatagramMessage | DatagramAnswer | None:
    """What the broker sent; None for anything else."""
    found = _ANSWER.match(data)
    if found is not None:
        return DatagramMessage(found[2], found[3])
    words = tuple([each.decode("utf-8", "replace") for each in data.split()])  # bytes: topics may have Unicode's blanks
    if not words or words[0] not in ("OK", "ERR", "COOKIE", "PONG"):
        return None
    if words[0] == "ERR" and len(words) > 2:
        words = (*words[:2], " ".join(words[2:]))
    return DatagramAnswer(words[0], words)


def has_white_space(topic: bytes) -> bool:
    """Whether a topic cannot stand in a datagram."""
    return _WHITE.search(topic) is not None


def reserved_fault(topic: bytes) -> str:
    """Why a topic, or a filter, is not for clients, "" if it is."""
    if is_reserved(topic):
        return f"{shown(topic)} begins with $, which is reserved for the broker"
    if topic.startswith(REPLIES_PREFIX) or topic.endswith(DEAD_SUFFIX):
        return f"{shown(topic)} names a stream of replies or dead letters, which is no topic"
    return ""


# --- what clients send ------------------------------------------------------------------------------------------------


def publish(topic: bytes, body: bytes, *, asked: bool = False) -> bytes:
    return b"%s %s\n%s" % (b"PUB?" if asked else b"PUB", topic, body)


def subscribe(topic: bytes, cookie: str = "") -> bytes:
    """`cookie`: as the broker has sent it. Without one there is room for it in the answer, which is no longer than
    this.
    """
    return b"SUB %s\n%s\n" % (topic, cookie.encode() or b" " * COOKIE_ROOM)


def unsubscribe(topic: bytes) -> bytes:
    return b"UNSUB %s\n" % topic


PING: Final = b"PING\n"

# --- what the broker sends --------------------------------------------------------------------------------------------

COOKIE_CHARACTERS: Final = 16
COOKIE_ROOM: Final = len("COOKIE ") + COOKIE_CHARACTERS
PONG: Final = b"PONG\n"


def message(topic: bytes, body: bytes) -> bytes:
    return b"MSG %s\n%s" % (topic, body)


def published(topic: bytes, seq: int) -> bytes:
    return b"OK %s %d\n" % (topic, seq)


def subscribed(topic: bytes, lease_s: int) -> bytes:
    return b"OK SUB %s %d\n" % (topic, lease_s)


def unsubscribed(topic: bytes) -> bytes:
    return b"OK UNSUB %s\n" % topic


def refused(code: Code, text: str) -> bytes:
    return b"ERR %s %s\n" % (code.encode(), text.encode())


def cookie(text: str) -> bytes:
    return b"COOKIE %s\n" % text.encode()


def fitted(answer: bytes, size: int) -> bytes:
    """An answer of at most `size` bytes, for an address that may be forged: without its line end, a refusal without its
    text; b"" if that is still too long.
    """
    if len(answer) <= size:
        return answer
    if answer.startswith(b"ERR "):
        code = b" ".join(answer.split(b" ", 2)[:2])
        return code if len(code) <= size else b""
    return answer[:-1] if len(answer) - 1 <= size else b""
