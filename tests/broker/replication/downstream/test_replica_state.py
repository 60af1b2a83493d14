"""The state of a stream that an owner reports to the sessions of its followers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from tailrace.broker.replication.downstream import replica_state
from tailrace.broker.replication.downstream.replica_state import ReplicaState
from tailrace.broker.streams.owner import Refused
from tailrace.broker.streams.owner_calls import call
from tailrace.protocol.errors import Code
from tailrace.shard.epochs import EpochStart
from tests.broker.owning import around, make_owner, publish

S = b"s"


def through_msgpack(value: Any) -> Any:
    return msgpack.unpackb(msgpack.packb(value))


def test_a_stream_is_made_for_its_first_follower(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    here = owner.catalog.directory.node_id
    found = replica_state.unpack(through_msgpack(call(owner, "follow", [S, 1, ""])))
    line = owner.replicas.holders(S).line
    assert found == ReplicaState("master", (EpochStart(1, 0, here),), (here,), 0, 0, line, awaited=False)
    publish(owner, S)
    around(owner).path_above = lambda _name: ("node-a",)
    found = replica_state.unpack(call(owner, "follow", [S, 1, ""]))
    assert (found.next_seq, found.path) == (1, (here, "node-a"))


def test_a_node_that_makes_no_streams_makes_none_for_followers(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        call(make_owner(tmp_path, auto_master=False), "follow", [S, 1, ""])
    assert refused.value.code is Code.DISABLED


def test_a_master_gives_in_to_a_later_term_before_it_answers(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    publish(owner, S)
    assert replica_state.unpack(call(owner, "follow", [S, 1, ""])).role == "master"
    assert replica_state.unpack(call(owner, "follow", [S, 2, "node-c"])).role == "slave"
    assert publish(owner, S).refusals, "it takes no more messages"


def test_a_follower_of_the_same_epoch_ends_no_master(tmp_path: Path) -> None:
    """It may be a former master, or have another stream of that name: a command made it follow this one."""
    owner = make_owner(tmp_path)
    publish(owner, S)
    assert replica_state.unpack(call(owner, "follow", [S, 1, "~ after every node id"])).role == "master"


def test_of_many_streams_those_are_told_that_can_be(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    publish(owner, S)
    rows = through_msgpack(replica_state.lineages(owner, [b"unknown", S]))
    assert [(name, replica_state.unpack(row).next_seq) for name, row in rows] == [(S, 1)]


def test_a_circle_is_named() -> None:
    replica_state.require_no_cycle("x", ("a", "b"))
    replica_state.require_no_cycle("x", ())
    with pytest.raises(Refused) as refused:
        replica_state.require_no_cycle("x", ("a", "x", "b"))
    assert refused.value.code is Code.CYCLE and "x -> a -> x" in refused.value.text
