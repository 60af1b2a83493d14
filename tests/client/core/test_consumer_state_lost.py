"""A member of a durable consumer whose messages were lost with a master, so that others have their seqs."""

from __future__ import annotations

import pytest

from tailrace.errors import DamagedMessage, StaleAck
from tailrace.protocol import consuming as c
from tests.client.member import STREAM, Member
from tests.client.model import ModelConnection
from tests.client.model_consumers import Group, Groups


def promote(groups: Groups, group: Group, seq: int, *payloads: bytes) -> None:
    """Messages from this one on are lost; others have their seqs."""
    groups.model.stream(STREAM).lose(seq)
    group.lose(seq)
    groups.model.publish(STREAM, *payloads)


def test_what_was_lost_is_not_finished_in_place_of_what_came_for_it(groups: Groups, group: Group) -> None:
    """The program has it in hand when it is lost; the other one is at this very member when it is acknowledged."""
    member = Member(groups)
    member.work(3)
    lost = member.next()
    member.pair.cut()
    promote(groups, group, 3, b"new 3", b"new 4")
    new = member.next()
    assert [(each.seq, each.epoch, each.payload) for each in (lost, new)] == [(3, 1, b"3"), (3, 2, b"new 3")]
    lost.ack()
    member.pair.wait(1.0)
    assert group.flight[3] == b"me" and 3 not in group.finished
    with pytest.raises(StaleAck, match=r"messages 3 were acknowledged here.* or were lost with the stream's master"):
        member.take()
    new.ack()
    member.pair.wait(1.0)
    assert group.finished == {0, 1, 2, 3}
    assert member.next().payload == b"new 4"


def test_both_of_a_seq_are_told_in_one_get(groups: Groups, group: Group) -> None:
    member = Member(groups, linger_s=100.0)
    member.work(3)
    lost = member.next()
    member.pair.cut()
    promote(groups, group, 3, b"new 3", b"new 4")
    new = member.next()
    member.gets()
    lost.ack()
    new.nack("once")
    member.state.flush(member.pair.now_s)
    member.pair.run()
    [get] = member.gets()
    assert (get.finished, get.failed) == (((3, 3, 1),), ((3, 2, "once"),))
    assert group.before == {3: 1} and 3 not in group.finished


def test_what_the_broker_has_not_heard_of_a_lost_one_holds_back_no_other(groups: Groups, group: Group) -> None:
    member = Member(groups, linger_s=100.0)
    member.work(3)  # of which the last two are unknown to the others
    promote(groups, group, 1, b"new 1", b"new 2")
    member.pair.cut()
    with pytest.raises(StaleAck):
        member.take()
    assert [member.next().payload for _ in range(2)] == [b"new 1", b"new 2"]
    assert group.flight == {1: b"me", 2: b"me"} and group.finished == {0}


def test_frames_of_another_epoch_than_was_said_are_damage(groups: Groups) -> None:
    member = Member(groups)
    assert member.state.take(member.pair.now_s) is None
    frames = memoryview(groups.model.stream(STREAM).frames[0])

    def answer(connection: ModelConnection, get: object) -> bool:
        assert isinstance(get, c.Get)
        connection.say(c.Got(get.id, ((0, 1, 0, 2),), (), 0, frames))
        return True

    groups.model.on_message = answer
    member.pair.run()
    with pytest.raises(DamagedMessage, match="1 messages came, but 1 from seq 0 on of epoch 2 were announced"):
        member.take()
