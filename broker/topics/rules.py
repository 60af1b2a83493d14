"""In which stream a name lies: the [[topics]] sections, and the rule of the first level.

The first section whose filter matches a name places it as a topic in a stream. A name that none matches is a topic of
the stream that its first level names, if it has several levels, and else a stream of its own; so is one below a first
level that had streams when the data directory came to this rule (`shard/first_levels.py`). Names that begin with `$`,
companions of streams, and streams for replies are never placed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from tailrace.protocol.topic_table import OWN_STREAM, RULES_MAX, TableRule, pack_table
from tailrace.protocol.topics import ANY_LEVELS, ONE_LEVEL, SEPARATOR, filter_fault, has_wildcards
from tailrace.shard.names import ALL_LEVELS, REPLIES_PREFIX, base_of, is_reserved, name_bytes_valid, new_name_fault

OTHER_STREAM: Final = b"topics"
"""Holds the topics for which a rule gives no valid name of a stream, and those that cannot name one themselves."""
HASH_MAX: Final = 1_024
"""Streams among which one rule spreads its topics."""
PLACES_KEPT: Final = 16_384
"""Names whose place is remembered, by each worker."""

OWN_TEMPLATE: Final = "{topic}"
"""The stream of a rule that lets each name be a stream of its own."""
SECTIONS_OF_TABLE_MAX: Final = 16
"""Sections with which the leaves place names; with more, and with other templates, only the rules do."""

_FIELD = re.compile(r"\{(?:([1-9][0-9]{0,2})|hash:([1-9][0-9]{0,3}))\}")


class WrongTemplate(ValueError):
    """The text gives the reason."""


class Placed(NamedTuple):
    """The stream in which a name lies, and its topic there; the topic is empty if the name is the stream's own."""

    stream: bytes
    topic: bytes


class _Field(NamedTuple):
    """A field of a template: the number of a level, or else the number of streams for a hash of the topic."""

    level: int
    hashes: int


@dataclass(frozen=True, slots=True)
class TopicRule:
    """One section. `stream` may have fields: `{1}` is the first level of the topic, `{hash:16}` a number below 16. It
    may be OWN_TEMPLATE.
    """

    topics: str
    stream: str


class TopicRules:
    """Finds the stream of a name, and the streams in which what a filter matches may lie.

    `own_levels`: the first levels whose names are streams of their own unless a section places them. None if all are.
    """

    def __init__(self, rules: Iterable[TopicRule] = (), own_levels: Sequence[str] | None = None) -> None:
        self._sections = tuple([_ParsedRule(rule) for rule in rules])
        self._rules = (*self._sections, *_built_in(self._sections, own_levels))
        self.place = lru_cache(PLACES_KEPT)(self._place) if self._rules else _place_alone
        """`place(name)`: where a name lies that is valid as a stream's or as a topic's."""
        self.count = len(self._rules)
        self.sections = len(self._sections)
        self.sections_table = _table_of(self._sections)
        """What the leaves place names by where the sections alone count; b"" without any, or with some that no table
        has.
        """
        self.table = _table_of(self._rules) if len(self._sections) <= SECTIONS_OF_TABLE_MAX else b""
        """The same with the rule of the first level."""

    def __bool__(self) -> bool:
        return self.count > 0

    def place_topic(self, topic: bytes) -> Placed:
        """As `place`, for a door at which every text is a topic, also one that no new stream can have as its name."""
        placed = self.place(topic)
        if placed.topic or not _is_placeable(topic) or _is_stream_name(topic):
            return placed
        return Placed(OTHER_STREAM, topic)

    def streams_of(self, topic_filter: bytes) -> bytes | None:
        """The one stream in which everything lies that a valid filter matches; None if there may be several:
        `may_hold` finds them.
        """
        if not has_wildcards(topic_filter):
            return self.place_topic(topic_filter).stream
        levels = topic_filter.split(SEPARATOR)
        rule = self._covering(topic_filter, levels)
        return None if rule is None else rule.only_stream(levels)

    def known_streams_of(self, topic_filter: bytes) -> list[bytes] | None:
        """The streams in which everything lies that a valid filter matches; None if any name may be one of them."""
        if not has_wildcards(topic_filter):
            return [self.place_topic(topic_filter).stream]
        levels = topic_filter.split(SEPARATOR)
        rule = self._covering(topic_filter, levels)
        return None if rule is None else rule.streams_for(levels)

    def _covering(self, topic_filter: bytes, levels: list[bytes]) -> _ParsedRule | None:
        """The rule that places all that a filter with wildcards matches."""
        for rule in () if is_reserved(topic_filter) else self._rules:
            if _overlap(rule.levels, levels):
                return rule if _covers(rule.levels, levels) else None
        return None

    def search_prefix(self, topic_filter: bytes) -> bytes:
        """How the names of all streams begin in which what a filter matches may lie, if they are several."""
        return b"" if self._sections else literal_prefix(topic_filter)

    def may_hold(self, stream: bytes, topic_filter: bytes) -> bool:
        """Whether a message whose name the filter matches may lie in this stream."""
        levels = topic_filter.split(SEPARATOR)
        if stream == OTHER_STREAM:
            return True
        if is_reserved(stream) or base_of(stream) != stream:
            return False
        if _covers(levels, stream.split(SEPARATOR)) and self.place(stream).stream == stream:
            return True
        return any(_overlap(held, levels) for held in self._held_filters(stream))

    def place_or(self, name: bytes, stream: bytes) -> Placed:
        """As `place`, but a name that no section places is a topic of this stream."""
        levels = name.split(SEPARATOR)
        if _is_placeable(name):
            for rule in self._sections:
                if rule.matches(name, levels):
                    return rule.placed(name, levels)
        return Placed(stream, name)

    def all_streams_of(self, topic_filter: bytes) -> list[bytes] | None:
        """The streams in which sections place what a valid filter matches; None if any name may be one of them."""
        levels = topic_filter.split(SEPARATOR)
        streams: list[bytes] = []
        for rule in self._sections:
            if not _overlap(rule.levels, levels):
                continue
            placed = rule.streams_for(levels)
            if placed is None:
                return None
            streams += placed
            if _covers(rule.levels, levels):
                break
        return list(dict.fromkeys(streams))

    def prefixes_of(self, stream: bytes) -> tuple[bytes, ...]:
        """How the names of all topics begin that the rules place in this stream."""
        if stream == OTHER_STREAM and self._rules:
            return (b"",)
        return tuple([_literal_prefix(held) for held in self._held_filters(stream)])

    def _held_filters(self, stream: bytes) -> list[list[bytes]]:
        """Filters, by level, which together match every topic that the rules place in the stream."""
        return [held for rule in self._rules if (held := rule.narrowed_to(stream)) is not None]

    def _place(self, name: bytes) -> Placed:
        if not _is_placeable(name):
            return _place_alone(name)
        levels = name.split(SEPARATOR)
        for rule in self._rules:
            if rule.matches(name, levels):
                return rule.placed(name, levels)
        return _place_alone(name)


class _ParsedRule:
    """A rule whose texts have been checked."""

    def __init__(self, rule: TopicRule) -> None:
        self.levels = rule.topics.encode().split(SEPARATOR)
        self.is_own = rule.stream == OWN_TEMPLATE
        self._takes_all = self.levels == [ANY_LEVELS]
        self._parts = [] if self.is_own else _parse_template(rule.stream)
        self._fields = [part for part in self._parts if isinstance(part, _Field)]
        self._pattern = re.compile(b"".join(map(_pattern_of, self._parts)))

    def matches(self, name: bytes, levels: list[bytes]) -> bool:
        return self._takes_all or _covers(self.levels, levels)

    def placed(self, name: bytes, levels: list[bytes]) -> Placed:
        """Where a name lies that it matches."""
        if self.is_own:
            return _place_alone(name)
        stream = b"".join([part if isinstance(part, bytes) else _value(part, name, levels) for part in self._parts])
        stream = stream if _is_stream_name(stream) else OTHER_STREAM
        return Placed(stream, b"" if stream == name else name)

    def own_streams(self) -> _OwnStreams | None:
        """The rule that lets its streams be streams, whose names have several levels; else None."""
        parts = [self._known(part) for part in self._parts]
        template = b"".join(part if isinstance(part, bytes) else ONE_LEVEL for part in parts)
        if SEPARATOR not in template:
            return None
        levels = [ONE_LEVEL if ONE_LEVEL in level else level for level in template.split(SEPARATOR)]
        pattern = re.compile(b"".join(map(_pattern_of, parts)))
        return _OwnStreams(levels, pattern if ONE_LEVEL in template else None)

    def _known(self, part: bytes | _Field) -> bytes | _Field:
        """A part of the template, or the level for which it stands in all topics of this rule."""
        if isinstance(part, bytes) or not 0 < part.level <= len(self.levels):
            return part
        level = self.levels[part.level - 1]
        return part if level in (ONE_LEVEL, ANY_LEVELS) else level

    def table_rule(self) -> TableRule | None:
        """For the leaves: all its streams, by the hash of a topic, or the level that is the stream; None for others."""
        topics = SEPARATOR.join(self.levels)
        if self.is_own:
            return topics, OWN_STREAM
        if self._parts == self._fields and len(self._fields) == 1 and self._fields[0].level:
            return topics, self._fields[0].level
        if len(self._fields) > 1 or any(field.level for field in self._fields):
            return None
        numbers = range(self._fields[0].hashes if self._fields else 1)
        streams = [b"".join([part if isinstance(part, bytes) else b"%d" % n for part in self._parts]) for n in numbers]
        return topics, [stream if _is_stream_name(stream) else OTHER_STREAM for stream in streams]

    def only_stream(self, levels: list[bytes]) -> bytes | None:
        """The stream of all topics that a filter matches, which this rule's filter covers; None if there may be
        several.
        """
        if self.is_own:
            return None
        for field in self._fields:
            given = levels[: field.level]
            if field.hashes or len(given) < field.level or given[-1] == ONE_LEVEL or ANY_LEVELS in given:
                return None
        parts = [part if isinstance(part, bytes) else levels[part.level - 1] for part in self._parts]
        stream = b"".join(parts)
        return stream if _is_stream_name(stream) else OTHER_STREAM

    def streams_for(self, levels: list[bytes]) -> list[bytes] | None:
        """The streams of those of this rule's topics that a filter matches; None if any name may be one of them."""
        found = self.table_rule()
        if found is not None and not isinstance(found[1], int):
            return list(found[1])
        only = self.only_stream(levels)
        return None if only is None else [only]

    def narrowed_to(self, stream: bytes) -> list[bytes] | None:
        """This rule's filter, narrowed to the topics that it may place in a stream; or None."""
        found = None if self.is_own else self._pattern.fullmatch(stream)
        if found is None:
            return None
        if len(self._fields) != 1 or self._fields[0].hashes:  # what stands for a field would not be certain
            return self.levels
        return _with_level(self.levels, self._fields[0].level, found[1])


class _OwnStreams(_ParsedRule):
    """Names that are streams of their own. `pattern`: which of those that the levels match; all without one."""

    def __init__(self, levels: list[bytes], pattern: re.Pattern[bytes] | None = None) -> None:
        super().__init__(TopicRule(SEPARATOR.join(levels).decode(), OWN_TEMPLATE))
        self._only = pattern

    def matches(self, name: bytes, levels: list[bytes]) -> bool:
        return super().matches(name, levels) and (self._only is None or self._only.fullmatch(name) is not None)

    def table_rule(self) -> TableRule | None:
        return None if self._only else super().table_rule()


class _FirstLevel(_ParsedRule):
    """Names of several levels lie in the stream of their first one. Its filters count streams without a
    separator too: each is that of its only level.
    """

    def __init__(self) -> None:
        super().__init__(TopicRule("#", "{1}"))

    def matches(self, name: bytes, levels: list[bytes]) -> bool:
        return SEPARATOR in name

    def table_rule(self) -> TableRule | None:
        return b"+/+/#", 1


def template_fault(rule: TopicRule) -> str:
    """Why the template of a rule with a valid filter cannot be used; "" if it can."""
    if rule.stream == OWN_TEMPLATE:
        return ""
    try:
        parts = _parse_template(rule.stream)
    except WrongTemplate as wrong:
        return str(wrong)
    levels = rule.topics.encode().split(SEPARATOR)
    for part in parts:
        if isinstance(part, _Field) and part.level > len(levels) and ANY_LEVELS not in levels:
            return f"{{{part.level}}} is a level that no topic of {rule.topics} has"
        if isinstance(part, _Field) and part.hashes > HASH_MAX:
            return f"{{hash:{part.hashes}}} is too many streams: at most {HASH_MAX}"
    example = b"".join(part if isinstance(part, bytes) else b"1" for part in parts)
    return "" if _is_stream_name(example) else f"{rule.stream} is not the name of a new stream"


def is_filter(name: bytes) -> bool:
    """Whether a name is a topic filter with a wildcard: it has a level `+`, or ends in a level `#`."""
    if ONE_LEVEL not in name and ANY_LEVELS not in name:
        return False
    levels = name.split(SEPARATOR)
    return (ONE_LEVEL in levels or levels[-1] == ANY_LEVELS) and not filter_fault(name)


def shadowing_filter(earlier: Iterable[TopicRule], rule: TopicRule) -> str:
    """The filter of an earlier rule that covers the filter of this rule, or ""."""
    levels = rule.topics.encode().split(SEPARATOR)
    covering = (each.topics for each in earlier if _covers(each.topics.encode().split(SEPARATOR), levels))
    return next(covering, "")


def is_covered(wide: bytes, narrow: bytes) -> bool:
    """Whether a filter matches all that another one, or a topic, matches; `$` has no meaning here."""
    return _covers(wide.split(SEPARATOR), narrow.split(SEPARATOR))


def literal_prefix(topic_filter: bytes) -> bytes:
    """What every topic begins with that a filter matches, but for the one that a last level `#` leaves out."""
    return _literal_prefix(topic_filter.split(SEPARATOR))


def _built_in(sections: Sequence[_ParsedRule], own_levels: Sequence[str] | None) -> tuple[_ParsedRule, ...]:
    """The rules behind the sections."""
    if own_levels is None or ALL_LEVELS in own_levels:
        return ()
    own = [found for section in sections if (found := section.own_streams()) is not None]
    own += [_OwnStreams([level.encode(), ANY_LEVELS]) for level in own_levels]
    return (*own, _FirstLevel())


def _table_of(rules: Sequence[_ParsedRule]) -> bytes:
    found = [rule.table_rule() for rule in rules]
    whole = [rule for rule in found if rule is not None]
    return pack_table(whole) if 0 < len(whole) == len(found) <= RULES_MAX else b""


def _place_alone(name: bytes) -> Placed:
    """Without a rule: every name of a stream is one."""
    return Placed(name, b"") if name_bytes_valid(name) else Placed(OTHER_STREAM, name)


def _is_placeable(name: bytes) -> bool:
    if ONE_LEVEL in name or ANY_LEVELS in name or name.startswith((b"$", REPLIES_PREFIX)):  # no topic has a wildcard
        return False
    return b"$" not in name or base_of(name) == name


@lru_cache(maxsize=4_096)
def _is_stream_name(name: bytes) -> bool:
    return name_bytes_valid(name) and _is_placeable(name) and not new_name_fault(name.decode())


def _parse_template(template: str) -> list[bytes | _Field]:
    parts: list[bytes | _Field] = []
    at = 0
    for found in _FIELD.finditer(template):
        parts += [template[at : found.start()].encode(), _Field(int(found[1] or 0), int(found[2] or 0))]
        at = found.end()
    parts.append(template[at:].encode())
    parts = [part for part in parts if part != b""]
    if any(brace in part for part in parts if isinstance(part, bytes) for brace in (b"{", b"}")):
        fields = "fields are {1} to {999} and {hash:16}, or {topic} alone"
        raise WrongTemplate(f"{template} has braces that are not fields; {fields}")
    return parts


def _value(field: _Field, topic: bytes, levels: list[bytes]) -> bytes:
    if field.hashes:
        return b"%d" % (zlib.crc32(topic) % field.hashes)
    return levels[field.level - 1] if field.level <= len(levels) else b""


def _pattern_of(part: bytes | _Field) -> bytes:
    """What a part of a template may have become in the name of a stream, as a regular expression."""
    if isinstance(part, bytes):
        return re.escape(part)
    return b"([0-9]+)" if part.hashes else b"([^/]*)"


def _with_level(levels: list[bytes], number: int, value: bytes) -> list[bytes] | None:
    """A filter for those of its topics that have this value at a level; or None."""
    at = number - 1
    if levels[-1] == ANY_LEVELS and at >= len(levels) - 1:
        levels = [*levels[:-1], *[ONE_LEVEL] * (at - len(levels) + 2), ANY_LEVELS]
    if levels[at] not in (ONE_LEVEL, value):
        return None
    return [*levels[:at], value, *levels[number:]]


def _overlap(some: list[bytes], others: list[bytes]) -> bool:
    """Whether a topic may match both of two filters."""
    for one, other in zip(some, others, strict=False):
        if ANY_LEVELS in (one, other):
            return True
        if one != other and ONE_LEVEL not in (one, other):
            return False
    rest = some[len(others) :] or others[len(some) :]
    return rest in ([], [ANY_LEVELS])


def _covers(wide: list[bytes], narrow: list[bytes]) -> bool:
    """Whether the first filter, or topic, matches all that the second one matches; `$` has no meaning here."""
    for one, other in zip(wide, narrow, strict=False):
        if one == ANY_LEVELS:
            return True
        if other == ANY_LEVELS or one not in (ONE_LEVEL, other):
            return False
    return len(wide) == len(narrow) or wide[len(narrow) :] == [ANY_LEVELS]


def _literal_prefix(levels: list[bytes]) -> bytes:
    literal: list[bytes] = []
    for level in levels:
        if level in (ONE_LEVEL, ANY_LEVELS):
            return b"".join(each + SEPARATOR for each in literal)
        literal.append(level)
    return SEPARATOR.join(literal)
