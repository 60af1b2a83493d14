"""The binary codecs: the same messages however the bytes are cut, frames without copies, answers to all the rest."""

from __future__ import annotations

import random
import time
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import messages as m
from tailrace.protocol.binary import RESPONSE_MAX_BYTES, ClientCodec
from tailrace.protocol.envelope import HEAD, HEAD_BYTES
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.features import NO_FEATURES
from tailrace.protocol.replication import Ask, Names
from tailrace.shard.frame import MAX_FRAME_BYTES, pack_frame
from tests.protocol.lines import cut, cuts
from tests.protocol.plain_codec import PlainCodec
from tests.protocol.wires import (
    ALL_FEATURES,
    FRAMES,
    HELLO,
    MAX_ENVELOPE_BYTES,
    MAX_MESSAGE_BYTES,
    REQUESTS,
    RESPONSES,
    client,
    feed_client,
    feed_server,
    flat,
    frame_cy,
    publish,
    refusal,
    server,
    session,
    stamped,
)
from tests.thorough import places

BIG = publish(5, frames=pack_frame(bytes(90_000)) + pack_frame(b"") * 2)
ASKED = [*REQUESTS, BIG, publish(6)]
ASKED_BYTES = session(ASKED)
SAID = [*RESPONSES, m.Chunk(2, stamped(bytes(BIG.frames))), m.Pong()]
SAID_BYTES = session(SAID)
SMALL_BYTES = session(REQUESTS)
CUTS = 150


def envelope(opcode: int, body: bytes = b"", length: int | None = None) -> bytes:
    return HEAD.pack(opcode, len(body) if length is None else length) + body


def named(fields: dict[str, object], opcode: int) -> bytes:
    return envelope(opcode, msgpack.packb(fields))


# --- in any pieces --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", REQUESTS[1:], ids=lambda message: type(message).__name__)
def test_a_request_whole_byte_by_byte_and_with_trailing_bytes(message: m.Request) -> None:
    data = m.pack(message)
    for pieces in ([data], cut(data, range(len(data)))):
        codec = server()
        assert flat(feed_server(codec, pieces)) == [message]
        assert codec.pending_bytes == 0
    following = m.pack(m.Open(5, b"more"))
    for size in range(len(following)):
        codec = server()
        assert flat(feed_server(codec, [data + following[:size]])) == [message]
        assert codec.pending_bytes == size
        assert flat(feed_server(codec, [following[size:] + b"\x0a"])) == [m.Open(5, b"more")]
        assert codec.pending_bytes == 1


@pytest.mark.parametrize("message", RESPONSES, ids=lambda message: type(message).__name__)
def test_a_response_whole_byte_by_byte_and_with_trailing_bytes(message: m.Response) -> None:
    data = m.pack(message)
    for pieces in ([data], cut(data, range(len(data)))):
        codec = client()
        assert feed_client(codec, pieces) == [message]
        assert codec.pending_bytes == 0
    following = m.pack(m.Opened(5))
    for size in range(len(following)):
        codec = client()
        assert feed_client(codec, [data + following[:size]]) == [message]
        assert codec.pending_bytes == size
        assert feed_client(codec, [following[size:]]) == [m.Opened(5)]


@pytest.mark.few(4)
@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 64, 4_096, 65_536])
def test_a_session_in_pieces_of_one_size(step: int) -> None:
    codec = server(welcomed=False)
    assert flat(feed_server(codec, cut(ASKED_BYTES, range(0, len(ASKED_BYTES), step)))) == ASKED
    assert feed_client(client(), cut(SAID_BYTES, range(0, len(SAID_BYTES), step))) == SAID


def test_a_session_cut_at_any_place() -> None:
    for place in places(range(len(SMALL_BYTES) + 1), CUTS, random.Random()):
        codec = server(welcomed=False)
        assert flat(feed_server(codec, [SMALL_BYTES[:place], SMALL_BYTES[place:]])) == list(REQUESTS), place


@given(cuts)
def test_a_session_in_any_pieces(places: list[int]) -> None:
    assert flat(feed_server(server(welcomed=False), cut(ASKED_BYTES, [37 * place for place in places]))) == ASKED
    assert feed_client(client(), cut(SAID_BYTES, [37 * place for place in places])) == SAID


@pytest.mark.few(96)
@pytest.mark.parametrize("place", range(0, len(SMALL_BYTES), 7))
def test_a_connection_that_moves_in_the_middle(place: int) -> None:
    first, second = server(welcomed=False), server(welcomed=False)
    before = feed_server(first, [SMALL_BYTES[:place]])
    second.restore_state(msgpack.unpackb(msgpack.packb(first.export_state())))
    assert second.pending_bytes == first.pending_bytes
    after = feed_server(second, cut(SMALL_BYTES[place:], [1, 3, 8, 20]))
    assert flat(before + after) == list(REQUESTS)


@pytest.mark.parametrize("features", [NO_FEATURES, ALL_FEATURES])
def test_a_connection_that_moves_keeps_its_features(features: frozenset[str]) -> None:
    moved = server(features=ALL_FEATURES - features)
    moved.restore_state(msgpack.unpackb(msgpack.packb(server(features=features).export_state())))
    assert moved.features == features


def test_a_refused_connection_that_moves_stays_refused() -> None:
    first, second = server(), server()
    feed_server(first, [envelope(3, length=1 << 30)])
    second.restore_state(first.export_state())
    assert feed_server(second, [m.pack(m.Ping())]) == []


# --- frames ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_a_publish_within_one_read_lies_where_it_was_read_into(count: int) -> None:
    shared = bytearray(m.pack(publish()) * count)
    messages = list(server().feed(memoryview(shared), len(shared)))
    assert [message.owned for message in messages if isinstance(message, m.Publish)] == [False] * count
    last = messages[-1]
    assert isinstance(last, m.Publish)
    shared[-1:] = b"!"
    assert bytes(last.frames[-1:]) == b"!"


@pytest.mark.parametrize("place", [1, 4, 5, 6, 17, 40])
def test_a_publish_in_two_reads_may_be_kept_and_stamped(place: int) -> None:
    data = m.pack(publish()) + m.pack(publish(2))
    first, second = feed_server(server(), [data[:place], data[place:]])
    assert isinstance(first, m.Publish)
    assert isinstance(second, m.Publish)
    assert (first.owned, second.owned) == (True, False)
    assert len(frame_cy.stamp(first.frames, 4, 1_000, 1, 0)) == 24 * 3
    assert frame_cy.check(first.frames, 0, len(FRAMES), 4) == (3, len(FRAMES), "")


def test_two_publishes_in_pieces_do_not_share_their_buffers() -> None:
    data = m.pack(publish(1)) + m.pack(publish(2))
    first, second = feed_server(server(), cut(data, range(0, len(data), 10)))
    assert isinstance(first, m.Publish)
    assert isinstance(second, m.Publish)
    frame_cy.stamp(first.frames, 4, 1_000, 1, 0)
    assert bytes(second.frames) == FRAMES


def test_a_large_publish_in_many_reads_is_put_together_once() -> None:
    frames = pack_frame(bytes((1 << 23) - 32))
    data = m.pack(publish(frames=frames))
    codec = PlainCodec(1 << 24, 1 << 23)
    codec.restore_state(server().export_state())
    shared = bytearray(1 << 16)
    tracemalloc.start()
    try:
        for start in range(0, len(data) - len(shared), len(shared)):
            shared[:] = data[start : start + len(shared)]
            assert list(codec.feed(memoryview(shared), len(shared))) == []
        rest = data[start + len(shared) :]
        (message,) = codec.feed(memoryview(bytearray(rest)), len(rest))
        assert tracemalloc.get_traced_memory()[1] < 1.3 * len(frames)
    finally:
        tracemalloc.stop()
    assert isinstance(message, m.Publish)
    assert (message.owned, message.count, len(message.frames)) == (True, 1, len(frames))


def test_many_small_publishes_cost_the_same_each() -> None:
    """Not quadratic: twenty times as many take about twenty times as long (compared with room for a slow moment)."""
    one = m.pack(publish(frames=pack_frame(b"x")))
    took = []
    for count in (200, 4_000):
        data = memoryview(bytearray(one * count))
        best = min(_seconds(data) for _ in range(3))
        took.append(best / count)
    assert took[1] < 10 * took[0]


def _seconds(data: memoryview) -> float:
    codec = server()
    begun = time.thread_time()  # not the clock's: others may have the processor for most of so short a while
    for _ in codec.feed(data, len(data)):
        pass
    return time.thread_time() - begun


# --- the beginning --------------------------------------------------------------------------------------------------


def test_nothing_is_said_before_hello() -> None:
    codec = server(welcomed=False)
    assert not codec.welcomed
    assert feed_server(codec, [b"\x01"]) == []
    assert feed_server(codec, [m.pack(HELLO)[1:]]) == [HELLO]
    assert codec.welcomed


@pytest.mark.parametrize("opcode", [0, 2, 3, 5, 10, 255])
def test_another_first_envelope_is_fatal_at_its_head(opcode: int) -> None:
    codec = server(welcomed=False)
    (malformed,) = feed_server(codec, [envelope(opcode, length=1_000)])
    assert isinstance(malformed, m.Malformed)
    assert refusal(malformed) == (opcode, 0, "protocol", True)
    assert feed_server(codec, [m.pack(HELLO)]) == []
    assert not codec.welcomed
    assert codec.pending_bytes == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (m.pack(m.Hello(2, (), "c")), "unsupported"),
        (m.pack(m.Hello(0, (), "c")), "unsupported"),
        (envelope(1, b"\x80"), "usage"),
        (envelope(1, b""), "usage"),
        (envelope(1, b"\xc1" * 20), "usage"),
        (envelope(1, length=m.CONTROL_BODY_MAX_BYTES + 1), "size"),
    ],
)
def test_a_hello_that_is_wrong_is_fatal(data: bytes, code: str) -> None:
    for pieces in ([data + m.pack(m.Ping())], cut(data + m.pack(m.Ping()), range(len(data)))):
        codec = server(welcomed=False)
        (malformed,) = feed_server(codec, pieces)
        assert isinstance(malformed, m.Malformed)
        assert refusal(malformed) == (1, 0, code, True)
        assert not codec.welcomed


def test_hello_comes_once() -> None:
    found = flat(feed_server(server(), [m.pack(HELLO) + m.pack(m.Ping())]))
    assert found == [(1, 0, "protocol", False), m.Ping()]


def test_the_messages_of_replication_come_with_the_feature() -> None:
    """It may be granted between two envelopes of one read."""
    codec = server(features=NO_FEATURES)
    data = m.pack(Ask(4)) * 2
    heard: list[m.Request | m.Malformed] = []
    for message in codec.feed(data, len(data)):
        heard.append(message)
        codec.features = ALL_FEATURES
    assert flat(heard) == [(24, 0, "protocol", False), Ask(4)]


def test_no_feature_comes_before_hello() -> None:
    assert flat(feed_server(server(welcomed=False), [m.pack(Ask(4))])) == [(24, 0, "protocol", True)]


def test_a_client_that_did_not_ask_for_the_feature_takes_none_of_its_messages() -> None:
    data = m.pack(Names(1, ()))
    assert feed_client(client(), [data]) == [Names(1, ())]
    with pytest.raises(PeerError, match="opcode 21 is not a message of brokers"):
        feed_client(ClientCodec(), [data])


@pytest.mark.parametrize("opcode", [0, int(m.Op.HELLO), int(m.Op.PUBLISH), 99, 253])
def test_a_client_does_not_wait_for_the_body_of_what_no_broker_sends(opcode: int) -> None:
    head = HEAD.pack(opcode, 4_000_000)
    with pytest.raises(PeerError, match=f"opcode {opcode} is not a message of brokers"):
        feed_client(client(), [head])
    assert feed_client(client(), [head[:-1]]) == []  # not known before its length is


# --- errors ---------------------------------------------------------------------------------------------------------

LIVES: list[tuple[bytes, tuple[int, int, str, bool]]] = [
    (envelope(0), (0, 0, "protocol", False)),
    (envelope(2, b"\x80"), (2, 0, "protocol", False)),
    (envelope(12, b"\x80"), (12, 0, "protocol", False)),
    (envelope(200, b"x" * 500), (200, 0, "protocol", False)),
    (envelope(3, b"\x90"), (3, 0, "usage", False)),
    (named({"id": 4, "stream": "a b"}, 3), (3, 4, "name", False)),
    (named({"id": 4, "stream": "$a"}, 3), (3, 4, "reserved", False)),
    (named({"id": 4, "stream": "a", "from": ["end", 0]}, 7), (7, 4, "from", False)),
    (named({"id": 4, "stream": 5, "from": ["new", 0]}, 7), (7, 4, "usage", False)),
    (envelope(10, b"x"), (10, 0, "usage", False)),
    (envelope(14, bytes(11)), (14, 0, "usage", False)),
    (named({"id": 4, "stream": "a"}, 17), (17, 4, "usage", False)),
    (
        named({"id": 4, "stream": "a", "next_seq": 0, "term": 0, "term_master": "", "from": ["end", 0]}, 17),
        (17, 4, "from", False),
    ),
    (named({"rows": [], "gone": 1}, 19), (19, 0, "usage", False)),
    (named({"id": 4, "stream": "$a", "history": [[1, 0, ""]]}, 22), (22, 4, "reserved", False)),
    (envelope(24, b"\xc1"), (24, 0, "usage", False)),
    (m.pack(publish(9, frames=FRAMES[:-1])), (5, 9, "usage", False)),
    (m.pack(publish(9, frames=pack_frame(bytes(MAX_MESSAGE_BYTES + 1)))), (5, 9, "size", False)),
    (m.pack(publish(9, frames=b"")), (5, 9, "usage", False)),
    (envelope(5, b"\x01\x02"), (5, 0, "usage", False)),
]


@pytest.mark.parametrize(("data", "expected"), LIVES)
def test_a_message_that_is_wrong_is_refused_and_the_connection_lives(
    data: bytes, expected: tuple[int, int, str, bool]
) -> None:
    whole = m.pack(m.Ping()) + data + m.pack(m.Close())
    for pieces in ([whole], cut(whole, range(0, len(whole), 1 if len(whole) < 1_000 else 997))):
        assert flat(feed_server(server(), pieces)) == [m.Ping(), expected, m.Close()]
    assert flat(feed_server(server(), [data])) == [expected]


@pytest.mark.parametrize(
    ("opcode", "length"),
    [(5, MAX_ENVELOPE_BYTES - HEAD_BYTES + 1), (5, 2**32 - 1), (3, m.CONTROL_BODY_MAX_BYTES + 1), (10, 2**32 - 1),
     (200, m.CONTROL_BODY_MAX_BYTES + 1)],
)  # fmt: skip
def test_an_envelope_that_is_too_long_is_fatal_before_it_is_held(opcode: int, length: int) -> None:
    for pieces in ([envelope(opcode, b"x" * 99, length)], [bytes([each]) for each in envelope(opcode, b"x", length)]):
        codec = server()
        (malformed,) = feed_server(codec, pieces)
        assert isinstance(malformed, m.Malformed)
        assert refusal(malformed) == (opcode, 0, "size", True)
        assert f"a body of {length} bytes" in malformed.error.text
        assert codec.pending_bytes == 0
        assert feed_server(codec, [m.pack(m.Ping())]) == []
        assert codec.feed_eof() == []


def test_an_envelope_of_just_the_limit() -> None:
    frames = pack_frame(bytes(90_000)) * 2
    filler = MAX_ENVELOPE_BYTES - len(m.pack(publish(frames=frames))) - 32
    frames += pack_frame(bytes(filler))
    data = m.pack(publish(frames=frames))
    assert len(data) == MAX_ENVELOPE_BYTES
    for pieces in ([data], [data[:9], data[9:]], [m.pack(m.Ping()) + data]):
        assert flat(feed_server(server(), pieces))[-1] == publish(frames=frames)
    (malformed,) = feed_server(server(envelope=MAX_ENVELOPE_BYTES - 1), [data])
    assert isinstance(malformed, m.Malformed)
    assert malformed.error.fatal


def test_a_control_body_of_just_the_limit() -> None:
    fields: dict[str, object] = {"id": 4, "later": b""}
    fields["later"] = bytes(m.CONTROL_BODY_MAX_BYTES - len(msgpack.packb(fields)) - 1)  # its head grows by one
    data = named(fields, m.Op.UNSUBSCRIBE)
    assert len(data) == HEAD_BYTES + m.CONTROL_BODY_MAX_BYTES
    assert flat(feed_server(server(), [data])) == [m.Unsubscribe(4)]


def test_the_end_within_an_envelope() -> None:
    codec = server()
    assert codec.feed_eof() == []
    codec = server()
    feed_server(codec, [m.pack(publish())[:-1]])
    (malformed,) = codec.feed_eof()
    assert refusal(malformed) == (0, 0, "incomplete", False)
    assert f"after {len(m.pack(publish())) - 1} bytes" in malformed.error.text
    assert codec.pending_bytes == 0


def test_what_is_forgotten() -> None:
    codec = server()
    feed_server(codec, [b"\x05"])
    codec.forget()
    assert codec.pending_bytes == 0
    assert feed_server(codec, [m.pack(m.Ping()), m.pack(publish())]) == []


# --- the client's end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [envelope(1), envelope(200), envelope(3, b"\x80"), envelope(13, bytes(10)), envelope(6, bytes(5)),
     envelope(12, b"\x80"), envelope(13, length=RESPONSE_MAX_BYTES)],
)  # fmt: skip
def test_what_no_broker_sends_is_fatal_for_the_client(data: bytes) -> None:
    for pieces in ([data], cut(data, range(len(data)))):
        with pytest.raises(PeerError) as caught:
            feed_client(client(), pieces)
        assert caught.value.fatal
        assert caught.value.code in (Code.PROTOCOL, Code.USAGE, Code.SIZE)


def test_messages_before_the_wrong_one_are_heard() -> None:
    heard = []
    with pytest.raises(PeerError, match="opcode 200"):
        for message in client().feed(m.pack(m.Opened(1)) + envelope(200)):
            heard.append(message)
    assert heard == [m.Opened(1)]


def test_a_client_takes_a_message_of_any_size_unless_told_otherwise() -> None:
    head = HEAD.pack(13, 4 + MAX_FRAME_BYTES)
    codec = client()
    assert list(codec.feed(head)) == []
    assert codec.pending_bytes == HEAD_BYTES
    with pytest.raises(PeerError, match="at most 995 are allowed"):
        list(client(1_000).feed(head))


# --- any bytes ------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=200), cuts, st.booleans())
def test_garbage_gives_messages_or_refusals(data: bytes, places: list[int], welcomed: bool) -> None:
    whole, pieces = server(welcomed=welcomed), server(welcomed=welcomed)
    found = flat(feed_server(whole, [data]))
    assert flat(feed_server(pieces, cut(data, places))) == found
    assert whole.pending_bytes == pieces.pending_bytes <= len(data)
    assert not any(isinstance(each, tuple) and each[3] for each in found[:-1])  # nothing follows a fatal one


@given(st.binary(max_size=200), cuts)
def test_garbage_gives_the_client_messages_or_the_one_error(data: bytes, places: list[int]) -> None:
    codec = client(1_000)
    try:
        feed_client(codec, cut(data, places))
    except PeerError as error:
        assert error.fatal
    assert codec.pending_bytes <= 1_000


def test_answers_to_publishes_are_read_in_a_row() -> None:
    """Those with one result each, as far as they are whole; the rest is for `feed`."""
    one, two = m.pack_published(7, [(1, 2, 3)]), m.pack_published(8, [(4, 5, 6)])
    several, size = m.pack_published(9, [(1, 1, 1), (2, 2, 2)]), len(m.pack_published(7, [(1, 2, 3)]))
    codec = ClientCodec()
    for behind in (b"", several, two[:-1], m.pack(m.Pong()), m.pack(m.Pong()) + two):
        rows = codec.feed_published(one + two + behind)
        assert [row[2:] for row in rows] == [(7, 1, 2, 3), (8, 4, 5, 6)]
    for first in (b"", one[:-1], several, m.pack(m.Pong()) + one, several + one):
        assert codec.feed_published(first) == []
    assert list(codec.feed(one[:-1])) == []
    assert codec.feed_published(one[-1:] + two) == [], "the first one is not whole"
    assert [each.request for each in codec.feed(one[-1:] + two) if isinstance(each, m.Published)] == [7, 8]
    assert size == m.PUBLISHED_ONE.size


def test_rows_leave_nothing_to_be_fed_again() -> None:
    """They begin with the bytes that were left before."""
    one, codec = m.pack_published(7, [(1, 2, 3)]), ClientCodec()
    assert list(codec.feed(one[:9], leave_bytes=100)) == [] and codec.left_bytes == 9
    assert len(codec.feed_published(one)) == 1 and codec.left_bytes == 0
