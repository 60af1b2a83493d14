"""The opcodes of the binary protocol's envelopes, version 1."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

VERSION: Final = 1


class Op(IntEnum):
    """FOLLOW to TOLD and CALL to FENCED belong to the feature "replication" (`protocol.replication`), CONSUME to
    GOT to "consumers" (`protocol.consuming`), LIST and LISTED to "listing" (`protocol.listing`), RECALL and RECALLED
    to "last" (`protocol.recalling`), COLLECT to ADDED to "patterns" (`protocol.collecting`), INTEREST to "sharing"
    (`protocol.sharing`).
    """

    HELLO = 1
    WELCOME = 2
    OPEN = 3
    OPENED = 4
    PUBLISH = 5
    PUBLISHED = 6
    SUBSCRIBE = 7
    SUBSCRIBED = 8
    UNSUBSCRIBE = 9
    PING = 10
    PONG = 11
    ERROR = 12
    CHUNK = 13
    CREDIT = 14
    ENDED = 15
    CLOSE = 16
    FOLLOW = 17
    FOLLOWED = 18
    HELD = 19
    WATCH = 20
    NAMES = 21
    CLAIM = 22
    CLAIMED = 23
    ASK = 24
    TOLD = 25
    CONSUME = 26
    CONSUMED = 27
    GET = 28
    GOT = 29
    CALL = 30
    RETURNED = 31
    FENCE = 32
    FENCED = 33
    CHALLENGE = 34
    PROVE = 35
    LIST = 36
    LISTED = 37
    RECALL = 38
    RECALLED = 39
    COLLECT = 40
    COLLECTED = 41
    ADDED = 42
    INTEREST = 43
