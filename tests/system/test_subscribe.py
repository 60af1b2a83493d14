"""Reading: from every place of the past, on to new messages, slowly, in great pieces, and while the past is dropped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import groupby

import pytest

from tests.system.node import PATIENCE_S, LineClient, Node, rows, running, wait_for
from tests.system.streams import lives, name_of, rss_bytes

pytestmark = pytest.mark.system

WORKERS = 2
MIB = 1 << 20
CHUNK_BYTES = 64 << 10
# Small chunks and cache, so that a few megabytes are many chunks; a grace long enough to be seen, short enough to wait.
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
def client(node: Node) -> Iterator[LineClient]:
    with node.client() as client:
        yield client
        client.send("close")


def fill(node: Node, name: str, count: int, nbytes: int = 1_000) -> list[bytes]:
    """Publish `count` messages of about `nbytes` bytes, each different; returns their payloads."""
    payloads = [b"%d " % number + b"x" * nbytes for number in range(count)]
    with node.client() as client:
        client.send(*(b"pub %s |%s" % (name.encode(), payload) for payload in payloads), "ping")
        client.read_until(lambda: bool(client.answers))
        assert client.answers == ["ok pong"]
    return payloads


def payloads_of(client: LineClient, name: str | None = None) -> list[bytes]:
    return [message.payload for message in client.messages if name in (None, message.stream)]


def subscribe(node: Node, name: str, start: str, count: int) -> LineClient:
    """The client after `count` messages from `start` on."""
    with node.client() as client:
        client.send(f"sub {name} {start} wait")
        client.read_messages(count)
        client.send("close")
        return client


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def timed(node: Node) -> list[tuple[int, int]]:
    """(seq, timestamp) of the stream `timed`: ten batches of 1, 2, ... messages, each at a time of its own."""
    with node.client() as client:
        client.send("ack on", "sub timed 0 wait")
        seq = 0
        for size in range(1, 11):
            client.send(*(f"pub timed |{seq + number}" for number in range(size)))
            seq += size
            client.read_messages(seq)
        client.send("close")
        return [(message.seq, message.timestamp_us) for message in client.messages]


def test_from_0_is_everything(node: Node, timed: list[tuple[int, int]]) -> None:
    client = subscribe(node, "timed", "0", len(timed))
    assert [(message.seq, message.timestamp_us) for message in client.messages] == timed
    assert client.answers == ["ok sub timed 0"]


def test_from_a_time_begins_with_the_first_at_or_after_it(node: Node, timed: list[tuple[int, int]]) -> None:
    for _seq, timestamp_us in timed[:: len(timed) // 7]:
        for start_us in (timestamp_us - 1, timestamp_us, timestamp_us + 1):
            expected = [seq for seq, at_us in timed if at_us >= start_us]
            client = subscribe(node, "timed", str(start_us), len(expected))
            assert [message.seq for message in client.messages] == expected


def test_skip_leaves_out_messages_of_that_very_time(node: Node, timed: list[tuple[int, int]]) -> None:
    """How a reader that knows times only goes on: SKIP is how many it has of the last one's."""
    times = {at_us: [seq for seq, _ in group] for at_us, group in groupby(timed, key=lambda each: each[1])}
    assert max(len(seqs) for seqs in times.values()) > 2, "some messages share a time"
    for at_us, seqs in times.items():
        for skip in range(len(seqs) + 3):
            first = seqs[0] + min(skip, len(seqs))
            with node.client() as client:
                assert client.ask(f"sub timed {at_us} {skip} wait") == f"ok sub timed {first}"
                client.read_messages(len(timed) - first)
                assert [message.seq for message in client.messages] == list(range(first, len(timed)))
                client.send("close")


def test_from_a_seq(node: Node, timed: list[tuple[int, int]]) -> None:
    for start in (0, 1, 17, len(timed) - 1):
        client = subscribe(node, "timed", f"#{start}", len(timed) - start)
        assert [message.seq for message in client.messages] == list(range(start, len(timed)))
        assert client.answers == [f"ok sub timed {start}"]


@pytest.mark.parametrize("start", ["new", "#1000000", "9223372036854775807"])
def test_from_the_end_or_beyond_comes_what_is_new(node: Node, start: str) -> None:
    """A seq or a time that is not there yet means the end: the next message has the next seq, for any such start."""
    name = f"beyond-{start.strip('#')}"
    fill(node, name, 3)
    with node.client() as reader, node.client() as publisher:
        assert reader.ask(f"sub {name} {start} wait") == f"ok sub {name} 3"
        publisher.send(f"pub {name} |later")
        assert [(message.seq, message.payload) for message in reader.read_messages(1)] == [(3, b"later")]
        reader.send("close")


def test_an_unknown_stream_is_made_and_waited_for(node: Node) -> None:
    for slot in range(WORKERS):
        name = name_of(slot, WORKERS, "unborn")
        with node.client() as reader, node.client() as publisher:
            assert reader.ask(f"sub {name} 0 wait") == f"ok sub {name} 0"
            publisher.send(f"pub {name} |born")
            assert payloads_of(reader) == [] and [each.payload for each in reader.read_messages(1)] == [b"born"]
            reader.send("close")


# --- several on one connection ----------------------------------------------------------------------------------------


def test_subscriptions_share_a_connection_fairly(node: Node) -> None:
    """Three backlogs on one socket: a chunk each in turn, so that none waits for another's end.

    On a busy machine a subscription may begin when another one is through, which the socket takes whole: what counts is
    the time for which all three have a backlog, and a session without such a time is repeated.
    """
    names = [f"fair{number}" for number in range(3)]
    backlogs = {name: fill(node, name, 3_000) for name in names}
    together: list[str] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(together) < 3_000:
        assert time.monotonic() < deadline_s, "one waits for another's end"
        with node.client() as client:
            client.send(*(f"sub {name} 0 wait" for name in names))
            client.read_messages(9_000)
            assert all(payloads_of(client, name) == backlogs[name] for name in names)
            order = [message.stream for message in client.messages]
            client.send("close")
        start = max(order.index(name) for name in names)
        end = min(len(order) - order[::-1].index(name) for name in names)
        together = order[start:end]
    counts = sorted(together.count(name) for name in names)
    assert counts[0] > 0.7 * counts[-1], "each has its share while all of them have a backlog"
    runs = [sum(1 for _ in group) for _, group in groupby(together)]
    assert max(runs) <= 4 * CHUNK_BYTES // 1_000, "nobody has the socket for long"


def test_a_connection_subscribes_to_many_streams(node: Node, client: LineClient) -> None:
    names = [f"wide{number}" for number in range(300)]
    client.send(*(f"sub {name} 0 wait" for name in names))
    with node.client() as publisher:
        for text in ("a", "b"):
            publisher.send(*(f"pub {name} |{text}" for name in names))
    client.read_messages(600)
    assert sorted(client.answers) == sorted(f"ok sub {name} 0" for name in names)
    for name in names:
        assert [(each.seq, each.payload) for each in client.messages if each.stream == name] == [(0, b"a"), (1, b"b")]


@pytest.mark.parametrize("owner", range(WORKERS))
def test_a_stream_can_be_subscribed_to_once_a_connection(node: Node, owner: int) -> None:
    """All at once, while the stream's owner, here another worker, is still asked for its end."""
    name = name_of(owner, WORKERS, "once")
    lines = ["sub {} new wait", "sub {} 0 wait", "sub {} new wait", "unsub {}", "unsub {}", "sub {} new wait", "ping"]
    with node.client_of(0) as client:
        client.send(*(line.format(name) for line in lines))
        client.read_until(lambda: "ok pong" in client.answers)
        assert [" ".join(answer.split(" ")[:2]) for answer in client.answers] == [
            "ok sub", "err subscribed", "err subscribed", "ok unsub", "err unsubscribed", "ok sub", "ok pong",
        ]  # fmt: skip
        client.send(f"pub {name} |x", "ping")
        client.read_messages(1)
        client.read_until(lambda: client.answers.count("ok pong") == 2)
        assert len(client.messages) == 1, "nothing is left of the subscription that was given up"
        client.send(f"unsub {name}", f"sub {name} new wait", "close")
        client.read_to_end()
        assert client.answers[-3:] == [f"ok unsub {name}", f"ok sub {name} 1", "ok close"]


def test_unsub_within_a_backlog_ends_the_messages(node: Node, client: LineClient) -> None:
    fill(node, "unsubbed", 20_000)
    client.send("sub unsubbed 0 wait")
    client.read_messages(100)
    assert client.ask("unsub unsubbed") == "ok unsub unsubbed"
    count = len(client.messages)
    assert count < 20_000
    assert [message.seq for message in client.messages] == list(range(count))
    assert client.ask("ping") == "ok pong"
    assert len(client.messages) == count, "no message comes after `ok unsub`"
    assert client.ask(f"sub unsubbed #{count} wait") == f"ok sub unsubbed {count}"
    client.read_messages(20_000)
    assert [message.seq for message in client.messages] == list(range(20_000))


# --- from the past to the present -------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("slot", range(WORKERS))
def test_catching_up_and_going_on_have_no_seam(node: Node, slot: int) -> None:
    """Readers come in at any moment while publishing goes on: each seq once, none missing, the same bytes."""
    name = name_of(0, WORKERS, f"seam{slot}-")
    total = 12_000
    payloads = fill(node, name, 5_000, 100)
    payloads += [b"%d live" % number for number in range(5_000, total)]

    def publish() -> None:
        with node.client() as publisher:
            for start in range(5_000, total, 250):
                publisher.send(*(b"pub %s |%s" % (name.encode(), each) for each in payloads[start : start + 250]))
                assert publisher.ask("ping") == "ok pong"

    thread = threading.Thread(target=publish)
    readers = [node.client_of(slot) for _ in range(8)]
    thread.start()
    for number, reader in enumerate(readers):
        start = number * 500
        reader.send(f"sub {name} #{start} wait")
        reader.read_messages(number * 800 + 1)  # the next one starts later
    thread.join()
    for number, reader in enumerate(readers):
        reader.read_messages(total - number * 500)
        assert [message.seq for message in reader.messages] == list(range(number * 500, total))
        assert payloads_of(reader) == payloads[number * 500 :]
        reader.send("close")
        reader.close()


def test_a_reader_that_stops_for_a_while_gets_everything_in_order(node: Node) -> None:
    """It is a number while it stops: neither the broker's memory nor the other readers notice."""
    fill(node, "stops", 1_000)
    with node.client() as reader, node.client() as witness:
        reader.send("sub stops 0 wait")
        reader.read_messages(1)
        pids = node.worker_pids()
        before_bytes = rss_bytes(pids)
        witness.send("sub stops 0 wait")
        for number in range(1_000, 31_000, 3_000):
            with node.client() as publisher:
                publisher.send(*(b"pub stops |%d %s" % (seq, b"x" * 1_000) for seq in range(number, number + 3_000)))
                assert publisher.ask("ping") == "ok pong"
            witness.read_messages(number + 3_000)
        grown_bytes = rss_bytes(pids) - before_bytes
        assert grown_bytes < 16 * MIB, "30 MB of lag are not in memory"
        reader.read_messages(31_000)
        assert [message.seq for message in reader.messages] == list(range(31_000))
        assert payloads_of(reader) == payloads_of(witness)
        reader.send("close")
        witness.send("close")


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_messages_of_8_mib_and_around_the_borders_of_a_chunk(node: Node, client: LineClient) -> None:
    frame_header = 32
    sizes = [0, 1, CHUNK_BYTES - frame_header - 1, CHUNK_BYTES - frame_header, CHUNK_BYTES - frame_header + 1, 0, 7]
    sizes += [CHUNK_BYTES, 3 * CHUNK_BYTES, 1, 8 * MIB - 1, 8 * MIB, 0, 8 * MIB, 5]
    payloads = [bytes([97 + index]) * size for index, size in enumerate(sizes)]
    assert client.ask("ack on") == "ok ack on"
    for index, payload in enumerate(payloads):
        assert client.ask(b"pub huge |" + payload) == f"ok pub huge {index}"
    for slot in range(WORKERS):
        with node.client_of(slot) as reader:
            reader.send("sub huge 0 wait")
            reader.read_messages(len(payloads))
            assert payloads_of(reader) == payloads
            reader.send("close")


def test_a_message_over_the_limit_is_refused_and_the_next_one_taken(client: LineClient) -> None:
    client.send("ack on", b"pub over |" + b"x" * (8 * MIB + 1), b"pub over |" + b"x" * (9 * MIB), "pub over |fits")
    client.read_until(lambda: len(client.answers) == 4)
    assert [" ".join(answer.split(" ")[:2]) for answer in client.answers] == [
        "ok ack", "err size", "err line", "ok pub",
    ]  # fmt: skip


# --- trimming ---------------------------------------------------------------------------------------------------------


def stat_of(node: Node, name: str) -> dict[str, str]:
    with node.client() as admin:
        return {row["field"]: row["value"] for row in rows(admin.ask_table(f"stat {name}"))}


def test_trim_drops_what_is_before_and_gives_the_space_back(node: Node, client: LineClient) -> None:
    fill(node, "trimmed", 10_000)
    full_bytes = int(stat_of(node, "trimmed")["disk_bytes"])
    assert client.ask("trim trimmed #9000") == "ok trim trimmed 9000 9000"
    stat = stat_of(node, "trimmed")
    assert (stat["first_seq"], stat["next_seq"], stat["messages"]) == ("9000", "10000", "1000")
    reader = subscribe(node, "trimmed", "0", 1_000)
    assert reader.answers == ["ok sub trimmed 9000"]
    assert [message.seq for message in reader.messages] == list(range(9_000, 10_000))
    wait_for(lambda: int(stat_of(node, "trimmed")["disk_bytes"]) < full_bytes - 8 * MIB, "the space is back")
    reader = subscribe(node, "trimmed", "#9500", 500)
    assert [message.seq for message in reader.messages] == list(range(9_500, 10_000))
    assert client.ask("trim trimmed #99999") == "ok trim trimmed 10000 1000"


@pytest.mark.few(1)
@pytest.mark.parametrize("slot", range(WORKERS))
def test_a_reader_that_lags_behind_a_trim_is_told_and_goes_on(node: Node, slot: int) -> None:
    name = name_of(0, WORKERS, f"lagging{slot}-")
    payloads = fill(node, name, 20_000)
    with node.client_of(slot) as reader, node.client() as admin:
        reader.send(f"sub {name} 0 wait")
        reader.read_messages(1)
        full_bytes = int(stat_of(node, name)["disk_bytes"])
        assert admin.ask(f"trim {name} #19000") == f"ok trim {name} 19000 19000"
        wait_for(lambda: int(stat_of(node, name)["disk_bytes"]) < full_bytes - 16 * MIB, "the space is back")
        push_out_of_cache(node, slot)
        reader.read_until(lambda: bool(reader.messages) and reader.messages[-1].seq == 19_999)
        gap = next(index for index, message in enumerate(reader.messages) if message.seq != index)
        assert [message.seq for message in reader.messages] == [*range(gap), *range(19_000, 20_000)]
        assert payloads_of(reader) == payloads[:gap] + payloads[19_000:]
        assert len(reader.answers) == 2
        assert reader.answers[1].startswith(f"err trimmed {name}: messages {gap} to 18999 ")
        admin.send(f"pub {name} |on")
        assert reader.read_messages(gap + 1_001)[-1].payload == b"on"
        reader.send("close")


def push_out_of_cache(node: Node, slot: int) -> None:
    """Have a worker render more than its cache holds, so that nothing rendered before is there any more."""
    name = name_of(slot, WORKERS, "filler")
    if name not in {row["stream"] for row in streams_of(node)}:
        fill(node, name, 5_000)
    with node.client_of(slot) as client:
        client.send(f"sub {name} 0 wait")
        client.read_messages(5_000)
        client.send("close")


def streams_of(node: Node) -> list[dict[str, str]]:
    with node.client() as admin:
        return rows(admin.ask_table("streams filler"))
