"""Decisions about consumers, checked against a model that knows each message, through restarts, lost ends and new
masters.

Also checked: nothing is lost, a message is at one member at a time, those of a key come in order, a repeated get gives
the same, the log gives the state, and so do a checkpoint and the records after it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.decide import GetResult
from tailrace.broker.consumers.state.decide_get import PRESENT_US
from tailrace.broker.consumers.state.records import FlightReturned, Progress, Record, pack, unpack
from tailrace.broker.consumers.state.stream_state import ConsumerTable, DeadLetter
from tailrace.protocol.consuming import Get
from tailrace.shard.epochs import NEVER_SEQ, parting_seq
from tests.broker.consumers.model import Model
from tests.broker.consumers.stream import Message, Stream, asking
from tests.thorough import examples

NAMES = (b"billing", b"audit")
MEMBERS = (b"a", b"b", b"c")
KEYS = (None, b"k", b"l")
ACK_WAIT_US = 30_000_000
RETRY_US = {b"billing": 0, b"audit": 10_000_000}
START_US = 1_700_000_000_000_000

names = st.sampled_from(NAMES)
members = st.sampled_from(MEMBERS)


def seqs_of(ranges: Any) -> set[int]:
    return {seq for first, last in ranges for seq in range(first, last + 1)}


def places_of(rows: Any) -> set[tuple[int, int]]:
    """seq and epoch of each"""
    return {(seq, epoch) for first, last, epoch in rows for seq in range(first, last + 1)}


def unflat(numbers: tuple[int, ...]) -> set[int]:
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return seqs_of((first, first + count - 1) for first, count in pairs)


def messages_of(given: GetResult) -> list[tuple[int, int]]:
    """Each seq with its deliveries; how runs group them does not matter."""
    return [(seq, times) for first, count, times, _ in given.runs for seq in range(first, first + count)]


class Machine(RuleBasedStateMachine):
    """`hands`: messages that each member was given and has not reported on. `done`: who has finished which message.

    `ghosts`: seq and epoch of messages that a member was given and that were lost with a master. `sessions`: which
    program each member is. `given`: messages, by their id, that anybody was ever given, or that a reset passed over.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stream = Stream()
        self.consumers = ConsumerTable()
        self.shadow = ConsumerTable()
        """What the log says so far."""
        self.models: dict[bytes, Model] = {}
        self.log: list[bytes] = []
        self.before: list[tuple[int, dict[bytes, Model]]] = []
        self.now_us = START_US
        self.hands: dict[tuple[bytes, bytes], dict[int, Message]] = {}
        self.done: dict[bytes, set[int]] = {}
        self.given: dict[bytes, set[int]] = {}
        self.ghosts: dict[tuple[bytes, bytes], list[tuple[int, int]]] = {}
        self.sessions: dict[tuple[bytes, bytes], int] = {}
        self.left: dict[tuple[bytes, bytes], int] = {}
        self.letters: dict[bytes, DeadLetter] = {}
        self.lost: dict[bytes, set[int]] = {}
        """Messages, by their id, that were trimmed before a consumer had them."""

    @initialize(deliveries_max=st.sampled_from((0, 1, 2, 3)), messages=st.integers(0, 12))
    def start(self, deliveries_max: int, messages: int) -> None:
        self.stream.publish([None] * messages)
        for name in NAMES:
            self.make(name, 0, deliveries_max)

    def make(self, name: bytes, seq: int, deliveries_max: int) -> None:
        retry_us = RETRY_US[name]
        made = decide.create(
            self.consumers, name, seq, self.stream, self.now_us, ACK_WAIT_US, deliveries_max, retry_us, 4 * retry_us
        )
        assert made.value == (seq, True)
        self.models[name] = Model(seq, ACK_WAIT_US, deliveries_max)
        self.done[name], self.lost[name], self.given[name] = set(), set(), set()
        self.append_held(made.records)

    def append(self, records: tuple[Record, ...]) -> None:
        if records:
            payloads = [pack(record) for record in records]
            self.log += payloads
            for payload in payloads:
                self.shadow.apply(unpack(payload))
            self.before.append((len(self.log), deepcopy(self.models)))

    def append_held(self, records: tuple[Record, ...]) -> None:
        """All nodes hold it: no promotion loses it."""
        self.append(records)
        self.before = self.before[-1:]

    # --- the stream ---------------------------------------------------------------------------------------------------

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8), size=st.sampled_from((10, 100)))
    def publish(self, keys: list[bytes | None], size: int) -> None:
        self.stream.publish(keys, size)

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        stream = self.stream
        stream.first_seq += int((stream.next_seq - stream.first_seq) * share * 0.5)

    # --- members ------------------------------------------------------------------------------------------------------

    @rule(
        name=names,
        member=members,
        most=st.integers(0, 6),
        nbytes=st.sampled_from((1, 150, 10_000)),
        fresh=st.booleans(),
        share=st.floats(0, 1),
        fails=st.integers(0, 2),
        other=st.none() | st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(1, 3)),
    )
    def get(
        self,
        name: bytes,
        member: bytes,
        most: int,
        nbytes: int,
        fresh: bool,
        share: float,
        fails: int,
        other: tuple[int, int, int] | None,
    ) -> None:
        """The member finishes the first messages that it holds, fails the next, and may report others as finished."""
        hand = self.hands.setdefault((name, member), {})
        held = sorted(hand)
        count = round(len(held) * share)
        finished = [(seq, seq, hand[seq].epoch) for seq in held[:count]]
        failed = [(seq, hand[seq].epoch, "no") for seq in held[count : count + fails]]
        if other is not None and self.knows(name, member, other):
            finished.append((other[0], other[0] + other[1], other[2]))
        self.ask(asking(name, member, finished, failed, most, nbytes, fresh))

    def knows(self, name: bytes, member: bytes, other: tuple[int, int, int]) -> bool:
        """Whether the member would finish none of these messages, or holds them.

        A member can finish a message that it never had in bad faith, and then the loss is its own.
        """
        model = self.models[name]
        open_seqs = {*model.waiting(self.stream), *model.at(member)} - set(self.hands[name, member])
        return not seqs_of([(other[0], other[0] + other[1])]) & open_seqs

    def ask(self, ask: Get) -> GetResult:
        name, member, stream, model = ask.name, ask.member, self.stream, self.models[ask.name]
        ask = replace(ask, session=self.sessions.get((name, member), 1))
        known = self.consumers.by_name[name].members.get(member)
        is_anew = bool(ask.max_messages and known and known.session not in (0, ask.session) and model.at(member))
        decision = decide.get(self.consumers, ask, stream, self.now_us)
        given = decision.value
        if ask.max_messages or known:
            self.left.pop((name, member), None)
        hand = self.hands.setdefault((name, member), {})
        stale = model.finish(member, ask.finished, stream)
        failed = {(seq, epoch) for seq, epoch, _ in ask.failed}
        lost = {(seq, epoch) for seq, epoch in failed if self.is_lost(seq, epoch)}
        stale_too, dead, again = model.fail(member, [seq for seq, _ in failed - lost], stream)
        assert seqs_of(given.stale) == {seq for seq, _ in stale | lost} | stale_too
        progress = next((each for each in decision.records if isinstance(each, Progress)), Progress(name, member, 0))
        self.check_waits(name, again)
        if is_anew:
            assert not progress.back
            dead += model.fail(member, model.at(member), stream)[1]
        else:
            self.check_back(model, member, again, unflat(progress.back))
        assert [(letter.seq, letter.deliveries) for letter in decision.dead] == dead
        said = places_of(ask.finished)
        self.done[name] |= {hand[seq].id for seq, epoch in said - stale if seq in hand and hand[seq].epoch == epoch}
        for seq, epoch in said | failed:
            if seq in hand and hand[seq].epoch == epoch:
                del hand[seq]
        if ask.max_messages:
            self.check_given(ask, given, model)
        self.append(decision.records)
        return given

    def is_lost(self, seq: int, epoch: int) -> bool:
        messages = self.stream.messages
        return (messages[seq].epoch if seq < len(messages) else self.stream.history[-1].epoch) != epoch

    def check_waits(self, name: bytes, failed: set[int]) -> None:
        """Note when these, which have just failed, may be delivered again: by the consumer's settings."""
        consumer, model, retry_us = self.consumers.by_name[name], self.models[name], RETRY_US[name]
        for seq in failed:
            entry = model.entries[seq]
            wait_us = min(retry_us << (entry.deliveries - 1), 4 * retry_us)
            (run,) = consumer.unheld(seq, seq) or (None,)
            if run is None:  # at the member again already, or not kept any more
                assert not wait_us or seq < self.stream.first_seq
                continue
            entry.due_us = run.deadline_us
            assert bool(wait_us) == bool(entry.due_us)
            assert not wait_us or wait_us <= entry.due_us - self.now_us <= wait_us * 1.2

    def check_back(self, model: Model, member: bytes, again: set[int], back: set[int]) -> None:
        expected = model.followers(member, again, self.stream)
        if min(again | set(model.at(member)), default=self.stream.next_seq) >= self.stream.first_seq:
            assert back == expected
        assert back <= expected  # the keys of trimmed messages may be known or not
        model.back(back)

    def check_given(self, ask: Get, given: GetResult, model: Model) -> None:
        stream, member = self.stream, ask.member
        missed = [seq for seq in model.waiting(stream) if seq < stream.first_seq]
        missed += [seq for seq in model.at(member) if seq < stream.first_seq and not ask.fresh]
        missed += range(model.next_seq, min(stream.first_seq, stream.next_seq))
        self.lost[ask.name] |= {stream.messages[seq].id for seq in missed}
        assert model.trim(member, ask.fresh, stream) == given.trimmed == len(set(missed))
        seqs = [seq for first, count, _, _ in given.runs for seq in range(first, first + count)]
        assert all(
            stream.messages[seq].epoch == epoch
            for first, count, _, epoch in given.runs
            for seq in range(first, first + count)
        )
        assert len(seqs) <= ask.max_messages
        assert len(seqs) == 1 or sum(stream.messages[seq].size for seq in seqs) <= ask.max_bytes
        mine = model.at(member)
        if mine and not ask.fresh:
            assert seqs == mine[: len(seqs)] and seqs
        else:
            free = model.free(member, stream, self.now_us)
            if min(model.entries, default=stream.next_seq) >= stream.first_seq:
                assert seqs == free[: len(seqs)] and bool(seqs) == bool(free)
            assert set(seqs) <= set(model.waiting(stream))
            model.give(member, seqs, self.now_us)
        deliveries = [times for _, count, times, _ in given.runs for _ in range(count)]
        assert deliveries == [model.entries[seq].deliveries for seq in seqs]
        hand = self.hands.setdefault((ask.name, member), {})
        hand.update((seq, stream.messages[seq]) for seq in seqs)
        self.given[ask.name] |= {stream.messages[seq].id for seq in seqs}

    @rule(name=names, member=members, most=st.integers(1, 6))
    def get_twice(self, name: bytes, member: bytes, most: int) -> None:
        """The answer was lost."""
        ask = asking(name, member, max_messages=most)
        first, second = self.ask(ask), self.ask(ask)
        assert messages_of(first) == messages_of(second)

    @rule(name=names, member=members, most=st.integers(1, 6))
    def begin_anew(self, name: bytes, member: bytes, most: int) -> None:
        """Its program has ended, and another one asks under its name: the messages it held were delivered in vain."""
        self.sessions[name, member] = self.sessions.get((name, member), 1) + 1
        self.ask(asking(name, member, max_messages=most))

    @rule(name=names, member=members, most=st.integers(0, 3), fails=st.booleans())
    def say_of_what_is_lost(self, name: bytes, member: bytes, most: int, fails: bool) -> None:
        """Late, when the seqs are other messages', which wait, or are in flight, perhaps at this very member."""
        ghosts = self.ghosts.get((name, member), [])[-20:]
        failed = [(seq, epoch, "no") for seq, epoch in ghosts] if fails else []
        given = self.ask(asking(name, member, [(seq, seq, epoch) for seq, epoch in ghosts], failed, most))
        assert seqs_of(given.stale) == {seq for seq, _ in ghosts}

    @rule(name=names, member=members)
    def leave(self, name: bytes, member: bytes) -> None:
        decide.away(self.consumers, name, member, self.now_us)
        if self.models[name].at(member):
            self.left[name, member] = self.now_us + decide.GRACE_US
        self.hands.pop((name, member), None)

    @rule(name=names, member=members, forgets=st.booleans())
    def leave_in_order(self, name: bytes, member: bytes, forgets: bool) -> None:
        """It gives back the messages it holds; perhaps it finishes some of them too late."""
        has = self.models[name].at(member)
        decision = decide.leave(self.consumers, name, member)
        returned = [each for each in decision.records if isinstance(each, FlightReturned)]
        assert [(each.name, each.member, each.counted) for each in returned] == [(name, member, ())] * bool(has)
        assert [unflat(each.back) for each in returned] == [set(has)] * bool(has) and not decision.dead
        self.models[name].back(has)
        self.append(decision.records)
        self.left.pop((name, member), None)
        assert member not in self.consumers.by_name[name].members
        if forgets:
            self.hands.pop((name, member), None)

    @rule(seconds=st.sampled_from((0, 1, 4, 5, 6, 29, 30, 31, 61, 200)))
    def wait(self, seconds: int) -> None:
        self.now_us += seconds * 1_000_000

    @rule()
    def expire(self) -> None:
        decision = decide.expire(self.consumers, self.stream, self.now_us)
        dead: list[DeadLetter] = list(decision.dead)
        left = {who for who, due_us in self.left.items() if due_us <= self.now_us}
        late = {}
        for name, model in self.models.items():
            gone = [member for each, member in left if each == name]
            late.update({(name, member): seqs for member, seqs in model.late(self.now_us, gone).items()})
        returned = {(each.name, each.member): each for each in decision.records if isinstance(each, FlightReturned)}
        assert len(returned) == len(decision.records)
        assert {who: unflat(each.counted) for who, each in returned.items()} == late
        for (name, member), seqs in late.items():
            record, model = returned[name, member], self.models[name]
            assert record.reason == (decide.LEFT if (name, member) in left else decide.LATE)
            _, died, again = model.fail(member, seqs, self.stream)
            if record.reason == decide.LATE:
                self.check_waits(name, again)
            self.check_back(model, member, again, unflat(record.back))
            for seq, deliveries in died:
                letter = next(each for each in dead if (each.consumer, each.seq) == (name, seq))
                assert (letter.deliveries, letter.reason) == (deliveries, record.reason)
                dead.remove(letter)
        assert not dead and decision.value >= {name for name, _ in late}
        for who in left:
            del self.left[who]
        self.append(decision.records)
        due_us = decide.next_deadline_us(self.consumers)
        assert due_us is None or due_us > self.now_us

    @rule(name=names, share=st.floats(0, 1))
    def reset(self, name: bytes, share: float) -> None:
        stream = self.stream
        self.now_us += 1  # the time distinguishes a reset from another one
        seq = stream.first_seq + int((stream.next_seq - stream.first_seq) * share)
        decision = decide.reset(self.consumers, name, seq, stream, self.now_us)
        assert decision.value.next_seq == seq
        old = self.models[name]
        self.models[name] = Model(seq, old.ack_wait_us, old.deliveries_max)
        self.done[name] = {message.id for message in stream.messages[stream.first_seq : seq]}
        self.given[name] |= self.done[name]
        self.lost[name] = set()
        self.empty_hands(name)
        self.append_held(decision.records)

    @rule(name=names, deliveries_max=st.sampled_from((0, 2)))
    def make_anew(self, name: bytes, deliveries_max: int) -> None:
        self.bury()
        self.now_us += 1
        decision = decide.delete(self.consumers, name)
        assert decision.value
        self.append(decision.records)
        for who in [each for each in self.left if each[0] == name]:
            del self.left[who]
        self.empty_hands(name)
        self.make(name, self.stream.first_seq, deliveries_max)

    def empty_hands(self, name: bytes) -> None:
        for (each, _), hand in self.hands.items():
            if each == name:
                hand.clear()

    # --- dead letters -------------------------------------------------------------------------------------------------

    @rule(crashed=st.booleans())
    def bury(self, crashed: bool = False) -> None:
        """Publish the pending dead letters; one whose producer number is known already has no effect."""
        for letter in self.consumers.unburied():
            known = self.letters.setdefault(letter.producer_id(b"x"), letter)
            assert (known.seq, known.consumer) == (letter.seq, letter.consumer)
            if not crashed:
                self.append(decide.bury(self.consumers, letter).records)
        assert crashed or not self.consumers.unburied()

    # --- the owner ----------------------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.consumers = self.read(self.log)
        self.the_log_gives_the_state()
        self.left.clear()
        assert not decide.rewind(self.consumers, self.stream).records

    @rule(part_max_bytes=st.sampled_from((1, 200, 100_000)))
    def compact(self, part_max_bytes: int) -> None:
        self.log = [pack(record) for record in self.consumers.checkpoint(part_max_bytes)]
        self.before = [(len(self.log), deepcopy(self.models))]

    @rule()
    def compact_in_place(self) -> None:
        """The records before a checkpoint are still there; and one checkpoint before it was cut short."""
        parts = [pack(record) for record in self.consumers.checkpoint(200)]
        self.log += [*parts[:-1], *parts]
        self.shadow = self.read(self.log)
        self.before.append((len(self.log), deepcopy(self.models)))

    @rule(share=st.floats(0, 1), lost_records=st.integers(0, 3))
    def promote(self, share: float, lost_records: int) -> None:
        """Another node is the master, which lacks the end of the stream and of the log."""
        stream = self.stream
        seq = stream.next_seq - int(min(5, stream.next_seq - stream.first_seq) * share)
        self.new_line(lost_records, lambda: stream.promote(seq))
        self.publish([None, b"k"], 100)
        for who, hand in self.hands.items():
            self.ghosts.setdefault(who, []).extend((each, hand[each].epoch) for each in hand if each >= seq)
        self.finish_what_is_lost(seq)

    @rule(share=st.floats(0, 1))
    def lose_end(self, share: float) -> None:
        """The machine has failed, and the stream lost what the log of its consumers did not."""
        stream = self.stream
        seq = stream.next_seq - int(min(5, stream.next_seq - stream.first_seq) * share)
        self.new_line(0, lambda: stream.lose(seq))
        self.append_held(())  # in the same term nothing but this record shows that other messages have come
        self.finish_what_is_lost(seq)

    def new_line(self, lost_records: int, change: Any) -> None:
        length, models = self.before[max(0, len(self.before) - 1 - lost_records)]
        del self.log[length:]
        self.before = [each for each in self.before if each[0] <= length]
        self.models = deepcopy(models)
        self.consumers, self.shadow = self.read(self.log), self.read(self.log)
        self.left.clear()
        change()
        promoted = self.consumers.history != self.stream.history
        # Where the record of an earlier promotion is lost with those after it, that counts too.
        seq = min(self.stream.next_seq, parting_seq(self.consumers.history, self.stream.history))
        decision = decide.rewind(self.consumers, self.stream)
        assert decision.value == sum(model.next_seq > seq for model in self.models.values())
        for model in self.models.values():
            model.cut(seq)
            if promoted:
                begin_seq = self.stream.history[-1].first_seq
                model.unsure_seq = begin_seq if begin_seq > model.next_seq else 0
        self.append(decision.records)

    def finish_what_is_lost(self, seq: int) -> None:
        """A member reports messages as finished whose seqs are other messages now."""
        for (name, member), hand in self.hands.items():
            ghosts = [each for each in hand if each >= seq]
            if ghosts:
                before = self.consumers.by_name[name].lag_messages(self.stream.next_seq)
                ask = asking(name, member, [(each, each, hand[each].epoch) for each in ghosts])
                decision = decide.get(self.consumers, ask, self.stream, self.now_us)
                self.append(decision.records)
                assert seqs_of(decision.value.stale) == set(ghosts)
                assert self.consumers.by_name[name].lag_messages(self.stream.next_seq) == before
            for each in ghosts:
                del hand[each]

    def read(self, log: list[bytes]) -> ConsumerTable:
        consumers = ConsumerTable()
        for payload in log:
            consumers.apply(unpack(payload))
        return consumers

    # --- what holds at any time ---------------------------------------------------------------------------------------

    @invariant()
    def the_log_gives_the_state(self) -> None:
        assert self.shadow.checkpoint(1_000) == self.consumers.checkpoint(1_000)

    @invariant()
    def each_message_is_where_it_ought_to_be(self) -> None:
        for name, model in self.models.items():
            consumer = self.consumers.by_name[name]
            assert consumer.next_seq == model.next_seq
            found = {
                seq: (run.deliveries, run.member, run.deadline_us)
                for run in (*consumer.unheld(0, NEVER_SEQ), *consumer.flight)
                for seq in range(run.first, run.last + 1)
            }
            entries = model.entries.items()
            assert {seq: entry.deliveries for seq, entry in entries} == {seq: each[0] for seq, each in found.items()}
            assert model.at(b"") == sorted(seq for seq, each in found.items() if not each[1])
            in_flight = [entry.deadline_us for _, entry in entries if entry.member]
            assert sorted(in_flight) == sorted(due_us for _, member, due_us in found.values() if member)
            at = {name: member.in_flight for name, member in consumer.members.items() if member.in_flight}
            assert at == {name: len(model.at(name)) for name in MEMBERS if model.at(name)}
            due_us = decide.next_deadline_us(self.consumers)
            assert not in_flight or (due_us is not None and due_us <= min(in_flight))
            assert consumer.floor_seq == min(model.entries, default=model.next_seq)
            assert consumer.lag_messages(self.stream.next_seq) == len(model.entries) + max(
                0, self.stream.next_seq - model.next_seq
            )

    @invariant()
    def nothing_is_finished_that_was_not_given(self) -> None:
        """For any report, and for any message that had the same seq before."""
        for name, consumer in self.consumers.by_name.items():
            kept = range(self.stream.first_seq, min(consumer.next_seq, self.stream.next_seq))
            open_seqs = {seq for run in (*consumer.waiting, *consumer.flight) for seq in range(run.first, run.last + 1)}
            finished = {self.stream.messages[seq].id for seq in kept if seq not in open_seqs}
            assert finished <= self.given[name] | self.lost[name]

    @precondition(lambda self: self.models)
    @rule()
    def nothing_is_lost(self) -> None:
        """All go away; one member is given all there is, and finishes it."""
        self.now_us += PRESENT_US + 1
        self.expire()
        self.now_us += 5 * max(RETRY_US.values())  # the longest wait and its jitter
        for name in NAMES:
            for _ in range(1_000):
                hand = self.hands.setdefault((name, b"a"), {})
                given = self.ask(asking(name, b"a", [(seq, seq, hand[seq].epoch) for seq in hand], max_messages=5))
                if not given.runs:
                    break
            dead = {letter.seq for letter in self.letters.values() if letter.consumer == name}
            dead |= {letter.seq for letter in self.consumers.unburied() if letter.consumer == name}
            for seq in range(self.stream.first_seq, self.stream.next_seq):
                message = self.stream.messages[seq]
                assert message.id in self.done[name] | self.lost[name] or seq in dead, (name, seq, message)
            assert self.consumers.by_name[name].floor_seq == self.stream.next_seq


def drive(seed: int, steps: int) -> None:
    """Mostly gets, of few messages with few keys; the owner dies now and then."""
    chance, machine = random.Random(seed), Machine()
    machine.start(chance.randrange(4), chance.randrange(12))
    part = chance.random
    moves: list[tuple[int, Callable[[], None]]] = [
        (40, lambda: machine.get(*_get(chance))),
        (20, lambda: machine.publish(chance.choices(KEYS, k=1 + chance.randrange(8)), chance.choice((10, 100)))),
        (8, lambda: machine.get_twice(chance.choice(NAMES), chance.choice(MEMBERS), 1 + chance.randrange(5))),
        (3, lambda: machine.begin_anew(chance.choice(NAMES), chance.choice(MEMBERS), 1 + chance.randrange(5))),
        (4, lambda: machine.say_of_what_is_lost(*_who(chance), chance.randrange(3), part() < 0.3)),
        (4, lambda: machine.leave(chance.choice(NAMES), chance.choice(MEMBERS))),
        (4, lambda: machine.leave_in_order(chance.choice(NAMES), chance.choice(MEMBERS), part() < 0.5)),
        (8, lambda: machine.wait(chance.choice((0, 1, 5, 6, 29, 31)))),
        (8, machine.expire),
        (2, lambda: machine.trim(part())),
        (1, lambda: machine.reset(chance.choice(NAMES), part())),
        (1, lambda: machine.make_anew(chance.choice(NAMES), chance.choice((0, 2)))),
        (3, lambda: machine.bury(part() < 0.5)),
        (2, machine.restart),
        (2, lambda: machine.compact(chance.choice((1, 200)))),
        (2, machine.compact_in_place),
        (4, lambda: machine.promote(part(), chance.randrange(4))),
        (1, lambda: machine.lose_end(part())),
        (1, machine.nothing_is_lost),
    ]
    weights = [weight for weight, _ in moves]
    for _ in range(steps):
        chance.choices(moves, weights)[0][1]()
        machine.the_log_gives_the_state()
        machine.each_message_is_where_it_ought_to_be()
        machine.nothing_is_finished_that_was_not_given()
    machine.nothing_is_lost()


def _who(chance: random.Random) -> tuple[bytes, bytes]:
    return chance.choice(NAMES), chance.choice(MEMBERS)


def _get(chance: random.Random) -> tuple[bytes, bytes, int, int, bool, float, int, tuple[int, int, int] | None]:
    other = (chance.randrange(40), chance.randrange(4), 1 + chance.randrange(3)) if chance.random() < 0.3 else None
    return (
        *_who(chance),
        chance.randrange(7),
        chance.choice((1, 150, 10_000)),
        chance.random() < 0.6,
        *_said(chance),
        other,
    )


def part_fresh(chance: random.Random) -> bool:
    return chance.random() < 0.6


def _said(chance: random.Random) -> tuple[float, int]:
    """How much of what a member has it has finished, and how many more have failed."""
    return chance.choice((0.0, 0.3, 0.6, 1.0)), chance.choice((0, 0, 0, 1, 2))


def test_long_runs() -> None:
    seed = int(os.environ.get("TAILRACE_TEST_SEED", "0")) or random.randrange(1, 1 << 32)
    for each in range(seed, seed + examples(40)):
        print(f"TAILRACE_TEST_SEED={each}")  # of the run that fails it is the last one that is shown
        drive(each, 120)


Machine.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=40)
TestModel = Machine.TestCase
