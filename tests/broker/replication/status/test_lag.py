"""How far copies are behind, and how `stat` shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.replication.downstream.replica_acks import ReplicaAcks, ReplicaPosition
from tailrace.broker.replication.status.lag import NO_LAG, Lag, lag_of, stat_of_slaves
from tests.broker.owning import Clock, make_owner, publish
from tests.broker.world import world

S = b"s"
FRAME_BYTES = 32 + len(b"message")


def test_a_lag_is_what_is_missing_and_how_old_it_is(tmp_path: Path) -> None:
    clock = Clock()
    owner = make_owner(tmp_path, clock)
    for _ in range(3):
        publish(owner, S)
        clock.now_s += 1.0
    log = owner.stream(S).log
    now_us = clock.microseconds()
    assert lag_of(log, 3, now_us) == lag_of(log, 9, now_us) == NO_LAG
    assert lag_of(log, 1, now_us) == Lag(2, 2 * FRAME_BYTES, 2_000_000)
    assert lag_of(log, 0, now_us - 10_000_000).age_us == 0, "clocks differ"
    owner.trim(owner.stream(S), 2)
    assert lag_of(log, 0, now_us) == Lag(1, FRAME_BYTES, 1_000_000), "what is kept no more is nobody's lag"


def test_stat_has_a_row_for_each_slave(tmp_path: Path) -> None:
    clock = Clock()
    owner = make_owner(tmp_path, clock)
    publish(owner, S)
    publish(owner, S)
    clock.now_s += 2.5
    stream = owner.stream(S)
    assert stat_of_slaves(stream, None, 0) == {"slaves": 0, "slaves_caught_up": 0}
    holders = ReplicaAcks(1)
    holders.record("node-c", ReplicaPosition(1, 0, (0, 0, 0)))
    holders.record("node-b", ReplicaPosition(2, 1, (0, 0, 0)))
    assert stat_of_slaves(stream, holders, clock.microseconds()) == {
        "slaves": 2,
        "slaves_caught_up": 1,
        "slave:node-b": "next_seq=2,synced_seq=1,lag_messages=0,lag_bytes=0,lag_s=0.000",
        "slave:node-c": f"next_seq=1,synced_seq=0,lag_messages=1,lag_bytes={FRAME_BYTES},lag_s=2.500",
    }


def test_stat_of_a_slave_says_whom_it_follows_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path) as node:
        peer = node.connect()
        node.fill("s", [b"x"])
        assert node.ask(peer, "slave 127.0.0.1 1 s 0")[0].startswith("ok slave")
        rows = dict(line.split(" ", 1) for line in node.ask(peer, "stat s")[1:-1])
        assert (rows["role"], rows["upstream"], rows["upstream_node"]) == ("slave", "127.0.0.1:1", "-")
        assert rows["link"].startswith("down_") and rows["copy"].startswith("down")
        assert (rows["lag_messages"], rows["lag_s"]) == ("0", "0.000")
        found = node.workers[0].uplinks.copy_of(b"s")
        assert found is not None
        found[1].end_seq = 5
        rows = dict(line.split(" ", 1) for line in node.ask(peer, "stat s")[1:-1])
        assert rows["lag_messages"] == "4" and float(rows["lag_s"]) > 0
