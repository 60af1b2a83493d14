"""Locks, names and damage, as an owner meets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.streams.catalog import LOCK_PATIENCE_S
from tailrace.broker.streams.owner import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.deletion import DELETED_SUFFIX
from tailrace.shard.errors import ShardLocked
from tailrace.shard.files import NEW_SUFFIX
from tailrace.shard.stream_files import stream_paths
from tests.broker.owning import make_owner, publish


def test_a_damaged_stream_refuses_alone_and_is_counted_once(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"hurt")
    publish(owner, b"sound")
    owner.release()
    Path(stream_paths(owner.catalog.shard_path(b"hurt"), "hurt").content_file).write_bytes(bytes(100))
    owner = make_owner(tmp_path / "data")
    for _ in range(3):
        code, text = publish(owner, b"hurt").refusals[0]
        assert code is Code.DAMAGED and "hurt.content" in text
    assert publish(owner, b"sound").published_at == {0: 1}
    assert owner.metrics.damaged_streams == 1
    owner.release()


def test_shards_have_one_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = make_owner(tmp_path / "data", slot=0, slots=2)
    other = make_owner(tmp_path / "data", slot=1, slots=2)
    monkeypatch.setattr("tailrace.broker.streams.catalog.LOCK_PATIENCE_S", 0.0)
    with pytest.raises(ShardLocked):
        make_owner(tmp_path / "data", slot=1, slots=2)
    assert LOCK_PATIENCE_S > 1, "a predecessor that leaves is waited for"
    owner.release()
    other.release()


def test_the_record_of_a_deletion_that_never_began_goes(tmp_path: Path) -> None:
    """The crash came before it had its name."""
    owner = make_owner(tmp_path / "data")
    publish(owner, b"s")
    left = owner.catalog.shard_path(b"s") / f"s{DELETED_SUFFIX}{NEW_SUFFIX}"
    owner.release()
    left.write_bytes(b"half")
    successor = make_owner(tmp_path / "data")
    assert not left.exists() and publish(successor, b"s").published_at == {0: 1}
    successor.release()


def test_who_has_released_its_shards_opens_nothing_any_more(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"s")
    owner.release()
    assert publish(owner, b"s").refusals[0][0] is Code.UNAVAILABLE
    assert publish(owner, b"new").refusals[0][0] is Code.UNAVAILABLE
    with pytest.raises(Refused, match="does not own"):
        owner.stream(b"s")
    successor = make_owner(tmp_path / "data")
    assert publish(successor, b"s").published_at == {0: 1}
    successor.release()
