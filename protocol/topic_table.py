"""The [[topics]] sections as bytes that the leaves look names up in, and the same look-up in plain Python.

A table has, little-endian: u16 rules; for each of them u16 bytes of its filter, u16 streams, u16 bytes of a stream's
slot, the filter, and the slots: u8 bytes of the stream's name, the name, and padding. A rule with several streams has
one for each value of the CRC-32 of a topic, modulo their number. In a rule without streams a level of the topic is the
stream: its number, from 1 on, stands in the place of a slot's bytes; 0 there makes each name a stream of its own.
`topic_table.pxd` has the look-up in C.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

from tailrace.protocol.topics import ANY_LEVELS, ONE_LEVEL, SEPARATOR
from tailrace.shard.names import REPLIES_PREFIX

RULES_MAX: Final = 32
"""Of a table: each name is compared with all of them, one by one."""
OWN_STREAM: Final = 0
"""In the place of the number of a level: the name is that of a stream."""

_COUNT = Struct("<H")
_RULE = Struct("<HHH")

_LEVEL_STREAM = re.compile(rb"[!-)+-{}~]{1,200}")
"""The levels of which the look-up tells that streams may have such names. The others are left to the rules."""
_OWN_NAME = re.compile(rb"[!-)+-{}~]{0,199}[!-)+-.0-{}~]")
"""The same for whole names."""

TableRule = tuple[bytes, Sequence[bytes] | int]
"""A filter, and the streams of the topics that it matches, or the number of the level that is the stream, or
OWN_STREAM."""


def pack_table(rules: Sequence[TableRule]) -> bytes:
    """At most RULES_MAX of them, each with at least one stream."""
    parts = [_COUNT.pack(len(rules))]
    for topic_filter, streams in rules:
        if isinstance(streams, int):
            parts.append(_RULE.pack(len(topic_filter), 0, streams) + topic_filter)
            continue
        slot_bytes = 1 + max(map(len, streams))
        parts.append(_RULE.pack(len(topic_filter), len(streams), slot_bytes) + topic_filter)
        parts += [(bytes((len(stream),)) + stream).ljust(slot_bytes, b"\0") for stream in streams]
    return b"".join(parts)


def place_by_table(table: bytes, name: bytes) -> tuple[bytes, bytes] | None:
    """The stream and the topic of a name that is valid as a stream's or as a topic's; an empty topic if the name is
    that of its stream. None if the table does not tell.
    """
    if b"$" in name or ONE_LEVEL in name or ANY_LEVELS in name:
        return None
    if name.startswith(REPLIES_PREFIX):
        return name, b""
    stream = _rule_stream(table, name)
    if stream is None:
        return None
    return stream or name, b"" if stream in (b"", name) else name


def place_by_rule(table: bytes, topic: bytes, default: bytes) -> tuple[bytes, bytes] | None:
    """As `place_by_table`, but a name that no rule places is a topic of the stream `default`."""
    if not table or topic.startswith(REPLIES_PREFIX):
        return default, topic
    stream = _rule_stream(table, topic)
    if stream is None or (stream == topic and not _OWN_NAME.fullmatch(topic)):
        return None
    return stream or default, b"" if stream == topic else topic


def _rule_stream(table: bytes, name: bytes) -> bytes | None:
    """The stream by the first rule that matches, which may be the name itself; b"" without one; None if the table does
    not tell.
    """
    levels = name.split(SEPARATOR)
    for rule_levels, streams in _rules_of(table):
        if not _covers(rule_levels, levels):
            continue
        if not isinstance(streams, int):
            return streams[zlib.crc32(name) % len(streams)]
        if streams == OWN_STREAM:
            return name
        if streams > len(levels) or not _LEVEL_STREAM.fullmatch(levels[streams - 1]):
            return None
        return levels[streams - 1]
    return b""


@lru_cache(maxsize=16)
def _rules_of(table: bytes) -> list[tuple[list[bytes], list[bytes] | int]]:
    rules: list[tuple[list[bytes], list[bytes] | int]] = []
    (count,), at = _COUNT.unpack_from(table), _COUNT.size
    for _ in range(count):
        filter_bytes, streams, slot_bytes = _RULE.unpack_from(table, at)
        at += _RULE.size
        levels = table[at : at + filter_bytes].split(SEPARATOR)
        at += filter_bytes
        if not streams:
            rules.append((levels, slot_bytes))
            continue
        slots = [table[place : place + slot_bytes] for place in range(at, at + streams * slot_bytes, slot_bytes)]
        rules.append((levels, [slot[1 : 1 + slot[0]] for slot in slots]))
        at += streams * slot_bytes
    return rules


def _covers(levels: list[bytes], name_levels: list[bytes]) -> bool:
    """Whether a filter matches a name; `$` has no meaning here."""
    for one, other in zip(levels, name_levels, strict=False):
        if one == ANY_LEVELS:
            return True
        if one not in (ONE_LEVEL, other):
            return False
    return len(levels) == len(name_levels) or levels[len(name_levels) :] == [ANY_LEVELS]
