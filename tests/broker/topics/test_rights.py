"""Rights to topics, and attempts to get more than the rules give."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.access.identity import REMOTE, Identity, Proof
from tailrace.broker.access.policy import AccessPolicy
from tailrace.broker.access.renewal import PolicyTerms
from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User
from tailrace.broker.topics.rights import may_publish, may_read_all, readable
from tailrace.broker.topics.rules import TopicRule, TopicRules
from tests.broker.topics import naive

FIRST_LEVEL = (TopicRule("#", "{1}"),)


def who(policy: AccessPolicy) -> Identity:
    return policy.logged_in(REMOTE, "ann", Proof.SCRAM, b"")


def rights_of(
    rules: tuple[TopicRule, ...], *words: str, own_levels: tuple[str, ...] | None = None
) -> tuple[Identity, AccessPolicy]:
    """Those of ann: a word is a shell pattern of what she may, behind a `!` of what she may not, in this order."""
    access_rules = [
        AccessRule(not word.startswith("!"), ("ann",), frozenset(Right), (word.removeprefix("!"),)) for word in words
    ]
    topics = TopicRules(rules, own_levels)
    policy = AccessPolicy([User("ann")], PolicyTerms(tuple(access_rules)), topics=topics)
    return who(policy), policy


@pytest.mark.parametrize(
    ("words", "name", "may"),
    [
        (["sensors/*"], b"sensors/7", True),
        (["sensors/*"], b"sensors", False),
        (["sensors/*"], b"sensorsx/7", False),
        (["sensors/*"], b"orders/7", False),
        (["sensors"], b"sensors/7", True),  # the stream, and so each of its topics
        (["sensors"], b"sensors", True),
        (["!sensors/secret*", "sensors*"], b"sensors/secret/1", False),
        (["!sensors/secret*", "sensors*"], b"sensors/7", True),
        (["!sensors/secret*", "sensors*"], b"sensors", False),  # anything could be published through it
        (["sensors/7"], b"sensors/7", True),
        (["sensors/7"], b"sensors/7/temp", False),
    ],
)
def test_publishing(words: list[str], name: bytes, may: bool) -> None:
    ann, policy = rights_of(FIRST_LEVEL, *words)
    assert may_publish(policy, ann, TopicRules(FIRST_LEVEL).place(name)) is may


@pytest.mark.parametrize("right", [Right.CONSUME, Right.ADMIN, Right.NODE])
def test_who_is_denied_a_topic_is_denied_its_whole_stream(right: Right) -> None:
    ann, policy = rights_of((), "!sensors/secret/*", "*", own_levels=())
    assert not policy.may(ann, right, b"sensors") and policy.may(ann, right, b"orders")


@pytest.mark.parametrize(
    ("words", "topic_filter", "expected"),
    [
        (["sensors*"], b"sensors/#", b"sensors/#"),
        (["sensors"], b"sensors/#", b"sensors/#"),
        (["sensors/*"], b"sensors/#", b"sensors/+/#"),  # without what was published to the stream itself
        (["sensors/*"], b"sensors/+/temp", b"sensors/+/temp"),
        (["sensors/*"], b"sensors/7", b"sensors/7"),
        (["sensors/*"], b"#", b""),
        (["sensors/*"], b"+/7", b""),
        (["sensors/7/*"], b"sensors/+/temp", b""),
        (["sensors/7/*"], b"sensors/7/#", b"sensors/7/+/#"),
        (["sensors/*/temp"], b"sensors/+/temp", b""),  # a shell's * is many levels: the rules do not show it
        (["!sensors/secret*", "sensors*"], b"sensors/#", b""),
        (["!sensors/secret*", "sensors*"], b"sensors/7/#", b"sensors/7/#"),
        (["!sensors/7/secret", "sensors*"], b"sensors/7/#", b""),
        (["!sensors/7/secret", "sensors*"], b"sensors/8/#", b"sensors/8/#"),
        (["!sensors/secret*", "sensors*"], b"sensors/secret/1", b""),
        (["orders/*"], b"sensors/7", b""),
    ],
)
def test_reading_by_a_filter(words: list[str], topic_filter: bytes, expected: bytes) -> None:
    ann, policy = rights_of(FIRST_LEVEL, *words)
    assert readable(policy, TopicRules(FIRST_LEVEL), ann, b"sensors", topic_filter) == expected


def test_a_stream_with_a_topic_that_is_denied_is_not_read_as_a_whole() -> None:
    ann, policy = rights_of(FIRST_LEVEL, "!sensors/secret*", "*")
    for right in (Right.SUBSCRIBE, Right.CONSUME, Right.PUBLISH):
        assert not policy.may(ann, right, b"sensors")
        assert not policy.may(ann, right, b"sensors/$dead"), "dead letters are messages of the stream"
        assert policy.may(ann, right, b"orders")
    assert policy.may(ann, Right.CREATE, b"sensors")


def test_a_right_to_names_is_none_to_what_lies_in_a_stream_of_others_under_such_names() -> None:
    ann, policy = rights_of(FIRST_LEVEL, "sensors/*")
    assert readable(policy, TopicRules(FIRST_LEVEL), ann, b"private", b"sensors/7") == b""
    assert readable(policy, TopicRules(FIRST_LEVEL), ann, b"private", b"sensors/#") == b""


def test_without_rules_a_filter_gives_no_right() -> None:
    ann, policy = rights_of((), "sensors/*")
    assert readable(policy, TopicRules(), ann, b"sensors", b"sensors/7") == b""
    assert readable(policy, TopicRules(), ann, b"sensors/7", b"sensors/+") == b"sensors/+"


def test_the_name_of_a_user_in_a_rule() -> None:
    ann, policy = rights_of(FIRST_LEVEL, "home/{user}/*")
    assert readable(policy, TopicRules(FIRST_LEVEL), ann, b"home", b"home/ann/#") == b"home/ann/+/#"
    assert readable(policy, TopicRules(FIRST_LEVEL), ann, b"home", b"home/bob/#") == b""
    assert not may_publish(policy, ann, TopicRules(FIRST_LEVEL).place(b"home/bob/1"))


@pytest.mark.parametrize(
    ("words", "topic_filter", "may"),
    [
        (["*"], b"#", True),
        (["sensors*"], b"#", False),
        (["!secret*", "*"], b"#", False),
        (["!secret*", "*"], b"orders/#", True),
        (["sensors/*"], b"sensors/#", False),  # it matches sensors too
        (["sensors/*"], b"sensors/+", True),
        (["sensors", "hashed-*"], b"sensors/#", True),
        (["hashed-*"], b"hashed/+/temp", True),  # a right to all streams in which that lies
        (["hashed-1", "hashed-0"], b"hashed/#", True),
        (["hashed-1"], b"hashed/#", False),
        (["hashed/*"], b"hashed/#", False),
        (["hashed*"], b"hashed/#", True),
        (["hashed/*"], b"hashed/+/#", True),
        ([], b"#", False),
    ],
)
def test_reading_all_that_a_filter_matches(words: list[str], topic_filter: bytes, may: bool) -> None:
    rules = (TopicRule("hashed/#", "hashed-{hash:2}"),)
    ann, policy = rights_of(rules, *words, own_levels=())
    assert may_read_all(policy, TopicRules(rules, ()), ann, topic_filter) is may


LEVELS = st.sampled_from(["a", "b", "s", ""])
NAMES = st.lists(LEVELS, min_size=1, max_size=3).map("/".join).filter(bool)
FILTER_LEVELS = st.lists(st.sampled_from(["a", "b", "s", "+"]), max_size=2)
FILTERS = st.builds(
    lambda levels, last: "/".join([*levels, last]), FILTER_LEVELS, st.sampled_from(["a", "s", "+", "#"])
)
PATTERNS = st.lists(st.sampled_from(["a", "b", "s", "/", "*", "?", "[as]"]), min_size=1, max_size=4).map("".join)
WORDS = st.lists(st.tuples(st.sampled_from(["", "!"]), PATTERNS).map("".join), max_size=4)
TOPIC_RULES = st.sampled_from(
    [FIRST_LEVEL, (TopicRule("a/#", "s"), *FIRST_LEVEL), (TopicRule("+/b", "b"),), (TopicRule("s/#", "s-{hash:2}"),)]
)


def allowed(words: list[str], name: str) -> bool:
    for word in words:
        if fnmatchcase(name, word.removeprefix("!")):
            return not word.startswith("!")
    return False


@given(TOPIC_RULES, WORDS, FILTERS, NAMES)
def test_nobody_reads_or_publishes_a_name_that_is_denied(
    rules: tuple[TopicRule, ...], words: list[str], topic_filter: str, name: str
) -> None:
    """Unless it has the whole stream, and then no rule denies it anything there."""
    ann, policy = rights_of(rules, *words)
    placed = TopicRules(rules).place(name.encode())
    denied = any(word.startswith("!") and fnmatchcase(name, word[1:]) for word in words) and not allowed(words, name)
    found = readable(policy, TopicRules(rules), ann, placed.stream, topic_filter.encode()).decode()
    whole = policy.may(ann, Right.SUBSCRIBE, placed.stream)
    if found and naive.matches(found, name):
        assert allowed(words, name) or (whole and not denied)
    if may_publish(policy, ann, placed):
        assert allowed(words, name) or (whole and not denied)
