"""Tables of rules for topics: they place names as the rules do, in both builds of the leaf that looks names up."""

from __future__ import annotations

import struct
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.broker.topics.rules import SECTIONS_OF_TABLE_MAX, TopicRule, TopicRules
from tailrace.protocol.topic_table import RULES_MAX, pack_table, place_by_table
from tailrace.protocol.topics import topic_metadata
from tailrace.shard.first_levels import OWN_LEVELS_MAX
from tailrace.shard.leaves import load, load_source
from tailrace.shard.names import name_bytes_valid

LEAF = "tailrace.protocol.line_cy"
LEVELS = ["a", "b", "sensors", "", "é", "x*y", "long" * 20, "reply-to", "$dead", "$", "topics", "+", "#"]
FILTERS = ["#", "+", "a/#", "+/a", "a/+/b", "a", "b/+/#", "+/+", "sensors/#", "é/#", "/#", "reply-to/#"]
STREAMS = ["s", "a", "{1}", "{2}", "s-{1}", "s-{hash:7}", "{hash:1}", "{1}-{hash:3}", "topics", "{3}", "{topic}", "a/b"]
OWN_LEVELS = st.none() | st.lists(st.sampled_from(["a", "é", "", "x*y"]), max_size=2, unique=True).map(tuple)
NAMES = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=5).map("/".join)
RULES = st.lists(st.builds(TopicRule, st.sampled_from(FILTERS), st.sampled_from(STREAMS)), max_size=3)


@pytest.fixture(params=[load(LEAF), load_source(LEAF)], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def test_rules_with_constant_streams_hashes_and_levels_have_tables() -> None:
    for template in ("s", "s-{hash:16}", "{1}", "{2}"):
        assert TopicRules([TopicRule("a/+/#", template)]).table, template
    for template in ("s-{1}", "{1}/{2}", "{hash:2}-{hash:2}"):
        assert TopicRules([TopicRule("a/+/#", template)]).table == b"", template
    assert TopicRules().table == b""
    rules = [TopicRule(f"a/{number}/#", f"s/{number}") for number in range(SECTIONS_OF_TABLE_MAX + 1)]
    own_levels = [str(number) for number in range(OWN_LEVELS_MAX)]
    plain = [TopicRule(each.topics, "s") for each in rules]
    assert TopicRules(plain[:-1], own_levels).table, "as many as fit"
    assert TopicRules(plain).table == b""
    assert TopicRules(rules[:3], own_levels[:-3]).table
    assert TopicRules(rules[:1], own_levels).table
    assert SECTIONS_OF_TABLE_MAX + OWN_LEVELS_MAX + 1 == RULES_MAX


def test_a_name_that_a_table_does_not_tell_about() -> None:
    table = pack_table([(b"a/#", 2), (b"#", [b"s"])])
    for name in (b"a", b"a/", b"a//b", b"a/x*y", "a/é".encode(), b"a/%b" % (b"b" * 201), b"b/$dead", b"a/+", b"#"):
        assert place_by_table(table, name) is None, name
    assert place_by_table(table, b"a/%b" % (b"b" * 200)) == (b"b" * 200, b"a/%b" % (b"b" * 200))
    assert place_by_table(table, b"reply-to/1") == (b"reply-to/1", b"")
    assert place_by_table(table, b"s") == (b"s", b"")
    assert place_by_table(table, b"b") == (b"s", b"b")


@given(rules=RULES, own_levels=OWN_LEVELS, name=NAMES)
@example(rules=[TopicRule("#", "s-{hash:7}")], own_levels=None, name="a/b")
@example(rules=[TopicRule("a/#", "{2}")], own_levels=None, name="a/b/c")
def test_a_table_agrees_with_the_rules(rules: list[TopicRule], own_levels: tuple[str, ...] | None, name: str) -> None:
    made = TopicRules(rules, own_levels)
    found = place_by_table(made.table, name.encode()) if made.table and name_bytes_valid(name.encode()) else None
    assert found in (None, made.place(name.encode()))


@given(rules=RULES, own_levels=OWN_LEVELS, names=st.lists(NAMES, min_size=1, max_size=8))
@example(rules=[TopicRule("#", "s-{hash:7}")], own_levels=None, names=["a/b", "b/a", "a/b"])
@example(rules=[TopicRule("#", "{1}")], own_levels=None, names=["a/b", "sensors", "a/a", "é/a"])
@example(rules=[TopicRule("#", "s-{1}")], own_levels=None, names=["/$dead"])
@example(rules=[], own_levels=("é",), names=["a", "a/b", "é", "é/a", "b/a", "é/é", "a/"])
def test_lines_are_staged_where_the_table_places_their_names(
    rules: list[TopicRule], own_levels: tuple[str, ...] | None, names: list[str]
) -> None:
    table = TopicRules(rules, own_levels).table
    data = b"".join(b"pub %b |%d\r\n" % (name.encode(), number) for number, name in enumerate(names))
    staged = [each.stage(data, 0, len(data), 1_000, True, table) for each in (load(LEAF), load_source(LEAF))]
    assert staged[0] == staged[1]
    stop, groups, order = staged[0]
    sent = data[:stop].count(b"\n")
    rests = {name: bytes(frames) for name, _count, frames in groups}
    for number, (name, group) in enumerate(zip(names[:sent], order, strict=True)):
        placed = place_by_table(table, name.encode()) if table else (name.encode(), b"")
        assert placed is not None
        assert groups[group][0] == placed[0]
        metadata = topic_metadata(placed[1]) if placed[1] else b""
        rest = rests[placed[0]]
        (length,) = struct.unpack_from("<I", rest)
        assert rest[30:length] == struct.pack("<H", len(metadata)) + metadata + b"%d" % number
        rests[placed[0]] = rest[length:]
    assert not any(rests.values())


def test_a_name_that_is_placed_takes_no_other_topic(leaf: ModuleType) -> None:
    table = pack_table([(b"a/#", [b"s"])])
    for line, taken in ((b"pub a/1 topic t |x\n", False), (b"pub b topic t |x\n", True), (b"pub s topic t |x\n", True)):
        stop = leaf.stage(line, 0, len(line), 1_000, False, table)[0]
        assert stop == (len(line) if taken else 0), line


def test_the_bound_on_a_message_counts_its_topic(leaf: ModuleType) -> None:
    table = pack_table([(b"a/#", [b"s"])])
    line = b"pub a/1 |12345\r\n"
    size = 5 + len(topic_metadata(b"a/1"))
    assert leaf.stage(line, 0, len(line), size, False, table)[0] == len(line)
    assert leaf.stage(line, 0, len(line), size - 1, False, table)[0] == 0
