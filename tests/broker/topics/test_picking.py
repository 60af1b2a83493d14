"""Cursors with a filter of topics: what the fan-out sends them, and what it looks at for that."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from tailrace.broker.delivery.cursor import Cursor, Park
from tailrace.broker.delivery.frame_chunks import FrameChunks
from tailrace.broker.streams.owner import Growth
from tailrace.broker.topics.picking import SCAN_BYTES, SCAN_WORK, Picker
from tailrace.shard.errors import StreamDamaged
from tailrace.shard.frame import pack_frame
from tests.broker.delivery.test_fanout import FakeClient, World, give_back, trim
from tests.shard.helpers import open_log

NAME = "a"


class TopicWorld(World):
    """Every payload begins with its topic, from which a bar parts the rest."""

    def append(self, name: str, *payloads: bytes) -> Growth:
        log = self.logs.get(name)
        if log is None:
            log = self.logs[name] = open_log(self.directory.stream_directory(name), name)
        packed = [(each, msgpack.packb({"t": each.partition(b"!")[0].decode()})) for each in payloads]
        frames = bytearray(b"".join(pack_frame(payload, metadata=metadata) for payload, metadata in packed))
        first_seq = log.append(frames, len(payloads), 1_000, 1)
        return Growth(first_seq, first_seq + len(payloads), log.end_offset, frames)

    def filtered(self, client: FakeClient, topics: bytes, seq: int = 0) -> Cursor:
        cursor = self.fanout.subscribe(
            client, NAME.encode(), seq, remote=False, key=(NAME.encode(), topics), topics=topics
        )
        self.fanout.start(cursor)
        return cursor


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TopicWorld]:
    world = TopicWorld(tmp_path)
    yield world
    world.readers.close()
    for log in world.logs.values():
        log.close()


def of_three(count: int, nbytes: int = 100) -> list[bytes]:
    """Messages of the topics t/0, t/1 and t/2 in turn."""
    return [b"t/%d!" % (number % 3) + b"x" * nbytes for number in range(count)]


def offsets(world: TopicWorld, cursor: Cursor) -> Cursor:
    """The cursor as the fan-out hands it to its delivery."""
    feed, reader = cursor.feed, world.readers.get(NAME.encode())
    feed.end_offset = reader.offset_of(feed.end_seq)
    cursor.offset = reader.offset_of(cursor.seq)
    return cursor


def test_only_what_matches_is_sent_and_counted(world: TopicWorld) -> None:
    world.append(NAME, *of_three(300))
    client = world.client()
    cursor = world.filtered(client, b"+/1")
    world.run()
    assert client.seqs(NAME) == list(range(1, 300, 3)) and cursor.park() is Park.CAUGHT_UP
    assert (client.traffic.messages_out, client.traffic.bytes_out) == (100, len(client.got))
    world.publish(NAME, b"t/0!", b"t/1!")
    world.run()
    assert client.seqs(NAME)[-1] == 301 and cursor.seq == 302


def test_subscribers_of_other_filters_do_not_share_chunks(world: TopicWorld) -> None:
    world.append(NAME, *of_three(30))
    clients = [world.client() for _ in range(5)]
    for client, topics in zip(clients, (b"t/0", b"t/1", b"t/1", b"#", b""), strict=True):
        world.filtered(client, topics)
    world.run()
    expected = [list(range(0, 30, 3)), list(range(1, 30, 3)), list(range(1, 30, 3)), list(range(30)), list(range(30))]
    assert [client.seqs(NAME) for client in clients] == expected


def test_what_is_looked_at_counts_as_work(world: TopicWorld) -> None:
    """Many pieces without a match take many turns, and other clients have theirs in between."""
    world.append(NAME, *of_three(40, SCAN_BYTES // 4))
    client = world.client()
    cursor = world.filtered(client, b"none")
    turns = 0
    while cursor.seq < 40:
        world.fanout.run(SCAN_WORK * SCAN_BYTES)
        turns += 1
    assert turns >= 5 and not client.got


def test_a_message_larger_than_a_piece_is_found(world: TopicWorld) -> None:
    world.append(NAME, b"a!" + bytes(3 * SCAN_BYTES), b"b!" + bytes(2 * SCAN_BYTES), b"a!", b"b!")
    client = world.client()
    world.filtered(client, b"b")
    world.run()
    assert [client.traffic.messages_out, client.got.count(b"msg a 1 "), client.got.count(b"msg a 3 ")] == [2, 1, 1]


@pytest.mark.parametrize("step_bytes", [1, 7, 150, 4_000])
def test_a_socket_may_take_any_part_of_a_chunk(world: TopicWorld, step_bytes: int) -> None:
    world.append(NAME, *of_three(90))
    client = world.client(room=0)
    world.filtered(client, b"t/2")
    world.run()
    while client.blocked:
        world.renderings.cache.clear()
        world.append(NAME, *of_three(3))
        world.drain(client, step_bytes)
    assert client.seqs(NAME)[:30] == list(range(2, 90, 3))


@pytest.mark.parametrize("room", [30, 1_000, 3_500])
def test_within_a_chunk_the_message_that_is_half_out_is_kept(world: TopicWorld, room: int) -> None:
    world.append(NAME, *of_three(999))
    client = world.client(room=room)
    cursor = world.filtered(client, b"t/1")
    world.run()
    assert client.blocked and cursor.skip == room
    world.fanout.blocked[client] = None
    trim(world, NAME, 900)
    world.fanout.keep_cut_messages()
    assert 0 < len(client.out) < 150, "the rest of one message"
    give_back(world, NAME)
    world.drain(client, 77)
    seqs = client.seqs(NAME)
    gap = seqs.index(901)
    assert seqs == [*range(1, 3 * gap, 3), *range(901, 999, 3)]
    assert client.answers() == [b"trimmed a %d to 899" % (seqs[gap - 1] + 1)]
    assert client.traffic.messages_out == len(seqs)


def test_frames_are_those_that_credit_and_the_end_allow(world: TopicWorld) -> None:
    world.append(NAME, *of_three(30))
    chunks, client = FrameChunks(world.readers, 1 << 14, 1 << 20), world.client()
    cursor = offsets(world, world.filtered(client, b"t/1"))
    size = len(pack_frame(b"t/1!" + b"x" * 100, metadata=msgpack.packb({"t": "t/1"})))
    whole = chunks.chunk(cursor)
    assert (whole.next_seq, whole.picked, whole.nbytes) == (30, (10, 10 * size), 10 * size + 9)
    cursor.credit_bytes = 2 * size + 1
    assert (chunks.chunk(cursor).next_seq, chunks.chunk(cursor).picked) == (7, (2, 2 * size))
    cursor.credit_bytes = 1
    assert (chunks.chunk(cursor).next_seq, chunks.chunk(cursor).picked) == (4, (1, size))
    cursor.until_seq, cursor.credit_bytes = 3, None
    assert (chunks.chunk(cursor).next_seq, chunks.chunk(cursor).picked) == (3, (1, size))
    cursor.topics = b"none"
    assert (chunks.chunk(cursor).next_seq, chunks.chunk(cursor).nbytes) == (3, 0)


def test_a_chunk_of_frames_that_is_half_out_is_made_again(world: TopicWorld) -> None:
    world.append(NAME, *of_three(30))
    chunks, client = FrameChunks(world.readers, 1 << 14, 1 << 20), world.client()
    cursor = offsets(world, world.filtered(client, b"t/1"))
    chunk = chunks.chunk(cursor)
    cursor.key, cursor.skip, cursor.cut, cursor.credit_bytes = 7, 20, (chunk.next_seq, chunk.next_offset), 1
    world.append(NAME, *of_three(30))
    cursor.feed.end_seq = 60
    again = FrameChunks(world.readers, 1 << 14, 1 << 20)  # which has kept nothing
    assert again.chunk(offsets(world, cursor)) == chunk
    rest, messages, next_seq = again.rest(cursor, chunk)
    assert (len(rest), messages, next_seq) == (chunk.nbytes - 20, 10, 30)


def test_damage_is_met_and_not_passed_over(world: TopicWorld) -> None:
    world.append(NAME, *of_three(30))
    cursor = offsets(world, world.filtered(world.client(), b"t/1"))
    offset = world.readers.get(NAME.encode()).offset_of(3)
    path = next(world.readers.path(NAME.encode()).glob("*.content"))
    with path.open("r+b") as file:
        file.seek(offset + 50)
        file.write(b"?")
    picker = Picker(world.readers, world.fanout.walks.found)
    picked = picker.pick(cursor)
    assert (picked.messages, picked.next_seq) == (1, 3), "what is before it is sent"
    cursor.seq, cursor.offset = 3, offset
    with pytest.raises(StreamDamaged, match="the frame of seq 3 is wrong: crc"):
        picker.pick(cursor)


def test_random_filters_and_places(world: TopicWorld) -> None:
    chance = random.Random(2)
    topics = [b"/".join(chance.choices((b"a", b"b", b""), k=3)) for _ in range(400)]
    world.append(NAME, *[topic + b"!" + bytes(chance.randrange(3_000)) for topic in topics])
    for _ in range(20):
        level, seq, client = chance.choice((b"a", b"b", b"")), chance.randrange(400), world.client()
        world.filtered(client, b"+/" + level + b"/+", seq)
        world.run()
        expected = [number for number in range(seq, 400) if topics[number].split(b"/")[1] == level]
        assert [int(line.split()[2]) for line in client.got.split(b"\r\n") if line.startswith(b"msg")] == expected
