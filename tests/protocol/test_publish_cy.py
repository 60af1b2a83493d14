"""The leaf that stages runs of PUBLISH: the input it takes, the input it stops at, that its two bodies are equal to the
byte, and that a codec which uses it gives the same as one without it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.binary import ServerCodec
from tailrace.protocol.messages import (
    Ack,
    AnyMessage,
    Credit,
    Malformed,
    Open,
    Ping,
    Publish,
    PublishRun,
    Request,
    pack,
)
from tailrace.protocol.topics import topic_metadata
from tailrace.shard.frame import FLAG_CONTINUES, FLAG_PRODUCER, HEADER_BYTES, MAX_FRAME_BYTES, pack_frame
from tailrace.shard.leaves import load, load_source
from tests.protocol.lines import cut
from tests.protocol.plain_codec import PlainCodec
from tests.protocol.wires import FRAMES, HELLO, MAX_ENVELOPE_BYTES, MAX_MESSAGE_BYTES, publish, session

LEAF = "tailrace.protocol.publish_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)
MAX = 2_000
BODY_MAX = 1 << 16
ONE = pack_frame(b"hello")


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def stage(leaf: ModuleType, data: bytes) -> tuple[int, int, list[tuple[int, int, bytearray, bytes]]]:
    found: tuple[int, int, list[tuple[int, int, bytearray, bytes]]] = leaf.stage(data, 0, len(data), MAX, BODY_MAX)
    return found


def test_the_source_is_interpreted() -> None:
    assert not SOURCE.is_compiled()


def test_one_request(leaf: ModuleType) -> None:
    data = pack(publish(9, (7,), ONE + ONE))
    assert stage(leaf, data) == (len(data), Ack.APPENDED, [(7, 2, bytearray(ONE + ONE), struct.pack("<II", 9, 2))])


def test_nothing(leaf: ModuleType) -> None:
    assert stage(leaf, b"") == (0, 0, [])


def test_an_offset(leaf: ModuleType) -> None:
    data = b"!!" + pack(publish(9, (7,), ONE)) + b"??"
    stop, _ack, groups = leaf.stage(memoryview(data), 2, len(data), MAX, BODY_MAX)
    assert (stop, groups) == (len(data) - 2, [(7, 1, bytearray(ONE), struct.pack("<II", 9, 1))])
    with pytest.raises(ValueError, match="bytes 2 to 99 of a buffer of"):
        leaf.stage(data, 2, 99, MAX, BODY_MAX)


@pytest.mark.parametrize("streams", [1, 2, 8, 9, 32, 33, 1_000])
def test_many_streams_in_turn(leaf: ModuleType, streams: int) -> None:
    """In an order without a pattern, with the requests of each stream together and in their order."""
    order = [number % streams for number in range(3 * streams)]
    random.Random(streams).shuffle(order)
    sent = [publish(number, (handle * 7_919,), pack_frame(b"%d" % number)) for number, handle in enumerate(order)]
    data = session(sent)
    stop, _ack, groups = leaf.stage(data, 0, len(data), MAX, BODY_MAX)
    assert stop == len(data)
    assert [handle for handle, *_ in groups] == list(dict.fromkeys(each.handles[0] for each in sent))
    for handle, messages, frames, requests in groups:
        own = [each for each in sent if each.handles == (handle,)]
        assert messages == len(own)
        assert frames == b"".join(each.frames for each in own)
        assert requests == b"".join(struct.pack("<II", each.request, 1) for each in own)


def edited(at: int, data: bytes) -> bytes:
    """A PUBLISH of one frame with other bytes at `at`."""
    whole = pack(publish(9, (7,), ONE))
    return whole[:at] + data + whole[at + len(data) :]


NOT_STAGED = {
    "another message": pack(Ping()),
    "two streams": pack(publish(1, (7, 8))),
    "replicated": pack(publish(1, ack=Ack.REPLICATED)),
    "an unknown ack": edited(9, b"\x04"),
    "replicas without ack": edited(10, b"\x01"),
    "no stream": edited(11, b"\x00"),
    "no message": pack(publish(1, frames=b"")),
    "a body without a handle": b"\x05" + struct.pack("<I", 8) + bytes(8),
    "a body over the limit": pack(publish(1, frames=ONE * 3_000)),
    "a message over the limit": pack(publish(1, frames=pack_frame(bytes(MAX + 1)))),
    "a frame that is too short": edited(17, struct.pack("<I", 31)),
    "a frame beyond the end": edited(17, struct.pack("<I", 38)),
    "half a frame": edited(17, struct.pack("<I", 36)),
    "metadata beyond the frame": edited(17 + 30, struct.pack("<H", 6)),
    "metadata that is no map": edited(17 + 30, struct.pack("<H", 5)),
    "numbered": edited(17 + 28, struct.pack("<H", FLAG_PRODUCER)),
    "the rest of a numbered run": edited(17 + 28, struct.pack("<H", FLAG_CONTINUES)),
    "another ack": pack(publish(1, ack=Ack.SYNCED)),
}


@pytest.mark.parametrize("odd", NOT_STAGED.values(), ids=NOT_STAGED)
def test_what_is_not_staged_ends_the_run(leaf: ModuleType, odd: bytes) -> None:
    before = session([publish(1), publish(2, (8,))])
    assert stage(leaf, before + odd + before)[0] == len(before)
    if odd != NOT_STAGED["another ack"]:
        assert stage(leaf, odd + before) == (0, 0, [])


def test_a_run_has_a_limit(leaf: ModuleType) -> None:
    one = pack(publish(1, frames=ONE))
    data = one * (leaf.REQUESTS_MAX + 2)
    stop, _ack, [(_handle, messages, frames, _requests)] = stage(leaf, data)
    assert (stop, messages) == (len(one) * leaf.REQUESTS_MAX, len(frames) // len(ONE))
    assert leaf.stage(data, stop, len(data), MAX, BODY_MAX)[0] == len(data)


def test_an_unfinished_request_is_not_staged(leaf: ModuleType) -> None:
    before, odd = pack(publish(1)), pack(publish(2))
    for size in range(len(odd)):
        assert stage(leaf, before + odd[:size])[0] == len(before), size


@pytest.mark.parametrize("ack", [Ack.NONE, Ack.APPENDED, Ack.SYNCED])
def test_each_ack(leaf: ModuleType, ack: Ack) -> None:
    data = session([publish(1, ack=ack), publish(2, ack=ack)])
    assert stage(leaf, data)[:2] == (len(data), ack)


@given(
    edits=st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=3)), max_size=3),
    seed=st.integers(0, 1_000),
)
def test_both_bodies_stage_the_same(edits: Sequence[tuple[int, bytes]], seed: int) -> None:
    """Requests with some bytes changed; most changes are in the first heads."""
    random_ = random.Random(seed)
    kinds = [ONE, FRAMES, pack_frame(b"", metadata=b"\x80"), ONE * 40]
    data = bytearray(
        session([publish(number, (random_.choice((1, 2, 300)),), random_.choice(kinds)) for number in range(12)])
    )
    for at, changed in edits:
        data[at : at + len(changed)] = changed
    assert stage(LOADED, bytes(data)) == stage(SOURCE, bytes(data))


# --- handles of topics ----------------------------------------------------------------------------------------------

PLACED = {
    number: (b"s%d" % (number % 2), topic, topic_metadata(topic))
    for number, topic in ((1, b"a"), (2, b"b/1"), (3, b"c" * 40), (300, b"d"))
}


def with_topic(frame: bytes, handle: int) -> bytes:
    metadata = PLACED[handle][2]
    size = struct.pack("<I", len(frame) + len(metadata))
    return size + frame[4:30] + struct.pack("<H", len(metadata)) + metadata + frame[32:]


def test_topics_of_one_stream_are_one_group_in_the_order_sent(leaf: ModuleType) -> None:
    order = [2, 1, 7, 300, 2, 3, 7, 1]
    sent = [publish(number, (handle,), pack_frame(b"%d" % number) * 2) for number, handle in enumerate(order)]
    data = session(sent)
    stop, _ack, groups = leaf.stage(data, 0, len(data), MAX, BODY_MAX, PLACED)
    assert stop == len(data)
    expected: list[tuple[int, int, bytes, bytes]] = []
    for first, handles in ((2, (2, 300)), (1, (1, 3)), (7, (7,))):
        own = [number for number, handle in enumerate(order) if handle in handles]
        frames = [pack_frame(b"%d" % number) for number in own]
        stamped = [with_topic(frame, order[n]) if first != 7 else frame for frame, n in zip(frames, own, strict=True)]
        requests = b"".join(struct.pack("<II", number, 2) for number in own)
        expected.append((first, 2 * len(own), b"".join(2 * frame for frame in stamped), requests))
    assert groups == expected


def test_a_message_with_metadata_is_not_staged_for_a_topic(leaf: ModuleType) -> None:
    with_metadata = pack_frame(b"x", metadata=b"\x80")
    taken = [publish(1, (1,), ONE * 2), publish(2, (7,), with_metadata)]
    data = session([*taken, publish(3, (3,), ONE + with_metadata)])
    stop, _ack, groups = leaf.stage(data, 0, len(data), MAX, BODY_MAX, PLACED)
    assert stop == len(session(taken))
    assert [(handle, messages) for handle, messages, *_ in groups] == [(1, 2), (7, 1)]
    assert leaf.stage(data, stop, len(data), MAX, BODY_MAX, PLACED)[::2] == (stop, [])


@pytest.mark.few(1)
def test_a_message_without_room_for_its_topic_is_not_staged(leaf: ModuleType) -> None:
    frame = pack_frame(bytes(MAX_FRAME_BYTES - HEADER_BYTES - len(PLACED[1][2])))
    for one, taken in ((frame, True), (struct.pack("<I", len(frame) + 1) + frame[4:] + b"x", False)):
        data = pack(publish(1, (1,), one))
        stop, _ack, groups = leaf.stage(data, 0, len(data), MAX_FRAME_BYTES, 2 * MAX_FRAME_BYTES, PLACED)
        assert (stop, len(groups)) == ((len(data), 1) if taken else (0, 0))


@given(handles=st.lists(st.sampled_from((1, 2, 3, 7, 300, 8)), max_size=40), odd=st.integers(0, 60))
def test_both_bodies_stage_the_same_for_topics(handles: Sequence[int], odd: int) -> None:
    kinds = [ONE, ONE * 3, pack_frame(b"12345")]
    sent = [publish(number, (handle,), kinds[number % 3]) for number, handle in enumerate(handles)]
    if odd < len(sent):
        sent[odd] = publish(odd, (handles[odd],), pack_frame(b"", metadata=b"\x80"))
    data = session(sent)
    found = [leaf.stage(data, 0, len(data), MAX, BODY_MAX, PLACED) for leaf in (LOADED, SOURCE)]
    assert found[0] == found[1]


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_answers(leaf: ModuleType, count: int) -> None:
    counts = [1 + number % 3 for number in range(count)]
    requests = b"".join(struct.pack("<II", 2**32 - 1 - number, each) for number, each in enumerate(counts))
    expected, seq = b"", 2**40
    for number, each in enumerate(counts):
        expected += struct.pack("<BIIQII", 6, 20, 2**32 - 1 - number, seq, each, 77)
        seq += each
    assert leaf.pack_answers(requests, 2**40, 77) == expected


# --- a codec that stages --------------------------------------------------------------------------------------------

numbered = bytearray(pack_frame(b"x", metadata=b"\x82\xa1p\xc4\x01a\xa1n\x00"))
struct.pack_into("<H", numbered, 28, FLAG_PRODUCER)
MIXED: Sequence[Request] = (
    *(publish(number, (number % 3,)) for number in range(20)),
    Ping(),
    publish(21, ack=Ack.NONE),
    publish(22, ack=Ack.NONE),
    publish(23, (1, 2)),
    publish(24, frames=bytes(numbered)),
    publish(25),
    Credit(1, 5),
    Open(9, b"news"),
    *(publish(number, (9,)) for number in range(30, 40)),
    publish(40, frames=pack_frame(bytes(MAX_MESSAGE_BYTES + 1))),
    publish(41),
)
BODY_HEAD_BYTES = 12


def plain(found: Sequence[Request | Malformed]) -> list[object]:
    return [_requests(each, each.frames) if isinstance(each, Publish) else each for each in found]


def _requests(message: Publish, frames: memoryview) -> object:
    return (message.request, message.ack, message.replicas, message.handles, bytes(frames), message.count)


def expanded(run: PublishRun) -> list[object]:
    """The requests of a run one by one, stream after stream."""
    found: list[object] = []
    for handle, messages, frames, requests in run.groups:
        position = 0
        for request, count in struct.iter_unpack("<II", requests):
            start = position
            for _ in range(count):
                position += int(struct.unpack_from("<I", frames, position)[0])
            found.append((request, run.ack, 0, (handle,), bytes(frames[start:position]), count))
        assert position == len(frames)
        assert messages == sum(count for _, count in struct.iter_unpack("<II", requests))
    return found


def fed(pieces: Sequence[bytes], *, stage_runs: bool) -> tuple[list[object], int]:
    """The messages that come out, with the requests of each stream in their order, and the number of them in runs."""
    codec = (ServerCodec if stage_runs else PlainCodec)(MAX_ENVELOPE_BYTES, MAX_MESSAGE_BYTES)
    found: list[object] = []
    in_runs = 0
    for piece in pieces:
        for message in codec.feed(bytearray(piece), len(piece)):
            if isinstance(message, PublishRun):
                requests = expanded(message)
                in_runs += len(requests)
                found += requests
            else:
                found += plain([message])
    return found, in_runs


def _stream_of(request: tuple[Any, ...]) -> tuple[int, ...]:
    handles: tuple[int, ...] = request[3]
    return handles


def by_stream(found: Sequence[object]) -> list[object]:
    """Requests between two other messages sorted by their stream: their order matters within it only."""
    ordered: list[object] = []
    between: list[tuple[Any, ...]] = []
    for each in [*found, None]:
        if isinstance(each, tuple) and len(each[3]) == 1:
            between.append(each)
            continue
        between.sort(key=_stream_of)
        ordered += between
        between.clear()
        ordered.append(str(each) if isinstance(each, Malformed) else each)
    return ordered


def test_a_codec_with_runs_gives_the_same_whole_and_byte_by_byte() -> None:
    data = session([HELLO, *MIXED])
    expected, none = fed([data], stage_runs=False)
    assert none == 0
    whole, in_runs = fed([data], stage_runs=True)
    assert by_stream(whole) == by_stream(expected)
    assert in_runs == 20 + 2 + 1 + 10 + 1
    bytewise, _ = fed(cut(data[: 20 * len(pack(publish(1)))], range(5_000)), stage_runs=True)
    assert bytewise == expected[: len(bytewise)] and len(bytewise) > 15


@given(places=st.lists(st.integers(1, 3_500), max_size=12))
def test_a_codec_with_runs_gives_the_same_in_any_pieces(places: Sequence[int]) -> None:
    data = session([HELLO, *MIXED])
    ends = sorted({0, *(place for place in places if place < len(data)), len(data)})
    pieces = [data[start:end] for start, end in pairwise(ends)]
    assert by_stream(fed(pieces, stage_runs=True)[0]) == by_stream(fed([data], stage_runs=False)[0])


def test_a_run_goes_on_behind_a_request_that_was_cut() -> None:
    """Each read of a busy connection ends within a request: the rest is staged all the same."""
    requests: list[AnyMessage] = [HELLO, *(publish(number) for number in range(100))]
    data, half = session(requests), len(session(requests[:50])) + HEADER_BYTES
    _found, in_runs = fed([data[:half], data[half:]], stage_runs=True)
    assert in_runs == 99  # all but the one that was cut


def test_nothing_is_staged_before_hello() -> None:
    codec = ServerCodec(MAX_ENVELOPE_BYTES, MAX_MESSAGE_BYTES)
    data = session([publish(1), publish(2)])
    (malformed,) = codec.feed(data, len(data))
    assert isinstance(malformed, Malformed) and malformed.error.fatal
