"""Binary subscriptions on a real node: from every place to every end, by credit, slowly, while the past is dropped."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from tailrace.protocol.messages import Credit, Failed, Op, Subscribe, Unsubscribe
from tailrace.protocol.places import FROM_NEW, From
from tailrace.shard.frame import HEADER_BYTES
from tests.system.binary_peer import FROM_START, BinaryPeer, peer, peer_of
from tests.system.node import Node, rows, running, wait_for
from tests.system.streams import lives, name_of, rss_bytes

pytestmark = pytest.mark.system

WORKERS = 2
MIB = 1 << 20
CHUNK_BYTES = 65_536
FAR_BEHIND_BYTES = 4 * CHUNK_BYTES  # at once, for who has more than that before it
CONFIG = f"""
[node]
affinity = false
[limits]
chunk_bytes = {CHUNK_BYTES}
chunk_cache_bytes = {MIB}
[timing]
trim_grace_s = 2
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("subscribe") / "data", workers=WORKERS, config=CONFIG) as node:
        before = lives(node)
        yield node
        assert lives(node) == before, "a worker has ended"


@pytest.fixture
def client(node: Node) -> Iterator[BinaryPeer]:
    with peer(node) as client:
        yield client


def fill(node: Node, name: str, count: int, nbytes: int = 1_000) -> list[bytes]:
    payloads = [b"%d %s" % (number, b"x" * (nbytes - len(b"%d" % number) - 1)) for number in range(count)]
    with peer(node) as publisher:
        batch = max(MIB // nbytes, 1)
        for start in range(0, count, batch):
            publisher.publish(name, payloads[start : start + batch])
    return payloads


def read(node: Node, number: int, name: str, start: From, **how: object) -> tuple[BinaryPeer, int]:
    """A subscription read to its end, by default the present end; and the seq after it."""
    with peer(node) as client:
        client.subscribe(number, name, start, **{"end": ("now", 0), **how})  # type: ignore[arg-type]
        end = client.wait_ended(number)
        assert (end.code, end.text) == ("", "")
        return client, end.next_seq


# --- places and ends --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def timed(node: Node) -> list[tuple[int, int]]:
    """(seq, timestamp) of the stream `timed`: ten batches of 1, 2, ... messages, each at a time of its own."""
    with peer(node) as client:
        client.subscribe(1, "timed")
        seq = 0
        for size in range(1, 11):
            client.publish("timed", [b"%d" % (seq + number) for number in range(size)])
            seq += size
            client.read_messages(1, seq)
        times = [(message.seq, message.timestamp_us) for message in client.messages[1]]
        assert len({at_us for _seq, at_us in times}) == 10
        return times


def test_from_a_seq(node: Node, timed: list[tuple[int, int]]) -> None:
    for start in (0, 1, 17, 54, 55, 56, 1_000_000, (1 << 63) - 1):
        client, next_seq = read(node, 3, "timed", From("seq", start))
        assert [(each.seq, each.timestamp_us) for each in client.messages.get(3, [])] == timed[start:]
        assert next_seq == 55


def test_from_a_time_begins_with_the_first_at_or_after_it(node: Node, timed: list[tuple[int, int]]) -> None:
    for _seq, at_us in timed[::7]:
        for start_us in (at_us - 1, at_us, at_us + 1):
            client, _next = read(node, 3, "timed", From("time", start_us))
            assert client.seqs(3) == [seq for seq, other_us in timed if other_us >= start_us]


def test_skip_leaves_out_messages_of_that_very_time(node: Node, timed: list[tuple[int, int]]) -> None:
    for at_us, group in groupby(timed, key=lambda each: each[1]):
        seqs = [seq for seq, _ in group]
        for skip in (0, 1, len(seqs) - 1, len(seqs), len(seqs) + 5):
            client, _next = read(node, 3, "timed", From("time", at_us), skip=skip)
            assert client.seqs(3) == list(range(seqs[0] + min(skip, len(seqs)), 55))


def test_new_is_what_comes_after_the_answer(node: Node, client: BinaryPeer) -> None:
    fill(node, "new", 5)
    answer = client.subscribe(1, "new", FROM_NEW)
    assert (answer.next_seq, answer.first_seq, answer.end_seq) == (5, 0, None)
    client.publish("new", [b"here"])
    assert [(each.seq, each.payload) for each in client.read_messages(1, 1)] == [(5, b"here")]


def test_own_publishes_are_before_an_own_subscription_to_what_is_new(node: Node) -> None:
    for slot in range(WORKERS):
        for owner in range(WORKERS):
            name = name_of(owner, WORKERS, f"own{slot}-")
            with peer_of(node, slot) as client:
                client.send_publish(name, [b"1", b"2"])
                client.say(Subscribe(1, name.encode(), FROM_NEW, wait=True))
                client.send_publish(name, [b"3"])
                assert [each.seq for each in client.read_messages(1, 1)] == [2]


def test_ends(node: Node, timed: list[tuple[int, int]]) -> None:
    """All are exclusive; one that lies before the start gives nothing."""
    at_us = dict(timed)
    cases = [
        (("seq", 20), 20), (("seq", 4), 4), (("seq", 3), 4), (("seq", 0), 4), (("now", 0), 55), (("seq", 55), 55),
        (("time", at_us[54]), 45), (("time", at_us[54] + 1), 55), (("time", at_us[0]), 4), (("time", 0), 4),
    ]  # fmt: skip
    for end, end_seq in cases:
        with peer(node) as client:
            answer = client.subscribe(2, "timed", From("seq", 4), end=end)
            assert (answer.next_seq, answer.first_seq, answer.end_seq) == (4, 0, end_seq), end
            ended = client.wait_ended(2)
            assert (ended.next_seq, ended.code) == (end_seq, "")
            assert client.seqs(2) == list(range(4, end_seq))


@pytest.mark.parametrize("slot", range(WORKERS))
def test_an_end_that_has_not_come_is_waited_for(node: Node, slot: int) -> None:
    name = name_of(0, WORKERS, f"ahead{slot}-")
    with peer_of(node, slot) as client, peer(node) as publisher:
        answer = client.subscribe(1, name, FROM_START, end=("seq", 7))
        assert answer.end_seq == 7
        for number in range(5):
            publisher.publish(name, [b"%d" % number] * 2)
        assert client.wait_ended(1).next_seq == 7
        assert client.seqs(1) == list(range(7))
        client.subscribe(1, name, From("seq", 7))
        assert [each.seq for each in client.read_messages(1, 10)] == list(range(10)), "and the id is free again"


def test_an_end_in_the_future_is_refused(client: BinaryPeer) -> None:
    future_us = time.time_ns() // 1_000 + 60_000_000
    answer = client.ask(Subscribe(1, b"future", FROM_START, end=("time", future_us), wait=True), Failed)
    assert (answer.code, answer.op, answer.id, answer.fatal) == ("from", Op.SUBSCRIBE, 1, False)
    client.subscribe(1, "future")


# --- several on one connection ----------------------------------------------------------------------------------------


def test_a_stream_may_be_subscribed_to_more_than_once(node: Node, client: BinaryPeer) -> None:
    payloads = fill(node, "doubled", 2_000)
    client.subscribe(1, "doubled")
    client.subscribe(2, "doubled", From("seq", 1_500))
    client.subscribe(3, "doubled", FROM_NEW)
    with peer(node) as publisher:
        publisher.publish("doubled", [b"last"])
    for number, first in ((1, 0), (2, 1_500), (3, 2_000)):
        client.read_messages(number, 2_001 - first)
        assert client.payloads(number) == [*payloads[first:], b"last"]


def test_subscriptions_share_a_connection_fairly(node: Node, client: BinaryPeer) -> None:
    """From where all of them have begun: one whose place is found sooner may be sent a lot before."""
    names = [f"fair{number}" for number in range(3)]
    for number, name in enumerate(names):
        fill(node, name, 3_000)
        client.subscribe(number, name, credit=0)
    wait_for(lambda: parked(node, "credit") == 3, "all have begun")
    client.say(*(Credit(number, 1 << 40) for number in range(3)))
    for number in range(3):
        client.read_messages(number, 3_000)
    order = [chunk.id for chunk in client.chunks]
    longest = max(sum(1 for _ in group) for _, group in groupby(order[: len(order) // 2]))
    assert longest <= 4, "nobody has the socket for long"
    assert all(chunk.nbytes <= FAR_BEHIND_BYTES for chunk in client.chunks)


def test_unsubscribe_within_a_backlog(node: Node, client: BinaryPeer) -> None:
    """No chunk comes after ENDED, which has the seq to continue from."""
    fill(node, "unsubbed", 20_000)
    client.subscribe(5, "unsubbed")
    client.read_messages(5, 100)
    client.say(Unsubscribe(5))
    end = client.wait_ended(5)
    count = len(client.messages[5])
    assert (end.next_seq, end.code) == (count, "") and count < 20_000
    client.settle()
    assert len(client.messages[5]) == count
    client.subscribe(5, "unsubbed", From("seq", count))
    client.read_messages(5, 20_000)
    assert client.seqs(5) == list(range(20_000))


def test_unsubscribe_at_once(node: Node) -> None:
    """Also while the stream's owner, another worker, is still asked about it."""
    for slot in range(WORKERS):
        for owner in range(WORKERS):
            name = name_of(owner, WORKERS, f"atonce{slot}-")
            with peer_of(node, slot) as client:
                client.say(Subscribe(1, name.encode(), FROM_NEW, wait=True), Unsubscribe(1))
                client.wait_ended(1)
                client.publish(name, [b"x"])
                client.settle()
                assert not client.messages.get(1) and not client.errors()
                client.subscribe(1, name)
                client.read_messages(1, 1)


# --- from the past to the present -------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", range(WORKERS))
def test_catching_up_and_going_on_have_no_seam(node: Node, slot: int) -> None:
    name = name_of(0, WORKERS, f"seam{slot}-")
    total = 20_000
    payloads = [b"%d" % number for number in range(total)]

    def publish() -> None:
        with peer(node) as publisher:
            for start in range(0, total, 200):
                publisher.publish(name, payloads[start : start + 200])

    readers = [peer_of(node, slot) for _ in range(6)]
    thread = threading.Thread(target=publish)
    thread.start()
    for number, reader in enumerate(readers):
        reader.subscribe(1, name, From("seq", number * 100))
        reader.read_messages(1, number * 1_500 + 1)  # the next one starts later
    thread.join()
    for number, reader in enumerate(readers):
        reader.read_messages(1, total - number * 100)
        assert reader.seqs(1) == list(range(number * 100, total))
        assert reader.payloads(1) == payloads[number * 100 :]
        reader.close()


def test_a_reader_that_stops_for_a_while_gets_everything_in_order(node: Node) -> None:
    """It is a number while it stops: the broker holds nothing for it."""
    fill(node, "stops", 1_000)
    with BinaryPeer(node.port, receive_buffer_bytes=32_768) as reader:
        reader.subscribe(1, "stops")
        pids = node.worker_pids()
        before_bytes = rss_bytes(pids)
        with peer(node) as publisher:
            for start in range(1_000, 31_000, 1_000):
                publisher.publish("stops", [b"%d %s" % (seq, b"x" * 1_000) for seq in range(start, start + 1_000)])
        grown_bytes = rss_bytes(pids) - before_bytes
        assert grown_bytes < 16 * MIB, "30 MB of lag are not in memory"
        reader.read_messages(1, 31_000)
        assert reader.seqs(1) == list(range(31_000))


# --- credit -----------------------------------------------------------------------------------------------------------


def taken_bytes(client: BinaryPeer, number: int) -> int:
    return sum(chunk.nbytes for chunk in client.chunks if chunk.id == number)


@pytest.mark.parametrize("slot", range(WORKERS))
@pytest.mark.parametrize("nbytes", [10, 900, 70_000])
def test_no_more_comes_than_was_granted_but_the_rest_of_a_message(node: Node, slot: int, nbytes: int) -> None:
    """Over a backlog and into new messages, with grants smaller than a message, than a chunk, and larger."""
    name = name_of(0, WORKERS, f"credit{nbytes}-{slot}-")
    frame_bytes = nbytes + HEADER_BYTES
    count = 60
    fill(node, name, count, nbytes)
    with peer_of(node, slot) as client, peer(node) as publisher:
        client.subscribe(1, name, credit=0)
        client.settle()
        assert not client.chunks
        granted = 0
        for grant in (1, frame_bytes, frame_bytes - 1, 2 * frame_bytes, 1, 3 * CHUNK_BYTES, 1):
            granted += grant
            client.say(Credit(1, grant))
            wait_for_all_of(client, granted, frame_bytes, count)
            client.settle()
            assert taken_bytes(client, 1) < granted + frame_bytes, "at most one message beyond what was granted"
        client.say(Credit(1, 1 << 40))
        publisher.publish(name, [b"more"] * 3)
        client.read_messages(1, count + 3)
        assert client.seqs(1) == list(range(count + 3))


def wait_for_all_of(client: BinaryPeer, granted: int, frame_bytes: int, count: int) -> None:
    """As many messages as begin within the grant, and no fewer."""
    client.read_messages(1, min(-(-granted // frame_bytes), count))


def test_no_credit_holds_back_nobody_else(node: Node, client: BinaryPeer) -> None:
    for name in ("starved", "fed"):
        fill(node, name, 100)
    client.subscribe(1, "starved", credit=0)
    client.subscribe(2, "fed")
    client.read_messages(2, 100)
    client.publish("starved", [b"x"])
    client.publish("fed", [b"x"])
    client.read_messages(2, 101)
    assert not client.messages.get(1)
    wait_for(lambda: parked(node, "credit") == 1, "it is seen to wait for credit")
    client.say(Unsubscribe(1))
    assert client.wait_ended(1).next_seq == 0


def parked(node: Node, reason: str) -> float:
    sample = f'tailrace_parked_cursors{{reason="{reason}"'
    lines = node.get("/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(sample))


def test_credit_and_an_end(node: Node, client: BinaryPeer) -> None:
    fill(node, "budget", 50, 100)
    client.subscribe(1, "budget", From("seq", 10), end=("seq", 30), credit=1)
    client.read_messages(1, 1)
    client.say(*[Credit(1, 132)] * 25)
    assert client.wait_ended(1).next_seq == 30
    assert client.seqs(1) == list(range(10, 30))
    client.say(Credit(1, 5), Credit(99, 5))
    client.settle()
    assert not client.errors(), "credit may cross an end on its way"


def test_more_credit_than_there_are_bytes(node: Node, client: BinaryPeer) -> None:
    fill(node, "rich", 10)
    client.subscribe(1, "rich", credit=(1 << 63) - 1)
    client.say(*[Credit(1, (1 << 63) - 1)] * 5)
    client.read_messages(1, 10)
    client.settle()
    assert not client.errors()


# --- trimming ---------------------------------------------------------------------------------------------------------


def disk_bytes(node: Node, name: str) -> int:
    with node.client() as admin:
        table = {row["field"]: row["value"] for row in rows(admin.ask_table(f"stat {name}"))}
        return int(table["disk_bytes"])


def trim(node: Node, name: str, seq: int, space_bytes: int) -> None:
    """Trim, and wait until that much of the space is given back."""
    full_bytes = disk_bytes(node, name)
    with node.client() as admin:
        assert admin.ask(f"trim {name} #{seq}").startswith(f"ok trim {name} {seq}")
    wait_for(lambda: disk_bytes(node, name) <= full_bytes - space_bytes, "the space is back")


def test_a_place_that_was_trimmed_is_the_first_that_is_kept(node: Node, client: BinaryPeer) -> None:
    fill(node, "kept", 1_000)
    trim(node, "kept", 900, 0)
    answer = client.subscribe(1, "kept", end=("now", 0))
    assert (answer.next_seq, answer.first_seq, answer.end_seq) == (900, 900, 1_000)
    client.wait_ended(1)
    assert client.seqs(1) == list(range(900, 1_000))
    assert not client.errors(), "where it begins is told in SUBSCRIBED, and no error"


@pytest.mark.thorough
def test_readers_in_the_middle_of_a_chunk_that_is_trimmed(node: Node) -> None:
    """The partly sent chunk comes whole; then the reader is notified, and continues with the oldest kept message."""
    cases = [(slot, nbytes) for slot in range(WORKERS) for nbytes in (1_000, 300_000)]
    names = [name_of(0, WORKERS, f"cut{slot}-{nbytes}-") for slot, nbytes in cases]
    logs = [fill(node, name, 24 * MIB // nbytes, nbytes) for name, (_slot, nbytes) in zip(names, cases, strict=True)]
    readers = [peer_of(node, slot, receive_buffer_bytes=16_384) for slot, _nbytes in cases]
    for reader, name in zip(readers, names, strict=True):
        reader.subscribe(1, name)
        reader.read_messages(1, 2)
    wait_for(lambda: parked(node, "socket") >= len(cases), "their sockets are full")
    full_bytes = [disk_bytes(node, name) for name in names]
    for name, log in zip(names, logs, strict=True):
        trim(node, name, len(log) - 20, 0)
    for name, nbytes in zip(names, full_bytes, strict=True):
        wait_for(lambda: disk_bytes(node, name) <= nbytes - 16 * MIB, "the space is back")  # noqa: B023
    for reader, name, log in zip(readers, names, logs, strict=True):
        check_told(reader, log)
        with peer(node) as publisher:
            publisher.publish(name, [b"on"])
        reader.read_until(lambda: reader.messages[1][-1].payload == b"on")  # noqa: B023
        reader.close()


def check_told(reader: BinaryPeer, log: list[bytes]) -> None:
    """It reads on to the end of the log, of which all but 20 messages were trimmed."""
    count, kept_from = len(log), len(log) - 20
    reader.read_until(lambda: reader.seqs(1)[-1] == count - 1)
    gap = next(index for index, seq in enumerate(reader.seqs(1)) if seq != index)
    assert reader.seqs(1) == [*range(gap), *range(kept_from, count)]
    assert reader.payloads(1) == log[:gap] + log[kept_from:]
    (error,) = reader.errors()
    assert (error.code, error.op, error.id, error.fatal) == ("trimmed", Op.SUBSCRIBE, 1, False)
    assert str(gap) in error.text and str(kept_from - 1) in error.text


@pytest.mark.parametrize("slot", range(WORKERS))
def test_one_that_waits_for_credit_is_told_of_a_trim_too(node: Node, slot: int) -> None:
    name = name_of(0, WORKERS, f"waits{slot}-")
    fill(node, name, 1_000)
    with peer_of(node, slot) as reader:
        reader.subscribe(1, name, credit=2 * 1_032)
        reader.read_messages(1, 2)
        trim(node, name, 500, 0)
        reader.say(Credit(1, 1 << 30))
        reader.read_messages(1, 2 + 500)
        assert reader.seqs(1) == [0, 1, *range(500, 1_000)]
        assert [(error.code, error.id) for error in reader.errors()] == [("trimmed", 1)]


def test_an_end_that_was_trimmed(node: Node, client: BinaryPeer) -> None:
    """No requested message exists any more: it ends, and does not wait for ever."""
    fill(node, "gone", 1_000)
    client.subscribe(1, "gone", end=("seq", 100), credit=1_032)
    client.read_messages(1, 1)
    trim(node, "gone", 500, 0)
    client.say(Credit(1, 1 << 30))
    end = client.wait_ended(1)
    assert end.next_seq >= 100
    seqs = client.seqs(1)
    assert seqs == list(range(len(seqs))) and len(seqs) <= 100


@pytest.mark.thorough
def test_what_a_slow_reader_was_sent_stays_as_it_was(tmp_path: Path) -> None:
    """The data waiting in its socket are pieces of the kernel's cache, large ones if the file was read from the disk. A
    hole that ended within one of them would turn a part of it to zeros, there too.
    """
    count, kept_from = 12_000, 2_303
    with running(tmp_path / "data", workers=1, config="[timing]\ntrim_grace_s = 2") as node:
        payloads = fill(node, "cold", count)
        assert node.stop() == 0
        (content,) = (tmp_path / "data").glob("*/cold.content")
        with content.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        node.start()
        with BinaryPeer(node.port, receive_buffer_bytes=16_384) as reader:
            reader.subscribe(1, "cold")
            reader.read_messages(1, 100)
            wait_for(lambda: parked(node, "socket") == 1, "its socket is full")
            trim(node, "cold", kept_from, MIB)
            reader.read_until(lambda: reader.seqs(1)[-1] == count - 1)
            seqs = reader.seqs(1)
            gap = next((place for place, seq in enumerate(seqs) if seq != place), count)
            assert seqs == [*range(gap), *range(max(gap, kept_from), count)], "every frame has its right checksum, too"
            assert reader.payloads(1) == [payloads[seq] for seq in seqs]
