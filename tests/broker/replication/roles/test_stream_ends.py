"""The ends of a node's copies, as it reports them to those who are to choose the next master."""

from __future__ import annotations

from pathlib import Path

from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.owner_calls import call
from tailrace.protocol.replication import CopyEnd
from tailrace.shard.epochs import EpochStart
from tailrace.shard.errors import StreamDamaged
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.meta import Role, StreamMeta
from tests.broker.owning import make_owner, publish

S = b"s"
stamp = load("tailrace.shard.frame_cy").stamp


def rows(owner: Owner, *names: bytes) -> list[CopyEnd]:
    return [CopyEnd(*row) for row in call(owner, "ends", [list(names)])]


def rows_here(owner: Owner, *names: bytes) -> list[CopyEnd]:
    """The same of streams whose masters are unknown or this node: that is left out."""
    found = rows(owner, *names)
    assert {end.last_master for end in found} <= {"", owner.catalog.directory.node_id}
    return [end._replace(last_master="") for end in found]


def test_the_term_of_the_last_message_is_not_the_latest_that_is_known(tmp_path: Path) -> None:
    """A master that comes back has learned of term 5; its messages are of its own term, the first."""
    owner = make_owner(tmp_path / "data")
    publish(owner, S, b"a", b"b")
    owner.roles.set_meta(StreamMeta("s", Role.SLAVE, 5, None, owner.roles.meta(S).history))
    assert rows(owner, S) == [CopyEnd("s", "slave", 5, 1, 2)]
    stat = call(owner, "stat", [S])
    assert "last_master" not in stat
    assert (stat["epoch"], stat["last_epoch"], stat["next_seq"]) == (5, 1, 2)
    owner.release()


def test_a_term_counts_from_its_beginning_on(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, S, b"a")
    owner.roles.set_meta(StreamMeta("s", Role.SLAVE, 1))
    assert call(owner, "promote", [S]) == 2
    assert rows_here(owner, S) == [CopyEnd("s", "master", 2, 2, 1)]
    publish(owner, S, b"b")
    assert rows_here(owner, S) == [CopyEnd("s", "master", 2, 2, 2)]
    owner.release()


def test_a_slave_is_in_a_term_when_it_has_all_that_is_before(tmp_path: Path) -> None:
    """Its upstream has reported that term 4 begins at seq 3."""
    owner = make_owner(tmp_path / "data")
    publish(owner, S, b"a", b"b")
    owner.roles.set_meta(StreamMeta("s", Role.SLAVE, 4, None, (EpochStart(1, 0, "n1"), EpochStart(4, 3, "n2"))))
    assert rows(owner, S) == [CopyEnd("s", "slave", 4, 1, 2, "n1")]
    frames = bytearray(pack_frame(b"c"))
    stamp(frames, 2, owner.stream(S).log.last_timestamp_us, 1, 0)
    owner.take_frames(S, [memoryview(frames)], 0.0)
    assert rows(owner, S) == [CopyEnd("s", "slave", 4, 4, 3, "n2")]
    assert call(owner, "stat", [S])["last_master"] == "n2"
    owner.release()


def test_the_last_term_outlives_its_messages(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    owner.create(S)
    assert rows_here(owner, S) == [CopyEnd("s", "master", 1, 0, 0)]
    publish(owner, S, b"a", b"b")
    owner.trim(owner.stream(S), 2)
    assert rows_here(owner, S) == [CopyEnd("s", "master", 1, 1, 2)]
    owner.release()
    owner = make_owner(tmp_path / "data")
    assert rows_here(owner, S) == [CopyEnd("s", "master", 1, 1, 2)]
    owner.release()


def test_companions_are_reported_and_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    owner = make_owner(tmp_path / "data")
    publish(owner, S, b"a")
    owner.create(b"$cursor/s", by_command=True)
    owner.create(b"broken")
    owner.catalog.open.pop(b"broken").log.close()
    owner.catalog.note_damage(b"broken", StreamDamaged("broken", tmp_path, 0, "for the test"))
    found = rows_here(owner, b"broken", b"other", S)
    assert found == [CopyEnd("s", "master", 1, 1, 1), CopyEnd("$cursor/s", "master", 1, 0, 0)]
    owner.release()


def test_a_longer_copy_of_an_earlier_term_ranks_lower() -> None:
    returned, heir = CopyEnd("s", "master", 7, 1, 900), CopyEnd("s", "slave", 2, 2, 700)
    assert heir.is_ahead_of(returned) and not returned.is_ahead_of(heir)
    assert CopyEnd("s", "slave", 2, 2, 701).is_ahead_of(heir) and not heir.is_ahead_of(heir)


def test_of_two_terms_with_one_number_that_of_the_larger_node_id_ranks_higher() -> None:
    """What the other has of it will be set aside, however much it is."""
    loser, winner = CopyEnd("s", "slave", 12, 11, 1_036, "n2"), CopyEnd("s", "slave", 12, 11, 569, "n4")
    assert winner.is_ahead_of(loser) and not loser.is_ahead_of(winner)
    assert CopyEnd("s", "slave", 12, 11, 570, "n4").is_ahead_of(winner)
    unknown = CopyEnd("s", "slave", 12, 11, 569)
    assert not winner.is_ahead_of(unknown) and not unknown.is_ahead_of(winner) and loser.is_ahead_of(unknown)
