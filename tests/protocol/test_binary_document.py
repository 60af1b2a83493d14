"""docs/binary-protocol.md matches the code, and its session is replayed byte for byte."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import fields
from pathlib import Path
from typing import get_args

import msgpack
import pytest

from tailrace.broker.connection.collecting import COLLECTS_MAX
from tailrace.broker.connection.listing import LISTS_MAX
from tailrace.broker.consumers.edge import session as serving
from tailrace.broker.consumers.state.decide import DEFAULTS, GRACE_US
from tailrace.broker.process.settings import Settings
from tailrace.broker.replication.downstream import calls
from tailrace.protocol import (
    collecting,
    consuming_readers,
    listing,
    recalling,
    replication_readers,
    requests,
    responses,
    sharing,
)
from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.envelope import HEAD, HEAD_BYTES
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.features import FILTERS
from tailrace.protocol.fields import ELEMENTS_MAX, NUMBER_MAX, TEXT_CHARACTERS_MAX
from tailrace.protocol.names import CONSUMER_BYTES_MAX, NODE_BYTES_MAX, StreamGroup
from tailrace.protocol.places import From
from tailrace.shard.epochs import EPOCHS_MAX, EpochStart
from tailrace.shard.frame import HEADER, MAX_FRAME_BYTES, FrameHeader, pack_frame
from tests.protocol.wires import (
    ALL_FEATURES,
    END_ROW,
    FILES_ROWS,
    REQUEST_KINDS,
    RESPONSE_KINDS,
    STANDING,
    STREAM_ROW,
    WORKER_ROW,
    feed_client,
    feed_server,
    flat,
    server,
    stamped,
)

FEATURES = (
    replication_readers.READERS,
    consuming_readers.READERS,
    listing.READERS,
    recalling.READERS,
    collecting.READERS,
    sharing.READERS,
)
FEATURES_SAY = {opcode for readers in FEATURES for opcode in readers.requests}
FEATURES_HEAR = {opcode for readers in FEATURES for opcode in readers.responses}
TEXT = (Path(__file__).resolve().parents[2] / "docs" / "binary-protocol.md").read_text()
END = r.CopyEnd("s", "slave", 2, 1, 5)
SIZES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}
FULL: dict[str, m.AnyMessage] = {
    "HELLO": m.Hello(1, (), "c", "t", "n", ":1", "p", "bearer", "ann", b"t", (0, 1), m.LINE_END),
    "WELCOME": m.Welcome(1, (), "s", "n", 0, {}, b"v", b"u"),
    "CHALLENGE": m.Challenge(b"r"),
    "PROVE": m.Prove(b"c"),
    "OPEN": m.Open(1, b"s"),
    "OPENED": m.Opened(1),
    "SUBSCRIBE": m.Subscribe(1, b"s", From("time", 0), 1, ("now", 0), 1, True, b"t/#", True),
    "SUBSCRIBED": m.Subscribed(1, 0, 0, 0, "s"),
    "UNSUBSCRIBE": m.Unsubscribe(1),
    "ENDED": m.Ended(1, 0, "c", "t"),
    "ERROR": m.Failed("c", "t", True, 1, 1, ((0, 0, 0, "", ""),)),
    "FOLLOW": r.Follow(1, b"s", 1, 1, "n", last=(1, 1)),
    "FOLLOWED": r.Followed(1, "news", 0, 0, 0, "master", (EpochStart(1, 0, "n"),), ("n",), ("a:1",), False),
    "HELD": r.Held(((1, "n", 0, 0),), ((1, "n"),)),
    "WATCH": r.Watch(1, b"s"),
    "NAMES": r.Names(1, (b"s",)),
    "CLAIM": r.Claim(1, b"s", (EpochStart(1, 0, "n"),), True),
    "CLAIMED": r.Claimed(1, "slave", 1, "n", True),
    "ASK": r.Ask(1, b"s", (b"s",), (1, 1), StreamGroup(1, 2)),
    "TOLD": r.Told(1, "n", ":1", (r.NodeLink("up", "n", "a:1", "following", 0, 0, 0, 0),), 0, 0, 0, (END,), 1, True),
    "CALL": r.Call(1, b"s", "get", b""),
    "RETURNED": r.Returned(1, b""),
    "FENCE": r.Fence(1, b"s", 2),
    "FENCED": r.Fenced(1, "slave", 2),
    "CONSUME": c.Consume(1, "create", b"s", b"n", From("seq", 0), 0.5, 1, 3, 1, b"m", 0.5, 1.5, 1, 2, b"a"),
    "CONSUMED": c.Consumed(1, 0, True, True, (STANDING,), 1, ((0, 1),)),
    "GET": c.Get(1, b"s", b"n", b"m", ((0, 1, 1),), ((2, 1, "why"),), 1, 1, 1, True, 3, 1, 1, ((2, 1, 9),)),
    "LIST": listing.List(1, "grown", b"p", b"a", "m", (b"n",), 1),
    "RECALL": recalling.Recall(1, b"s", b"s", b"t"),
    "RECALLED": recalling.Recalled(1, (("s", b""),), "s", "t"),
    "COLLECT": collecting.Collect(1, b"a.*", From("time", 0), 1, ("now", 0), 1, b"t/#", {b"a.1": 2}, 1),
    "COLLECTED": collecting.Collected(1, 1, 1),
    "ADDED": collecting.Added(1, collecting.ADDED_FROM, "a.1", 0, 0, 0),
    "INTEREST": sharing.Interest(sharing.SHARED_FROM, b"s", True, (b"a",), (b"b",), True),
    "LISTED": listing.Listed(1, ("n",), (STREAM_ROW,), (WORKER_ROW,), "n", 1, 1, "m", True, (END_ROW,), FILES_ROWS[:1]),
}
"""Each message that is a map, with every field it can have."""
INSTEAD: dict[str, m.AnyMessage] = {
    "FOLLOW": r.Follow(1, b"s", 1, 1, "n", start=From("seq", 0)),
    "CONSUME": c.Consume(1, "list", b"s", ack=2),
    "RETURNED": r.Returned(1, None, "c", "t"),
    "RECALL": recalling.Recall(1, b"s"),
    "GET": c.Get(1, b"s", b"n", b"m", ack=2),
}
"""The same with the fields that exclude some of those."""

FRAMES = pack_frame(b"hello") + pack_frame(b"hi", metadata=msgpack.packb({"h": {"lang": "en"}}))
SESSION: list[tuple[str, m.AnyMessage | bytes]] = [
    ("→", m.Hello(1, (c.FEATURE, collecting.FEATURE), "example/1", line_end=None)),
    ("→", m.Open(1, b"news")),
    ("→", m.Publish(1, m.Ack.APPENDED, 0, (1,), memoryview(FRAMES), 2)),
    ("←", m.Welcome(1, (c.FEATURE, collecting.FEATURE), "example-broker/1", "n1", 0, {"max_message_bytes": 8_388_608})),
    ("←", m.Opened(1)),
    ("←", m.Published(1, ((0, 2, 0),))),
    ("→", m.Subscribe(1, b"news", From("seq", 0), 0, ("now", 0), 65_536)),
    ("←", m.Subscribed(1, 0, 0, 2)),
    ("←", m.Chunk(1, stamped(FRAMES, 0, 1_784_000_000_000_000))),
    ("←", m.Ended(1, 2)),
    ("→", collecting.Collect(2, b"ne*", From("new", 0), credit=65_536, positions={b"news": 1})),
    ("←", collecting.Collected(2, 1)),
    ("←", collecting.Added(2, collecting.ADDED_FROM, "news", 1, 0)),
    ("←", m.Chunk(collecting.ADDED_FROM, stamped(FRAMES, 0, 1_784_000_000_000_000)[37:])),
    ("→", m.Unsubscribe(2)),
    ("←", m.Ended(collecting.ADDED_FROM, 2)),
    ("←", m.Ended(2, 0)),
    ("→", c.Consume(1, "create", b"news", b"billing", From("seq", 0))),
    ("←", c.Consumed(1, 0, True)),
    ("→", c.Get(2, b"news", b"billing", b"m1", max_messages=100, wait_ms=1_000, session=41)),
    ("←", c.Got(2, ((0, 2, 0, 1),), (), 0, stamped(FRAMES, 0, 1_784_000_000_000_000))),
    ("→", c.Get(3, b"news", b"billing", b"m1", finished=((0, 1, 1),))),
    ("←", c.Got(3, (), (), 0, memoryview(b""))),
    ("→", m.Ping()),
    ("←", m.Pong()),
    ("→", b"\xc8\0\0\0\0"),
    ("←", m.Failed("protocol", "opcode 200 is nothing that a client sends", False, 200)),
    ("→", m.Close()),
]


def table(name: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = TEXT.split(f"<!-- table: {name} -->\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def diagram(first_field: str) -> list[tuple[str, str]]:
    """(name, type) of each box of the drawing that begins with a field (and is the first such)."""
    names, kinds = re.findall(rf"^(│ {first_field} .*│)\n(│.*│)$", TEXT, re.MULTILINE)[0]
    return list(zip(boxes(names), boxes(kinds), strict=True))


def boxes(line: str) -> list[str]:
    return [box.strip() for box in line.strip("│").split("│")]


def layout(drawn: list[tuple[str, str]]) -> str:
    """The struct format of the boxes that have a size."""
    return "<" + "".join(SIZES[kind] for _name, kind in drawn if kind in SIZES)


def shown_session() -> list[tuple[str, str, bytes]]:
    """(who, name, bytes) of each message of the session."""
    found: list[tuple[str, str, bytes]] = []
    for line in TEXT.split("## A session", 1)[1].split("```\n")[1].splitlines():
        if line[0] in "→←":
            found.append((line[0], line[2:], b""))
        else:
            who, name, data = found[-1]
            found[-1] = who, name, data + bytes.fromhex(line.strip().split("  ")[0])
    return found


# --- tables and drawings ----------------------------------------------------------------------------------------------


def test_the_opcodes() -> None:
    rows = table("opcodes")
    assert [(int(number), name) for number, name, *_ in rows] == [(op, op.name) for op in m.Op]
    asked = {named(kind) for kind in REQUEST_KINDS}
    heard = {named(kind) for kind in RESPONSE_KINDS}
    whose = {(True, False): "client", (False, True): "broker", (True, True): "both"}
    assert [row[2] for row in rows] == [whose[name in asked, name in heard] for _number, name, *_ in rows]


def named(kind: type) -> str:
    return "ERROR" if kind is m.Failed else kind.__name__.upper()


def test_what_the_bodies_are() -> None:
    bodies = {name: body for _number, name, _whose, body in table("opcodes")}
    of_fields = requests._OF_FIELDS.keys() | responses._OF_FIELDS.keys() | FEATURES_SAY | FEATURES_HEAR
    assert {name for name, body in bodies.items() if body == "map"} == {m.Op(op).name for op in of_fields} == set(FULL)
    for message in (m.Ping(), m.Pong(), m.Close()):
        assert bodies[named(type(message))] == "empty"
        assert len(m.pack(message)) == HEAD_BYTES


@pytest.mark.parametrize("name", FULL)
def test_the_fields_of_the_maps(name: str) -> None:
    keys = list(dict.fromkeys(key for form in forms(name) for key in form))
    assert [row[0] for row in table(name)] == keys
    assert len(keys) == len(fields(FULL[name])) + (name == "FOLLOW")  # where `last` is two


def forms(name: str) -> list[dict[str, object]]:
    """The bodies of the message that have, together, every field."""
    messages = [FULL[name], *(INSTEAD[each] for each in INSTEAD if each == name)]
    return [msgpack.unpackb(m.pack(message)[HEAD_BYTES:]) for message in messages]


@pytest.mark.parametrize("name", FULL)
def test_fields_that_may_be_left_out(name: str) -> None:
    """Every other field is required when a body is read. An ERROR requires few, so that any of them is understood."""
    needed = set.intersection(*(_needed(m.Op[name], form) for form in forms(name)))
    told = {row[0] for row in table(name) if "left out" not in row[1]}
    assert needed == ({"code", "text"} if name == "ERROR" else told)


def _needed(opcode: m.Op, form: dict[str, object]) -> set[str]:
    """The fields that cannot be left out of this body."""
    needed = set()
    for key in form:
        less = msgpack.packb({other: value for other, value in form.items() if other not in (key, "skip")})
        if _is_refused(opcode, memoryview(less)):
            needed.add(key)
    return needed


def _is_refused(opcode: m.Op, body: memoryview) -> bool:
    if opcode in requests._OF_FIELDS or opcode in FEATURES_SAY:
        return isinstance(requests.read_request(opcode, body, ALL_FEATURES), m.Malformed)
    try:
        responses.read_response(opcode, body, ALL_FEATURES)
    except PeerError:
        return True
    return False


def test_the_drawings() -> None:
    assert layout(diagram("opcode")) == HEAD.format
    assert layout(diagram("length")) == HEADER.format
    assert tuple(name for name, kind in diagram("length") if kind in SIZES) == FrameHeader._fields
    assert layout(diagram("request +│ ack")) == m.PUBLISH_HEAD.format
    assert layout(diagram("request +│ first_seq")) == m.PUBLISHED_HEAD.format + m.PUBLISHED_RESULT.format.strip("<")
    assert HEAD.format + layout(diagram("subscription id +│ frames")).strip("<") == m.CHUNK_HEAD.format
    assert layout(diagram("subscription id +│ nbytes")) == m.CREDIT_BODY.format
    assert layout(diagram("request +│ runs")) == c.GOT_HEAD.format
    assert layout(diagram("first_seq +│ count")) == c.GOT_RUN.format
    assert layout(diagram("first_seq +│ last_seq")) == c.GOT_RANGE.format
    assert struct.calcsize(layout(diagram("subscription id +│ frames"))) == m.HANDLE_BYTES


def test_the_acknowledgements() -> None:
    assert [(int(number), name) for number, name, _when in table("acks")] == [(ack, ack.name) for ack in m.Ack]


def test_the_codes_exist() -> None:
    for what, codes, fatal in table("refusals"):
        assert all(Code(code.strip("`")) for code in codes.split(", ")), what
        assert fatal in ("", "fatal"), what
    assert all(Code(code) for code in re.findall(r"ERROR `([a-z]+)`", TEXT))


def test_the_limits_are_those_of_the_settings() -> None:
    for setting, default, _above in table("settings"):
        assert getattr(Settings(), setting) == int(default), setting
    assert f"`heartbeat_s` ({Settings().heartbeat_s:.0f} s)" in TEXT
    assert f"`heartbeats_max` ({Settings().heartbeats_max})" in TEXT
    assert f"`chunk_bytes` ({Settings().chunk_bytes >> 10} KiB" in TEXT


def test_the_limits_of_the_protocol_itself() -> None:
    assert [int(value.split()[0]) for _limit, value, _above in table("limits")] == [
        m.CONTROL_BODY_MAX_BYTES,
        m.PUBLISH_STREAMS_MAX,
        m.PUBLISH_COPIES_MAX_BYTES,
        ELEMENTS_MAX,
        TEXT_CHARACTERS_MAX,
        NUMBER_MAX,
        MAX_FRAME_BYTES,
    ]


def test_what_nodes_say() -> None:
    assert [row[0] for row in table("follow states")] == list(get_args(r.FollowState))
    assert f"feature `{r.FEATURE}`" in TEXT
    assert ", ".join(r.NodeLink._fields) in TEXT
    assert f"[{', '.join(r.CopyEnd._fields)}]" in TEXT
    assert f"at most {r.ASKED_STREAMS_MAX} names" in TEXT


def test_what_is_said_of_consumers() -> None:
    assert [row[0] for row in table("deeds")] == list(get_args(c.Deed))
    assert [row[0] for row in table("standing")] == [each.name for each in fields(c.Standing)]
    assert f"feature `{c.FEATURE}`" in TEXT
    assert f"feature `{FILTERS}`" in TEXT
    assert f"filter](protocol.md#topics) of at most {c.CONSUMER_FILTER_BYTES_MAX} bytes" in TEXT
    assert f"closed for {GRACE_US // 1_000_000} s" in " ".join(TEXT.split())
    ack_wait_us, deliveries, retry_us, retry_max_us = DEFAULTS
    assert f"in flight at most; left out: {ack_wait_us // 1_000_000} |" in TEXT
    assert f"any number of times; left out: {deliveries} |" in TEXT
    assert f"0: no wait; left out: {retry_us // 1_000_000} |" in TEXT
    assert f"left out: {retry_max_us // 1_000_000}, or `retry_s` if that is more |" in TEXT
    assert "for at least two seconds" in " ".join(TEXT.split()) and serving.COPY_WAIT_MIN_S == 2.0


def test_what_is_listed() -> None:
    assert f"feature `{listing.FEATURE}`" in TEXT
    assert [row[0] for row in table("listed streams")] == [each.name for each in fields(listing.StreamRow)]
    assert [row[0] for row in table("listed workers")] == [each.name for each in fields(listing.WorkerRow)]
    assert [row[0] for row in table("lists")] == list(get_args(listing.ListedKind))
    assert f"{listing.NAMES_MAX} names or {listing.STREAMS_MAX} streams" in " ".join(TEXT.split())
    assert f"{LISTS_MAX} LISTs of a connection" in " ".join(TEXT.split())


def test_what_is_collected() -> None:
    assert f"feature `{collecting.FEATURE}`" in TEXT
    assert f"from {collecting.ADDED_FROM} on" in TEXT
    assert f"at most {collecting.POSITIONS_MAX} `positions`" in " ".join(TEXT.split())
    assert f"at most {COLLECTS_MAX} COLLECTs" in " ".join(TEXT.split())


def test_the_limits_of_what_is_said_of_consumers() -> None:
    assert [int(value.split()[0]) for _limit, value, _above in table("consumer limits")] == [
        CONSUMER_BYTES_MAX,
        c.CONSUMERS_MAX,
        c.FINISHED_MAX,
        c.FAILED_MAX,
        c.REASON_BYTES_MAX,
        c.MESSAGES_MAX,
        c.GET_BYTES_MAX,
        c.WAIT_MAX_MS,
        c.ACK_WAIT_MAX_S,
        c.DELIVERIES_MAX,
        c.ACK_WAIT_MAX_S,
        c.DELAY_MAX_MS,
        c.STALE_MAX,
        serving.GETS_MAX,
        serving.MEMBERS_MAX,
    ]


def test_the_limits_of_what_nodes_say() -> None:
    assert [int(value.split()[0]) for _limit, value in table("replication limits")] == [
        r.HELD_ROWS_MAX,
        r.NAMES_MAX,
        r.LINKS_MAX,
        EPOCHS_MAX,
        r.ROWS_MAX,
        NODE_BYTES_MAX,
        calls.CALLS_MAX,
        calls.ARGS_BYTES_MAX,
        calls.LIST_BYTES_MAX,
        calls.GIVEN_BYTES_MAX,
        calls.SHORT_BYTES_MAX,
        calls.RANGES_MAX,
    ]


def test_what_nodes_ask_each_other() -> None:
    assert {row[0] for row in table("verbs")} == c.REQUEST_VERBS


# --- the session ------------------------------------------------------------------------------------------------------


def test_the_session_is_what_is_packed() -> None:
    for (who, name, data), (speaker, message) in zip(shown_session(), SESSION, strict=True):
        packed = message if isinstance(message, bytes) else m.pack(message)
        assert (who, data) == (speaker, packed), name
        if not isinstance(message, bytes):
            assert name == m.Op(data[0]).name


def test_the_session_is_understood_by_both_codecs() -> None:
    """One after the other, as each side would receive it; the client's mistakes are answered as shown."""
    broker, client = server(welcomed=False), ClientCodec(features=ALL_FEATURES)
    refused: list[m.Failed] = []
    for (who, _name, data), (_speaker, message) in zip(shown_session(), SESSION, strict=True):
        if who == "←":
            assert feed_client(client, [data]) == [message]
            if isinstance(message, m.Failed):
                assert refused.pop() == message
            continue
        (heard,) = feed_server(broker, [data])
        if isinstance(heard, m.Malformed):
            refused.append(heard.answer())
        else:
            assert flat([heard]) == [message]
    assert broker.pending_bytes == client.pending_bytes == len(refused) == 0


def test_what_stands_beside_the_bytes_is_in_them() -> None:
    """The heads, and every field of the maps."""
    told = 0
    for data, comment in shown_lines():
        key, _, value = comment.partition(": ")
        if comment.startswith("opcode"):
            opcode, length = HEAD.unpack(data)
            assert comment == f"opcode {opcode}, body of {length} bytes"
        elif key.isidentifier() and key != "frame":
            assert data == msgpack.packb(key) + msgpack.packb(json.loads(value))
        elif comment.startswith("payload"):
            assert data.decode() == json.loads(comment.removeprefix("payload "))
        else:
            continue
        told += 1
    assert told > 40


def shown_lines() -> list[tuple[bytes, str]]:
    """The bytes that each comment of the session stands for."""
    found: list[tuple[bytes, str]] = []
    for line in TEXT.split("## A session", 1)[1].split("```\n")[1].splitlines():
        shown, _, comment = line.strip().partition("  ")
        if line[0] == " " and comment:
            found.append((bytes.fromhex(shown), comment.strip()))
        elif line[0] == " ":
            found[-1] = found[-1][0] + bytes.fromhex(shown), found[-1][1]
    return found


def test_the_operations_for_nodes_alone() -> None:
    [bounds] = re.findall(r"Those from (\d+) to (\d+) and from (\d+) to (\d+) are for nodes", TEXT)
    first, last, more_first, more_last = map(int, bounds)
    of_nodes = {*replication_readers.READERS.requests, *replication_readers.READERS.responses}
    assert {*range(first, last + 1), *range(more_first, more_last + 1)} == of_nodes
