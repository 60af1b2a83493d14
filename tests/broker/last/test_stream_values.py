"""The last values of one stream against a model, over kills, trims, and logs that are made shorter."""

from __future__ import annotations

import random
from pathlib import Path

import msgpack
import pytest

from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.last import stream_values
from tailrace.broker.last.index import ENTRY_BYTES
from tailrace.broker.last.page import read_page
from tailrace.broker.last.stream_values import StreamValues, ValueBudget
from tailrace.broker.replication.roles.stream_roles import promote
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.streams.owner import Owner
from tailrace.shard.frame import HEADER_BYTES, pack_frame, unpack_header
from tailrace.shard.topics import topic_in
from tests.broker.owning import BOOT, Sink, make_owner, release_all

S = b"s"
LOG = b"$last/s"
TOPICS = [b"t/%d" % number for number in range(12)]


def publish(owner: Owner, *messages: tuple[bytes, bytes, bool]) -> None:
    """Topic, payload, whether it is to be retained."""
    frames = []
    for topic, payload, retained in messages:
        keys = {"t": topic.decode()} | ({"k": 1} if retained else {})
        frames.append(pack_frame(payload, metadata=msgpack.packb(keys)))
    batch = StreamBatch(S, 0, None, 0)
    batch.add(Sink(), 0, len(frames), bytearray(b"".join(frames)))
    owner.append(batch, 0.0)


class Holder:
    """An owner and the last values of its stream; `kill` abandons both and opens the files anew."""

    def __init__(self, path: Path, *, keeps_all: bool) -> None:
        self.path = path
        self.keeps_all = keeps_all
        self.open()

    def open(self) -> None:
        self.owner = make_owner(self.path)
        for name in (S, LOG):
            if name not in self.owner.catalog.names:
                self.owner.create(name, by_command=True)
        self.budget = ValueBudget(1_000, 1 << 20)
        self.values = StreamValues(self.owner, S, self.budget, keeps_all=self.keeps_all)

    def kill(self) -> None:
        release_all()
        self.open()

    def step(self, steps: int = 1_000) -> None:
        for _ in range(steps):
            if not self.values.step(0.0):
                return

    def trim_log(self) -> None:
        stream = self.owner.stream(LOG)
        stream.log.sync()
        self.values.tidy(0.0)
        stream.log.sync()
        self.values.tidy(0.0)

    def found(self, *, retained: bool) -> dict[bytes, bytes]:
        self.step()
        readers = StreamReaders(self.owner.catalog.directory, 10, BOOT)
        page = read_page(readers, self.values, b"#", b"", 1_000, 1 << 20, retained=retained)
        readers.close()
        assert not page.more
        found, at = {}, 0
        while at < len(page.frames):
            header = unpack_header(page.frames, at)
            payload_at = at + HEADER_BYTES + header.metadata_bytes
            topic = topic_in(page.frames[at + HEADER_BYTES : payload_at])
            at += header.length
            found[topic] = page.frames[payload_at:at]
        assert list(found) == sorted(found)
        return found


class Model:
    def __init__(self) -> None:
        self.newest: dict[bytes, bytes] = {}
        self.retained: dict[bytes, bytes] = {}

    def publish(self, topic: bytes, payload: bytes, retained: bool) -> None:
        for values in (self.newest, *((self.retained,) if retained else ())):
            if payload:
                values[topic] = payload
            else:
                values.pop(topic, None)


@pytest.mark.few(4)
@pytest.mark.parametrize("keeps_all", [False, True], ids=["retained", "all"])
@pytest.mark.parametrize("seed", range(6))
def test_as_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, keeps_all: bool) -> None:
    monkeypatch.setattr(stream_values, "STEP_TOPICS", 5)
    monkeypatch.setattr(stream_values, "CLEAN_SLACK", 10)
    monkeypatch.setattr(stream_values, "MARK_EVERY_BYTES", 300)
    chance, model, holder = random.Random(seed), Model(), Holder(tmp_path, keeps_all=keeps_all)
    number = cleaned = 0
    for _ in range(150):
        deed = chance.random()
        if deed < 0.55:
            messages = []
            for _ in range(chance.randint(1, 8)):
                number += 1
                payload = b"" if chance.random() < 0.2 else b"%d" % number
                messages.append((chance.choice(TOPICS), payload, chance.random() < 0.5))
            publish(holder.owner, *messages)
            for message in messages:
                model.publish(*message)
        elif deed < 0.7:
            holder.step(chance.randint(1, 3))
        elif deed < 0.8:
            holder.kill()
        elif deed < 0.9:
            holder.step()
            stream = holder.owner.stream(S)
            stream.log.trim(chance.randint(stream.log.first_seq, stream.log.next_seq))
        elif deed < 0.95:
            holder.step()
            holder.trim_log()
            cleaned = max(cleaned, holder.owner.stream(LOG).log.first_seq)
        else:
            assert holder.found(retained=True) == model.retained
            assert holder.found(retained=False) == (model.newest if keeps_all else model.retained)
    holder.kill()
    assert holder.found(retained=True) == model.retained
    assert holder.found(retained=False) == (model.newest if keeps_all else model.retained)
    assert holder.budget.topics == holder.values.live
    assert cleaned > 10


def test_records_of_messages_that_the_stream_has_lost_do_not_count(tmp_path: Path) -> None:
    """A master may have written down more than the node had of the stream that is promoted after it."""
    holder = Holder(tmp_path, keeps_all=False)
    publish(holder.owner, (b"a", b"1", True), (b"b", b"1", True), (b"c", b"1", True))
    holder.step()
    publish(holder.owner, (b"a", b"lost", True), (b"b", b"", True), (b"d", b"lost", True))
    holder.step()
    stream = holder.owner.stream(S)
    stream.log.set_aside(3)
    holder.kill()
    assert holder.found(retained=True) == {b"a": b"1", b"b": b"1", b"c": b"1"}
    holder.kill()
    promote(holder.owner, [S, 2, 0, False])
    publish(holder.owner, (b"d", b"2", False))
    assert holder.found(retained=True) == {b"a": b"1", b"b": b"1", b"c": b"1"}
    assert not holder.values._is_doubtful


def test_a_start_reads_the_stream_from_the_last_mark_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_values, "MARK_EVERY_BYTES", 1_000)
    holder = Holder(tmp_path, keeps_all=False)
    publish(holder.owner, (b"a", b"1", True))
    for number in range(100):
        publish(holder.owner, (b"a", b"%d" % number, False))
        holder.step()
    holder.kill()
    while holder.values.seq < 0:
        holder.step(1)
    assert holder.values._scanned_from > 60
    assert holder.found(retained=True) == {b"a": b"1"}


def test_a_message_that_deletes_counts_after_a_retained_one_of_the_same_piece(tmp_path: Path) -> None:
    """They are records in the order of the messages, so that a start finds the same."""
    holder = Holder(tmp_path, keeps_all=True)
    publish(holder.owner, (b"a", b"kept", True), (b"b", b"kept", True), (b"a", b"", False), (b"b", b"2", False))
    for _ in range(2):
        assert holder.found(retained=False) == {b"b": b"2"}
        assert holder.found(retained=True) == {b"a": b"kept", b"b": b"kept"}
        holder.kill()


def test_what_has_found_no_room_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_values, "MISSED_MAX", 3)
    budget = ValueBudget(10, 1_000)
    budget.miss(S, b"a", 5)
    budget.miss(S, b"b", 6)
    assert [budget.has_missed(S, b"a", seq) for seq in (4, 5, 6)] == [True, True, False]
    assert not budget.has_missed(b"other", b"a", 5)
    budget.miss(S, b"a", 8)
    assert budget.has_missed(S, b"a", 7) and not budget.has_missed(S, b"c", 0)
    for seq, topic in enumerate((b"c", b"d")):
        budget.miss(S, topic, seq)
    assert budget.has_missed(S, b"b", 6), "forgotten, and so taken for one"


def test_room_of_both_measures() -> None:
    budget = ValueBudget(2, 1_000)
    longest = 1_000 - ENTRY_BYTES
    assert budget.room.after(b"x" * longest, 1).is_none and not budget.room.after(b"x" * (longest - 1), 1).is_none
    assert not budget.room.after(b"a", 1).is_none and budget.room.after(b"a", 1).after(b"b", 1).is_none
    assert budget.room.after(b"a", 1).after(b"a", -1) == budget.room
