"""Reading messages between nodes: round trips, and for everything else an error that names the fault."""

from __future__ import annotations

from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol import replication_readers
from tailrace.protocol.envelope import HEAD, HEAD_BYTES
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.fields import NUMBER_MAX, U32_MAX, Fields
from tailrace.protocol.places import FROM_NEW, From
from tailrace.shard.epochs import EPOCH_MAX, NEVER_SEQ, EpochStart, History
from tests.protocol.lines import cut, cuts, names
from tests.protocol.test_fields import ANY
from tests.protocol.wires import client, feed_client, feed_server, server

READERS = {**replication_readers.REQUESTS, **replication_readers.RESPONSES}

FOLLOW = {"id": 1, "stream": "s", "next_seq": 7, "term": 2, "term_master": ""}
FOLLOWED = {
    "id": 1, "state": "following", "start_seq": 7, "first_seq": 2, "next_seq": 9, "role": "master", "history": [],
    "path": [],
}  # fmt: skip
LINK = ["up", "", "", "following", 0, 0, 0, 0]
TOLD = {"id": 1, "node": "n1", "address": "", "links": [LINK], "masters": 0, "slaves": 0, "disabled": 0}
CALL = {"id": 1, "stream": "s", "verb": "get", "args": b""}
CLAIMED = {"id": 1, "role": "slave", "epoch": 1, "master": "", "accepted": True}


def read(opcode: int, fields: dict[str, Any]) -> m.AnyMessage:
    body = memoryview(msgpack.packb(fields))
    return READERS[opcode](Fields(m.Op(opcode).name, body, r.ROWS_MAX))


def test_a_follow_has_the_last_message_or_a_place_to_begin() -> None:
    assert read(m.Op.FOLLOW, FOLLOW | {"epoch": 3, "crc": 4}) == r.Follow(1, b"s", 7, 2, "", (3, 4))
    assert read(m.Op.FOLLOW, FOLLOW | {"from": ["new", 5]}) == r.Follow(1, b"s", 7, 2, "", None, FROM_NEW)
    trimmed = r.Follow(1, b"s", 0, 2, "", None, From("seq", 9))
    assert read(m.Op.FOLLOW, FOLLOW | {"next_seq": 0, "from": ["seq", 9]}) == trimmed


@pytest.mark.parametrize("name", ["$cursor/s", "s/$dead", "$cursor/s/$dead"])
def test_companions_are_followed_and_told_of(name: str) -> None:
    follow = read(m.Op.FOLLOW, FOLLOW | {"stream": name, "from": ["seq", 0]})
    assert isinstance(follow, r.Follow) and follow.stream == name.encode()
    assert read(m.Op.NAMES, {"id": 1, "names": [name]}) == r.Names(1, (name.encode(),))
    assert read(m.Op.ASK, {"id": 1, "stream": name}) == r.Ask(1, name.encode())


def test_fields_of_a_later_version_are_passed_over() -> None:
    for opcode, fields in ((m.Op.ASK, {"id": 1}), (m.Op.CLAIMED, CLAIMED), (m.Op.FOLLOWED, FOLLOWED)):
        assert read(opcode, fields | {"later": [{}]}) == read(opcode, fields)


def test_a_node_that_reports_no_ends_is_understood() -> None:
    told = read(m.Op.TOLD, TOLD)
    assert isinstance(told, r.Told) and told.ends == ()


WRONG: list[tuple[m.Op, dict[str, Any], Code, str]] = [
    (m.Op.FENCE, {"id": 1, "stream": "s", "epoch": 0}, Code.USAGE, "has epoch 0; terms are counted from 1"),
    (m.Op.FENCE, {"id": 1, "stream": "$cursor/s", "epoch": 2}, Code.RESERVED, "begins with $"),
    (m.Op.ASK, {"id": 1, "streams": ["s"] * 33}, Code.USAGE, "the ends of 33 streams, of at most 32"),
    (m.Op.ASK, {"id": 1, "streams": ["a b"]}, Code.NAME, "'a b' is not a stream name"),
    (m.Op.TOLD, TOLD | {"ends": [["a b", "slave", 1, 1, 1, ""]]}, Code.NAME, "'a b' is not a stream name"),
    (m.Op.TOLD, TOLD | {"ends": [["s", "slave", 2**32, 1, 1, ""]]}, Code.USAGE, "has 4294967296 in a row"),
    (m.Op.TOLD, TOLD | {"ends": [["s", "slave", 1, 1, -1, ""]]}, Code.USAGE, "has -1 in a row"),
    (m.Op.TOLD, TOLD | {"ends": [["s", "slave", 1, 1]]}, Code.USAGE, "not an array of rows"),
    (m.Op.FOLLOW, FOLLOW, Code.USAGE, "FOLLOW takes epoch and crc of the copy's last message, or from"),
    (m.Op.FOLLOW, FOLLOW | {"epoch": 1, "crc": 1, "from": ["new", 0]}, Code.USAGE, "FOLLOW takes epoch and crc"),
    (m.Op.FOLLOW, FOLLOW | {"epoch": 1}, Code.USAGE, "FOLLOW: the field crc is missing"),
    (m.Op.FOLLOW, FOLLOW | {"crc": 1}, Code.USAGE, "FOLLOW: the field epoch is missing"),
    (m.Op.FOLLOW, FOLLOW | {"epoch": 1, "crc": 2**32}, Code.USAGE, "the field crc is 4294967296"),
    (m.Op.FOLLOW, FOLLOW | {"next_seq": 0, "epoch": 1, "crc": 1}, Code.USAGE, "but next_seq is 0"),
    (m.Op.FOLLOW, FOLLOW | {"from": ["now", 0]}, Code.FROM, "one of seq, time, new"),
    (m.Op.FOLLOW, FOLLOW | {"from": ["new", 0], "term": 2**32}, Code.USAGE, "the field term is 4294967296"),
    (m.Op.FOLLOW, FOLLOW | {"from": ["new", 0], "term_master": "a b"}, Code.USAGE, "'a b' is not the id of a node"),
    (m.Op.FOLLOW, FOLLOW | {"from": ["new", 0], "stream": "a b"}, Code.NAME, "'a b' is not a stream name"),
    (m.Op.FOLLOW, FOLLOW | {"from": ["new", 0], "stream": "$s"}, Code.RESERVED, "begins with $"),
    (m.Op.FOLLOW, FOLLOW | {"from": ["new", 0], "stream": "$cursor/$s"}, Code.RESERVED, "begins with $"),
    (m.Op.FOLLOW, FOLLOW | {"from": ["new", 0], "stream": "$cursor/"}, Code.RESERVED, "begins with $"),
    (m.Op.FOLLOW, FOLLOW | {"from": ["new", 0], "stream": "$cursor/a b"}, Code.NAME, "is not a stream name"),
    (m.Op.FOLLOW, FOLLOW | {"from": ["new", 0], "stream": "$cursor/" + "s" * 193}, Code.NAME, "is not a stream name"),
    (m.Op.HELD, {"gone": []}, Code.USAGE, "HELD: the field rows is missing"),
    (m.Op.HELD, {"rows": []}, Code.USAGE, "HELD: the field gone is missing"),
    (m.Op.HELD, {"rows": [[1, "n", 2]], "gone": []}, Code.USAGE, "not an array of rows of [int, str, int, int]"),
    (m.Op.HELD, {"rows": [[2**32, "n", 2, 2]], "gone": []}, Code.USAGE, "HELD has 4294967296 in a row"),
    (m.Op.HELD, {"rows": [[1, "n", -1, 2]], "gone": []}, Code.USAGE, "HELD has -1 in a row, not a number from 0 to"),
    (m.Op.HELD, {"rows": [[1, "n", 2, 2**63]], "gone": []}, Code.USAGE, "HELD has 9223372036854775808 in a row"),
    (m.Op.HELD, {"rows": [[1, "", 2, 2]], "gone": []}, Code.USAGE, "'' is not the id of a node"),
    (m.Op.HELD, {"rows": [], "gone": [[-1, "n"]]}, Code.USAGE, "HELD has -1 in a row"),
    (m.Op.HELD, {"rows": [], "gone": [[1, "n" * 33]]}, Code.USAGE, "is not the id of a node"),
    (m.Op.HELD, {"rows": [[1, "n", 2, 2]] * 1_025, "gone": []}, Code.USAGE, "not a msgpack map: 1025 exceeds"),
    (m.Op.WATCH, {"id": 1}, Code.USAGE, "WATCH: the field prefix is missing"),
    (m.Op.WATCH, {"id": 1, "prefix": "a b"}, Code.NAME, "'a b' is not a stream name"),
    (m.Op.WATCH, {"id": 1, "prefix": "$"}, Code.RESERVED, "begins with $"),
    (m.Op.CLAIM, {"id": 1, "stream": "s", "history": []}, Code.USAGE, "CLAIM has an empty history"),
    (m.Op.CLAIM, {"id": 1, "stream": "s", "history": [[1, 0]]}, Code.USAGE, "not an array of rows of [int, int, str]"),
    (m.Op.ASK, {"id": 1, "stream": ""}, Code.NAME, "'' is not a stream name"),
    (m.Op.ASK, {"id": -1}, Code.USAGE, "the field id is -1"),
    (m.Op.FOLLOWED, FOLLOWED | {"state": "leading"}, Code.USAGE, "none of following, parted, behind, news"),
    (m.Op.FOLLOWED, FOLLOWED | {"start_seq": -1}, Code.USAGE, "the field start_seq is -1"),
    (m.Op.FOLLOWED, FOLLOWED | {"path": ["n1", ""]}, Code.USAGE, "'' is not the id of a node"),
    (m.Op.FOLLOWED, FOLLOWED | {"path": ["n"] * 1_025}, Code.USAGE, "not a msgpack map: 1025 exceeds"),
    (m.Op.FOLLOWED, FOLLOWED | {"role": 1}, Code.USAGE, "the field role is 1, not a text"),
    (m.Op.NAMES, {"id": 1, "names": ["s", "a b"]}, Code.NAME, "'a b' is not a stream name"),
    (m.Op.NAMES, {"id": 1, "names": ["$s"]}, Code.RESERVED, "begins with $"),
    (m.Op.NAMES, {"id": 1, "names": [b"s"]}, Code.USAGE, "not an array of texts"),
    (m.Op.CLAIMED, CLAIMED | {"accepted": 1}, Code.USAGE, "the field accepted is 1, not true or false"),
    (m.Op.CLAIMED, CLAIMED | {"master": "a|b"}, Code.USAGE, "'a|b' is not the id of a node"),
    (m.Op.CLAIMED, CLAIMED | {"epoch": 2**32}, Code.USAGE, "the field epoch is 4294967296"),
    (m.Op.TOLD, TOLD | {"node": ""}, Code.USAGE, "'' is not the id of a node"),
    (m.Op.TOLD, TOLD | {"address": "a"}, Code.USAGE, "'a' is not the address of a node"),
    (m.Op.TOLD, TOLD | {"links": [["left", *LINK[1:]]]}, Code.USAGE, "a direction that is none of up, down"),
    (m.Op.TOLD, TOLD | {"links": [["up", "a b", *LINK[2:]]]}, Code.USAGE, "'a b' is not the id of a node"),
    (m.Op.TOLD, TOLD | {"links": [["up", "", "a:0", *LINK[3:]]]}, Code.USAGE, "'a:0' is not the address of a node"),
    (m.Op.TOLD, TOLD | {"links": [[*LINK[:7], -1]]}, Code.USAGE, "TOLD has -1 in a row"),
    (m.Op.TOLD, TOLD | {"links": [LINK[:7]]}, Code.USAGE, "not an array of rows of [str, str, str, str, int"),
    (m.Op.TOLD, TOLD | {"slaves": -1}, Code.USAGE, "the field slaves is -1"),
    (m.Op.CALL, CALL | {"id": 2**32}, Code.USAGE, "the field id is 4294967296"),
    (m.Op.CALL, CALL | {"stream": "$cursor/s"}, Code.RESERVED, "begins with $"),
    (m.Op.CALL, CALL | {"verb": 1}, Code.USAGE, "the field verb is 1, not a text"),
    (m.Op.CALL, CALL | {"args": []}, Code.USAGE, "the field args is an array, not binary"),
    (m.Op.CALL, {"id": 1, "stream": "s", "verb": "get"}, Code.USAGE, "the field args is missing"),
    (m.Op.RETURNED, {"id": 1}, Code.USAGE, "the field code is missing"),
    (m.Op.RETURNED, {"id": 1, "code": "full"}, Code.USAGE, "the field text is missing"),
    (m.Op.RETURNED, {"id": 1, "value": {}}, Code.USAGE, "the field value is a map, not binary"),
]  # fmt: skip


@pytest.mark.parametrize(("opcode", "fields", "code", "text"), WRONG)
def test_a_body_that_is_wrong(opcode: m.Op, fields: dict[str, Any], code: Code, text: str) -> None:
    with pytest.raises(PeerError) as caught:
        read(opcode, fields)
    assert caught.value.code is code
    assert text in caught.value.text
    assert caught.value.text.isprintable()


@pytest.mark.parametrize(
    ("history", "text"),
    [
        ([[0, 0, ""]], "epoch 0 at seq 0 does not follow epoch 0 at seq 0"),
        ([[1, 0, ""], [1, 5, ""]], "epoch 1 at seq 5 does not follow epoch 1"),
        ([[2, 0, ""], [1, 5, ""]], "epoch 1 at seq 5 does not follow epoch 2"),
        ([[1, 5, ""], [2, 4, ""]], "epoch 2 at seq 4 does not follow epoch 1 at seq 5"),
        ([[1, -1, ""]], "epoch 1 at seq -1"),
        ([[1, NEVER_SEQ, ""]], f"epoch 1 at seq {NEVER_SEQ}"),
        ([[EPOCH_MAX + 1, 0, ""]], "epoch 4294967296 at seq 0"),
        ([[1, 0, "n" * 33]], "epoch 1: a master of 33 bytes, at most 32"),
    ],
)
@pytest.mark.parametrize("opcode", [m.Op.CLAIM, m.Op.FOLLOWED])
def test_a_history_that_is_none(opcode: m.Op, history: list[Any], text: str) -> None:
    with pytest.raises(PeerError, match=f"{opcode.name} has an invalid history: {text}") as caught:
        read(opcode, FOLLOWED | {"stream": "s", "history": history})
    assert caught.value.code is Code.USAGE


def test_the_masters_of_a_history_are_nodes() -> None:
    with pytest.raises(PeerError, match="'a b' is not the id of a node"):
        read(m.Op.FOLLOWED, FOLLOWED | {"history": [[1, 0, "a b"]]})


def test_the_answer_to_a_wrong_body_names_its_request() -> None:
    data = msgpack.packb(FOLLOW | {"id": 77})
    (malformed,) = feed_server(server(), [HEAD.pack(m.Op.FOLLOW, len(data)) + data])
    assert isinstance(malformed, m.Malformed)
    answer = malformed.answer()
    assert (answer.code, answer.fatal, answer.op, answer.id) == ("usage", False, m.Op.FOLLOW, 77)


# --- any message there and back ---------------------------------------------------------------------------------------

IDS = st.integers(0, U32_MAX)
NUMBERS = st.integers(0, NUMBER_MAX) | st.integers(0, 300)
NODES = st.text("abc019-._~#!é\u3042$", min_size=1, max_size=8) | st.just("n" * 32)
NODES_OR_NONE = st.just("") | NODES
ROLES = st.sampled_from(["master", "slave", "disabled"])
ADDRESSES = st.sampled_from(["", ":5050", "10.0.0.1:1", "[::1]:65535"])
STARTS = st.builds(From, st.sampled_from(["seq", "time"]), NUMBERS) | st.just(FROM_NEW)


@st.composite
def histories(draw: st.DrawFn, *, least: int = 0) -> History:
    epochs = draw(st.lists(st.integers(1, EPOCH_MAX), min_size=least, max_size=5, unique=True))
    seqs = sorted(draw(st.integers(0, NEVER_SEQ - 1)) for _ in epochs)
    return tuple(EpochStart(epoch, seq, draw(NODES_OR_NONE)) for epoch, seq in zip(sorted(epochs), seqs, strict=True))


FOLLOWS = st.builds(
    r.Follow, IDS, names, NUMBERS.map(lambda seq: max(seq, 1)), IDS, NODES_OR_NONE, st.tuples(IDS, IDS)
) | st.builds(r.Follow, IDS, names, NUMBERS, IDS, NODES_OR_NONE, st.none(), STARTS)
HELDS = st.builds(
    r.Held,
    st.lists(st.tuples(IDS, NODES, NUMBERS, NUMBERS), max_size=5).map(tuple),
    st.lists(st.tuples(IDS, NODES), max_size=5).map(tuple),
)
LINKS = st.builds(
    r.NodeLink, st.sampled_from(["up", "down"]), NODES_OR_NONE, ADDRESSES, st.text(max_size=9), *[NUMBERS] * 4
)
REQUESTS = (
    FOLLOWS
    | HELDS
    | st.builds(r.Watch, IDS, st.just(b"") | names)
    | st.builds(r.Claim, IDS, names, histories(least=1))
    | st.builds(r.Fence, IDS, names, st.integers(1, U32_MAX))
    | st.builds(r.Ask, IDS, st.none() | names)
    | st.builds(r.Call, IDS, names, st.text(max_size=9), st.binary(max_size=20))
)
FOLLOWEDS = st.builds(
    r.Followed,
    IDS,
    st.sampled_from(["following", "parted", "behind", "news"]),
    *[NUMBERS] * 3,
    ROLES,
    histories(),
    st.lists(NODES, max_size=5).map(tuple),
)
RESPONSES = (
    FOLLOWEDS
    | st.builds(r.Names, IDS, st.lists(names, max_size=5).map(tuple))
    | st.builds(r.Fenced, IDS, ROLES, IDS)
    | st.builds(r.Claimed, IDS, ROLES, IDS, NODES_OR_NONE, st.booleans())
    | st.builds(r.Returned, IDS, st.binary(max_size=20))
    | st.builds(r.Returned, IDS, st.none(), st.text(max_size=9), st.text(max_size=9))
    | st.builds(r.Told, IDS, NODES, ADDRESSES, st.lists(LINKS, max_size=3).map(tuple), *[NUMBERS] * 3)
)


@given(st.lists(REQUESTS, max_size=4), cuts)
def test_any_requests_there_and_back_in_any_pieces(messages: list[r.NodeRequest], places: list[int]) -> None:
    assert feed_server(server(), cut(b"".join(map(m.pack, messages)), places)) == messages


@given(st.lists(RESPONSES, max_size=4), cuts)
def test_any_responses_there_and_back_in_any_pieces(messages: list[r.NodeResponse], places: list[int]) -> None:
    assert feed_client(client(), cut(b"".join(map(m.pack, messages)), places)) == messages


@given(REQUESTS | RESPONSES, st.data(), ANY)
def test_a_field_that_is_replaced_or_gone_gives_a_message_or_the_one_error(
    message: m.AnyMessage, data: st.DataObject, value: Any
) -> None:
    """And accepted messages can be packed again: they mean the same."""
    packed = m.pack(message)
    fields = msgpack.unpackb(packed[HEAD_BYTES:])
    fields[data.draw(st.sampled_from(list(fields)))] = value
    try:
        again = read(packed[0], fields)
    except PeerError as error:
        assert error.text.isprintable()
        return
    assert read(packed[0], msgpack.unpackb(m.pack(again)[HEAD_BYTES:])) == again


@given(st.sampled_from(sorted(READERS)), st.binary(max_size=200), cuts)
def test_garbage_gives_one_message_or_one_refusal(opcode: int, body: bytes, places: list[int]) -> None:
    pieces = cut(HEAD.pack(opcode, len(body)) + body, places)
    (heard,) = feed_server(server(), pieces)
    assert isinstance(heard, (m.Malformed, *get_args(r.NodeRequest)))
    assert not isinstance(heard, m.Malformed) or (heard.op, heard.error.fatal) == (opcode, False)
    try:
        (said,) = feed_client(client(), pieces)
    except PeerError as error:
        assert error.fatal
    else:
        assert isinstance(said, get_args(r.NodeResponse))
