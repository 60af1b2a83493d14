"""Where publishes and calls go: into the logs here, or to the sibling that owns the stream."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.process.metrics import Traffic
from tailrace.broker.process.work import Nobody
from tailrace.broker.routing import router as router_module
from tailrace.broker.routing.batch import FramePublication, LonePart, Pending, StreamBatch
from tailrace.broker.routing.requests import FORWARD_BYTES
from tailrace.broker.routing.route import Route
from tailrace.broker.routing.router import (
    BATCHES_A_BEAT,
    SEND_FIRST_STREAMS,
    WINDOW_MESSAGES,
    WINDOW_MESSAGES_MIN,
    Router,
)
from tailrace.broker.streams.owner import Refused
from tailrace.protocol.commands import Staged
from tailrace.protocol.errors import Code
from tailrace.shard.frame import pack_frame
from tailrace.shard.log import StreamLog
from tests.broker.world import World, world


class FakePublisher(Nobody):
    """A client as the router sees it."""

    def __init__(self, may_create: int = 100) -> None:
        self.traffic = Traffic()
        self.window_slot = -1
        self.window_away = self.window_messages = 0
        self.row: list[Pending] = []
        self.errors: list[tuple[bytes, int, str]] = []
        self.paused_for: list[Route] = []
        self.left = may_create

    def answers_ready(self) -> None: ...

    def note_refused(self, code: Code, text: str, count: int) -> None: ...

    def pend(self, pending: Pending) -> None:
        self.row.append(pending)

    def pause_for(self, route: Route) -> None:
        self.paused_for.append(route)

    def publish_refused(self, name: bytes, count: int, code: Code, _text: str) -> None:
        self.errors.append((name, count, code.value))

    def may_create(self, _name: bytes) -> bool:
        return self.left > 0

    def creation_refusal(self, _name: bytes) -> Refused:
        return Refused(Code.STREAMS, "no more streams")

    def count_created(self) -> None:
        self.left -= 1

    def answers(self) -> list[str]:
        """The answers that its publications were settled with; those not settled yet are missing."""
        return [line for each in self.row if each.text is not None for line in each.text.decode().splitlines()]


def staged(*messages: tuple[str, bytes], ack: bool = False) -> Staged:
    """A run of publishes as the codec stages it."""
    names = list(dict.fromkeys(name for name, _ in messages))
    frames = {name: bytearray() for name in names}
    for name, payload in messages:
        frames[name] += pack_frame(payload)
    counts = {name: sum(1 for each, _ in messages if each == name) for name in names}
    groups = [(name.encode(), counts[name], frames[name]) for name in names]
    return Staged(groups, [names.index(name) for name, _ in messages] if ack else [])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2) as node:
        yield node


@pytest.fixture
def router(node: World) -> Router:
    return node.workers[0].router


def next_seq(node: World, name: str) -> int:
    owner = node.workers[node.owner_of(name)].owner
    return owner.stream(name.encode()).log.next_seq if name.encode() in owner.catalog.names else 0


def test_a_turns_publishes_to_one_stream_are_one_append(node: World, router: Router) -> None:
    here = node.name(0)
    loud, quiet = FakePublisher(), FakePublisher()
    router.publish(quiet, staged((here, b"a"), (here, b"b")))
    router.publish(loud, staged((here, b"c"), ack=True))
    router.publish(quiet, staged((here, b"d")))
    assert router.staged_bytes == 4 * 33 and next_seq(node, here) == 0
    router.flush()
    assert router.staged_bytes == 0 and next_seq(node, here) == 4
    assert loud.answers() == [f"ok pub {here} 2"]
    assert quiet.row == [] and quiet.errors == []
    metrics = node.workers[0].metrics
    assert (loud.traffic.messages_in, quiet.traffic.messages_in) == (1, 3)
    assert (metrics.appended_messages, sum(metrics.append.counts)) == (4, 1)
    router.flush()
    assert sum(metrics.append.counts) == 1, "a turn without publishes costs nothing"


@pytest.mark.parametrize("streams", [SEND_FIRST_STREAMS - 1, SEND_FIRST_STREAMS])
def test_before_many_appends_a_sibling_gets_its_share(
    node: World, router: Router, monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    """It appends meanwhile; few appends are not worth a call of their own."""
    owner, there, client = router.owner, node.name(1), FakePublisher()
    here = [name for number in range(100) if router.slot_of((name := f"some{number}").encode()) == 0][:streams]
    publishes = [(name, b"x") for name in [*here, there]]
    router.publish(client, staged(*publishes))
    router.flush()
    node.settle()
    (link,) = node.workers[1].links.open.values()
    assert not select.select([link], [], [], 0)[0]
    was_sent: list[bool] = []
    append_parts = owner.append_parts

    def watched(parts: Mapping[bytes, LonePart], now_s: float) -> list[bytes]:
        was_sent.append(bool(select.select([link], [], [], 0)[0]))
        return append_parts(parts, now_s)

    monkeypatch.setattr(owner, "append_parts", watched)
    router.publish(client, staged(*publishes))
    router.flush()
    assert was_sent == [streams == SEND_FIRST_STREAMS]
    node.settle()
    assert [next_seq(node, name) for name in (here[0], there)] == [2, 2]


@pytest.mark.few(1)
@pytest.mark.parametrize("in_rows", [False, True])
def test_a_turn_of_very_many_streams_is_no_silence(node: World, router: Router, in_rows: bool) -> None:
    """Making them takes long, and who does not beat is taken for hung."""
    owner, client = router.owner, FakePublisher(2 * BATCHES_A_BEAT)
    some = (f"many{n}" for n in range(5 * BATCHES_A_BEAT))
    names = [name for name in some if router.slot_of(name.encode()) == 0][: 2 * BATCHES_A_BEAT]
    if in_rows:
        router.batch(names[0].encode(), 1)  # a batch that is full goes before the others, and all of them in rows
        router.batch(names[0].encode(), 0)
    beats: list[int] = []
    owner.events.on_pause = lambda: beats.append(len(owner.catalog.names))  # type: ignore[method-assign]
    router.publish(client, staged(*((name, b"x") for name in names)))
    router.flush()
    assert len(owner.catalog.names) == 2 * BATCHES_A_BEAT and client.errors == []
    assert any(0 < made < 2 * BATCHES_A_BEAT for made in beats)


def test_publishes_for_a_sibling_are_forwarded_and_answered(node: World, router: Router) -> None:
    here, there = node.name(0), node.name(1)
    loud, quiet = FakePublisher(), FakePublisher()
    router.publish(loud, staged((there, b"a"), (here, b"b"), (there, b"c"), ack=True))
    router.publish(quiet, staged((there, b"d"), (here, b"e")))
    router.flush()
    assert loud.answers() == [] and len(quiet.row) == 1
    node.settle()
    assert loud.answers() == [f"ok pub {there} 0", f"ok pub {here} 0", f"ok pub {there} 1"]
    assert quiet.row[0].text == b"", "a place that is given up without a word"
    assert (next_seq(node, here), next_seq(node, there)) == (2, 3)
    metrics = node.workers[0].metrics
    assert (metrics.forwarded_messages, metrics.forwarded_bytes) == (3, 3 * 33)
    assert router.routes[1].bytes_held == 0


def test_much_for_a_sibling_goes_in_several_forwards(node: World, router: Router) -> None:
    """So that it appends the first of it while the rest is on the way."""
    names = [node.name(1, str(number)) for number in range(5)]
    publisher = FakePublisher()
    router.publish(publisher, staged(*((name, bytes(FORWARD_BYTES // 3)) for name in names), ack=True))
    router.flush()
    assert len(router.routes[1].inflight) == 2
    node.settle()
    assert publisher.answers() == [f"ok pub {name} 0" for name in names]
    assert node.workers[0].metrics.forwarded_messages == 5


def test_refusals_find_their_messages(node: World, router: Router) -> None:
    here, there = node.name(0), node.name(1)
    for name in (here, there):
        router.call(name.encode(), "master", [name.encode()], lambda _value: None)
        router.call(name.encode(), "unmaster", [name.encode()], lambda _value: None)
    node.settle()
    loud, quiet = FakePublisher(), FakePublisher()
    router.publish(loud, staged((there, b"a"), (here, b"b"), (node.name(1, "ok"), b"c"), ack=True))
    router.publish(quiet, staged((here, b"d"), (here, b"e"), (there, b"f")))
    router.flush()
    node.settle()
    assert [line.split(":")[0] for line in loud.answers()] == [
        f"err disabled {there}", f"err disabled {here}", f"ok pub {node.name(1, 'ok')} 0",
    ]  # fmt: skip
    assert quiet.errors == [(here.encode(), 2, "disabled")]
    assert [line.split(":")[0] for line in quiet.answers()] == [f"err disabled {there}"]


def test_whoever_makes_a_stream_is_counted_here_and_there(node: World, router: Router) -> None:
    publisher = FakePublisher(may_create=2)
    names = [node.name(0, "a"), node.name(1, "b"), node.name(0, "c"), node.name(1, "d")]
    for name in names:
        router.publish(publisher, staged((name, b"x"), ack=True))
        router.flush()
        node.settle()
    assert publisher.left == 0
    assert [" ".join(line.split()[:2]) for line in publisher.answers()] == ["ok pub"] * 2 + ["err streams"] * 2


def test_a_full_route_pauses_its_publishers_and_lets_them_go_on(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, link_window_bytes=100_000) as node:
        router, there = node.workers[0].router, node.name(1)
        router.on_away = lambda _client, _slot: True
        publisher = FakePublisher()
        for _ in range(30):
            router.publish(publisher, staged((there, b"x" * 10_000), ack=True))
            router.flush()
        route = router.routes[1]
        assert route.congested and publisher.paused_for and set(publisher.paused_for) == {route}
        node.settle()
        assert route.bytes_held == 0
        assert len(publisher.answers()) == 30


def test_calls_are_answered_here_at_once_and_there_later(node: World, router: Router) -> None:
    heard: list[Any] = []
    router.call(node.name(0).encode(), "stat", [b"nothing"], heard.append)
    assert isinstance(heard[0], Refused) and heard[0].code is Code.UNKNOWN
    name = node.name(1).encode()
    router.call(name, "master", [name, 0, 0, True], heard.append)
    router.call(name, "end", [name], heard.append)
    router.call(name, "stat", [b"nothing"], heard.append)
    assert len(heard) == 1
    node.settle()
    assert heard[1:3] == [1, 0]
    assert isinstance(heard[3], Refused) and (heard[3].code, heard[3].text) == (Code.UNKNOWN, heard[0].text)


def test_a_call_comes_after_what_was_published_before_it(node: World, router: Router) -> None:
    there = node.name(1)
    heard: list[Any] = []
    router.publish(FakePublisher(), staged((there, b"a"), (there, b"b")))
    router.flush()
    router.call(there.encode(), "end", [there.encode()], heard.append)
    node.settle()
    assert heard == [2]


def test_who_publishes_mostly_to_one_sibling_is_named(node: World, router: Router) -> None:
    here, there = node.name(0), node.name(1)
    away: list[tuple[FakePublisher, int]] = []

    def note(client: FakePublisher, slot: int) -> bool:
        away.append((client, slot))
        return True

    router.on_away = note
    mixed, faithful, quiet = FakePublisher(), FakePublisher(), FakePublisher()
    for _ in range(WINDOW_MESSAGES // 2):
        router.publish(mixed, staged((here, b"x"), (there, b"x"), ack=True))
        router.publish(faithful, staged((here, b"x"), (here, b"x")))
        router.publish(quiet, staged((there, b"x"), (there, b"x")))
    assert away == [(quiet, 1)] * (WINDOW_MESSAGES // WINDOW_MESSAGES_MIN)
    assert (quiet.window_messages, mixed.window_messages) == (0, 0)


def test_who_cannot_move_now_is_named_again_with_the_next_message(node: World, router: Router) -> None:
    there, quiet = node.name(1), FakePublisher()
    named: list[FakePublisher] = []

    def note(client: FakePublisher, _slot: int) -> bool:
        named.append(client)
        return len(named) == 3

    router.on_away = note
    router.publish(quiet, staged(*[(there, b"x")] * WINDOW_MESSAGES_MIN))
    for _ in range(3):
        router.publish(quiet, staged((there, b"x")))
    assert named == [quiet] * 3 and quiet.window_messages == 1


# --- publishes for replicas, and to streams of other nodes ------------------------------------------------------------


class FrameSink(Nobody):
    """A binary client: the outcome of each of its requests."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.window_slot = -1
        self.window_away = self.window_messages = 0
        self.paused_for: list[Route] = []
        self.done: list[FramePublication] = []

    def pause_for(self, route: Route) -> None:
        self.paused_for.append(route)

    def publish_done(self, publication: FramePublication) -> None:
        self.done.append(publication)

    def may_create(self, _name: bytes) -> bool:
        return True

    def creation_refusal(self, _name: bytes) -> Refused:
        return Refused(Code.STREAMS, "no more streams")

    def count_created(self) -> None: ...


def publish_frames(router: Router, client: FrameSink, name: str, payload: bytes, replicas: int = 0) -> FramePublication:
    publication = FramePublication(client, 1, True, [name.encode()], 1)
    router.publish_frames(client, publication, [name.encode()], bytearray(pack_frame(payload)), False, replicas)
    return publication


def payloads(node: World, name: str) -> list[bytes]:
    peer = node.connect(node.owner_of(name))
    peer.send(f"sub {name} #0 wait")
    node.settle()
    return [payload.encode() for _stream, _seq, payload in peer.messages()]


@pytest.mark.parametrize("slot", [0, 1])
def test_levels_share_no_batch_and_keep_their_order(node: World, router: Router, slot: int) -> None:
    name = node.name(slot)
    client, quiet = FrameSink(), FakePublisher()
    router.publish(quiet, staged((name, b"0")))
    waiting = [publish_frames(router, client, name, b"1", 1)]
    router.publish(quiet, staged((name, b"2")))
    told = publish_frames(router, client, name, b"3")
    waiting += [publish_frames(router, client, name, b"4", 1), publish_frames(router, client, name, b"5", 2)]
    router.flush()
    node.settle()
    assert payloads(node, name) == [b"%d" % number for number in range(6)]
    assert client.done == [told] and told.results == [(3, 1, 0)], "who waits for nobody is told at once"
    replicas = node.workers[slot].owner.replicas
    replicas.held(slot, slot + 1, [(name.encode(), replicas.holders(name.encode()).line, 7, "node-b", 6, 0)])
    node.settle()
    assert client.done == [told, *waiting[:2]] and [each.results[0][0] for each in waiting[:2]] == [1, 4]


def test_a_batch_for_another_node_is_bounded(node: World, router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "UP_BATCH_BYTES", 100)
    here, owner = node.name(0), node.workers[0].owner
    sent: list[StreamBatch] = []
    owner.uproutes[here.encode()] = Route(-1, 1 << 20, lambda: 0.0, lambda _link: None, on_switch=lambda _link: None)
    owner.context.send_up = sent.append  # type: ignore[method-assign]
    client = FrameSink()
    for number in range(9):
        publish_frames(router, client, here, b"%d" % number)
    assert router.staged_bytes == 9 * 33
    router.flush()
    assert [each.count for each in sent] == [4, 4, 1] and router.staged_bytes == 0
    frames = b"".join(bytes(each.take_frames()) for each in sent)
    assert frames == b"".join(pack_frame(b"%d" % number) for number in range(9))
    router.flush()
    assert len(sent) == 3, "nothing stays staged"


def test_a_batch_for_this_node_or_a_sibling_is_one(
    node: World, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "UP_BATCH_BYTES", 100)
    client = FrameSink()
    for name in (node.name(0), node.name(1)):
        for _ in range(9):
            publish_frames(router, client, name, b"x")
        assert router.batch(name.encode()).count == 9


@pytest.mark.parametrize("is_open", [False, True])
def test_whoever_publishes_to_another_nodes_stream_hears_of_it_and_waits_for_room(
    node: World, router: Router, *, is_open: bool
) -> None:
    """A client without `ack on` too: its messages may not be reordered with failed ones."""
    here, owner = node.name(0), node.workers[0].owner
    if is_open:
        owner.create(here.encode())
    sent: list[StreamBatch] = []
    route = owner.uproutes[here.encode()] = Route(-1, 1, lambda: 0.0, lambda _link: None, on_switch=lambda _link: None)
    route.bytes_held = 2
    owner.context.send_up = sent.append  # type: ignore[method-assign]
    quiet = FakePublisher()
    router.publish(quiet, staged((here, b"a"), (here, b"b")))
    assert quiet.paused_for == [route] and len(quiet.row) == 1 and quiet.window_away == 0
    router.flush()
    (made,) = sent
    made.refused(Code.UNAVAILABLE, "no way up")
    assert [line.split(":")[0] for line in quiet.answers()] == [f"err unavailable {here}"]


@pytest.mark.parametrize("joined", [False, True])
def test_of_a_read_without_answers_only_what_is_refused_is_answered(
    node: World, router: Router, monkeypatch: pytest.MonkeyPatch, *, joined: bool
) -> None:
    """Also of a stream that others publish to in the same turn."""
    good, bad = node.name(0, "good"), node.name(0, "bad")
    quiet, other = FakePublisher(), FakePublisher()
    router.publish(quiet, staged((good, b"x"), (bad, b"x")))
    router.flush()
    append = StreamLog.append

    def fail(log: StreamLog, frames: bytearray, count: int, now_us: int, epoch: int) -> int:
        if log.name == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return append(log, frames, count, now_us, epoch)

    monkeypatch.setattr(StreamLog, "append", fail)
    router.publish(quiet, staged((good, b"a"), (bad, b"b"), (bad, b"c")))
    if joined:
        router.publish(other, staged((bad, b"d"), ack=True))
    router.flush()
    assert quiet.errors == [(bad.encode(), 2, "unavailable")] and next_seq(node, good) == 2
    assert [line.split(":")[0] for line in other.answers()] == [f"err unavailable {bad}"] * joined


@pytest.mark.parametrize("before", [True, False])
def test_a_batch_goes_where_its_stream_is_when_the_turn_ends(node: World, router: Router, before: bool) -> None:
    here, owner = node.name(0), node.workers[0].owner
    sent: list[StreamBatch] = []
    route = Route(-1, 1 << 20, lambda: 0.0, lambda _link: None, on_switch=lambda _link: None)
    owner.context.send_up = sent.append  # type: ignore[method-assign]
    if before:
        owner.uproutes[here.encode()] = route
    publication = publish_frames(router, FrameSink(), here, b"x")
    if before:
        del owner.uproutes[here.encode()]
    else:
        owner.uproutes[here.encode()] = route
    router.flush()
    assert (len(sent), publication.results[0][1]) == ((0, 1) if before else (1, 0))


def test_a_call_whose_answer_is_not_known_at_once(node: World) -> None:
    asked: list[tuple[list[Any], Any]] = []
    answers: list[Any] = []
    router = node.workers[0].router
    router.answered_later = {"get": lambda args, done: asked.append((args, done))}
    name = node.name(0).encode()
    router.call(name, "get", [name, 1], answers.append)
    assert asked[0][0] == [name, 1] and not answers
    asked[0][1]("value")
    assert answers == ["value"]
