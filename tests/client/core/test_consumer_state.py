"""A member of a durable consumer through a session and a broker in memory, on a clock that a test moves."""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest

from tailrace.core.consumed_message import ConsumedMessage
from tailrace.core.consumer_state import WAIT_S, ConsumerState
from tailrace.core.headers import pack_headers
from tailrace.errors import (
    ClientClosed,
    ConnectionLost,
    DamagedMessage,
    NoSuchConsumer,
    StaleAck,
    StreamUnavailable,
    TailraceError,
    Trimmed,
    UnknownStream,
    Unsupported,
)
from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack
from tests.client.interrupting import interrupted
from tests.client.member import NAME, STREAM, Member
from tests.client.model import Model, ModelConnection
from tests.client.model_consumers import Group, Groups
from tests.thorough import examples


def test_messages_come_in_order_and_what_is_finished_travels_with_the_next_get(groups: Groups, group: Group) -> None:
    member = Member(groups)
    first = member.next()
    assert isinstance(first, ConsumedMessage)
    assert (first.stream, first.seq, first.payload, first.deliveries, first.consumer, first.epoch) == (
        "s", 0, b"0", 1, "billing", 1
    )  # fmt: skip
    first.ack()
    assert first.settled
    assert member.work(6) == [1, 2, 3, 4, 5, 6]
    assert [(get.finished, get.max_messages) for get in member.gets()] == [
        ((), 1),
        (((0, 0, 1),), 2),
        (((1, 2, 1),), 4),
    ]
    assert group.finished == {0, 1, 2}


def test_more_are_asked_for_while_they_are_handled_in_time(groups: Groups) -> None:
    groups.model.publish(STREAM, *[b"x"] * 500)
    member = Member(groups, batch=50)
    member.work(300)
    assert [get.max_messages for get in member.gets()] == [1, 2, 4, 8, 16, 32, 50, 50, 50, 50, 50]


def test_what_was_delivered_before_is_asked_for_one_by_one_by_who_begins(groups: Groups, group: Group) -> None:
    """It may be what killed this one's predecessor."""
    groups.model.publish(STREAM, *[b"x"] * 500)
    group.before = dict.fromkeys(range(4), 1)
    member = Member(groups)
    member.work(11)
    assert [get.max_messages for get in member.gets()] == [1, 1, 1, 1, 1, 2, 4]
    member.next().nack("later on it does not matter")
    member.work(3)
    assert member.gets()[-1].max_messages > 4


def test_of_what_takes_long_no_more_is_asked_for_than_is_handled_in_time(groups: Groups) -> None:
    """A quarter of the 40 s until redelivery, in which it handles five."""
    member = Member(groups, ack_wait_s=40.0)
    for _ in range(18):
        message = member.next()
        member.pair.wait(2.0)
        message.ack()
    assert [get.max_messages for get in member.gets() if get.max_messages] == [1, 2, 4, 5, 5, 5]


def test_what_lingers_has_a_get_of_its_own(groups: Groups, group: Group) -> None:
    member = Member(groups, linger_s=0.5)
    member.work(2)
    assert not member.state.is_settled
    member.gets()
    member.pair.wait(0.4)
    assert member.gets() == []
    member.pair.wait(0.2)
    [get] = member.gets()
    assert (get.finished, get.max_messages, get.wait_ms) == (((1, 1, 1),), 0, 0)
    assert group.finished == {0, 1}
    assert member.state.is_settled


def test_also_while_another_get_waits(groups: Groups, group: Group) -> None:
    member = Member(groups)
    group.finished.update(range(19))
    message = member.next()
    assert member.take() is None
    assert len(groups.waiting) == 1
    message.ack()
    member.pair.wait(1.0)
    assert 19 in group.finished
    assert member.state.is_settled
    groups.model.publish(STREAM, b"new")
    assert member.next().payload == b"new"


def test_a_get_waits_for_some_seconds_and_is_repeated(groups: Groups, group: Group) -> None:
    group.finished.update(range(20))
    member = Member(groups)
    assert member.take() is None
    [get] = member.gets()
    assert get.wait_ms == WAIT_S * 1_000
    member.pair.wait(WAIT_S)
    groups.waiting.clear()
    member.pair.peer.say(c.Got(get.id, (), (), 0, memoryview(b"")))
    member.pair.run()
    assert member.take() is None
    [again] = member.gets()
    assert again.id != get.id


def test_a_failed_one_comes_again_and_says_how_often(groups: Groups) -> None:
    member = Member(groups)
    member.next().nack("no stock")
    message = member.next()
    assert (message.seq, message.deliveries) == (0, 2)
    assert member.gets()[1].failed == ((0, 1, "no stock"),)


def test_a_verdict_is_told_once(groups: Groups) -> None:
    member = Member(groups)
    message = member.next()
    message.ack()
    message.nack("too late")
    message.ack()
    member.pair.wait(1.0)
    assert [(get.finished, get.failed) for get in member.gets()[1:]] == [(((0, 0, 1),), ())]


def test_reasons_are_bounded(groups: Groups) -> None:
    member = Member(groups)
    member.next().nack("ä" * 1_000)
    member.pair.wait(1.0)
    [(_, _, reason)] = member.gets()[1].failed
    assert reason == "ä" * (c.REASON_BYTES_MAX // 2)


# --- answers that are lost --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut_after", range(1, 200, 13))
def test_a_lost_answer_is_asked_for_again_and_brings_the_same(groups: Groups, group: Group, cut_after: int) -> None:
    member = Member(groups)
    member.work(3)
    member.pair.cut_after = cut_after
    seqs: list[int] = []
    while len(seqs) < 17:
        member.pair.wait(1.0)
        message = member.take()
        if message is not None:
            assert message.deliveries == 1
            seqs.append(message.seq)
            message.ack()
    member.pair.wait(1.0)
    assert seqs == list(range(3, 20))
    assert group.finished == set(range(20))
    asked: dict[int, set[c.Get]] = {}
    for get in groups.gets:
        asked.setdefault(get.id, set()).add(get)
    assert all(len(contents) == 1 for contents in asked.values())


@pytest.mark.parametrize("keeps", [0, 3])
def test_what_one_of_this_name_had_before_comes_first_all_of_it(groups: Groups, group: Group, keeps: int) -> None:
    """With any batch size, and while verdicts are sent, or some are kept."""
    for seq in range(10):
        group.flight[seq] = b"me"
    member = Member(groups, linger_s=0.1)
    messages = []
    for _ in range(14):
        messages.append(member.next())
        if len(messages) > keeps:
            messages[-1].ack()
            member.state.tick(member.pair.now_s + 1.0)  # and its answer is not here yet
    assert [message.seq for message in messages] == list(range(14))


def test_what_was_not_taken_when_the_connection_was_lost_is_given_again(groups: Groups) -> None:
    member = Member(groups)
    member.work(4)
    assert member.next().seq == 4  # and it keeps that one
    member.pair.cut()
    member.pair.wait(1.0)
    assert [member.next().seq for _ in range(2)] == [5, 6]
    get = member.gets()[-1]
    assert not get.fresh
    assert member.next().seq == 7
    assert [get.fresh for get in member.gets()] == [True]


def test_or_not_when_another_has_it_now(groups: Groups, group: Group) -> None:
    member = Member(groups)
    member.work(4)
    kept = member.next()
    member.pair.cut()
    for seq in (4, 5, 6):
        group.give_back(seq)
        group.flight[seq] = b"other"
    assert member.next().seq == 7
    kept.ack()
    member.pair.wait(1.0)
    with pytest.raises(
        StaleAck, match=r"messages 4 were acknowledged here, but were no longer this member's of billing"
    ) as told:
        member.take()
    assert (told.value.ranges, told.value.stream, told.value.consumer) == (((4, 4),), "s", "billing")
    assert member.take() is not None


def test_what_the_broker_has_not_heard_of_is_not_given_to_the_program_again(groups: Groups, group: Group) -> None:
    """Nor does the member ask for it again and again meanwhile."""
    member = Member(groups, linger_s=0.1)
    group.finished.update(range(1, 20))
    refuse = True

    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if refuse and isinstance(message, c.Get) and not message.max_messages:
            groups.gets.append(message)
            connection.fail("unavailable", op=m.Op.GET, id=message.id)
            return True
        return groups.take(connection, message)

    groups.model.on_message = on_message
    member.next().ack()
    member.pair.wait(0.2)
    assert group.finished == {*range(1, 20)}
    member.pair.cut()
    for _ in range(50):
        assert member.take() is None
        member.pair.wait(0.01)
    assert len([get for get in member.gets() if get.max_messages]) < 5
    refuse = False
    member.pair.wait(10.0)
    assert group.finished == {*range(20)}


def test_a_copy_that_does_not_have_them_yet(groups: Groups, group: Group) -> None:
    """It gets no answer; the delivered messages are requested again, beside those that the program has."""
    member = Member(groups)
    kept = member.next()
    group.finished.update(range(1, 20))
    assert member.take() is None and member.take() is None
    group.finished.discard(1)
    group.flight[1] = b"me"
    groups.waiting.clear()
    member.pair.wait(WAIT_S)
    member.pair.peer.say(c.Got(member.gets()[-1].id, (), (), 0, memoryview(b"")))
    member.pair.run()
    assert member.next().seq == 1
    assert member.gets()[0].max_messages == 3
    kept.ack()
    assert member.take() is None
    assert member.gets()[0].finished == ((0, 0, 1),)


def test_what_the_queue_has_for_too_long_is_let_go(groups: Groups, group: Group) -> None:
    """The broker gives it to others, or here once more."""
    member = Member(groups, ack_wait_s=10.0)
    member.work(4)
    member.pair.wait(9.5)
    for seq in list(group.flight):
        group.give_back(seq)
    message = member.next()
    assert (message.seq, message.deliveries) == (4, 2)


def test_what_was_let_go_comes_before_anything_new(groups: Groups) -> None:
    """If the broker has not redelivered it yet, also while verdicts are sent."""
    member = Member(groups, ack_wait_s=10.0, linger_s=0.1)
    member.work(15)
    message = member.next()  # and four more, which are all there are
    groups.model.publish(STREAM, b"new")
    member.pair.wait(9.5)
    message.ack()
    member.state.tick(member.pair.now_s + 1.0)
    assert member.work(5) == [16, 17, 18, 19, 20]


# --- keys -------------------------------------------------------------------------------------------------------------


def publish_keyed(groups: Groups, *keys: str) -> None:
    from tailrace.shard.leaves import load

    stream = groups.model.stream(STREAM)
    for key in keys:
        stream.append(bytes(load("tailrace.shard.frame_cy").pack_frames([key.encode()], pack_headers(None, key))))


def test_those_of_a_key_wait_for_the_one_that_failed(groups: Groups, group: Group) -> None:
    group.finished.update(range(20))
    publish_keyed(groups, "z", "z", "z", "a", "b", "a", "a")
    member = Member(groups)
    member.work(3)
    failed = member.next()
    assert (failed.key, failed.seq) == ("a", 23)
    failed.nack("later")
    other = member.next()
    assert (other.key, other.seq) == ("b", 24)
    other.ack()
    for seq in (25, 26):
        group.flight.pop(seq, None)  # returned with the one that has failed, not counted
    assert [(each.seq, each.deliveries) for each in (member.next(), member.next(), member.next())] == [
        (23, 2), (25, 1), (26, 1)
    ]  # fmt: skip


def test_also_those_that_were_on_their_way(groups: Groups, group: Group) -> None:
    group.finished.update(range(20))
    publish_keyed(groups, "a")
    member = Member(groups, linger_s=5.0)
    failed = member.next()
    assert member.take() is None  # one get waits
    failed.nack("later")
    publish_keyed(groups, "a")
    groups.serve()
    member.pair.run()
    assert member.state.take(member.pair.now_s) is None
    group.flight.pop(21)
    assert [member.next().seq, member.next().seq] == [20, 21]


# --- errors -----------------------------------------------------------------------------------------------------------


def test_no_such_consumer(groups: Groups) -> None:
    member = Member(groups)
    kept = member.next()
    groups.groups.clear()
    for _ in range(2):
        with pytest.raises(NoSuchConsumer):
            member.take()
    with pytest.raises(NoSuchConsumer, match="message 0 was finished after billing had been deleted: there is nothing"):
        kept.ack()
    assert member.pair.session.is_settled


def test_what_becomes_of_a_message_that_is_finished_too_late(groups: Groups) -> None:
    """It comes again only if its stream and its consumer are there."""
    closed, deleted = Member(groups), Member(groups, "other")
    kept, gone = closed.next(), deleted.next()
    closed.state.end()
    with pytest.raises(ClientClosed, match="after billing had been closed; it will be delivered again"):
        kept.ack()
    while deleted.take() is not None:
        pass
    groups.delete(STREAM)
    with pytest.raises(UnknownStream):
        deleted.take()
    with pytest.raises(UnknownStream, match="finished after the stream had been deleted, and billing with it: it has"):
        gone.ack()
    gone.nack("in vain")


def test_not_now(groups: Groups) -> None:
    """It is retried while its patience lasts; then again."""
    member, refused = Member(groups, patience_s=60.0), [True]

    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if refused[0] and isinstance(message, c.Get):
            connection.fail("unavailable", op=m.Op.GET, id=message.id)
            return True
        return groups.take(connection, message)

    groups.model.on_message = on_message
    assert member.take() is None
    member.pair.wait(59.0)
    assert not member.state.has_news
    member.pair.wait(2.0)
    with pytest.raises(StreamUnavailable):
        member.take()
    refused[0] = False
    assert member.next().seq == 0


def test_verdicts_outlive_refusals(groups: Groups, group: Group) -> None:
    member = Member(groups, patience_s=5.0)
    member.next().ack()

    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, c.Get):
            connection.fail("overloaded", op=m.Op.GET, id=message.id)
        return isinstance(message, c.Get)

    groups.model.on_message = on_message
    member.pair.wait(20.0)
    assert group.finished == set()
    groups.model.on_message = groups.take
    member.pair.wait(20.0)
    assert group.finished == {0}
    with pytest.raises(TailraceError, match="overloaded"):
        member.take()


def test_a_broker_without_consumers(groups: Groups) -> None:
    groups.model.features.discard(c.FEATURE)
    with pytest.raises(Unsupported, match="has no durable consumers"):
        Member(groups).take()


def test_a_broker_that_says_nothing_is_left(groups: Groups) -> None:
    member = Member(groups, addresses=2, answer_s=7.0)
    groups.model.on_message = lambda connection, message: isinstance(message, c.Get)
    assert member.take() is None
    member.pair.wait(WAIT_S + 6.9)
    assert len(member.pair.dialled) == 1
    groups.model.on_message = groups.take
    member.pair.wait(0.2)
    assert [each.port for each in member.pair.dialled] == [1, 2]
    assert member.next().seq == 0


def test_trimmed(groups: Groups) -> None:
    member = Member(groups)
    assert member.state.take(member.pair.now_s) is None
    groups.model.on_message = lambda connection, message: isinstance(message, c.Get)
    member.pair.run()
    call = member.state._poll
    assert call is not None
    member.pair.peer.say(c.Got(call.number, (), (), 1_234, memoryview(b"")))
    member.pair.run()
    with pytest.raises(Trimmed, match="1,234 messages were trimmed before their delivery to the consumer billing"):
        member.take()


def test_damaged(groups: Groups) -> None:
    frame = bytearray(groups.model.stream(STREAM).frames[0])
    frame[-1] ^= 1
    groups.model.stream(STREAM).frames[0] = bytes(frame)
    with pytest.raises(DamagedMessage):
        Member(groups).take()


def test_two_members_of_one_name_do_not_keep_the_broker_busy(groups: Groups) -> None:
    """Each get ends the other's at once, with nothing."""
    gets: list[float] = []
    member = Member(groups)

    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, c.Get):
            gets.append(member.pair.now_s)
            connection.say(c.Got(message.id, (), (), 0, memoryview(b"")))
        return isinstance(message, c.Get)

    groups.model.on_message = on_message
    for _ in range(600):
        assert member.state.take(member.pair.now_s) is None
        member.pair.wait(0.1)
    assert len(gets) < 30


# --- ending -----------------------------------------------------------------------------------------------------------


def test_the_end(groups: Groups, group: Group) -> None:
    member = Member(groups)
    member.work(5)
    member.state.end()
    assert member.state.take(member.pair.now_s) is None
    member.state.flush(member.pair.now_s)
    member.pair.run()
    assert group.finished == set(range(5))
    member.state.check()
    other = member.pair.session.consume(member.state.options, member.pair.now_s)
    assert member.pair.session.consumers == [other]


def test_who_leaves_says_so_once(groups: Groups, group: Group) -> None:
    member = Member(groups)
    member.work(2)
    member.next()
    member.state.end()
    member.state.flush(member.pair.now_s)
    member.pair.run()
    assert group.flight
    call = member.state.leave(5.0, member.pair.now_s)
    member.pair.run()
    assert call is not None and call.done and call.error is None
    assert [(leave.do, leave.name, leave.member) for leave in groups.leaves] == [("leave", NAME, b"me")]
    assert not group.flight and group.finished == {0, 1}
    assert member.state.leave(5.0, member.pair.now_s) is None


def test_who_was_no_member_need_not_leave(groups: Groups) -> None:
    member = Member(groups)
    member.state.end()
    assert member.state.leave(5.0, member.pair.now_s) is None


@pytest.mark.parametrize("abort", [True, False])
def test_nobody_to_leave(groups: Groups, abort: bool) -> None:
    member = Member(groups)
    member.next()
    if abort:
        member.pair.session.abort()
    else:
        member.pair.session.close(member.pair.now_s, 1.0)
    assert member.state.leave(5.0, member.pair.now_s) is None


def test_a_leave_that_is_not_heard_in_time_is_not_said_again(groups: Groups) -> None:
    member = Member(groups)
    member.next()
    groups.model.on_message = lambda _connection, message: isinstance(message, c.Consume)
    call = member.state.leave(5.0, member.pair.now_s)
    assert call is not None
    member.pair.wait(6.0)
    assert call.done and call.error is not None and not call.is_repeated
    groups.model.on_message = groups.take
    member.pair.cut()
    member.pair.wait(60.0)
    assert not groups.leaves


def test_the_client_is_closed(groups: Groups) -> None:
    member = Member(groups)
    member.next().ack()
    member.pair.session.abort()
    assert member.state.take(0.0) is None
    with pytest.raises(ClientClosed, match="1 messages acknowledged by billing may be delivered again"):
        member.state.check()


def test_the_connection_does_not_come_back(groups: Groups) -> None:
    member = Member(groups)
    member.next().ack()
    member.pair.unreachable.update(member.pair.addresses)
    member.pair.cut()
    member.pair.wait(1_000.0)
    with pytest.raises(ConnectionLost, match="did not come back"):
        member.take()
    with pytest.raises(ConnectionLost):
        member.state.check()


def test_a_session_is_told_in_all_gets(groups: Groups) -> None:
    member = Member(groups, session=77)
    member.work(1)
    member.pair.cut()
    member.pair.wait(1.0)
    member.work(3)
    assert len(gets := member.gets()) > 2 and {get.session for get in gets} == {77}


def test_levels_are_asked_for(groups: Groups) -> None:
    member = Member(groups, ack=Ack.REPLICATED, replicas=2)
    member.next()
    [get] = member.gets()
    assert (get.ack, get.replicas) == (Ack.REPLICATED, 2)


def test_more_verdicts_than_one_get_takes(groups: Groups, group: Group) -> None:
    """Every second one of many, and some that have failed."""
    groups.model.publish(STREAM, *[b"x"] * 5_000)
    group.finished.update(seq for seq in range(5_020) if seq % 2)
    member = Member(groups, batch=5_000, linger_s=1_000.0)
    messages = [member.next() for _ in range(2_500)]
    for message in messages:
        message.nack("x") if message.seq % 10 == 0 else message.ack()
    member.state.flush(member.pair.now_s)
    member.pair.wait(1.0)
    assert member.state.is_settled
    assert group.finished >= {message.seq for message in messages if message.seq % 10}
    assert all(group.before[message.seq] == 1 for message in messages if message.seq % 10 == 0)
    assert max(len(get.finished) for get in member.gets()) <= c.FINISHED_MAX


# --- random lives -----------------------------------------------------------------------------------------------------


class Life:
    """Two members through cuts, refusals, interruptions and slow work: nothing is lost, or given twice for nothing."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.groups = Groups(Model())
        self.group = self.groups.groups.setdefault((STREAM, NAME), Group(0))
        self.groups.model.publish(STREAM, *[b"%d" % number for number in range(60)])
        self.refusals = 0.1
        self.groups.model.on_message = self.refuse_sometimes
        self.members = [Member(self.groups, name, ack_wait_s=1e6) for name in ("a", "b")]
        self.kept: list[ConsumedMessage] = []
        self.done: set[int] = set()

    def refuse_sometimes(self, connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, c.Get) and self.chance.random() < self.refusals:
            connection.fail(self.chance.choice(["unavailable", "overloaded"]), op=m.Op.GET, id=message.id)
            return True
        return self.groups.take(connection, message)

    def step(self) -> None:
        member, choice = self.chance.choice(self.members), self.chance.randrange(12)
        if choice < 5:
            self.take(member)
        elif choice < 8 and self.kept:
            message = self.kept.pop(self.chance.randrange(len(self.kept)))
            self.settle(message)
        elif choice == 8:
            member.pair.cut_after = self.chance.randrange(1, 400)
        elif choice == 9:
            member.pair.cut()
        elif choice == 10:
            member.pair.session.recover(member.pair.now_s)
        else:
            member.pair.wait(self.chance.random() * 2)

    def settle(self, message: ConsumedMessage) -> None:
        if self.chance.random() < 0.8:
            message.ack()
            self.done.add(message.seq)
        else:
            message.nack("because of the test")

    def take(self, member: Member) -> None:
        try:
            message = member.take()
        except StaleAck:
            return
        if message is not None:
            assert message.payload == b"%d" % message.seq
            self.kept.append(message)

    def finish(self) -> None:
        self.refusals = 0.0
        for member in self.members:
            member.pair.cut_after = None
        for _ in range(400):
            for member in self.members:
                self.take(member)
                member.pair.wait(2.0)
            for message in self.kept:
                message.ack()
                self.done.add(message.seq)
            self.kept.clear()
        for member in self.members:
            member.state.flush(member.pair.now_s)
            member.pair.run()


@pytest.mark.few(6)
@pytest.mark.parametrize("seed", range(examples(60)))
def test_in_the_end_each_is_finished_by_somebody(seed: int) -> None:
    life = Life(seed)
    for _ in range(80):
        life.step()
    life.finish()
    assert life.group.finished == life.done == set(range(60))
    assert not life.group.flight
    assert all(member.state.is_settled for member in life.members)
    assert all(isinstance(member.state, ConsumerState) for member in life.members)


@pytest.mark.parametrize("failure", [None, "it failed"])
def test_an_interrupt_anywhere_in_a_verdict_leaves_nothing_that_is_never_sent(
    groups: Groups, failure: str | None
) -> None:
    """As by Control-C while the program acknowledges its last message; then it waits until all is stored."""
    for line_count in itertools.count(1):
        member = Member(groups, name=f"me-{line_count}", linger_s=0.5)
        record = partial(member.state.record, member.next(), failure, member.pair.now_s)
        is_over = not interrupted(ConsumerState.record, line_count, record)
        member.state.flush(member.pair.now_s)
        member.pair.run()
        assert member.state.is_settled
        member.state.end()
        if is_over:
            break
    assert line_count > 10
