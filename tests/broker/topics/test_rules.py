"""The rules that place names in streams, and what they say of filters, against matching one name at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.topics.rules import (
    OTHER_STREAM,
    Placed,
    TopicRule,
    TopicRules,
    is_filter,
    shadowing_filter,
    template_fault,
)
from tests.broker.topics import naive

FIRST_LEVEL = TopicRules([TopicRule("#", "{1}")])
BUILT_IN = TopicRules((), ())
FIELDS = "; fields are {1} to {999} and {hash:16}, or {topic} alone"

LEVELS = st.sampled_from(["a", "b", "s1", "", "x y", "1"])
NAMES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(st.sampled_from(["a", "b", "s1", "+", ""]), max_size=3), st.sampled_from([["#"], [], ["+"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1]))
    .filter(bool)
)
TEMPLATES = st.sampled_from(
    ["{1}", "{2}", "a", "s{1}", "{1}{2}", "{1}-{hash:3}", "s{hash:2}", "b/{1}", "{1}.{1}", "{topic}", "a/b", "{1}/{2}"]
)
OWN_LEVELS = st.none() | st.lists(st.sampled_from(["a", "", "s1", "x y"]), max_size=2, unique=True).map(tuple)
RULES = st.lists(st.builds(TopicRule, FILTERS, TEMPLATES).filter(lambda rule: not template_fault(rule)), max_size=3)


@pytest.mark.parametrize(
    ("rules", "name", "placed"),
    [
        ([], b"sensors/7", Placed(b"sensors/7", b"")),
        ([], b"room 1/temp", Placed(OTHER_STREAM, b"room 1/temp")),
        ([("#", "{1}")], b"sensors/7/temp", Placed(b"sensors", b"sensors/7/temp")),
        ([("#", "{1}")], b"sensors", Placed(b"sensors", b"")),
        ([("#", "{1}")], b"/temp", Placed(OTHER_STREAM, b"/temp")),
        ([("#", "{1}")], b"room 1/temp", Placed(OTHER_STREAM, b"room 1/temp")),
        ([("#", "{1}")], b"x" * 201 + b"/y", Placed(OTHER_STREAM, b"x" * 201 + b"/y")),
        ([("#", "{1}")], b"$cursor/orders", Placed(b"$cursor/orders", b"")),
        ([("#", "{1}")], b"orders/$dead", Placed(b"orders/$dead", b"")),
        ([("#", "{1}")], b"reply-to/1", Placed(b"reply-to/1", b"")),
        ([("#", "{1}")], b"a/+", Placed(b"a/+", b"")),
        ([("#", "{1}")], b"a*/b", Placed(OTHER_STREAM, b"a*/b")),
        ([("sensors/#", "all"), ("#", "{1}")], b"sensors/7", Placed(b"all", b"sensors/7")),
        ([("sensors/#", "all"), ("#", "{1}")], b"orders/7", Placed(b"orders", b"orders/7")),
        ([("site/+/#", "{2}.log")], b"site/7/temp", Placed(b"7.log", b"site/7/temp")),
        ([("site/+/#", "{2}.log")], b"site", Placed(b"site", b"")),
        ([("site/#", "{2}")], b"site", Placed(OTHER_STREAM, b"site")),
        ([("sensors/#", "sensors-{hash:16}")], b"sensors/7", Placed(b"sensors-6", b"sensors/7")),
    ],
)
def test_places(rules: list[tuple[str, str]], name: bytes, placed: Placed) -> None:
    assert TopicRules(TopicRule(*rule) for rule in rules).place(name) == placed


@pytest.mark.parametrize("name", [b"a/", b"/", b"a*/b", b"\xef\xbb\xbf", b"a b"])
def test_a_topic_that_no_new_stream_can_be_named(name: bytes) -> None:
    """At a door at which every text is a topic."""
    for rules in (TopicRules(), FIRST_LEVEL):
        for topic in (name, b"x/" + name):
            wanted = b"x" if rules and topic != name else OTHER_STREAM if topic != b"a/" or not rules else b"a"
            assert rules.place_topic(topic) == Placed(wanted, topic)
            assert rules.streams_of(topic) == wanted
    for name in (b"a/b", b"$SYS/x", b"s/$dead", b"reply-to/1"):
        assert TopicRules().place_topic(name) == Placed(name, b"")


@pytest.mark.parametrize(
    ("topic_filter", "stream"),
    [
        (b"sensors/7", b"sensors"),
        (b"sensors/#", b"sensors"),
        (b"sensors/+/temp", b"sensors"),
        (b"+/7", None),
        (b"#", None),
        (b"/#", OTHER_STREAM),
        (b"$SYS/#", None),
    ],
)
def test_the_one_stream_of_a_filter(topic_filter: bytes, stream: bytes | None) -> None:
    assert FIRST_LEVEL.streams_of(topic_filter) == stream


def test_a_filter_that_an_earlier_rule_takes_a_part_of_is_of_several_streams() -> None:
    rules = TopicRules([TopicRule("sensors/7/#", "seven"), TopicRule("#", "{1}")])
    assert rules.streams_of(b"sensors/+/temp") is None
    assert rules.may_hold(b"seven", b"sensors/+/temp") and rules.may_hold(b"sensors", b"sensors/+/temp")
    assert not rules.may_hold(b"seven", b"sensors/8/temp")
    assert not rules.may_hold(b"orders", b"sensors/+/temp")


@pytest.mark.parametrize(
    ("name", "placed"),
    [
        (b"sensors", Placed(b"sensors", b"")),
        (b"a*", Placed(b"a*", b"")),
        ("ä".encode(), Placed("ä".encode(), b"")),
        (b"sensors/7/temp", Placed(b"sensors", b"sensors/7/temp")),
        (b"sensors/", Placed(b"sensors", b"sensors/")),
        (b"/temp", Placed(OTHER_STREAM, b"/temp")),
        (b"a*/b", Placed(OTHER_STREAM, b"a*/b")),
        (b"topics/b", Placed(OTHER_STREAM, b"topics/b")),
        (b"orders/$dead", Placed(b"orders/$dead", b"")),
        (b"reply-to/1", Placed(b"reply-to/1", b"")),
        (b"$cursor/orders", Placed(b"$cursor/orders", b"")),
    ],
)
def test_names_with_levels_are_topics_of_the_stream_of_the_first(name: bytes, placed: Placed) -> None:
    assert BUILT_IN.place(name) == placed
    assert BUILT_IN.streams_of(name) in (placed.stream, OTHER_STREAM)


def test_names_below_a_first_level_that_had_streams_stay_streams_of_their_own() -> None:
    rules = TopicRules((), ("orders", ""))
    for name in (b"orders/eu", b"orders/eu/7", b"orders", b"/a"):
        assert rules.place(name) == Placed(name, b"")
    assert rules.place(b"sensors/7") == Placed(b"sensors", b"sensors/7")
    assert rules.streams_of(b"orders/#") is None and rules.streams_of(b"sensors/#") == b"sensors"
    assert rules.search_prefix(b"orders/+/x") == b"orders/"
    assert rules.may_hold(b"orders/eu", b"orders/+") and not rules.may_hold(b"orders/eu/7", b"orders/+")
    placed = TopicRules([TopicRule("orders/#", "all")], ("orders",))
    assert placed.place(b"orders/eu") == Placed(b"all", b"orders/eu"), "a section counts"


def test_all_names_may_be_streams_of_their_own() -> None:
    for rules in (TopicRules(), TopicRules((), ("#",)), TopicRules([TopicRule("#", "{topic}")], ())):
        assert rules.place(b"orders/eu") == Placed(b"orders/eu", b"")
        assert rules.streams_of(b"orders/+") is None


def test_the_streams_of_sections_are_streams() -> None:
    rules = TopicRules([TopicRule("a/+/#", "plant/north"), TopicRule("b/+/x", "{1}/{2}")], ())
    assert rules.place(b"plant/north") == Placed(b"plant/north", b"")
    assert rules.place(b"plant/south") == Placed(b"plant", b"plant/south")
    assert rules.place(b"b/7") == Placed(b"b/7", b"")
    assert rules.place(b"b/7/x") == Placed(b"b/7", b"b/7/x")


def test_datagrams_are_placed_by_sections_alone() -> None:
    rules = TopicRules([TopicRule("a/#", "a"), TopicRule("b/#", "{topic}")], ("c",))
    assert rules.place_or(b"a/7", b"udp") == Placed(b"a", b"a/7")
    assert rules.place_or(b"b/7", b"udp") == Placed(b"b/7", b"")
    assert (
        rules.place_or(b"c/7", b"udp")
        == Placed(b"udp", b"c/7")
        == rules.place_or(b"d/7", b"udp")._replace(topic=b"c/7")
    )
    assert rules.sections == 2 and rules.sections_table != rules.table


def test_without_rules_a_filter_is_for_the_names_of_streams() -> None:
    rules = TopicRules()
    assert not rules
    assert rules.streams_of(b"sensors/#") is None
    assert rules.may_hold(b"sensors/7", b"sensors/+") and not rules.may_hold(b"sensors/7/temp", b"sensors/+")


def test_the_beginnings_of_a_streams_topics() -> None:
    rules = TopicRules([TopicRule("sensors/+/temp", "temp"), TopicRule("#", "{1}")])
    assert rules.prefixes_of(b"temp") == (b"sensors/", b"temp/")
    assert rules.prefixes_of(b"sensors") == (b"sensors/",)
    assert rules.prefixes_of(OTHER_STREAM) == (b"",)


@pytest.mark.parametrize(
    ("name", "expected"),
    [(b"a/+", True), (b"#", True), (b"a/#", True), (b"+", True), (b"a+/b", False), (b"a/#b", False), (b"a/#/b", False)],
)
def test_which_names_are_filters(name: bytes, expected: bool) -> None:
    assert is_filter(name) is expected


@given(RULES, OWN_LEVELS, NAMES, FILTERS)
def test_nothing_lies_where_a_filter_does_not_look(
    rules: list[TopicRule], own_levels: tuple[str, ...] | None, name: str, topic_filter: str
) -> None:
    made, data = TopicRules(rules, own_levels), name.encode()
    placed = made.place(data)
    if not naive.matches(topic_filter, name):
        return
    assert made.streams_of(topic_filter.encode()) in (None, placed.stream)
    assert made.may_hold(placed.stream, topic_filter.encode())
    prefix = made.search_prefix(topic_filter.encode())
    if made.streams_of(topic_filter.encode()) is None and placed.stream != OTHER_STREAM:
        assert (placed.stream + b"/").startswith(prefix)


@given(RULES, OWN_LEVELS, NAMES)
def test_a_name_has_one_place_which_the_first_rule_that_matches_gives(
    rules: list[TopicRule], own_levels: tuple[str, ...] | None, name: str
) -> None:
    made, data = TopicRules(rules, own_levels), name.encode()
    placed = made.place(data)
    assert placed.topic in (b"", data)
    assert (placed.topic == b"") == (placed.stream == data)
    first = next((rule for rule in rules if naive.matches(rule.topics, name)), None)
    if first is not None:
        assert placed == TopicRules([first]).place(data)
    elif own_levels is not None and "/" in name and not any("/" in rule.stream for rule in rules):
        levels = [*own_levels, name.partition("/")[0]]
        own = len(set(levels)) < len(levels)
        assert placed == (TopicRules() if own else FIRST_LEVEL).place(data)
    if placed.topic and (first is not None or own_levels is not None):
        assert any((data + b"/").startswith(each) for each in made.prefixes_of(placed.stream))


@given(RULES, st.builds(TopicRule, FILTERS, st.just("a")), NAMES)
def test_a_rule_that_is_never_used_is_found(rules: list[TopicRule], rule: TopicRule, name: str) -> None:
    if shadowing_filter(rules, rule) and naive.matches(rule.topics, name):
        assert any(naive.matches(each.topics, name) for each in rules)


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        (TopicRule("a/+", "{3}"), "{3} is a level that no topic of a/+ has"),
        (TopicRule("a/#", "{3}"), ""),
        (TopicRule("#", "x{hash:1025}"), "{hash:1025} is too many streams: at most 1024"),
        (TopicRule("#", "x{0}"), "x{0} has braces that are not fields" + FIELDS),
        (TopicRule("#", "x{topic}"), "x{topic} has braces that are not fields" + FIELDS),
        (TopicRule("#", "{topic}"), ""),
        (TopicRule("#", "{1"), "{1 has braces that are not fields" + FIELDS),
        (TopicRule("#", "a b"), "a b is not the name of a new stream"),
        (TopicRule("#", "$x"), "$x is not the name of a new stream"),
        (TopicRule("#", "{1}/$dead"), "{1}/$dead is not the name of a new stream"),
        (TopicRule("#", ""), " is not the name of a new stream"),
    ],
)
def test_faults_of_templates(rule: TopicRule, fault: str) -> None:
    assert template_fault(rule) == fault
