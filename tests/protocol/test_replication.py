"""The bytes of messages between nodes, and the limits of one envelope."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.envelope import HEAD_BYTES
from tailrace.protocol.errors import UsageError
from tailrace.protocol.fields import NUMBER_MAX, U32_MAX
from tailrace.protocol.names import NODE_BYTES_MAX, StreamGroup
from tailrace.protocol.places import FROM_NEW
from tailrace.shard.epochs import EPOCH_MAX, EPOCHS_MAX, NEVER_SEQ, EpochStart
from tests.protocol.wires import HISTORY, client, feed_client, feed_server, server

LONG_NODE = "n" * NODE_BYTES_MAX


def control(message: m.AnyMessage) -> object:
    """What msgpack makes of a body."""
    return msgpack.unpackb(m.pack(message)[HEAD_BYTES:])


def test_every_message_has_its_packer() -> None:
    assert set(r.PACKERS) == {*get_args(r.NodeRequest), *get_args(r.NodeResponse)}
    of_nodes = {*range(m.Op.FOLLOW, m.Op.TOLD + 1), *range(m.Op.CALL, m.Op.FENCED + 1)}
    assert {kind.__name__.upper() for kind in r.PACKERS} == {op.name for op in m.Op if op in of_nodes}


def test_requests_are_maps_without_what_is_not_said() -> None:
    follow = {"id": 1, "stream": "é", "next_seq": 7, "term": 2, "term_master": "n1"}
    assert control(r.Follow(1, "é".encode(), 7, 2, "n1", last=(3, 4))) == follow | {"epoch": 3, "crc": 4}
    assert control(r.Follow(1, "é".encode(), 7, 2, "n1", start=FROM_NEW)) == follow | {"from": ["new", 0]}
    assert control(r.Held(((1, "n2", 7, 5),), ((2, "n3"),))) == {"rows": [[1, "n2", 7, 5]], "gone": [[2, "n3"]]}
    assert control(r.Watch(1, b"")) == {"id": 1, "prefix": ""}
    assert control(r.Claim(1, b"s", HISTORY[:1])) == {"id": 1, "stream": "s", "history": [[1, 0, "n1"]]}
    assert control(r.Fence(1, b"s", 4)) == {"id": 1, "stream": "s", "epoch": 4}
    assert control(r.Ask(1)) == {"id": 1}
    assert control(r.Ask(1, b"s")) == {"id": 1, "stream": "s"}
    assert control(r.Ask(1, None, (b"s",))) == {"id": 1, "streams": ["s"]}
    in_group = r.Ask(1, promise=(7, 40), group=StreamGroup(3, 16))
    assert control(in_group) == {"id": 1, "promise": [7, 40], "group": [3, 16]}
    assert control(r.Call(1, b"s", "get", b"\x90")) == {"id": 1, "stream": "s", "verb": "get", "args": b"\x90"}


def test_responses_are_maps() -> None:
    assert control(r.Followed(1, "following", 7, 2, 9, "master", HISTORY[:2], ("n1",))) == {
        "id": 1, "state": "following", "start_seq": 7, "first_seq": 2, "next_seq": 9, "role": "master",
        "history": [[1, 0, "n1"], [4, 6, ""]], "path": ["n1"],
    }  # fmt: skip
    unawaited = r.Followed(1, "news", 0, 2, 9, "master", (), ("n1",), awaited=False)
    assert control(unawaited) == {
        "id": 1, "state": "news", "start_seq": 0, "first_seq": 2, "next_seq": 9, "role": "master", "history": [],
        "path": ["n1"], "awaited": False,
    }  # fmt: skip
    assert control(r.Names(1, ("é".encode(),))) == {"id": 1, "names": ["é"]}
    assert control(r.Claimed(1, "slave", 4, "n2", True)) == {
        "id": 1, "role": "slave", "epoch": 4, "master": "n2", "accepted": True,
    }  # fmt: skip
    assert control(r.Fenced(1, "slave", 4)) == {"id": 1, "role": "slave", "epoch": 4}
    assert control(r.Told(1, "n1", ":1", (r.NodeLink("up", "n2", "a:1", "down", 1, 2, 3, 4),), 5, 6, 7)) == {
        "id": 1, "node": "n1", "address": ":1", "links": [["up", "n2", "a:1", "down", 1, 2, 3, 4]],
        "masters": 5, "slaves": 6, "disabled": 7, "ends": [], "turned": 0, "promised": False,
    }  # fmt: skip
    assert control(r.Returned(1, b"\x80")) == {"id": 1, "value": b"\x80"}
    assert control(r.Returned(1, None, "consumer", "none")) == {"id": 1, "code": "consumer", "text": "none"}


def test_a_number_that_no_message_holds_is_our_own_mistake() -> None:
    with pytest.raises(UsageError, match="cannot be packed"):
        m.pack(r.Ask(2**64))


def test_messages_are_values() -> None:
    assert r.Ask(1, b"s") == r.Ask(1, b"s") != r.Ask(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        r.Ask(1).id = 2  # type: ignore[misc]


# --- as much as there is ----------------------------------------------------------------------------------------------


def heard(envelopes: list[bytes]) -> list[r.Held]:
    """What a broker takes them for; each is short enough."""
    assert all(len(each) <= HEAD_BYTES + m.CONTROL_BODY_MAX_BYTES for each in envelopes)
    found = feed_server(server(), envelopes)
    held = [each for each in found if isinstance(each, r.Held)]
    assert len(held) == len(found) == len(envelopes)
    return held


@given(st.integers(0, 2_100), st.integers(0, 2_100))
def test_any_number_of_rows_is_told_in_order_and_what_is_gone_first(rows: int, gone: int) -> None:
    rows_told = [(U32_MAX - number, LONG_NODE, NUMBER_MAX, NUMBER_MAX) for number in range(rows)]
    gone_told = [(U32_MAX - number, LONG_NODE) for number in range(gone)]
    held = heard(r.pack_held(rows_told, gone_told))
    assert [row for each in held for row in each.rows] == rows_told
    assert [row for each in held for row in each.gone] == gone_told
    assert not any(before.rows and after.gone for before, after in pairwise(held))
    assert len(held) == -(-rows // r.HELD_ROWS_MAX) + -(-gone // r.HELD_ROWS_MAX)


def test_the_longest_history_can_be_claimed() -> None:
    first = EPOCH_MAX - EPOCHS_MAX
    history = tuple(EpochStart(first + each, NEVER_SEQ - 1, LONG_NODE) for each in range(1, EPOCHS_MAX + 1))
    claim = r.Claim(U32_MAX, b"s" * 200, history)
    assert feed_server(server(), [m.pack(claim)]) == [claim]


def test_the_longest_answers_are_taken() -> None:
    link = r.NodeLink("down", LONG_NODE, "a:1", "following", NUMBER_MAX, NUMBER_MAX, NUMBER_MAX, NUMBER_MAX)
    end = r.CopyEnd("s" * 200, "disabled", U32_MAX, U32_MAX, NUMBER_MAX, LONG_NODE)
    told = r.Told(1, LONG_NODE, "", (link,) * r.LINKS_MAX, 0, 0, 0, (end,) * r.ENDS_MAX)
    names = r.Names(1, tuple(b"%0200d" % each for each in range(r.NAMES_MAX)))
    assert feed_client(client(), [m.pack(told) + m.pack(names)]) == [told, names]
