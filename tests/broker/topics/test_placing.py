"""The messages of one read, by streams: each is where its name lies, in the order of the read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.placing import place_staged
from tailrace.broker.topics.rules import Placed, TopicRule, TopicRules
from tailrace.protocol.commands import Staged
from tailrace.protocol.errors import Code
from tailrace.protocol.topics import topic_metadata
from tailrace.shard.frame import pack_frame
from tests.broker.topics.test_stamping import pieces

RULES = TopicRules([TopicRule("a/#", "a"), TopicRule("b/#", "a"), TopicRule("c/#", "c")])
NAMES = st.lists(st.sampled_from([b"a", b"a/1", b"a/2", b"b/1", b"c/1", b"plain", b"no/1", b"no"]), max_size=20)


def refusal(placed: Placed) -> Refused | None:
    return Refused(Code.DENIED, "no") if placed.stream.startswith(b"no") else None


def staged(names: list[bytes], metadata: bytes = b"") -> Staged:
    groups: dict[bytes, bytearray] = {}
    for place, name in enumerate(names):
        groups.setdefault(name, bytearray()).extend(pack_frame(b"%d" % place, metadata=metadata))
    order = [list(groups).index(name) for name in names]
    return Staged([(name, names.count(name), frames) for name, frames in groups.items()], order)


@given(NAMES)
def test_each_message_goes_where_its_name_lies(names: list[bytes]) -> None:
    made, denied = place_staged(RULES, staged(names), refusal)
    assert [made.groups[index][0] for index in made.order] == [
        name if refusal(RULES.place(name)) else RULES.place(name).stream for name in names
    ]
    assert {made.groups[key][0] for key in denied} == {name for name in names if name.startswith(b"no")}
    for key, (stream, messages, frames) in enumerate(made.groups):
        found = [(metadata, payload) for _flags, metadata, payload in pieces(frames)]
        expected = []
        for place, name in enumerate(names):
            placed = RULES.place(name)
            if key in denied and name == stream:
                expected.append((b"", b"%d" % place))
            elif key not in denied and placed.stream == stream:
                expected.append((topic_metadata(placed.topic) if placed.topic else b"", b"%d" % place))
        assert (found, messages) == (expected, len(expected))


def test_a_message_with_another_topic_than_its_name_is_refused() -> None:
    read = staged([b"a/1", b"a"], topic_metadata(b"a/1"))
    assert place_staged(RULES, read, refusal)[1] == {}
    made, denied = place_staged(RULES, staged([b"a/1", b"a"], topic_metadata(b"a/2")), refusal)
    assert {made.groups[key][0]: refused.code for key, refused in denied.items()} == {b"a/1": Code.TOPIC}


def test_only_the_messages_with_another_topic_are_refused() -> None:
    """A read holds the messages to one name together, with a topic of their own or without."""
    mixed = pack_frame(b"0") + pack_frame(b"1", metadata=topic_metadata(b"a/2")) + pack_frame(b"2")
    read = Staged([(b"a/1", 3, bytearray(mixed)), (b"c/1", 1, bytearray(pack_frame(b"3")))], [0, 0, 1, 0])
    made, denied = place_staged(RULES, read, refusal)
    rows = [(made.groups[index][0], denied[index].code if index in denied else None) for index in made.order]
    assert rows == [(b"a", None), (b"a/1", Code.TOPIC), (b"c", None), (b"a", None)]
    (appended,) = [pieces(frames) for name, _messages, frames in made.groups if name == b"a"]
    assert [(metadata, payload) for _flags, metadata, payload in appended] == [
        (topic_metadata(b"a/1"), b"0"),
        (topic_metadata(b"a/1"), b"2"),
    ]
