"""INTEREST of the binary protocol: what a node wants of a stream in memory of another one.

It is accepted only on a connection whose HELLO asked for the feature `FEATURE` and got it. Messages come as CHUNK, a
refusal as ERROR. docs/binary-protocol.md draws it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.protocol import features
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.features import FeatureReaders
from tailrace.protocol.fields import ELEMENTS_MAX, U32_MAX, Fields, pack_map
from tailrace.protocol.opcodes import Op
from tailrace.protocol.topics import filter_fault

FEATURE: Final = features.SHARING
FILTERS_MAX: Final = 512
"""The most filters in one array of an INTEREST."""
FILTER_BYTES_MAX: Final = 8 << 10
"""A node that has subscribers with a longer filter wants everything."""
INTEREST_BYTES: Final = 48 << 10
"""Of filters in one INTEREST: it has room for more only in a body that is too long."""
SHARED_FROM: Final = 1 << 30
"""The ids of interests begin here, those of FOLLOW end before it."""


@dataclass(frozen=True, slots=True)
class Interest:
    """Send the messages of a stream in memory that were published at your node, and that one of my filters matches.

    The first one with an `id` begins, others change the filters. `everything`: all of its messages, as long as that is
    so. `ends`: no more of them.
    """

    id: int
    stream: bytes
    everything: bool = False
    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    ends: bool = False


def _interest(fields: Fields) -> Interest:
    number = fields.number("id", U32_MAX)
    if number < SHARED_FROM:
        raise PeerError(Code.USAGE, f"INTEREST: the field id is below {SHARED_FROM}")
    return Interest(
        number,
        fields.writable_stream("stream"),
        fields.flag("everything"),
        _filters(fields, "added"),
        _filters(fields, "removed"),
        fields.flag("ends"),
    )


def _filters(fields: Fields, key: str) -> tuple[bytes, ...]:
    found = tuple([text.encode() for text in fields.texts(key)])
    for each in found:
        if fault := filter_fault(each):
            raise PeerError(Code.TOPIC, f"INTEREST: the field {key}: {fault}")
    return found


def _pack(message: Interest) -> bytes:
    body = {
        "id": message.id,
        "stream": message.stream.decode(),
        "everything": message.everything,
        "added": [each.decode() for each in message.added],
        "removed": [each.decode() for each in message.removed],
        "ends": message.ends,
    }
    return pack_map(Op.INTEREST, body)


features.PACKERS[Interest] = _pack
READERS: Final = FeatureReaders({Op.INTEREST: _interest}, {}, FILTERS_MAX, ELEMENTS_MAX)
