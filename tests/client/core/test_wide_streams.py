"""Patterns of more streams than a connection may have subscriptions, on a real node, with both clients."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import tailrace
from tailrace import NEW, NOW, START, Last, Message
from tailrace.core import wide_streams
from tailrace.core.address import Address
from tailrace.core.calls import PendingCall
from tailrace.core.collection import MemberState
from tailrace.core.options import ClientOptions
from tailrace.core.session import Session
from tailrace.core.subscribe_options import SubscribeOptions, merged_options, subscribe_options
from tailrace.core.subscription_state import SubscriptionState
from tailrace.errors import OperationTimeout
from tailrace.protocol.collecting import Added
from tailrace.protocol.messages import Chunk, Ended, Subscribed
from tailrace.shard.frame import pack_frame
from tests.protocol.wires import stamped
from tests.system.node import Node, running, wait_for
from tests.system.proxy import Proxy
from tests.thorough import THOROUGH

pytestmark = pytest.mark.system

STREAMS = 24
CONFIG = "[limits]\nmax_subscriptions = 8\n"
PATIENCE_S = 60.0
OPTIONS: Final[dict[str, Any]] = {
    "end": None,
    "skip": 0,
    "credit_bytes": 1,
    "check_crc": True,
    "on_trimmed": "raise",
    "timeout_s": 1.0,
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path / "data", workers=2, config=CONFIG) as node:
        yield node


def address(node: Node) -> str:
    return f"127.0.0.1:{node.port}"


def publish(client: tailrace.Client, text: str, names: list[str]) -> None:
    for name in names:
        client.publish(name, text.encode())


def names_of(count: int = STREAMS, first: int = 0) -> list[str]:
    return [f"s{number}" for number in range(first, first + count)]


class Found:
    """The texts of each stream so far; each message is the next one of its stream."""

    def __init__(self, **first_seqs: int) -> None:
        self.texts = defaultdict[str, list[str]](list)
        self._next = defaultdict[str, int](int, first_seqs)

    def take(self, message: Message | None) -> None:
        assert message is not None
        assert message.seq == self._next[message.stream], message
        self._next[message.stream] += 1
        self.texts[message.stream].append(message.payload.decode())

    def restart(self, name: str) -> None:
        self._next[name] = 0
        self.texts[name].clear()

    @property
    def count(self) -> int:
        return sum(map(len, self.texts.values()))


def read(subscription: tailrace.Subscription, found: Found, count: int) -> None:
    while found.count < count:
        found.take(subscription.receive(PATIENCE_S))


def test_a_stream_without_room_comes_again_later(node: Node) -> None:
    names = names_of()
    with tailrace.connect(address(node)) as client:
        publish(client, "1", names)
        subscription, found = client.subscribe("s*", credit_bytes=1), Found()
        wide = subscription._merged._wide  # type: ignore[attr-defined]
        wide.at_once = 12  # more than the node allows
        read(subscription, found, STREAMS)
        assert wide.at_once < 12


def test_while_the_program_has_all_places_it_is_asked_now_and_then(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with tailrace.connect(address(node)) as client:
        publish(client, "1", names_of())
        refused, put_back = list[str](), wide_streams.WideStreams.put_back

        def spy(wide: wide_streams.WideStreams, state: SubscriptionState) -> None:
            refused.append(state.stream)
            put_back(wide, state)

        monkeypatch.setattr(wide_streams.WideStreams, "put_back", spy)
        own = [client.subscribe(f"own{number}", wait=True) for number in range(8)]
        subscription, began_s = client.subscribe("s*"), time.monotonic()
        with pytest.raises(OperationTimeout):
            subscription.receive(1.0)
        assert 0 < len(refused) <= (time.monotonic() - began_s) / wide_streams.POLL_S + 4
        own[0].cancel()
        message = subscription.receive(PATIENCE_S)
        assert message is not None and message.payload == b"1"


def test_a_stream_that_lost_its_end_is_told_from_one_that_was_made_again(node: Node) -> None:
    with tailrace.connect(address(node)) as client:
        publish(client, "1", names_of())
        subscription, found = client.subscribe("s*"), Found()
        read(subscription, found, STREAMS)
        wide = subscription._merged._wide  # type: ignore[attr-defined]
        wide._places["s3"] = wide._places["s3"]._replace(next_seq=9)
        wide._places["s4"] = wide._places["s4"]._replace(next_seq=9, last=(8, 0, -1))
        wide.grown["s3"] = wide.grown["s4"] = None
        outcomes = set()
        for _ in range(2):
            try:
                again = subscription.receive(PATIENCE_S)
                assert again is not None
                outcomes.add((again.stream, again.seq))
            except tailrace.StreamBehind as error:
                outcomes.add((str(error).partition(" is beyond")[0], -1))
        assert outcomes == {("s3: seq 9", -1), ("s4", 0)}


def test_replay_goes_over_into_live_and_on_over_deaths_and_deletions(node: Node) -> None:
    names = names_of()
    with tailrace.connect(address(node)) as writer, tailrace.connect(address(node)) as reader:
        publish(writer, "first", names)
        publish(writer, "second", names)
        subscription, found = reader.subscribe("s*"), Found()
        read(subscription, found, 2 * STREAMS)
        later = names_of(9, STREAMS)
        publish(writer, "live", names + later)
        read(subscription, found, 3 * STREAMS + 9)
        for pid in node.worker_pids():
            os.kill(pid, signal.SIGKILL)
            wait_for(
                partial(lambda pid: pid not in node.worker_pids() and len(node.worker_pids()) == 2, pid), "another"
            )
        publish(writer, "after", names + later)
        read(subscription, found, 4 * STREAMS + 18)
        assert found.texts["s5"] == ["first", "second", "live", "after"]
        assert found.texts[later[0]] == ["live", "after"]
        writer.delete_stream("s5")
        publish(writer, "on", ["s6"])
        found.take(subscription.receive(PATIENCE_S))
        found.restart("s5")
        publish(writer, "again", ["s5"])
        found.take(subscription.receive(PATIENCE_S))
        assert found.texts["s5"] == ["again"]
        subscription.cancel()
        assert subscription.receive() is None


def test_streams_that_are_made_again_are_read_from_their_beginning(node: Node) -> None:
    """Nothing else tells them from those that were read; one that is shorter by one has nothing behind what was."""
    with tailrace.connect(address(node)) as writer, tailrace.connect(address(node)) as reader:
        publish(writer, "1", names_of())
        publish(writer, "2", ["s3", "s5"])
        subscription, found = reader.subscribe("s*"), Found()
        read(subscription, found, STREAMS + 2)
        wanted = {"s3": ["again", "more", "most"], "s4": ["again"], "s5": ["again, and one less"]}
        for name, texts in wanted.items():
            writer.delete_stream(name)
            found.restart(name)
            for text in texts:
                publish(writer, text, [name])
        while not all(found.texts[name] == texts for name, texts in wanted.items()):
            found.take(subscription.receive(PATIENCE_S))


def test_growth_comes_without_a_question(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, call = list[PendingCall](), Session.call

    def count(session: Session, each: PendingCall, now_s: float) -> None:
        asked.append(each)
        call(session, each, now_s)

    with tailrace.connect(address(node)) as client, tailrace.connect(address(node)) as other:
        publish(client, "1", names_of())
        subscription = client.subscribe("s*", start=tailrace.NEW)
        monkeypatch.setattr(Session, "call", count)
        with pytest.raises(OperationTimeout):
            subscription.receive(0.3)
        for name, text in (("s3", "2"), ("s.made", "3"), ("s3", "4")):
            publish(other, text, [name])
            message = subscription.receive(PATIENCE_S)
            assert message is not None and (message.stream, message.payload) == (name, text.encode())
        assert not asked


@pytest.fixture
def streams_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The streams that a wide subscription has begun to read, as often as it has."""
    names, next_options = list[str](), wide_streams.WideStreams.next_options

    def spy(wide: wide_streams.WideStreams) -> SubscribeOptions:
        options = next_options(wide)
        names.append(options.stream)
        return options

    monkeypatch.setattr(wide_streams.WideStreams, "next_options", spy)
    return names


def test_new_messages_cost_no_look_at_the_streams_that_have_none(node: Node, streams_read: list[str]) -> None:
    with tailrace.connect(address(node)) as client:
        publish(client, "1", names_of())
        subscription = client.subscribe("s*", start=NEW)
        publish(client, "2", ["s3"])
        message = subscription.receive(PATIENCE_S)
        assert message is not None and message.payload == b"2"
        assert not streams_read


def test_the_past_of_each_stream_is_read_once(node: Node, streams_read: list[str]) -> None:
    with tailrace.connect(address(node)) as client:
        publish(client, "1", names_of())
        subscription, found = client.subscribe("s*"), Found()
        read(subscription, found, STREAMS)
        publish(client, "2", ["s3"])
        read(subscription, found, STREAMS + 1)
        assert all(times == 1 for name, times in Counter(streams_read).items() if name != "s3")


def test_only_streams_that_have_grown_are_read_after_a_restart_of_the_node(node: Node, streams_read: list[str]) -> None:
    with tailrace.connect(address(node)) as client, tailrace.connect(address(node)) as writer:
        publish(client, "1", names_of())
        subscription, found = client.subscribe("s*"), Found()
        read(subscription, found, STREAMS)
        node.stop()
        streams_read.clear()
        node.start()
        publish(writer, "2", ["s3", "s.made"])
        read(subscription, found, STREAMS + 2)
        publish(writer, "3", ["s5"])
        read(subscription, found, STREAMS + 3)
        assert found.texts["s3"] == ["1", "2"] and found.texts["s.made"] == ["2"] and found.texts["s5"] == ["1", "3"]


def test_a_client_is_closed_while_streams_wait_to_be_read(node: Node) -> None:
    with tailrace.connect(address(node)) as client:
        publish(client, "1", names_of())
        subscription, found = client.subscribe("s*", credit_bytes=1), Found()
        wide = subscription._merged._wide  # type: ignore[attr-defined]
        read(subscription, found, 1)
        assert wide.waits


@pytest.mark.parametrize("start", [START, NEW, Last(1)], ids=["start", "new", "last"])
@pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])
def test_streams_that_are_made_later_may_become_too_many(node: Node, start: Any, reads: bool) -> None:
    """`reads`: whether the messages that have come when that happens are read before."""
    first, all_names = names_of(5), names_of()
    with tailrace.connect(address(node)) as writer, tailrace.connect(address(node)) as client:
        publish(writer, "old", first)
        skipped = 0 if start is not NEW else 1
        subscription, found = client.subscribe("s*", start), Found(**dict.fromkeys(first, skipped))
        count = (1 - skipped) * len(first)
        for text in ("a", "b"):
            publish(writer, text, first)
            count += len(first)
        if reads:
            read(subscription, found, count)
        publish(writer, "c", all_names)
        read(subscription, found, count + len(all_names))
        publish(writer, "d", all_names)
        read(subscription, found, count + 2 * len(all_names))
        before = ["a", "b"] if skipped else ["old", "a", "b"]
        assert all(found.texts[name] == [*(before if name in first else []), "c", "d"] for name in all_names)
        with suppress(OperationTimeout):
            assert subscription.receive(0.2) is None


@pytest.mark.parametrize("seed", range(4, 44 if THOROUGH else 5))
@pytest.mark.parametrize("start", [START, NEW], ids=["start", "new"])
def test_none_is_missing_and_none_comes_twice_over_lost_connections(node: Node, start: Any, seed: int) -> None:
    """Streams grow, and new ones are made, both with and without a connection."""
    dice, names = random.Random(seed), names_of()
    with (
        Proxy(node.port) as proxy,
        tailrace.connect(address(node)) as writer,
        tailrace.connect(f"127.0.0.1:{proxy.cutting_port(dice, 600, 600)}") as reader,
    ):
        publish(writer, "old", names)
        subscription = reader.subscribe("s*", start, credit_bytes=dice.choice([1, 200, 1 << 20]))
        found = Found(**dict.fromkeys(names, 1 if start is NEW else 0))
        count = 0 if start is NEW else STREAMS
        texts = {name: [] if start is NEW else ["old"] for name in names}
        for number in range(80):
            name = f"s{dice.randrange(2 * STREAMS)}"
            publish(writer, str(number), [name])
            texts.setdefault(name, []).append(str(number))
            for _ in range(dice.choice([0, 0, 1, 3])):
                with suppress(OperationTimeout):
                    found.take(subscription.receive(0.02))
        read(subscription, found, count + 80)
        assert {name: each for name, each in found.texts.items() if each} == {
            name: each for name, each in texts.items() if each
        }
        with suppress(OperationTimeout):
            assert subscription.receive(0.2) is None


def test_new_begins_at_the_call_with_asyncio(node: Node) -> None:
    names = names_of()

    async def run() -> Found:
        async with tailrace.connect_async(address(node)) as reader:
            subscription, found = await reader.subscribe("s*", NEW), Found(**dict.fromkeys(names, 1))
            with tailrace.connect(address(node)) as writer:
                await asyncio.to_thread(publish, writer, "new", [*names, "s99"])
                while found.count < STREAMS + 1:
                    found.take(await subscription.receive(PATIENCE_S))
                return found

    with tailrace.connect(address(node)) as writer:
        publish(writer, "old", names)
    found = asyncio.run(run())
    assert all(found.texts[name] == ["new"] for name in [*names, "s99"])


def test_other_beginnings_ends_and_filters(node: Node) -> None:
    names = names_of()
    with tailrace.connect(address(node)) as client:
        for text in ("1", "2", "3"):
            publish(client, text, names)
        assert sum(1 for _ in client.subscribe("s*", end=NOW)) == 3 * STREAMS
        last = client.subscribe("s*", Last(1))
        texts = [last.receive(PATIENCE_S) for _ in range(STREAMS)]
        assert {each.payload for each in texts if each is not None} == {b"3"}
        last.cancel()
        for number in range(STREAMS):
            client.publish(f"t{number}/a", b"a")
            client.publish(f"t{number}/b", b"b")
        filtered = client.subscribe("+/b")
        first = [filtered.receive(PATIENCE_S) for _ in range(STREAMS)]
        client.publish("t3/a", b"no")
        client.publish("t3/b", b"yes")
        last_one = filtered.receive(PATIENCE_S)
        assert {each.payload for each in first if each is not None} == {b"b"}
        assert last_one is not None and last_one.payload == b"yes"


class Collected:
    """A subscription of all streams without a node; `joined`: the members that are read."""

    def __init__(self) -> None:
        make = partial(subscribe_options, **OPTIONS)
        self.joined: list[MemberState] = []
        session = Session([Address()], ClientOptions(), lambda: 0.5, 0.0)
        options, nobody = merged_options(make, START, True), lambda _now_s: None
        self.wide = wide_streams.WideStreams(
            session, options, lambda _name: True, self.joined.append, nobody, "s*", follows=True, timeout_s=1.0
        )
        self.wide.begin([], 0.0)
        self.wide.on_collected(1, 0.0)

    def add(self, start_seq: int, count: int, epoch: int, *, ends: bool = True) -> MemberState:
        """The node sends messages of one stream, and perhaps that there are no more."""
        any_options = subscribe_options("s1", START, wait=False, **OPTIONS)
        member = MemberState(Added(1, 2**31, "s1", start_seq, 0), any_options, lambda: 0.5, 0.0, lambda *_why: None)
        member.chunk(Chunk(member.id, frames_of(start_seq, count, epoch)))
        if ends:
            member.ended(Ended(member.id, start_seq + count), 0.0, 1.0)
        self.wide.on_added(member, 0.0)
        return member

    def catch_up(self, start_seq: int, count: int, epoch: int) -> None:
        """Read the stream up to its end, which is behind these messages."""
        assert "s1" in self.wide.grown
        state = SubscriptionState(1, self.wide.next_options(), lambda: 0.5, 0.0)
        state.request()
        state.subscribed(Subscribed(1, start_seq, 0, start_seq + count))
        state.chunk(Chunk(1, frames_of(start_seq, count, epoch)))
        state.ended(Ended(1, start_seq + count), 0.0, 1.0)
        self.wide.done(state)


def frames_of(start_seq: int, count: int, epoch: int) -> memoryview:
    frames = [stamped(pack_frame(b"x"), seq, 1000 * epoch + seq, epoch) for seq in range(start_seq, start_seq + count)]
    return memoryview(b"".join(map(bytes, frames)))


def test_collected_messages_wait_until_all_before_them_is_read() -> None:
    collected = Collected()
    members = [collected.add(0, 2, 1), collected.add(2, 1, 1)]
    assert collected.joined == members[:1]
    collected.wide.done(members[0])
    assert collected.joined == members
    members += [collected.add(3, 1, 1), collected.add(4, 2, 1, ends=False)]
    collected.wide.done(members[1])
    assert collected.joined == members[:2] and collected.wide.gated == {"s1": members[3]}
    collected.catch_up(3, 2, 1)
    assert collected.joined == [*members[:2], members[3]] and members[3].first().messages[0].seq == 5  # type: ignore[union-attr]


def test_a_stream_that_is_made_again_while_some_of_it_waits_to_be_read_is_not_read_on() -> None:
    """The last one is what was made again: it goes on exactly at the place that was reached in the former one."""
    collected = Collected()
    collected.wide.done(collected.add(0, 2, 1))
    collected.add(0, 2, 2)
    collected.add(2, 1, 2)
    assert len(collected.joined) == 1 and "s1" in collected.wide.grown


def test_what_is_made_again_while_its_former_messages_are_read_is_read_from_the_beginning() -> None:
    collected = Collected()
    former = collected.add(0, 2, 1)
    collected.add(0, 1, 2)
    collected.wide.done(former)
    assert collected.joined == [former] and "s1" in collected.wide.grown


def test_messages_of_a_former_stream_do_not_follow_those_of_the_one_that_was_made_again() -> None:
    collected = Collected()
    collected.add(4, 1, 1)
    collected.catch_up(0, 5, 2)
    assert not collected.joined and collected.wide._places["s1"].last == (4, 2004, 2)


def test_names_that_are_gone_are_forgotten(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_streams, "PLACES_MIN", 2 * STREAMS)
    with tailrace.connect(address(node)) as client, tailrace.connect(address(node)) as writer:
        publish(writer, "0", names_of())
        subscription, found = client.subscribe("s*", NEW), Found()
        wide = subscription._merged._wide  # type: ignore[attr-defined]
        for first in range(STREAMS, 9 * STREAMS, STREAMS):
            names = names_of(STREAMS, first)
            publish(writer, "1", names)
            read(subscription, found, first)
            for name in names:
                writer.delete_stream(name)
        assert found.count == 8 * STREAMS
        assert max(len(wide._places), len(subscription.streams)) <= 5 * STREAMS  # type: ignore[attr-defined]
        found.restart(names[0])
        publish(writer, "2", [names[0]])
        found.take(subscription.receive(PATIENCE_S))
