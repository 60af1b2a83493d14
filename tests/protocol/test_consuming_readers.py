"""Reading messages about durable consumers: round trips, and for all else an error that names the fault."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.consuming_readers import NAMELESS, READERS, read_body, read_got
from tailrace.protocol.envelope import HEAD, HEAD_BYTES
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.fields import NUMBER_MAX, U32_MAX, Fields
from tailrace.protocol.places import FROM_NEW, From
from tailrace.shard.frame import pack_frame
from tests.protocol.lines import cut, cuts, names
from tests.protocol.test_fields import ANY
from tests.protocol.wires import STANDING, client, feed_client, feed_server, server, stamped

CREATE = {"id": 1, "do": "create", "stream": "s", "name": "n", "from": ["seq", 7]}
GET = {"id": 1, "stream": "s", "name": "n", "member": "m", "max_messages": 5}
ROW = asdict(STANDING) | {"name": "billing", "topics": None}
FRAME = pack_frame(b"x")


def read(opcode: int, fields: dict[str, Any]) -> m.AnyMessage:
    body = memoryview(msgpack.packb(fields))
    readers, elements_max = READERS.responses, READERS.response_elements_max
    if opcode in READERS.requests:
        readers, elements_max = READERS.requests, READERS.request_elements_max
    message: m.AnyMessage = readers[opcode](Fields(m.Op(opcode).name, body, elements_max))
    return message


def test_what_is_left_out() -> None:
    assert read(m.Op.CONSUME, CREATE) == c.Consume(1, "create", b"s", b"n", From("seq", 7))
    assert read(m.Op.CONSUME, {"id": 1, "do": "list", "stream": "s"}) == c.Consume(1, "list", b"s")
    assert read(m.Op.GET, GET) == c.Get(1, b"s", b"n", b"m", max_messages=5)
    assert read(m.Op.GET, GET | {"finished": None, "fresh": None}) == read(m.Op.GET, GET)
    assert read(m.Op.CONSUMED, {"id": 1, "consumers": [{**ROW, "lag_us": 4}]}) != read(m.Op.CONSUMED, {"id": 1})


def test_what_does_not_belong_to_a_deed_is_passed_over() -> None:
    assert read(m.Op.CONSUME, CREATE | {"do": "delete"}) == c.Consume(1, "delete", b"s", b"n")
    assert read(m.Op.CONSUME, CREATE | {"member": 5}) == read(m.Op.CONSUME, CREATE)
    assert read(m.Op.CONSUME, CREATE | {"do": "leave", "member": "m"}) == c.Consume(1, "leave", b"s", b"n", member=b"m")
    assert read(m.Op.CONSUME, CREATE | {"do": "list", "from": 5}) == c.Consume(1, "list", b"s")


def test_seconds_are_whole_or_not() -> None:
    for seconds in (1, 0.25, c.ACK_WAIT_MAX_S):
        assert read(m.Op.CONSUME, CREATE | {"ack_wait_s": seconds}) == c.Consume(
            1, "create", b"s", b"n", From("seq", 7), seconds
        )


def test_more_bytes_than_are_given_count_as_so_many() -> None:
    for nbytes in (c.GET_BYTES_MAX, NUMBER_MAX):
        assert read(m.Op.GET, GET | {"max_bytes": nbytes}) == read(m.Op.GET, GET)
    assert read(m.Op.GET, GET | {"max_bytes": 0}) == c.Get(1, b"s", b"n", b"m", max_messages=5, max_bytes=0)


def test_fields_of_a_later_version_are_passed_over() -> None:
    for opcode, fields in ((m.Op.CONSUME, CREATE), (m.Op.GET, GET), (m.Op.CONSUMED, {"id": 1, "consumers": [ROW]})):
        assert read(opcode, fields | {"later": [{}]}) == read(opcode, fields)
    assert read(m.Op.CONSUMED, {"id": 1, "consumers": [ROW | {"later": 1}]}) == c.Consumed(1, consumers=(STANDING,))


WRONG: list[tuple[m.Op, dict[str, Any], Code, str]] = [
    (m.Op.CONSUME, CREATE | {"do": "away"}, Code.USAGE, "the field do is none of create, reset, delete, leave, list"),
    (m.Op.CONSUME, CREATE | {"do": 1}, Code.USAGE, "the field do is 1, not a text"),
    (m.Op.CONSUME, CREATE | {"from": None}, Code.USAGE, "the field from is missing"),
    (m.Op.CONSUME, CREATE | {"do": "reset", "from": None}, Code.USAGE, "the field from is missing"),
    (m.Op.CONSUME, CREATE | {"from": ["now", 0]}, Code.FROM, "one of seq, time, new"),
    (m.Op.CONSUME, CREATE | {"name": None}, Code.USAGE, "the field name is missing"),
    (m.Op.CONSUME, CREATE | {"name": ""}, Code.USAGE, "'' is not the name of a consumer"),
    (m.Op.CONSUME, CREATE | {"do": "delete", "name": "n" * 101}, Code.USAGE, "1 to 100 bytes"),
    (m.Op.CONSUME, CREATE | {"name": "a b"}, Code.USAGE, "'a b' is not the name of a consumer"),
    (m.Op.CONSUME, CREATE | {"do": "leave"}, Code.USAGE, "the field member is missing"),
    (m.Op.CONSUME, CREATE | {"do": "leave", "member": 1}, Code.USAGE, "the field member is 1, not a text"),
    (m.Op.CONSUME, CREATE | {"do": "leave", "member": "a b"}, Code.USAGE, "is not the name of a consumer or a member"),
    (m.Op.CONSUME, CREATE | {"do": "leave", "member": "m", "name": None}, Code.USAGE, "the field name is missing"),
    (m.Op.CONSUME, CREATE | {"stream": "$s"}, Code.RESERVED, "begins with $"),
    (m.Op.CONSUME, CREATE | {"stream": "a|b"}, Code.NAME, "'a|b' is not a stream name"),
    (m.Op.CONSUME, CREATE | {"ack_wait_s": 0}, Code.USAGE, "not a number of seconds over 0"),
    (m.Op.CONSUME, CREATE | {"ack_wait_s": float("nan")}, Code.USAGE, "is a float, not a number of seconds"),
    (m.Op.CONSUME, CREATE | {"ack_wait_s": c.ACK_WAIT_MAX_S + 1}, Code.USAGE, "to 604800"),
    (m.Op.CONSUME, CREATE | {"ack_wait_s": True}, Code.USAGE, "is true or false, not a number of seconds"),
    (m.Op.CONSUME, CREATE | {"deliveries_max": 65_536}, Code.USAGE, "the field deliveries_max is 65536"),
    (m.Op.CONSUME, CREATE | {"ack": 0}, Code.USAGE, "ack 0 with 0 replicas; ack is 1 to 3"),
    (m.Op.CONSUME, CREATE | {"ack": 4}, Code.USAGE, "the field ack is 4"),
    (m.Op.CONSUME, CREATE | {"ack": 3}, Code.USAGE, "ack 3 with 0 replicas"),
    (m.Op.CONSUME, CREATE | {"ack": 2, "replicas": 1}, Code.USAGE, "ack 2 with 1 replicas"),
    (m.Op.CONSUME, CREATE | {"ack": 3, "replicas": 256}, Code.USAGE, "the field replicas is 256"),
    (m.Op.CONSUME, CREATE | {"id": 2**32}, Code.USAGE, "the field id is 4294967296"),
    (m.Op.GET, GET | {"member": None}, Code.USAGE, "the field member is missing"),
    (m.Op.GET, GET | {"member": "a\tb"}, Code.USAGE, "is not the name of a consumer or a member"),
    (m.Op.GET, GET | {"name": "n" * 101}, Code.USAGE, "is not the name of a consumer"),
    (m.Op.GET, GET | {"stream": ""}, Code.NAME, "'' is not a stream name"),
    (m.Op.GET, GET | {"finished": [[2, 1, 1]]}, Code.USAGE, "GET: 2 to 1 is not a range of seqs"),
    (m.Op.GET, GET | {"finished": [[-1, 1, 1]]}, Code.USAGE, "GET: -1 to 1 is not a range of seqs"),
    (m.Op.GET, GET | {"finished": [[0, 2**63, 1]]}, Code.USAGE, "is not a range of seqs"),
    (m.Op.GET, GET | {"finished": [1, 2]}, Code.USAGE, "not an array of rows of [int, int, int]"),
    (m.Op.GET, GET | {"finished": [[1, 1, 1]] * 1_025}, Code.USAGE, "not a msgpack map: 1025 exceeds"),
    (m.Op.GET, GET | {"failed": [[-1, 1, ""]]}, Code.USAGE, "-1 is not the seq of a failed message"),
    (m.Op.GET, GET | {"failed": [[1, 1, "é" * 101]]}, Code.USAGE, "why 1 has failed is longer than 200 bytes"),
    (m.Op.GET, GET | {"failed": [[1, 1, ""]] * 129}, Code.USAGE, "129 failed messages; at most 128"),
    (m.Op.GET, GET | {"failed": [[1]]}, Code.USAGE, "not an array of rows of [int, int, str]"),
    (m.Op.GET, GET | {"finished": [[1, 1, 0]]}, Code.USAGE, "GET: 0 is not an epoch: take it from the message's frame"),
    (m.Op.GET, GET | {"failed": [[1, 2**32, ""]]}, Code.USAGE, "GET: 4294967296 is not an epoch"),
    (m.Op.GET, GET | {"session": -1}, Code.USAGE, "the field session is -1"),
    (m.Op.GET, GET | {"max_messages": None}, Code.USAGE, "the field max_messages is missing"),
    (m.Op.GET, GET | {"max_messages": 10_001}, Code.USAGE, "the field max_messages is 10001"),
    (m.Op.GET, GET | {"wait_ms": 60_001}, Code.USAGE, "the field wait_ms is 60001"),
    (m.Op.GET, GET | {"max_bytes": -1}, Code.USAGE, "the field max_bytes is -1"),
    (m.Op.GET, GET | {"fresh": 1}, Code.USAGE, "the field fresh is 1"),
    (m.Op.CONSUMED, {"id": 1, "created": 1}, Code.USAGE, "the field created is 1"),
    (m.Op.CONSUMED, {"id": 1, "next_seq": -1}, Code.USAGE, "the field next_seq is -1"),
    (m.Op.CONSUMED, {"id": 1, "consumers": [1]}, Code.USAGE, "not an array of maps"),
    (m.Op.CONSUMED, {"id": 1, "consumers": [{}]}, Code.USAGE, "the field name is missing"),
    (m.Op.CONSUMED, {"id": 1, "consumers": [ROW | {"in_flight": "x"}]}, Code.USAGE, "the field in_flight is a text"),
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "fields", "code", "text"), WRONG)
def test_a_body_that_is_wrong(opcode: m.Op, fields: dict[str, Any], code: Code, text: str) -> None:
    with pytest.raises(PeerError) as caught:
        read(opcode, fields)
    assert caught.value.code is code
    assert text in caught.value.text
    assert caught.value.text.isprintable()


def test_the_answer_to_a_wrong_body_names_its_request() -> None:
    data = msgpack.packb(GET | {"id": 77, "wait_ms": -1})
    (malformed,) = feed_server(server(), [HEAD.pack(m.Op.GET, len(data)) + data])
    assert isinstance(malformed, m.Malformed)
    answer = malformed.answer()
    assert (answer.code, answer.fatal, answer.op, answer.id) == ("usage", False, m.Op.GET, 77)


def got(runs: int, stale: int, rest: bytes) -> memoryview:
    return memoryview(c.GOT_HEAD.pack(1, runs, stale, 0) + rest)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (memoryview(b"x" * 15), "a body of 15 bytes; it has at least 16"),
        (got(1, 0, b""), "1 runs and 0 ranges take 36"),
        (got(1, 1, bytes(35)), "1 runs and 1 ranges take 52"),
        (got(65_535, 65_535, bytes(99)), "take 2359276"),
        (got(0, 0, FRAME), "33 bytes of frames for 0 messages"),
        (got(1, 0, c.GOT_RUN.pack(0, 0, 0, 1)), "0 bytes of frames for 0 messages"),
        (got(1, 0, c.GOT_RUN.pack(0, 1, 0, 1) + FRAME[:31]), "31 bytes of frames for 1 messages"),
        (got(1, 0, c.GOT_RUN.pack(0, 2, 0, 1) + FRAME), "33 bytes of frames for 2 messages"),
        (got(2, 0, c.GOT_RUN.pack(0, 1, 0, 1) + c.GOT_RUN.pack(7, 0, 0, 1) + FRAME), "for 1 messages"),
    ],
)
def test_a_got_that_is_wrong(body: memoryview, text: str) -> None:
    with pytest.raises(PeerError) as caught:
        read_got(body)
    assert caught.value.code is Code.PROTOCOL
    assert text in caught.value.text


# --- any message there and back ---------------------------------------------------------------------------------------

IDS = st.integers(0, U32_MAX)
NUMBERS = st.integers(0, NUMBER_MAX) | st.integers(0, 300)
NAMES = st.text("abc019-._~#!é\u3042$", min_size=1, max_size=8).map(str.encode) | st.just(b"n" * 100)
EPOCHS = st.integers(1, U32_MAX)
RANGES = st.tuples(NUMBERS, NUMBERS).map(lambda pair: (min(pair), max(pair)))
LEVELS = st.sampled_from([(1, 0), (2, 0), (3, 1), (3, 255)])
STARTS = st.builds(From, st.sampled_from(["seq", "time"]), NUMBERS) | st.just(FROM_NEW)
SECONDS = st.none() | st.floats(0.001, c.ACK_WAIT_MAX_S)
DELIVERIES = st.none() | st.integers(0, c.DELIVERIES_MAX)
RETRIES = st.none() | st.floats(0, c.ACK_WAIT_MAX_S)
DELAYS = st.lists(st.tuples(NUMBERS, EPOCHS, st.integers(0, c.DELAY_MAX_MS)), max_size=5)


@st.composite
def consumes(draw: st.DrawFn) -> c.Consume:
    do, (ack, replicas) = draw(st.sampled_from(get_args(c.Deed))), draw(LEVELS)
    name = b"" if do in NAMELESS else draw(NAMES)
    start = draw(STARTS) if do in ("create", "reset") else None
    settings, member = (draw(SECONDS), draw(DELIVERIES)), draw(NAMES) if do == "leave" else b""
    letters = draw(RANGES) if do in ("redrive", "purge") else (0, 0)
    retries = (draw(RETRIES), draw(RETRIES))
    return c.Consume(draw(IDS), do, draw(names), name, start, *settings, ack, replicas, member, *retries, *letters)


@st.composite
def gets(draw: st.DrawFn) -> c.Get:
    finished = tuple((*each, draw(EPOCHS)) for each in draw(st.lists(RANGES, max_size=5)))
    failed = tuple(draw(st.lists(st.tuples(NUMBERS, EPOCHS, st.text(max_size=50)), max_size=5)))
    messages, nbytes, wait_ms = [
        draw(st.integers(0, high)) for high in (c.MESSAGES_MAX, c.GET_BYTES_MAX, c.WAIT_MAX_MS)
    ]
    who, (ack, replicas) = (draw(names), draw(NAMES), draw(NAMES)), draw(LEVELS)
    said, fresh, session = (finished, failed), draw(st.booleans()), draw(NUMBERS)
    delays = tuple(draw(DELAYS))
    return c.Get(draw(IDS), *who, *said, messages, nbytes, wait_ms, fresh, ack, replicas, session, delays)


REQUESTS = st.lists(consumes() | gets(), max_size=6)
STANDINGS = st.builds(
    c.Standing, NAMES, NUMBERS, NUMBERS, st.none() | NUMBERS, *[NUMBERS] * 5, st.floats(0.001, c.ACK_WAIT_MAX_S),
    st.integers(0, c.DELIVERIES_MAX), *[st.floats(0, c.ACK_WAIT_MAX_S)] * 2,
)  # fmt: skip
CONSUMEDS = st.builds(
    c.Consumed, IDS, st.none() | NUMBERS, st.none() | st.booleans(), st.none() | st.booleans(),
    st.none() | st.lists(STANDINGS, max_size=4).map(tuple), st.none() | NUMBERS,
    st.none() | st.lists(RANGES, max_size=4).map(tuple),
)  # fmt: skip


@st.composite
def gots(draw: st.DrawFn) -> c.Got:
    counts = draw(st.lists(st.integers(1, 4), max_size=5))
    runs = tuple((draw(NUMBERS), count, draw(IDS), draw(IDS)) for count in counts)
    frames = stamped(FRAME * sum(counts)) if counts else memoryview(b"")
    return c.Got(draw(IDS), runs, tuple(draw(st.lists(RANGES, max_size=5))), draw(NUMBERS), frames)


@given(REQUESTS, cuts)
def test_any_requests_there_and_back_in_any_pieces(messages: list[c.ConsumerRequest], places: list[int]) -> None:
    data = b"".join(map(m.pack, messages))
    assert feed_server(server(), cut(data, places)) == messages
    assert feed_server(server(), cut(data, range(len(data)))) == messages


@given(st.lists(CONSUMEDS | gots(), max_size=6), cuts)
def test_any_responses_there_and_back_in_any_pieces(messages: list[c.ConsumerResponse], places: list[int]) -> None:
    data = b"".join(map(m.pack, messages))
    assert feed_client(client(), cut(data, places)) == messages
    assert feed_client(client(), cut(data, range(len(data)))) == messages


# --- garbage ----------------------------------------------------------------------------------------------------------


@given(st.sampled_from([m.Op.CONSUME, m.Op.GET]), st.dictionaries(st.sampled_from([*CREATE, *GET, "finished"]), ANY))
def test_a_request_of_anything_is_one_or_is_refused(opcode: m.Op, fields: dict[str, Any]) -> None:
    data = msgpack.packb(fields)
    (heard,) = feed_server(server(), [HEAD.pack(opcode, len(data)) + data])
    assert isinstance(heard, (m.Malformed, *get_args(c.ConsumerRequest)))


@given(st.sampled_from([m.Op.CONSUMED, m.Op.GOT]), st.binary(max_size=100))
def test_a_response_of_any_bytes_is_one_or_raises(opcode: m.Op, data: bytes) -> None:
    try:
        (heard,) = feed_client(client(), [HEAD.pack(opcode, len(data)) + data])
    except PeerError as error:
        assert error.fatal
    else:
        assert isinstance(heard, get_args(c.ConsumerResponse))
        assert m.pack(heard)[HEAD_BYTES:] == data or opcode == m.Op.CONSUMED


def test_a_client_that_did_not_ask_hears_none_of_it() -> None:
    for message in (c.Consumed(1), c.Got(1, (), (), 0, memoryview(b""))):
        with pytest.raises(PeerError, match="is not a message of brokers"):
            list(ClientCodec().feed(m.pack(message)[:HEAD_BYTES]))


# --- requests between workers and nodes -------------------------------------------------------------------------------

WANTED = c.Get(1, b"s", b"billing", b"m", ((0, 3, 1),), ((5, 1, "no"),), 10)
BETWEEN_NODES: list[c.Consume | c.Get | c.MemberNotice] = [
    WANTED,
    c.Get(1, b"s", b"n", b"m", (), (), 5, 7, 9, True, c.ACK_REPLICATED, 2, NUMBER_MAX),
    c.Consume(1, "create", b"s", b"n", From("time", 5), 1.5, 3, c.ACK_SYNCED),
    c.Consume(1, "leave", b"s", b"n", member=b"m"),
    c.Consume(1, "list", b"s"),
    c.MemberNotice("away", b"s", b"n", b"m", 7, 9),
    c.MemberNotice("wake", b"s", b"n", b"m"),
]


@pytest.mark.parametrize("request_", BETWEEN_NODES, ids=repr)
def test_requests_come_through(request_: c.Consume | c.Get | c.MemberNotice) -> None:
    verb = "get" if isinstance(request_, c.Get) else "consume"
    assert read_body(verb, c.pack_body(request_)) == request_


def test_nothing_else_is_packed() -> None:
    with pytest.raises(TypeError, match="Consumed cannot be packed"):
        c.pack_body(c.Consumed(1))


def test_sizes_are_brought_within_bounds() -> None:
    found = read_body("get", c.pack_body(replace(WANTED, max_bytes=c.GET_BYTES_MAX + 1)))
    assert isinstance(found, c.Get) and found.max_bytes == c.GET_BYTES_MAX


@pytest.mark.parametrize(
    "change",
    [
        {"member": b""},
        {"member": b"m" * 101},
        {"member": b"a b"},
        {"finished": [(3, 2, 1)]},
        {"finished": [(-1, 2, 1)]},
        {"finished": [(0, 2**63, 1)]},
        {"finished": ((0, "1", 1),)},
        {"finished": [(0, 1, 0)]},
        {"finished": [(0, 1, 2**32)]},
        {"failed": [(0, 0, "no")]},
        {"finished": [(0, 0, 1)] * (c.FINISHED_MAX + 1)},
        {"failed": [(-1, 1, "no")]},
        {"failed": [(0, 1, "é" * (c.REASON_BYTES_MAX // 2 + 1))]},
        {"failed": [(0, 1, "no")] * (c.FAILED_MAX + 1)},
        {"max_messages": -1},
        {"max_messages": c.MESSAGES_MAX + 1},
        {"name": b""},
        {"stream": b"a b"},
        {"stream": b"$cursor/s"},
        {"wait_ms": c.WAIT_MAX_MS + 1},
        {"ack": 0},
        {"replicas": 256},
        {"session": -1},
    ],
    ids=str,
)
def test_a_get_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(PeerError) as caught:
        read_body("get", c.pack_body(replace(WANTED, **change)))
    assert caught.value.code in (Code.USAGE, Code.NAME, Code.RESERVED)
    assert len(caught.value.text) < 300


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"do": 1},
        {"do": "destroy"},
        {"do": "away"},
        {"do": "away", "stream": "s", "name": "n", "member": "m", "idle_ms": -1, "session": 0},
        {"do": "create", "stream": "s", "name": "n", "from": ["where", 1]},
        {"do": "create", "stream": "s", "name": "n", "from": ["seq", 1], "ack_wait_s": "long"},
        {"do": "create", "stream": "s", "name": "n", "from": ["seq", 1], "ack_wait_s": float("nan")},
        {"do": "create", "stream": "s", "name": "n", "from": ["seq", 1], "ack_wait_s": 1e300},
        {"do": "create", "stream": "s", "name": "n", "from": ["seq", 1], "deliveries_max": 1.5},
        {"do": "create", "stream": "s", "name": "n", "from": ["seq", 1], "ack": 3, "replicas": 999},
        {"do": "leave", "stream": "s", "name": "n", "member": b"m"},
    ],
    ids=str,
)
def test_a_consume_that_cannot_be(fields: dict[str, Any]) -> None:
    with pytest.raises(PeerError):
        read_body("consume", msgpack.packb({"id": 1, **fields}))


@given(st.binary(max_size=100) | ANY)
def test_garbage_is_refused(garbage: Any) -> None:
    body = garbage if isinstance(garbage, bytes) else msgpack.packb(garbage)
    for verb in c.REQUEST_VERBS:
        with pytest.raises(PeerError):
            read_body(verb, body)


def test_clients_send_no_notices() -> None:
    with pytest.raises(PeerError, match="the field do"):
        read(m.Op.CONSUME, {"id": 1, "do": "wake", "stream": "s", "name": "n", "member": "m"})
