"""The staging leaf: the lines it accepts, the lines it stops at, and that its two bodies are equal to the byte."""

from __future__ import annotations

import time
from types import ModuleType

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.commands import Staged
from tailrace.protocol.grammar import parse_line
from tailrace.protocol.topics import topic_metadata
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load, load_source
from tests.protocol.lines import messages, names, payload_bytes, payloads

LEAF = "tailrace.protocol.line_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)
MAX = 2_000


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def stage(leaf: ModuleType, data: bytes, max_message_bytes: int = MAX) -> tuple[int, list[tuple[bytes, bytes]]]:
    """(the offset at which it stopped, the messages in the order sent)."""
    stop, groups, order = leaf.stage(data, 0, len(data), max_message_bytes, True)
    return stop, messages(Staged(groups, order))


def test_the_source_is_interpreted() -> None:
    assert not SOURCE.is_compiled()


def test_one_line(leaf: ModuleType) -> None:
    assert leaf.stage(b"pub s |hello\r\n", 0, 14, MAX, False) == (
        14,
        [(b"s", 1, bytearray(b"\x25" + bytes(31) + b"hello"))],
        [],
    )


def test_nothing(leaf: ModuleType) -> None:
    assert leaf.stage(b"", 0, 0, MAX, True) == (0, [], [])


@pytest.mark.parametrize("count", [1, 2, 100, 5_000])
def test_many_lines_of_one_stream(leaf: ModuleType, count: int) -> None:
    sent = [(b"s", b"message %d" % i) for i in range(count)]
    data = b"".join(b"pub %b |%b\r\n" % each for each in sent)
    assert stage(leaf, data) == (len(data), sent)


@pytest.mark.parametrize("streams", [2, 8, 9, 32, 33, 1_000, 3_000])
def test_many_streams_in_turn(leaf: ModuleType, streams: int) -> None:
    sent = [(b"stream-%d" % (i * 7 % streams), b"message %d" % i) for i in range(2 * streams)]
    data = b"".join(b"pub %b |%b\n" % each for each in sent)
    stop, groups, order = leaf.stage(data, 0, len(data), MAX, True)
    assert stop == len(data)
    assert [name for name, _, _ in groups] == list(dict.fromkeys(name for name, _ in sent))
    assert messages(Staged(groups, order)) == sent


def test_no_order_unless_it_is_wanted(leaf: ModuleType) -> None:
    data = b"pub s |1\npub t |2\npub s |3\n"
    assert [(name, payloads(frames)) for name, _, frames in leaf.stage(data, 0, len(data), MAX, False)[1]] == [
        (b"s", [b"1", b"3"]),
        (b"t", [b"2"]),
    ]
    assert leaf.stage(data, 0, len(data), MAX, False)[2] == []
    assert leaf.stage(data, 0, len(data), MAX, True)[2] == [0, 1, 0]


@pytest.mark.parametrize(
    "head", [b"pub s |", b"PUB s |", b"pUb\ts\t|", b"pub   s   |", b"pub s|", b"pub" + b" " * 230 + b"s |"]
)
def test_the_same_stream_however_it_is_written(leaf: ModuleType, head: bytes) -> None:
    data = b"pub s |a\r\n" + head + b"b\r\npub s |c\r\n"
    assert stage(leaf, data) == (len(data), [(b"s", b"a"), (b"s", b"b"), (b"s", b"c")])


def test_the_longest_head(leaf: ModuleType) -> None:
    for size in range(leaf.HEAD_BYTES_MAX - 3, leaf.HEAD_BYTES_MAX + 4):
        data = b"pub".ljust(size - 2) + b"s|x\n"
        for before in (b"", b"pub s |x\n"):
            taken = len(before) + (len(data) if size <= leaf.HEAD_BYTES_MAX else 0)
            assert stage(leaf, before + data)[0] == taken, size


@pytest.mark.parametrize("payload", [b"", b"\r", b"\r\r", b"|", b"pub s |", b"\0", b"\xff\xff", bytes(range(11, 256))])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_payloads_are_not_touched(leaf: ModuleType, payload: bytes, line_end: bytes) -> None:
    data = b"".join(b"pub s |" + each + line_end for each in (payload, b"x", payload))
    expected = [(b"s", each.removesuffix(b"\r") if line_end == b"\n" else each) for each in (payload, b"x", payload)]
    assert stage(leaf, data) == (len(data), expected)


@pytest.mark.parametrize(
    "odd",
    [
        b"ping\r\n",
        b"\r\n",
        b"\n",
        b" pub s |x\n",
        b"pub s x\n",
        b"pub s\n",
        b"pub s \r\n",
        b"pub |x\n",
        b"pub  |x\n",
        b"pubs |x\n",
        b"pub s t |x\n",
        b"pub s topic |x\n",
        b"pub s topics a |x\n",
        b"pub s topic a b |x\n",
        b"pub s topic a/+ |x\n",
        b"pub s topic # |x\n",
        b"pub s topic a%2b |x\n",
        b"pub s topic %00 |x\n",
        b"pub s topic %ff |x\n",
        b"pub s topic \xff |x\n",
        b"pub s topic a\x01 |x\n",
        b"pub s topic a\r |x\n",
        b"pub s topic " + b"/" * 128 + b" |x\n",
        b"pub s topic " + b"a" * 230 + b" |x\n",
        b"pub s topic a",
        b"pub $s |x\n",
        b"pub s\x7f |x\n",
        b"pub s\x01 |x\n",
        b"pub s\xff |x\n",
        b"pub \xc2\xa0 |x\n",  # a no-break space
        b"pub " + b"n" * 201 + b" |x\n",
        b"pub" + b" " * 240 + b"s |x\n",
        b"pub s/a%20b |x\n",
        b"pub %2f/ |x\n",
        b"pub s |" + b"x" * (MAX + 1) + b"\n",
        b"pub s |no end",
        b"pub s",
        b"p",
        b"\xff\xfd\x06pub s |x\n",
    ],
)
@pytest.mark.parametrize("before", [0, 1, 3, 200])
def test_it_stops_at_anything_else(leaf: ModuleType, odd: bytes, before: int) -> None:
    good = b"pub s |good\r\npub t |good\r\npub s |good\r\n" * before
    for after in (b"", b"pub s |after\n", b"ping\n", b"pub u |after\n" * 300):
        if odd[-1:] != b"\n" and after:
            continue
        stop, sent = stage(leaf, good + odd + after)
        assert stop == len(good)
        assert sent == [(b"s", b"good"), (b"t", b"good"), (b"s", b"good")] * before


def test_a_message_of_just_the_limit(leaf: ModuleType) -> None:
    data = b"pub s |" + b"x" * 10 + b"\r\n"
    assert stage(leaf, data, 10)[0] == len(data)
    assert stage(leaf, data, 9)[0] == 0


def test_payloads_of_all_sizes(leaf: ModuleType) -> None:
    sent = [(b"s", b"x" * size) for size in (0, 1, 2_047, 2_048, 2_049, 70_000)]
    for some in (sent, sent[:3], sent[:4], sent[3:]):
        data = b"".join(b"pub %b |%b\r\n" % each for each in some)
        assert stage(leaf, data, 1 << 20) == (len(data), some)


def test_start_and_end_are_kept_to(leaf: ModuleType) -> None:
    data = b"pub s |1\npub s |2\npub s |3\n"
    stop, groups, _ = leaf.stage(memoryview(data), 9, 18, MAX, False)
    assert (stop, payloads(groups[0][2])) == (18, [b"2"])


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (2, 1), (0, 10), (10, 10)])
def test_places_outside_the_buffer_are_refused(leaf: ModuleType, start: int, end: int) -> None:
    with pytest.raises(ValueError, match="of a buffer of 9"):
        leaf.stage(b"pub s |1\n", start, end, MAX, False)
    with pytest.raises(ValueError, match="of a buffer of 9"):
        leaf.find_lf(b"pub s |1\n", start, end)


def test_the_buffer_is_let_go(leaf: ModuleType) -> None:
    buffer = bytearray(b"pub s |1\n")
    leaf.stage(buffer, 0, 9, MAX, False)
    leaf.find_lf(buffer, 0, 9)
    buffer.clear()  # BufferError while anybody holds it


def test_frames_do_not_depend_on_the_buffer(leaf: ModuleType) -> None:
    buffer = bytearray(b"pub s |1\n")
    groups = leaf.stage(buffer, 0, 9, MAX, False)[1]
    buffer[:] = b"x" * 9
    assert (groups[0][0], payloads(groups[0][2])) == (b"s", [b"1"])


@pytest.mark.parametrize("size", [0, 1, 2_047, 2_048, 2_049, 10_000, 500_000])
def test_find_lf(leaf: ModuleType, size: int) -> None:
    data = b"x" * size + b"\n" + b"y" * 10 + b"\n"
    assert leaf.find_lf(data, 0, len(data)) == size
    assert leaf.find_lf(data, 0, size) == -1
    assert leaf.find_lf(data, size + 1, len(data)) == size + 11


def test_a_run_that_stops_at_once_is_not_paid_for(leaf: ModuleType) -> None:
    """If every second line is another command, each call reads little of the input after it."""
    data = b"pub s |x\nping\n" * 40_000

    def seconds(calls: int) -> float:
        started = time.thread_time()
        for position in range(0, 14 * calls, 14):
            assert leaf.stage(data, position, len(data), MAX, False)[0] == position + 9
        return time.thread_time() - started

    assert seconds(2_000) < 2.0  # 2,000 looks at all of it would take the interpreted body most of a minute


@pytest.mark.parametrize(
    ("word", "topic"),
    [
        (b"a", "a"),
        (b"sensors/7/temp", "sensors/7/temp"),
        (b"a%20b%7Cc%25", "a b|c%"),
        ("é/あ".encode(), "é/あ"),
        (b"100%25", "100%"),
        (b"topic", "topic"),
        (b"x" * 31, "x" * 31),
        (b"x" * 32, "x" * 32),
        (b"x" * 220, "x" * 220),
        (b"/" * 127, "/" * 127),
        (b"\x7f", "\x7f"),
    ],
)
def test_a_topic_is_in_the_metadata(leaf: ModuleType, word: bytes, topic: str) -> None:
    metadata = msgpack.packb({"t": topic})
    expected = pack_frame(b"one") + pack_frame(b"two", metadata=metadata) + pack_frame(b"", metadata=metadata)
    data = b"pub s |one\r\npub s topic " + word + b" |two\npub s TOPIC\t" + word + b"|\r\n"
    stop, groups, order = leaf.stage(data, 0, len(data), MAX, True)
    assert (stop, groups, order) == (len(data), [(b"s", 3, expected)], [0, 0, 0])
    one = b"pub s topic " + word + b"|two\r\n"
    assert leaf.stage(one, 0, len(one), MAX, False)[1] == [(b"s", 1, pack_frame(b"two", metadata=metadata))]


def test_topics_in_turn_keep_the_order_of_their_stream(leaf: ModuleType) -> None:
    sent = [(b"s%d" % (i % 3), b"a/%d" % (i % 7), b"%d" % i) for i in range(500)]
    data = b"".join(b"pub %b topic %b |%b\r\n" % each for each in sent)
    stop, groups, _order = leaf.stage(data, 0, len(data), MAX, False)
    assert stop == len(data)
    for name, count, frames in groups:
        expected = [
            pack_frame(payload, metadata=topic_metadata(topic)) for each, topic, payload in sent if each == name
        ]
        assert (count, frames) == (len(expected), b"".join(expected))


def test_metadata_counts_for_the_limit(leaf: ModuleType) -> None:
    data = b"pub s topic abc |" + b"x" * 10 + b"\r\n"
    assert stage_topics(leaf, data * 3, 17) == 3 * len(data) and stage_topics(leaf, data, 17) == len(data)
    assert stage_topics(leaf, data * 3, 16) == stage_topics(leaf, data, 16) == 0


def stage_topics(leaf: ModuleType, data: bytes, max_message_bytes: int) -> int:
    stop: int = leaf.stage(data, 0, len(data), max_message_bytes, False)[0]
    return stop


words = st.one_of(
    st.sampled_from([b"a", b"a/b", b"a%20b", b"%C3%A9", b"%zz", b"+", b"a/#", b"%00", b"x" * 31, b"x" * 32, b"\xff"]),
    st.text("ab/%0 7cé\u3042\x7f", min_size=1, max_size=8).map(lambda text: text.replace(" ", "").encode() or b"t"),
)
clauses = st.builds(
    lambda blank, keyword, word: blank + keyword + blank + word,
    st.sampled_from([b" ", b" ", b"\t", b"  "]),
    st.sampled_from([b"topic", b"topic", b"Topic", b"topics"]),
    words,
)


@given(names, clauses, payload_bytes, st.sampled_from([b"\r\n", b"\n"]), st.sampled_from([100, 250, MAX]))
def test_a_line_with_a_topic_is_the_same_as_in_the_plain_path(
    name: bytes, clause: bytes, payload: bytes, end: bytes, max_bytes: int
) -> None:
    data = b"pub " + name + clause + b" |" + payload + end
    plain = parse_line(data.removesuffix(b"\n").removesuffix(b"\r"), max_bytes)
    for leaf in (LOADED, SOURCE):
        stop, groups, _order = leaf.stage(data, 0, len(data), max_bytes, True)
        if isinstance(plain, Staged):
            is_slow = data.index(b"|") >= leaf.HEAD_BYTES_MAX or (b"%" in name and b"/" in name)
            assert is_slow if not stop else (stop, groups) == (len(data), plain.groups)
        else:
            assert (stop, groups) == (0, [])


line = st.one_of(
    st.builds(
        lambda name, clause, payload: b"pub " + name + clause + b"|" + payload + b"\r\n", names, clauses, payload_bytes
    ),
    st.builds(
        lambda verb, blank, name, bar, payload, end: verb + blank + name + bar + payload + end,
        st.sampled_from([b"pub", b"pub", b"pub", b"PUB"]),
        st.sampled_from([b" ", b" ", b" ", b"\t", b"  "]),
        names,
        st.sampled_from([b" |", b" |", b" |", b"|", b"\t|"]),
        payload_bytes,
        st.sampled_from([b"\r\n", b"\r\n", b"\n"]),
    ),
    st.sampled_from([b"ping\r\n", b"\n", b"pub $x |y\n", b"pub x y\n", b"pub a%20b/c |y\n"]),
    st.sampled_from([b"pub \xff |\n", b"pub s |" + b"z" * 300 + b"\n"]),
    st.binary(max_size=20),
)


@given(st.lists(line, max_size=30), st.sampled_from([100, 250, MAX]), st.booleans(), st.integers(0, 20))
def test_both_bodies_stage_the_same(lines: list[bytes], max_bytes: int, want_order: bool, short: int) -> None:
    data = b"".join(lines)
    end = max(len(data) - short, 0)
    start = min(len(lines[0]), end) if lines and short % 2 else 0
    options = (start, end, max_bytes, want_order)
    assert LOADED.stage(data, *options) == SOURCE.stage(data, *options)
    assert LOADED.find_lf(data, start, end) == SOURCE.find_lf(data, start, end) == data.find(b"\n", start, end)


@given(st.lists(st.tuples(names, payload_bytes), min_size=1, max_size=60), st.integers(1, 40))
def test_both_bodies_stage_long_runs_the_same(sent: list[tuple[bytes, bytes]], times: int) -> None:
    data = b"".join(b"pub %b |%b\r\n" % each for each in sent * times)
    staged = LOADED.stage(data, 0, len(data), MAX, True)
    assert staged == SOURCE.stage(data, 0, len(data), MAX, True)
    assert messages(Staged(*staged[1:])) == sent * times
