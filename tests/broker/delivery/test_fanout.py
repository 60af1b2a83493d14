"""Fan-out: cursors that move through a file, one chunk at a time, and the places at which they wait."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from unittest.mock import Mock

import pytest

from tailrace.broker.delivery.cursor import Cursor, Delivery, Feed, Park
from tailrace.broker.delivery.fanout import FanOut
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.delivery.text_chunks import TextChunk, TextChunks
from tailrace.broker.process.metrics import Traffic
from tailrace.broker.sharing.wants import LocalWants
from tailrace.broker.streams.owner import Growth
from tailrace.protocol.errors import Code
from tailrace.shard.directory import make_data_dir
from tailrace.shard.log import StreamLog
from tailrace.shard.stream_files import stream_paths
from tests.shard.helpers import BOOT, batch, open_log

CHUNK_BYTES = 4_096
PLENTY = 1 << 30


class FakeClient:
    """A subscriber whose socket takes `room` bytes."""

    def __init__(self, delivery: TextChunks, room: int = PLENTY) -> None:
        self.delivery: Delivery = delivery
        self.traffic = Traffic()
        self.ready: list[Cursor] = []
        self.current: Cursor | None = None
        self.queued = self.blocked = self.closed = False
        self.room = room
        self.got = bytearray()
        self.out = bytearray()
        self.ended: list[Cursor] = []
        self.chunk_ends = 0

    def _send(self, text: bytes) -> int:
        sent = text[: self.room]
        self.room -= len(sent)
        self.got += sent
        self.blocked = len(sent) < len(text)
        return len(sent)

    def send_chunk(self, cursor: Cursor, chunk: TextChunk) -> int:
        return self._send(chunk.text[cursor.skip :])

    def flush_answers(self) -> bool:
        if self.out and not self.blocked:
            del self.out[: self._send(bytes(self.out))]
        return not self.out

    def answer(self, text: bytes) -> None:
        self.out += text

    def keep(self, text: bytes) -> None:
        self.out[:0] = text

    def chunk_ended(self) -> None:
        self.chunk_ends += 1

    def send_trimmed(self, cursor: Cursor, first_seq: int) -> None:
        self.answer(b"trimmed %s %d to %d\r\n" % (cursor.feed.name, cursor.seq, first_seq - 1))

    def subscription_ended(self, cursor: Cursor, code: Code | None, _text: str) -> None:
        self.ended.append(cursor)
        self.answer(b"ended %s %s\r\n" % (cursor.feed.name, b"as asked" if code is None else code.encode()))

    def seqs(self, name: str) -> list[int]:
        """The seqs of the whole messages it got, payloads being without line ends."""
        lines = bytes(self.got).split(b"\r\n")[:-1]
        return [int(line.split()[2]) for line in lines if line.startswith(b"msg %s " % name.encode())]

    def answers(self) -> list[bytes]:
        return [line for line in bytes(self.got).split(b"\r\n")[:-1] if not line.startswith(b"msg ")]


class World:
    """A few streams of one owner, and the fan-out under test."""

    def __init__(self, path: Path) -> None:
        self.directory = make_data_dir(path / "data", 1)
        self.logs: dict[str, StreamLog] = {}
        self.readers = StreamReaders(self.directory, 16, BOOT)
        self.counts: list[tuple[bytes, int]] = []
        self.fanout = FanOut(
            self.readers,
            LocalWants(lambda _name: False),
            on_count=lambda feed: self.counts.append((feed.name, feed.cursors)),
            on_cut=lambda _name, _seq: self.renderings.cache.clear(),
        )
        found = self.fanout.walks.found
        self.renderings = TextChunks(self.readers, CHUNK_BYTES, 8 * CHUNK_BYTES, self.fanout.fresh, found)

    def client(self, room: int = PLENTY) -> FakeClient:
        return FakeClient(self.renderings, room)

    def append(self, name: str, *payloads: bytes) -> Growth:
        log = self.logs.get(name)
        if log is None:
            log = self.logs[name] = open_log(self.directory.stream_directory(name), name)
        frames = batch(payloads)
        first_seq = log.append(frames, len(payloads), 1_000, 1)
        return Growth(first_seq, first_seq + len(payloads), log.end_offset, frames)

    def publish(self, name: str, *payloads: bytes) -> None:
        """As the owner's worker does it."""
        self.fanout.appended(name.encode(), self.append(name, *payloads))

    def subscribe(self, client: FakeClient, name: str, seq: int = 0, *, remote: bool = False) -> Cursor:
        cursor = self.fanout.subscribe(client, name.encode(), seq, remote=remote, key=name)
        self.fanout.start(cursor)
        return cursor

    def feed(self, name: str) -> Feed:
        return self.fanout.feeds[name.encode()]

    def run(self, budget_bytes: int = PLENTY) -> None:
        self.fanout.run(budget_bytes)

    def drain(self, client: FakeClient, step_bytes: int) -> None:
        """Give the client's socket room step by step, until all are parked."""
        for _ in range(100_000):
            client.room, client.blocked = step_bytes, False
            if client.current is None:
                client.flush_answers()
            self.fanout.make_runnable(client)
            self.run()
            if not (client.blocked or client.current or client.ready or client.out):
                return
        raise AssertionError("it never came to an end")

    def close(self) -> None:
        self.readers.close()
        for log in self.logs.values():
            log.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def many(count: int, nbytes: int = 100) -> list[bytes]:
    return [b"%d " % number + b"x" * nbytes for number in range(count)]


def stuck(world: World, count: int, room: int) -> tuple[FakeClient, Cursor]:
    """A subscriber of `a`, which has `count` messages; its socket has taken `room` bytes, and takes no more."""
    world.append("a", *many(count))
    client = world.client(room=room)
    cursor = world.subscribe(client, "a")
    world.run()
    return client, cursor


# --- from the past to the present -------------------------------------------------------------------------------------


def test_catching_up_and_live_are_the_same(world: World) -> None:
    world.append("a", *many(500))
    client = world.client()
    cursor = world.subscribe(client, "a", 20)
    assert cursor.park() is Park.TURN
    world.run()
    assert client.seqs("a") == list(range(20, 500))
    assert cursor.park() is Park.CAUGHT_UP and not world.fanout.runnable
    for _ in range(3):
        world.publish("a", b"live", b"live too")
        world.run()
    assert client.seqs("a") == list(range(20, 506))
    assert client.traffic.messages_out == 486
    assert client.traffic.bytes_out == len(client.got)


def test_a_note_that_was_lost_is_made_up_for_by_a_look(world: World) -> None:
    world.append("a", b"one")
    client = world.client()
    world.subscribe(client, "a", 1, remote=True)
    world.append("a", b"two")
    world.run()
    assert client.seqs("a") == []
    world.fanout.refresh_some()
    world.run()
    assert client.seqs("a") == [1]
    world.append("a", b"three")
    world.fanout.grew(b"a", 0, 0)
    world.run()
    assert client.seqs("a") == [1, 2]


def test_notes_may_come_late_twice_and_for_streams_that_nobody_wants(world: World) -> None:
    growths = [world.append("a", b"x") for _ in range(5)]
    client = world.client()
    world.subscribe(client, "a", 2)
    for growth in [*growths, *reversed(growths)]:
        world.fanout.grew(b"a", growth.next_seq, growth.end_offset)
        world.fanout.grew(b"b", growth.next_seq, growth.end_offset)
    world.run()
    assert client.seqs("a") == [2, 3, 4]


def test_subscribers_share_one_rendering(world: World) -> None:
    world.append("a", b"zero")
    clients = [world.client() for _ in range(50)]
    for client in clients:
        world.subscribe(client, "a", 1)
    world.publish("a", *many(3))
    world.run()
    assert len(world.renderings.cache) == 1
    assert {bytes(client.got) for client in clients} == {bytes(clients[0].got)}
    assert clients[0].seqs("a") == [1, 2, 3]


def test_how_many_subscribe_to_a_stream_is_told(world: World) -> None:
    world.append("a", b"x")
    one, two = world.client(), world.client()
    cursors = [world.subscribe(one, "a"), world.subscribe(two, "a")]
    assert world.counts == [(b"a", 1), (b"a", 2)]
    world.fanout.end(cursors[0])
    world.fanout.end(cursors[0])
    assert world.counts[2:] == [(b"a", 1)] and world.feed("a").cursors == 1
    world.fanout.end(cursors[1])
    assert world.counts[3:] == [(b"a", 0)] and world.fanout.feeds == {}


# --- fairness ---------------------------------------------------------------------------------------------------------


def test_streams_of_one_client_take_turns(world: World) -> None:
    client = world.client()
    for name in ("a", "b", "c"):
        world.append(name, *many(400))
    for name in ("a", "b", "c"):
        world.subscribe(client, name)
    world.run()
    lines = bytes(client.got).split(b"\r\n")[:-1]
    runs = [(name, sum(1 for _ in group)) for name, group in groupby(line.split()[1] for line in lines)]
    assert [name for name, _ in runs[:6]] == [b"a", b"b", b"c"] * 2
    assert max(count for _, count in runs) < 2 * CHUNK_BYTES // 100
    for name in ("a", "b", "c"):
        assert client.seqs(name) == list(range(400))


def test_clients_take_turns_within_a_budget(world: World) -> None:
    world.append("a", *many(1_000))
    clients = [world.client() for _ in range(4)]
    for client in clients:
        world.subscribe(client, "a")
    for _ in range(6):
        world.run(4 * CHUNK_BYTES)
        sizes = [len(client.got) for client in clients]
        assert max(sizes) - min(sizes) <= 2 * CHUNK_BYTES
    assert world.fanout.runnable, "the budget ends a turn, not the work"
    world.run()
    assert {tuple(client.seqs("a")) for client in clients} == {tuple(range(1_000))}


# --- sockets that are full --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_bytes", [1, 7, 1_000, 5_000])
def test_a_socket_may_take_any_part_of_a_chunk(world: World, step_bytes: int) -> None:
    world.append("a", *many(100))
    world.append("b", b"y" * (2 * CHUNK_BYTES), *many(10))
    client = world.client(room=0)
    world.subscribe(client, "a")
    world.subscribe(client, "b")
    world.run()
    world.renderings.cache.clear()  # chunks dropped meanwhile are made again
    world.drain(client, step_bytes)
    assert client.seqs("a") == list(range(100)) and client.seqs("b") == list(range(11))


def test_who_is_blocked_costs_nothing_and_stops_nobody(world: World) -> None:
    world.append("a", *many(300))
    slow, quick = world.client(room=10), world.client()
    cursor = world.subscribe(slow, "a")
    world.subscribe(quick, "a")
    world.run()
    assert quick.seqs("a") == list(range(300))
    assert slow.blocked and cursor.park() is Park.SOCKET and not world.fanout.runnable
    for _ in range(5):
        world.publish("a", b"more")
        world.run()
    assert len(slow.got) == 10 and quick.seqs("a")[-1] == 304
    world.drain(slow, 3_000)
    assert slow.got == quick.got


def test_answers_wait_for_the_chunk_that_has_begun(world: World) -> None:
    client, cursor = stuck(world, 300, 50)
    assert client.current is cursor
    client.answer(b"ok pong\r\n")
    world.drain(client, 500)
    position = bytes(client.got).index(b"ok pong\r\n")
    assert client.got[position - 2 : position] == b"\r\n" and position > 50
    assert client.seqs("a") == list(range(300))


def test_answers_go_before_a_chunk_that_has_not_begun(world: World) -> None:
    world.append("a", *many(10))
    client = world.client(room=3)
    world.subscribe(client, "a")
    client.answer(b"ok sub a 0\r\n")
    world.run()
    assert client.got == b"ok " and client.current is None
    world.drain(client, PLENTY)
    assert client.got.startswith(b"ok sub a 0\r\nmsg a 0 ") and client.seqs("a") == list(range(10))


def test_a_subscription_that_ends_within_a_chunk_finishes_it(world: World) -> None:
    client, cursor = stuck(world, 300, 50)
    world.fanout.end(cursor)
    assert world.fanout.feeds == {} and client.current is cursor
    world.drain(client, 500)
    assert client.chunk_ends == 1
    seqs = client.seqs("a")
    assert seqs == list(range(len(seqs))) and 0 < len(seqs) < 300
    assert client.got.endswith(b"\r\n")


# --- trimmed messages -------------------------------------------------------------------------------------------------


def trim(world: World, name: str, seq: int) -> None:
    world.logs[name].trim(seq)


def give_back(world: World, name: str) -> None:
    world.logs[name].punch(world.logs[name].first_seq)
    world.renderings.cache.clear()


def test_one_who_lags_behind_a_trim_is_told_and_goes_on(world: World) -> None:
    world.append("a", *many(1_000))
    client = world.client(room=0)
    world.subscribe(client, "a")
    world.run()
    trim(world, "a", 900)
    give_back(world, "a")
    world.drain(client, PLENTY)
    assert client.answers() == [b"trimmed a 0 to 899"]
    assert client.seqs("a") == list(range(900, 1_000))


@pytest.mark.parametrize("room", [30, 1_000, 3_500])
def test_within_a_chunk_the_message_that_is_half_out_is_kept(world: World, room: int) -> None:
    client, cursor = stuck(world, 1_000, room)
    assert cursor.skip == room
    world.fanout.blocked[client] = None
    world.fanout.keep_cut_messages()
    assert not client.out, "nothing is trimmed yet"
    trim(world, "a", 900)
    world.fanout.keep_cut_messages()
    assert 0 < len(client.out) < 150, "the rest of one message"
    give_back(world, "a")
    world.drain(client, 77)
    gap = client.seqs("a").index(900)
    assert client.seqs("a") == [*range(gap), *range(900, 1_000)]
    assert client.answers() == [b"trimmed a %d to 899" % gap]
    assert client.traffic.messages_out == gap + 100


def test_one_whose_chunk_cannot_be_finished_is_given_up(world: World) -> None:
    """The space was given back before anybody looked: no answer can be put into half a message."""
    client, cursor = stuck(world, 1_000, 1_000)
    trim(world, "a", 900)
    give_back(world, "a")
    client.room, client.blocked = PLENTY, False
    world.fanout.make_runnable(client)
    world.run()
    assert client.ended == [cursor] and cursor.done and world.fanout.feeds == {}
    assert client.out.startswith(b"ended a trimmed")


def test_a_chunk_that_cannot_be_read_any_more_is_told_without_the_path(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, cursor = stuck(world, 1_000, 1_000)
    trim(world, "a", 900)
    given_up = Mock(wraps=world.fanout.give_up)
    monkeypatch.setattr(world.fanout, "give_up", given_up)
    monkeypatch.setattr(client.delivery, "rest", Mock(side_effect=OSError(5, "Input/output error", "/data/a.content")))
    client.room, client.blocked = PLENTY, False
    world.fanout.make_runnable(client)
    world.run()
    given_up.assert_called_once_with(cursor, Code.TRIMMED, "Input/output error")


def test_a_trim_up_to_the_end_leaves_nothing_to_send(world: World) -> None:
    client, cursor = stuck(world, 100, 0)
    trim(world, "a", 100)
    give_back(world, "a")
    world.drain(client, PLENTY)
    # The last message always stays on the disk, but is not of the stream any more.
    assert client.seqs("a") == [] and client.answers()[0].startswith(b"trimmed a 0 to 99")
    assert cursor.park() is Park.CAUGHT_UP
    world.publish("a", b"next")
    world.run()
    assert client.seqs("a") == [100]


def test_damage_ends_the_subscription_and_no_other(world: World) -> None:
    world.append("a", *many(100))
    world.append("b", *many(100))
    client = world.client()
    offset = world.readers.get(b"a").offset_of(50)
    path = next(world.directory.path.glob("*/a.content"))
    with path.open("r+b") as file:
        file.seek(offset + 34)
        file.write(b"?")
    cursor = world.subscribe(client, "a")
    world.subscribe(client, "b")
    world.run()
    client.flush_answers()
    assert client.seqs("a") == list(range(50)) and client.seqs("b") == list(range(100))
    assert client.ended == [cursor]
    assert b"ended a damaged" in client.got and list(world.fanout.feeds) == [b"b"]


# --- tails that were set aside ----------------------------------------------------------------------------------------


def cut(world: World, name: str, seq: int) -> None:
    """Let the stream end before `seq`, without a word to anybody."""
    world.logs[name].set_aside(seq)


def cut_and_say(world: World, name: str, seq: int) -> None:
    cut(world, name, seq)
    world.fanout.cut(name.encode(), seq)


def test_who_has_got_none_of_what_was_set_aside_goes_on(world: World) -> None:
    world.append("a", *many(10))
    client = world.client()
    cursor = world.subscribe(client, "a")
    world.run()
    world.append("a", b"not the master's")  # nobody was notified of it yet
    cut_and_say(world, "a", 10)
    assert cursor.park() is Park.CAUGHT_UP and not client.ended
    world.publish("a", b"the master's")
    world.run()
    assert client.seqs("a") == list(range(11)) and client.got.endswith(b"|the master's\r\n")


@pytest.mark.parametrize("seq", [9, 1, 0])
def test_who_has_got_some_of_it_is_told_from_where_on(world: World, seq: int) -> None:
    world.append("a", *many(10))
    world.append("b", *many(10))
    client = world.client()
    cursor, other = world.subscribe(client, "a"), world.subscribe(client, "b")
    world.run()
    cut_and_say(world, "a", seq)
    assert client.ended == [cursor] and client.out == b"ended a diverged\r\n" and cursor.seq == seq
    assert not other.done and list(world.fanout.feeds) == [b"b"]


def test_who_lags_is_sent_what_comes_in_its_stead(world: World) -> None:
    client, cursor = stuck(world, 100, 0)
    cut_and_say(world, "a", 40)
    world.publish("a", *[b"another" * 30] * 20)
    world.drain(client, PLENTY)
    assert client.seqs("a") == list(range(60)) and not client.ended
    assert bytes(client.got).count(b"another" * 30) == 20
    assert cursor.park() is Park.CAUGHT_UP


def test_who_lags_finds_its_place_in_new_files(world: World) -> None:
    """If nothing before it was kept, the stream begins anew, and messages lie elsewhere."""
    world.append("a", *many(100))
    client = world.client(room=0)
    cursor = world.subscribe(client, "a", 40)
    world.run()
    assert cursor.offset > 0 and client.blocked
    world.fanout.blocked[client] = None
    trim(world, "a", 40)
    cut_and_say(world, "a", 40)
    world.append("a", *[b"another"] * 20)
    world.fanout.grew(b"a", 0, 0)
    world.drain(client, PLENTY)
    assert client.seqs("a") == list(range(40, 60)) and not client.ended


@pytest.mark.parametrize("room", [30, 2_000])
@pytest.mark.parametrize("seq", [0, 1, 10])
def test_half_a_chunk_of_what_was_set_aside_ends_the_connection(world: World, seq: int, room: int) -> None:
    client, cursor = stuck(world, 1_000, room)
    assert cursor.skip == room and cursor.cut is not None and cursor.cut[0] > seq
    world.fanout.blocked[client] = None
    cut_and_say(world, "a", seq)
    assert client.ended == [cursor] and client.out == b"ended a diverged\r\n" and cursor.seq == seq


def test_half_a_chunk_of_what_has_stayed_is_finished(world: World) -> None:
    client, cursor = stuck(world, 100, 500)
    assert cursor.cut is not None
    world.fanout.blocked[client] = None
    cut_and_say(world, "a", cursor.cut[0])
    world.renderings.cache.clear()
    world.publish("a", *[b"another"] * 9)
    world.drain(client, 300)
    assert client.seqs("a") == list(range(client.seqs("a")[-1] + 1)) and not client.ended
    assert bytes(client.got).count(b"another") == 9


def test_who_is_without_credit_is_seen_to_too(world: World) -> None:
    world.append("a", *many(100))
    client = world.client()
    cursor, other = (world.fanout.subscribe(client, b"a", seq, remote=False, key=seq) for seq in (0, 50))
    for each in (cursor, other):
        each.credit_bytes = 0
        world.fanout.start(each)
    assert list(world.fanout.starved) == [cursor, other]
    cut_and_say(world, "a", 20)
    assert client.ended == [other] and list(world.fanout.starved) == [cursor]
    world.fanout.grant(cursor, 1 << 20)
    world.run()
    assert client.seqs("a") == list(range(20))


def test_one_that_has_not_been_started_is_judged_then(world: World) -> None:
    world.append("a", *many(10))
    client = world.client()
    early, late = (world.fanout.subscribe(client, b"a", seq, remote=False, key=seq) for seq in (5, 10))
    cut_and_say(world, "a", 5)
    assert not client.ended
    for each in (early, late):
        world.fanout.start(each)
    assert client.ended == [late] and early.park() is Park.CAUGHT_UP


def test_one_that_has_reached_the_new_end_waits_there(world: World) -> None:
    """It was behind, and is not any more: there is nothing to send."""
    world.append("a", *many(10))
    client = world.client()
    cursor = world.subscribe(client, "a", 5)
    assert client.ready == [cursor]
    cut_and_say(world, "a", 5)
    world.run()
    assert not client.got and not client.ended and cursor.park() is Park.CAUGHT_UP
    world.publish("a", b"another")
    world.run()
    assert client.seqs("a") == [5]


def test_what_was_unsubscribed_is_not_ended_again(world: World) -> None:
    world.append("a", *many(10))
    client = world.client()
    cursor = world.subscribe(client, "a", 5)
    world.subscribe(world.client(), "a", 5)
    world.fanout.end(cursor)
    assert client.ready == [cursor]
    cut_and_say(world, "a", 2)
    assert not client.ended


def test_an_unsubscribed_chunk_that_cannot_be_finished_ends_its_connection(world: World) -> None:
    """Also if nobody else is subscribed to the stream any more."""
    client, cursor = stuck(world, 300, 50)
    world.fanout.blocked[client] = None
    world.fanout.end(cursor)
    assert world.fanout.feeds == {}
    cut_and_say(world, "a", 1)
    assert client.ended == [cursor]


def test_what_was_made_of_the_old_messages_is_forgotten(world: World) -> None:
    world.publish("a", *many(10))
    world.subscribe(world.client(), "a")
    world.publish("a", b"in memory")
    said: list[tuple[bytes, int]] = []
    world.fanout._on_cut = lambda name, seq: said.append((name, seq))
    reader = world.readers.get(b"a")
    cut_and_say(world, "a", 10)
    assert said and not world.fanout.fresh and world.readers.get(b"a") is not reader


def test_a_reader_that_was_opened_after_the_cut_tells_of_it_too(world: World) -> None:
    """It gives no StreamCut; but the stream ends before its known end."""
    world.append("a", *many(10))
    client, other = world.client(), world.client()
    cursor, behind = world.subscribe(client, "a", remote=True), world.subscribe(other, "a", 9, remote=True)
    world.fanout.end(behind)
    world.run()
    cut(world, "a", 5)
    world.readers.forget(b"a")
    world.fanout.refresh_some()
    assert client.ended == [cursor] and client.out == b"ended a diverged\r\n"


def test_one_that_is_served_by_a_reader_that_was_opened_after_the_cut(world: World) -> None:
    world.append("a", *many(10))
    client = world.client()
    cursor = world.subscribe(client, "a", 8)
    cut(world, "a", 5)
    world.readers.forget(b"a")
    world.run()
    assert client.ended == [cursor] and not client.seqs("a")


# The owner's message may come later than the cut that it reports.


def test_a_look_finds_the_cut_before_the_owners_word(world: World) -> None:
    world.append("a", *many(10))
    client, other = world.client(), world.client()
    cursor, early = world.subscribe(client, "a", remote=True), world.subscribe(other, "a", 3, remote=True)
    world.run()
    other.room, other.got = 0, bytearray()
    cut(world, "a", 8)
    world.append("a", *[b"another"] * 5)
    world.fanout.refresh_some()
    assert client.ended == [cursor] and other.ended == [early]
    world.fanout.cut(b"a", 8)
    assert client.ended == [cursor], "once"


def test_a_new_subscriber_finds_the_cut_before_the_owners_word(world: World) -> None:
    world.append("a", *many(10))
    client, other = world.client(), world.client()
    cursor = world.subscribe(client, "a")
    world.run()
    placed = world.fanout.subscribe(other, b"a", 4, remote=True, key=1)
    cut(world, "a", 4)
    world.fanout.start(placed)
    assert client.ended == [cursor] and placed.park() is Park.CAUGHT_UP


@pytest.mark.parametrize(("seq", "goes_on"), [(50, True), (12, False)])
def test_one_that_is_served_finds_the_cut_itself(world: World, seq: int, goes_on: bool) -> None:
    world.append("a", *many(100))
    client = world.client()
    cursor, other = world.subscribe(client, "a", 20), world.subscribe(client, "a", 40)
    cut(world, "a", seq)
    world.append("a", *[b"another" * 20] * 3)
    world.run()
    assert set(client.ended) == (set() if goes_on else {cursor, other})
    if goes_on:
        assert sorted(client.seqs("a")) == sorted([*range(20, 53), *range(40, 53)])
        assert bytes(client.got).count(b"another" * 20) == 6


def test_one_that_is_served_finds_that_the_stream_is_gone(world: World) -> None:
    """As all others do. A pattern reads a stream that was deleted again when it is made again, no other one."""
    world.append("a", *many(100))
    client = world.client()
    cursor, other = world.subscribe(client, "a", 20), world.subscribe(client, "a", 40)
    cut(world, "a", 0)
    Path(stream_paths(world.readers.path(b"a"), "a").content_file).unlink()
    world.run()
    assert set(client.ended) == {cursor, other}
    assert bytes(client.out + client.got).count(b"ended a deleted") == 2


@pytest.mark.parametrize("room", [30, 2_000])
def test_one_that_is_served_in_the_middle_of_a_chunk_finds_the_cut_itself(world: World, room: int) -> None:
    """No byte of another message may follow the part of the chunk that is already sent."""
    client, cursor = stuck(world, 1_000, room)
    world.renderings.cache.clear()
    cut(world, "a", 1)
    world.append("a", *[b"another" * 100] * 50)
    client.room, client.blocked = PLENTY, False
    world.fanout.make_runnable(client)
    world.run()
    assert client.ended == [cursor] and len(client.got) == room
