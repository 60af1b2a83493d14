"""An owner lets go of a stream: the work it waits for, the refused requests, and the remains if the files cannot go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.replication.downstream.replica_state import follow
from tailrace.broker.replication.roles.apply_rules import rule, rules
from tailrace.broker.replication.roles.rules import Rule, Rules
from tailrace.broker.replication.roles.stream_roles import claimable, claimed, history_of, promote
from tailrace.broker.streams.deletion import Deletions
from tailrace.broker.streams.owner import OpenStream
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard import deletion as files
from tailrace.shard.meta import Role, StreamMeta, Upstream
from tailrace.shard.names import cursor_name, dead_name, shard_of
from tests.broker.consumers.desks import Office, S
from tests.broker.owning import around

ALL = [S, cursor_name(S)]


class Place(Office):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.forgotten: list[bytes] = []
        self.gone: list[bytes] = []
        around(self.owner).on_deleted = self.gone.append
        self.deletions = Deletions(self.owner, self.syncer, self._forget)

    def _forget(self, name: bytes) -> None:
        self.forgotten.append(name)
        self.desk.deleted(name)
        self.upkeep.forget(name)

    def delete(self, name: bytes = S, *, copy: bool = False) -> list[Any]:
        answers: list[Any] = []
        self.deletions.begin(name, answers.append, copy=copy)
        return answers

    def finish(self) -> None:
        self.syncer.work()
        self.upkeep.take_outcomes()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    place.owner.create(S)
    place.publish(b"old")
    place.create()
    place.sync()
    yield place


def stems(place: Place) -> set[str]:
    return {file.suffix for file in place.owner.catalog.shard_path(S).iterdir() if file.suffix}


def terms_of_deleted(place: Office) -> dict[bytes, int]:
    return {name: deleted.epoch for name, deleted in place.owner.catalog.deleted.items()}


def code(answers: list[Any]) -> Code:
    (answer,) = answers
    assert isinstance(answer, Refused), answer
    return answer.code


def test_nobody_finds_it_and_it_can_be_made_again(place: Place) -> None:
    answers = place.delete()
    assert not answers and place.forgotten == ALL and not place.owner.catalog.names
    with pytest.raises(Refused) as caught:
        place.owner.create(S)
    assert caught.value.code is Code.UNAVAILABLE, "its files are still there"
    place.finish()
    assert answers == [{}] and place.gone == ALL and stems(place) == {".deleted", ".meta"}
    place.owner.create(S)
    place.publish(b"new")
    stream = place.owner.stream(S)
    assert (stream.log.next_seq, stream.log.last_epoch) == (1, 2)
    assert stems(place) == {".content", ".indx", ".meta"}
    assert place.rows() == {}


def test_a_term_above_all_that_were(place: Place) -> None:
    for expected in (2, 3, 4):
        place.delete()
        place.finish()
        assert place.owner.roles.epoch(S) == expected
        if expected == 3:
            office = place.crash()
            assert terms_of_deleted(office) == {S: 3}
            office.owner.release()
            place = Place(place.path)
        place.owner.create(S)
        place.publish(b"again")


def test_what_is_being_synced_is_waited_for(place: Place) -> None:
    stream = place.owner.stream(S)
    stream.syncing = True
    answers = place.delete()
    place.deletions.tick()
    assert S in place.owner.catalog.names and stream.epoch == 0 and not place.forgotten
    stream.syncing = False
    place.deletions.tick()
    place.finish()
    assert answers == [{}]


def test_a_worker_that_stops_has_not_begun(place: Place) -> None:
    place.owner.stream(S).syncing = True
    answers = place.delete()
    place.deletions.stop()
    assert code(answers) is Code.UNAVAILABLE and S in place.owner.catalog.names
    assert code(place.delete()) is Code.UNAVAILABLE and not place.deletions.removing


def test_the_shards_are_kept_until_the_files_are_gone(place: Place) -> None:
    place.delete()
    place.deletions.stop()
    assert place.deletions.removing == 1
    place.finish()
    assert not place.deletions.removing


def test_a_disk_that_refuses_the_first_step(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    place.owner.roles.metas[S] = StreamMeta(S.decode(), epoch=3)
    monkeypatch.setattr(files, "replace_file", full)
    answers = place.delete()
    place.finish()
    assert code(answers) is Code.UNAVAILABLE and not place.gone
    assert place.owner.roles.epoch(S) == 3
    assert place.owner.stream(S).log.next_seq == 1 and place.owner.catalog.companions.of(S)
    place.publish(b"more")
    assert place.owner.stream(S).log.next_seq == 2


def test_a_disk_that_refuses_a_later_step(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files, "_notify_readers", broken)
        answers = place.delete()
        place.finish()
    assert answers == [{}], "it is deleted"
    with pytest.raises(Refused):
        place.owner.create(S)
    office = place.crash()
    assert not office.owner.catalog.names and terms_of_deleted(office) == {S: 2}
    office.owner.create(S)


def test_what_cannot_be_deleted(place: Place) -> None:
    owner = place.owner
    assert code(place.delete(b"unknown")) is Code.UNKNOWN
    assert code(place.delete(dead_name(S))) is Code.USAGE
    owner.stream(S).busy = True
    assert code(place.delete()) is Code.UNAVAILABLE
    owner.stream(S).busy = False
    owner.roles.set_meta(StreamMeta(S.decode(), Role.SLAVE))
    assert code(place.delete()) is Code.DISABLED
    answers = place.delete(copy=True)
    assert code(place.delete(copy=True)) is Code.UNAVAILABLE, "it is being done"
    place.finish()
    assert answers == [{}] and stems(place) == {".deleted"} and terms_of_deleted(place) == {S: 2}


def test_a_name_whose_copy_was_deleted_begins_in_a_later_term_too(place: Place) -> None:
    place.delete(copy=True)
    place.finish()
    place.owner.create(S)
    place.publish(b"new")
    assert (place.owner.roles.epoch(S), place.owner.stream(S).log.last_epoch) == (2, 2)
    place.create()
    log = place.owner.stream(cursor_name(S))
    assert history_of(place.owner, log)[0].epoch == 2, "and its consumers"
    office = place.crash()
    assert office.owner.roles.epoch(S) == 2
    office.owner.release()


NODE, OTHER = ("10.0.0.1", 5050), "other-node"


def claim(place: Place, *terms: tuple[int, int, str], is_peer: bool = False) -> list[Any]:
    """Another node claims the stream."""
    return claimed(place.owner, [S, terms, *NODE, is_peer])


@pytest.mark.parametrize("copy", [False, True])
def test_a_promoted_copy_that_missed_the_deletion_is_followed(place: Place, copy: bool) -> None:
    """Whether this node was its master or had a copy: the term that was to be this node's is not given twice."""
    here = place.owner.catalog.directory.node_id
    place.delete(copy=copy)
    place.finish()
    terms = (1, 0, here), (2, 1, OTHER)
    assert claim(place, *terms, is_peer=True) == ["slave", 2, OTHER, True]
    assert place.owner.roles.meta(S).upstream == Upstream(*NODE, "seq", 0)
    assert not place.owner.catalog.deleted and stems(place) == {".content", ".indx", ".meta"}
    office = place.crash()
    assert office.owner.roles.role(S) is Role.SLAVE and claimable(office.owner, S) == (2, OTHER)
    office.owner.release()


def test_a_copy_that_was_promoted_in_an_earlier_term_gives_in(place: Place) -> None:
    place.owner.roles.set_meta(StreamMeta(S.decode(), epoch=4))
    place.delete()
    place.finish()
    here = place.owner.catalog.directory.node_id
    assert claim(place, (1, 0, here), (2, 1, OTHER)) == ["master", 5, here, False]
    assert S not in place.owner.catalog.names and place.owner.roles.epoch(S) == 5


def test_the_former_master_that_is_made_to_follow_by_a_rule_follows_a_new_stream_of_the_name_too(place: Place) -> None:
    """The role in which it would have made the stream again is taken back."""
    place.delete()
    place.finish()
    assert place.owner.roles.role(S) is Role.MASTER
    command = [b"*", *NODE, "seq", 0]
    rule(place.owner, command)
    rules(place.owner, ["slave", *command])
    assert place.owner.roles.role(S) is Role.SLAVE
    office = place.crash()
    assert office.owner.roles.role(S) is Role.SLAVE
    office.owner.create(S, by_command=True)
    assert (office.owner.roles.role(S), promote(office.owner, [S])) == (Role.SLAVE, 3)
    office.owner.release()


@pytest.mark.parametrize("epoch", [4, 5])
def test_this_node_does_not_follow_others_in_a_term_of_its_own(place: Place, epoch: int) -> None:
    """A slave that has not asked for the stream since goes on to claim it for the master that has deleted it.

    Its term is no rival's: an answer with the next term, which nobody has begun, would make all nodes slaves in it.
    """
    place.owner.roles.set_meta(StreamMeta(S.decode(), epoch=4))
    place.delete()
    place.finish()
    here = place.owner.catalog.directory.node_id
    assert claim(place, (1, 0, here), (epoch, 1, here)) == ["disabled", epoch, here, True]
    assert S not in place.owner.catalog.names and terms_of_deleted(place) == {S: 5}


def test_this_node_does_not_follow_others_in_its_own_term_when_they_do_not_know_whose_it_is(place: Place) -> None:
    """A slave that was given another upstream knows the term, and no longer its master. If this node followed it, all
    would be slaves.
    """
    place.owner.roles.set_meta(StreamMeta(S.decode(), epoch=4))
    place.delete()
    place.finish()
    here = place.owner.catalog.directory.node_id
    assert claim(place, (1, 0, here), (5, 1, "")) == ["disabled", 5, "", True]
    assert S not in place.owner.catalog.names and terms_of_deleted(place) == {S: 5}


def test_a_node_that_was_put_back_to_an_earlier_state_follows_in_a_term_of_its_own(place: Place) -> None:
    """It has begun that term after what it knows now: others have the messages."""
    place.delete()
    place.finish()
    here = place.owner.catalog.directory.node_id
    assert claim(place, (1, 0, here), (3, 1, here)) == ["slave", 3, here, True]


def test_another_stream_of_the_name_at_a_peer_changes_nothing(place: Place) -> None:
    place.delete()
    place.finish()
    terms = (1, 0, OTHER), (2, 1, OTHER)
    assert claim(place, *terms, is_peer=True) == ["disabled", 2, OTHER, True]
    assert S not in place.owner.catalog.names and terms_of_deleted(place) == {S: 2}


def test_a_claim_waits_while_the_stream_is_being_deleted(place: Place) -> None:
    place.delete()
    with pytest.raises(Refused) as caught:
        claim(place, (2, 1, OTHER))
    assert caught.value.code is Code.UNAVAILABLE


def test_a_copy_that_has_not_heard_of_its_new_master_is_promoted_in_a_later_term(place: Place) -> None:
    """It is made by a rule as soon as the upstream has the name, before the upstream has sent its term."""
    place.owner.roles.set_meta(StreamMeta(S.decode(), epoch=4))
    place.delete(copy=True)
    place.finish()
    upstream = Upstream(*NODE, "seq", 0)
    place.owner.roles.rules = Rules((Rule(b"*", upstream),), (), ())
    place.owner.create(S, by_command=True)
    assert place.owner.roles.meta(S).upstream == upstream
    office = place.crash()
    with pytest.raises(Refused):
        promote(office.owner, [S, 4])
    assert promote(office.owner, [S]) == 6, "the node that has deleted it may begin term 5 in the same moment"
    assert office.owner.roles.meta(S).not_before == 0
    office.owner.release()


def test_a_cluster_gives_the_term_of_a_promotion(place: Place) -> None:
    """Its next term is the one that the leader before it would have begun."""
    place.owner.roles.set_meta(StreamMeta(S.decode(), epoch=4))
    place.delete(copy=True)
    place.finish()
    place.owner.roles.rules = Rules((Rule(b"*", Upstream(*NODE, "seq", 0)),), (), ())
    place.owner.create(S, by_command=True)
    assert promote(place.owner, [S, 5]) == 5


def test_a_promoted_copy_of_a_forgotten_stream_is_followed(place: Place) -> None:
    """Only one that was below this node: a peer may have another stream of the name."""
    place.delete()
    place.finish()
    forgotten = place.owner.catalog.deleted.pop(S)
    shard = shard_of(S, place.owner.catalog.directory.shards)
    place.owner.catalog.deleted.forgotten[shard] = forgotten.epoch
    terms = (1, 0, "unknown"), (2, 1, OTHER)
    assert claim(place, *terms, is_peer=True) == ["disabled", 2, OTHER, True]
    assert claim(place, *terms) == ["slave", 2, OTHER, True]


def test_a_follower_that_was_away_is_told(place: Place) -> None:
    place.delete(copy=True)
    place.finish()
    with pytest.raises(Refused) as caught:
        follow(place.owner, [S, 1, ""])
    assert caught.value.code is Code.DELETED
    assert follow(place.owner, [S, 2, ""]), "a later stream of this name"


def test_nothing_is_published_meanwhile(place: Place) -> None:
    stream: OpenStream = place.owner.stream(S)
    stream.syncing = True
    place.delete()
    place.publish(b"too late")
    assert stream.log.next_seq == 1
