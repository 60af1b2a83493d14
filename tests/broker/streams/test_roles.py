"""The metadata written for streams, and when it takes effect."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tailrace.broker.replication.roles.node_file import NodeFile, write_node_file
from tailrace.broker.replication.roles.rules import Rule
from tailrace.broker.streams import roles as roles_module
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.protocol.errors import Code
from tailrace.shard.meta import Role, StreamMeta, Upstream, read_meta, write_meta
from tests.broker.owning import around, make_owner, publish

UPSTREAM = Upstream("10.0.0.1", 5050)


def follow(owner: Owner, name: bytes = b"s") -> None:
    if name not in owner.catalog.names:
        owner.create(name)
    owner.roles.set_meta(StreamMeta(name.decode(), Role.SLAVE, 1, UPSTREAM))


def test_streams_are_known_again_with_their_roles(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"kept")
    publish(owner, b"gone")
    owner.release()
    write_meta(owner.catalog.shard_path(b"gone"), StreamMeta("gone", role=Role.DISABLED, epoch=3))
    owner = make_owner(tmp_path / "data")
    assert set(owner.catalog.names) == {b"kept", b"gone"} and not owner.catalog.open
    assert (owner.roles.role(b"kept"), owner.roles.epoch(b"kept")) == (Role.MASTER, 1)
    assert (owner.roles.role(b"gone"), owner.roles.epoch(b"gone")) == (Role.DISABLED, 3)
    assert publish(owner, b"gone").refusals[0][0] is Code.DISABLED
    assert publish(owner, b"kept").published_at == {0: 1}
    owner.release()


def test_damaged_metadata_makes_its_stream_refuse(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, b"hurt")
    owner.release()
    write_meta(owner.catalog.shard_path(b"hurt"), StreamMeta("hurt", epoch=2))
    (meta,) = owner.catalog.shard_path(b"hurt").glob("hurt.meta")
    meta.write_bytes(meta.read_bytes()[:-1])
    owner = make_owner(tmp_path / "data")
    assert publish(owner, b"hurt").refusals[0][0] is Code.DAMAGED
    owner.release()


def test_what_is_written_down_counts_before_rules_and_rules_before_the_default(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    write_node_file(owner.catalog.directory.path, NodeFile((Rule(b"log.*", UPSTREAM),), followed=True))
    assert (owner.roles.role(b"log.a"), owner.roles.was_followed) == (Role.MASTER, False)
    owner.roles.read_rules()
    assert (owner.roles.meta(b"log.a"), owner.roles.was_followed) == (
        StreamMeta("log.a", Role.SLAVE, upstream=UPSTREAM),
        True,
    )
    assert owner.roles.meta(b"else") == StreamMeta("else")
    owner.create(b"log.a")
    assert owner.catalog.open[b"log.a"].epoch == 0 and not list(tmp_path.glob("**/*.meta"))
    owner.roles.set_meta(StreamMeta("log.a", Role.MASTER, 3))
    assert (owner.roles.role(b"log.a"), owner.roles.epoch(b"log.a"), owner.catalog.open[b"log.a"].epoch) == (
        Role.MASTER,
        3,
        3,
    )


def test_a_role_is_told_once_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = make_owner(tmp_path / "data")
    owner.create(b"s")
    told: list[Role] = []
    around(owner).on_role = lambda name: told.append(read_meta(owner.catalog.shard_path(name), "s").role)
    follow(owner)
    assert told == [Role.SLAVE]

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(roles_module, "write_meta", full)
    with pytest.raises(Refused) as refused:
        owner.roles.set_meta(StreamMeta("s", Role.MASTER, 2))
    assert refused.value.code is Code.FULL and told == [Role.SLAVE]
    assert owner.roles.role(b"s") is Role.SLAVE and owner.catalog.open[b"s"].epoch == 0
