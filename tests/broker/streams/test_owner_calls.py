from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.streams.listing import disk_bytes
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.broker.streams.owner_calls import STREAMS_ROWS_MAX, call
from tailrace.protocol.errors import Code
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.meta import Role
from tailrace.shard.stream_files import stream_paths
from tests.broker.owning import Clock, around, make_owner, publish


def refusal(owner: Owner, verb: str, *args: Any) -> Code:
    with pytest.raises(Refused) as refused:
        call(owner, verb, list(args))
    return refused.value.code


def test_the_end_of_a_stream(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    assert refusal(owner, "end", b"s") is Code.UNKNOWN and not owner.catalog.names
    publish(owner, b"s", b"a", b"b")
    assert call(owner, "end", [b"s"]) == 2
    owner.release()


def test_a_master_that_is_none_any_more_comes_back_with_its_next_term(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    assert refusal(owner, "unmaster", b"s") is Code.UNKNOWN
    assert call(owner, "master", [b"s"]) == call(owner, "master", [b"s"]) == 1
    assert call(owner, "unmaster", [b"s"]) == call(owner, "unmaster", [b"s"]) == 1
    assert publish(owner, b"s").refusals[0][0] is Code.DISABLED
    assert owner.roles.role(b"s") is Role.DISABLED
    assert call(owner, "master", [b"s"]) == 2
    assert publish(owner, b"s").published_at == {0: 0}
    owner.release()
    owner = make_owner(tmp_path / "data")
    assert (owner.roles.role(b"s"), owner.roles.epoch(b"s")) == (Role.MASTER, 2), "and stays so"
    owner.release()


def test_a_role_that_cannot_be_written_down_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = make_owner(tmp_path / "data")
    call(owner, "master", [b"s"])

    def fail(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tailrace.broker.streams.roles.write_meta", fail)
    assert refusal(owner, "unmaster", b"s") is Code.FULL
    assert owner.roles.role(b"s") is Role.MASTER
    owner.release()


@pytest.mark.parametrize(
    ("place", "first_seq"),
    [(["seq", 4], 4), (["seq", 99], 10), (["seq", 0], 0), (["new", 0], 10), (["time", 1_005_000_000], 5)],
)
def test_trim_by_place(tmp_path: Path, place: list[Any], first_seq: int) -> None:
    clock = Clock()
    owner = make_owner(tmp_path / "data", clock)
    heard: list[int] = []
    around(owner).on_trim = lambda _stream, dropped: heard.append(dropped)
    for _ in range(10):
        publish(owner, b"s")
        clock.now_s += 1.0
    assert call(owner, "trim", [b"s", place, False]) == [first_seq, first_seq]
    assert call(owner, "trim", [b"s", place, False]) == [first_seq, 0]
    assert heard == ([first_seq] if first_seq else [])
    owner.release()


def test_stat(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    call(owner, "master", [b"s"])
    empty = call(owner, "stat", [b"s"])
    assert (empty["messages"], empty["content_bytes"], empty["first_timestamp_us"]) == (0, 0, 0)
    publish(owner, b"s", b"12345", b"67890")
    found = call(owner, "stat", [b"s"])
    assert (found["first_seq"], found["next_seq"], found["messages"]) == (0, 2, 2)
    assert found["content_bytes"] == 2 * (32 + 5)
    assert found["first_timestamp_us"] == found["last_timestamp_us"] == 1_000_000_000
    assert found["disk_bytes"] > 0 and found["role"] == "master" and found["durability"] == "async"
    assert refusal(owner, "stat", b"none") is Code.UNKNOWN
    owner.release()


def test_the_brokers_own_streams_are_listed_by_their_prefix_only(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    for name in (b"$cursor/s", b"s/$dead"):
        owner.create(name)
    assert sorted(row[0] for row in call(owner, "streams", [b""])) == [b"s", b"s/$dead"]
    assert call(owner, "streams", [b"$cur"]) == [[b"$cursor/s", "master", 1]]


def test_streams_by_prefix_without_opening_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = make_owner(tmp_path / "data")
    for name in (b"a1", b"a2", b"b1"):
        publish(owner, name)
    owner.close_logs()
    assert sorted(call(owner, "streams", [b"a"])) == [[b"a1", "master", 1], [b"a2", "master", 1]]
    assert len(call(owner, "streams", [b""])) == 3 and not owner.catalog.open
    monkeypatch.setattr("tailrace.broker.streams.owner_calls.STREAMS_ROWS_MAX", 2)
    assert refusal(owner, "streams", b"") is Code.OVERLOADED
    assert STREAMS_ROWS_MAX > 2
    owner.release()


def test_damage_that_a_call_meets_is_its_answer(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"s", b"a", b"b", b"c")
    paths = stream_paths(owner.catalog.shard_path(b"s"), "s")
    os.truncate(paths.index_file, HEADER_PAGE_BYTES)
    assert refusal(owner, "stat", b"s") is Code.DAMAGED
    assert refusal(owner, "trim", b"s", ["seq", 2], False) is Code.DAMAGED
    owner.release()


def test_a_disk_that_refuses_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"s")

    def fail(*_args: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tailrace.shard.log.seq_at", fail)
    assert refusal(owner, "trim", b"s", ["time", 5], False) is Code.UNAVAILABLE
    owner.release()


def test_files_that_are_not_there_take_no_space(tmp_path: Path) -> None:
    assert disk_bytes(stream_paths(tmp_path, "none")) == 0
