"""Connections that publish one message at a time are read and answered together: the same as each by itself."""

from __future__ import annotations

import os
import random
import socket
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.connection.binary import BinaryClient
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack, Op
from tailrace.shard.frame import INDEX_ENTRY_BYTES, pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.numbering import write_numbering
from tests.broker.binary import BinaryPeer
from tests.broker.world import Peer, World, world

mark_run = load("tailrace.shard.run_cy").mark_run


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False) as node:
        yield node


def publishers(node: World, count: int, *names: str, slot: int = 0) -> list[BinaryPeer]:
    """Peers whose last read was a single publish, to the first of these streams."""
    peers = [BinaryPeer(node, slot) for _ in range(count)]
    for peer in peers:
        peer.open(*names)
        peer.publish(1, b"first")
    node.settle()
    for peer in peers:
        peer.take()
    return peers


def are_together(node: World, peers: list[BinaryPeer]) -> bool:
    """Whether all of them are to be read together."""
    known = list(node.workers[0].singles._binary.values())
    return all(node.binary_client_of(peer.peer) in known for peer in peers)


def test_each_is_answered_with_its_number_and_its_seq(node: World) -> None:
    here, away = node.name(0), node.name(1)
    peers = publishers(node, 3, here, away)
    assert are_together(node, peers)
    requests = [peer.publish(1, b"second") for peer in peers] + [peers[0].publish(2, b"away")]
    node.settle()
    answers = [answer for peer in peers for answer in peer.take()]
    found = {(each.request, *each.results[0][:2]) for each in answers if isinstance(each, m.Published)}
    assert len(answers) == 4 and {each[0] for each in found} == set(requests)
    assert sorted(each[1] for each in found) == [0, 3, 4, 5]


def test_each_is_told_of_a_refusal(tmp_path: Path) -> None:
    with world(tmp_path, auto_master=False) as node:
        peers = publishers(node, 3, "none")
        assert are_together(node, peers)
        refused_before = node.workers[0].metrics.refused.counts.get("disabled", 0)
        requests = [peer.publish(1, b"x") for peer in peers]
        node.settle()
        for peer, request in zip(peers, requests, strict=True):
            (answer,) = peer.take()
            assert isinstance(answer, m.Failed)
            assert (answer.code, answer.op, answer.id, answer.fatal) == ("disabled", Op.PUBLISH, request, False)
            assert not node.binary_client_of(peer.peer).awaited
        assert node.workers[0].metrics.refused.counts["disabled"] == refused_before + 3


def test_they_wait_for_a_stream_that_is_made(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = node.name(0), node.name(0, "n")
    peers = publishers(node, 3, old, new)
    monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_S", 0.0)
    for peer in peers:
        peer.publish(2, b"x")
    node.settle()
    seqs = [answer.results[0][0] for peer in peers for answer in peer.take() if isinstance(answer, m.Published)]
    assert sorted(seqs) == [0, 1, 2]
    clients = [node.binary_client_of(peer.peer) for peer in peers]
    assert not any(client.paused or client.held_up or client.awaited for client in clients)
    assert sum(client.created for client in clients) == 2, "each stream counts once"


def test_whoever_does_not_take_its_answers_gets_them_in_order(node: World) -> None:
    (full, other), name = publishers(node, 2, node.name(0)), node.name(0)
    small = BinaryPeer(node, 0, small=True)
    small.open(name)
    numbers = []
    for _ in range(2_000):
        numbers.append(small.publish(1, b"x", ack=Ack.APPENDED))
        node.workers[0].turn()
        if node.binary_client_of(small.peer).blocked:
            break
    assert node.binary_client_of(small.peer).blocked
    numbers += [small.publish(1, b"x") for _ in range(3)]
    for peer in (full, other):
        peer.publish(1, b"y")
    node.settle()
    assert [answer.request for answer in small.take() if isinstance(answer, m.Published)] == numbers
    assert all(len(peer.take()) == 1 for peer in (full, other))


def test_a_connection_whose_answer_is_not_sent_does_not_move(node: World) -> None:
    (peer,) = publishers(node, 1, node.name(0))
    client, worker = node.binary_client_of(peer.peer), node.workers[0]
    client.under_way += 1
    worker.singles.answers.add([client], [m.pack(m.Published(9, ((4, 1, 0),)))])
    assert (client.awaited, bool(worker.singles.owing)) == (1, True)
    worker.turn()
    assert (client.awaited, bool(worker.singles.owing)) == (0, False)
    peer.peer.read()
    assert peer.take() == [m.Published(9, ((4, 1, 0),))]


def test_two_answers_for_one_connection_keep_their_order(node: World) -> None:
    (peer,) = publishers(node, 1, node.name(0))
    client, singles = node.binary_client_of(peer.peer), node.workers[0].singles
    client.under_way += 2
    for request in (1, 2):
        singles.answers.add([client], [m.pack(m.Published(request, ((request, 1, 0),)))])
    node.settle()
    assert [answer.request for answer in peer.take() if isinstance(answer, m.Published)] == [1, 2]
    assert not client.awaited


def test_nothing_is_read_from_one_that_has_ended_meanwhile(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor is another's already."""
    first, second, third = publishers(node, 3, node.name(0))
    clients: list[Any] = [node.binary_client_of(peer.peer) for peer in (first, second, third)]
    received, (near, far) = BinaryClient.received, socket.socketpair()
    taken = clients[1].fd
    far.setblocking(False)

    def end_another(client: BinaryClient, count: int) -> None:
        if client is clients[0]:
            clients[1].close("slow")
            os.dup2(far.fileno(), taken)
            near.send(b"of somebody else")
        received(client, count)

    monkeypatch.setattr(BinaryClient, "received", end_another)
    first.say(m.Ping())
    second.publish(1, b"lost")
    third.publish(1, b"kept")
    node.workers[0].singles._read_binary(clients)
    assert os.read(taken, 100) == b"of somebody else"
    for fd in (taken, near.detach(), far.detach()):
        os.close(fd)
    node.settle()
    assert first.take() == [m.Pong()] and second.take() == [] and len(third.take()) == 1
    assert clients[1].under_way == 0 and taken not in node.workers[0].singles._binary


def test_one_that_closes_is_not_read_together_any_more(node: World) -> None:
    peers = publishers(node, 2, node.name(0))
    singles = node.workers[0].singles
    assert len(singles._binary) == 2
    peers[0].publish(1, b"last")
    peers[0].peer.close()
    node.settle()
    assert len(singles._binary) == 1
    peers[1].say(m.Close())
    peers[1].publish(1, b"too late")
    node.settle()
    assert peers[1].take() == [] and not singles._binary


def payloads(node: World, name: str) -> list[bytes]:
    """The messages of a stream."""
    reader = node.connect(0)
    reader.send(f"sub {name} 0 wait")
    node.settle()
    found = [payload.encode() for _name, _seq, payload in reader.messages()]
    reader.close()
    node.settle()
    return found


def line_publishers(node: World, count: int, name: str, *, acks: bool = True) -> list[Peer]:
    """Peers that speak lines and whose last read was a single publish."""
    peers = [node.connect(0) for _ in range(count)]
    for peer in peers:
        peer.send(f"ack {'on' if acks else 'off'}")
    node.settle()
    for peer in peers:
        peer.send(f"pub {name} |first")
    node.settle()
    assert {node.client_of(peer) for peer in peers} <= set(node.workers[0].singles._lines.values())
    for peer in peers:
        peer.take()
    return peers


def test_each_line_is_answered_with_its_seq(node: World) -> None:
    here, away = node.name(0), node.name(1)
    peers = line_publishers(node, 3, here)
    metrics = node.workers[0].metrics.line
    before = metrics.bytes_in, metrics.bytes_out, metrics.messages_in
    for peer in peers:
        peer.send(f"pub {here} |second")
    node.settle()
    found = sorted(line for peer in peers for line in peer.take())
    assert found == [f"ok pub {here} {seq}" for seq in (3, 4, 5)]
    line_bytes, answer_bytes = len(f"pub {here} |second\r\n"), len(f"ok pub {here} 3\r\n")
    assert metrics.bytes_in - before[0] == 3 * line_bytes and metrics.bytes_out - before[1] == 3 * answer_bytes
    assert metrics.messages_in - before[2] == 3
    peers[0].send(f"pub {away} |third")
    node.settle()
    assert peers[0].take() == [f"ok pub {away} 0"] and not node.client_of(peers[0]).awaited


@pytest.mark.parametrize("acks", [True, False])
def test_what_comes_behind_a_single_line_is_answered_behind_it(node: World, acks: bool) -> None:
    away = node.name(1)
    (peer,) = line_publishers(node, 1, away, acks=acks)
    peer.send(f"pub {away} |second")
    node.workers[0].turn()
    assert node.client_of(peer).awaited == 1
    peer.send("ping")
    node.workers[0].turn()
    peer.read()
    assert not peer.lines, "the other worker has not answered yet"
    peer.send(f"pub {away} |third", "ping")
    node.workers[0].turn()
    node.settle()
    expected = [f"ok pub {away} 1", "ok pong", f"ok pub {away} 2", "ok pong"]
    assert peer.take() == (expected if acks else ["ok pong", "ok pong"])
    assert not node.client_of(peer).awaited and not node.client_of(peer).in_row
    assert payloads(node, away) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("acks", [True, False])
def test_each_line_is_told_of_a_refusal(tmp_path: Path, acks: bool) -> None:
    with world(tmp_path, auto_master=False) as node:
        peers = line_publishers(node, 2, "none", acks=acks)
        refused_before = node.workers[0].metrics.refused.counts.get("disabled", 0)
        for peer in peers:
            peer.send("pub none |x")
        node.settle()
        assert node.workers[0].metrics.refused.counts["disabled"] == refused_before + 2
        assert [peer.take()[0].split()[:2] for peer in peers] == [["err", "disabled"]] * 2
        assert not any(node.client_of(peer).awaited for peer in peers)


def test_a_refusal_from_another_worker_keeps_its_place(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, affinity=False, auto_master=False) as node:
        (peer,) = line_publishers(node, 1, node.name(1), acks=False)
        peer.send(f"pub {node.name(1)} |x")
        node.workers[0].turn()
        peer.send("ping")
        node.workers[0].turn()
        node.settle()
        assert [line.split()[:2] for line in peer.take()] == [["err", "disabled"], ["ok", "pong"]]


def test_one_whose_input_ends_is_still_answered(node: World) -> None:
    (peer,) = line_publishers(node, 1, node.name(1))
    peer.send(f"pub {node.name(1)} |last")
    node.workers[0].turn()
    peer.sock.shutdown(socket.SHUT_WR)
    node.settle()
    assert peer.take() == [f"ok pub {node.name(1)} 1"] and peer.ended
    assert not node.workers[0].singles._lines and not node.workers[0].services.clients


def test_single_lines_and_batches_of_a_turn_are_one_append(node: World) -> None:
    """In the order of their arrival, single or not."""
    name = node.name(0)
    one, other = line_publishers(node, 2, name)
    batches: BinaryPeer = BinaryPeer(node, 0)
    batches.open(name)
    worker, appends = node.workers[0], []
    stream = worker.owner.catalog.open[name.encode()]
    append = stream.log.append

    class Counted:
        def __getattr__(self, field: str) -> Any:
            return getattr(log, field)

        def append(self, frames: bytearray, count: int, now_us: int, epoch: int) -> int:
            appends.append(count)
            return append(frames, count, now_us, epoch)

    log, stream.log = stream.log, Counted()  # type: ignore[assignment]
    one.send(f"pub {name} |a")
    other.send(f"pub {name} |b")
    batches.publish(1, b"c")
    worker.turn()
    node.settle()
    stream.log = log
    assert appends == [3] and payloads(node, name)[2:] == [b"a", b"b", b"c"]


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("workers", [1, 2])
def test_a_random_life_of_lines(tmp_path: Path, workers: int, seed: int) -> None:
    """Every connection gets its answers in the order of its commands, and each message is at the seq of its answer."""
    chance = random.Random(seed)
    with world(tmp_path, workers=workers, affinity=bool(seed % 2)) as node:
        names = [node.name(slot, prefix) for slot in range(workers) for prefix in "ab"]
        peers = [node.connect(chance.randrange(workers)) for _ in range(8)]
        expected: list[list[tuple[str, str]]] = [[("ok ack on", "")] for _ in peers]
        for place, peer in enumerate(peers):
            peer.send("ack on")
            for name in names:
                peer.send(f"pub {name} |begin {place}")
                expected[place].append((f"ok pub {name} ", f"begin {place}"))
        for step in range(400):
            place = chance.randrange(len(peers))
            _speak(chance, peers[place], names, expected[place], f"{place} {step}")
            if chance.random() < 0.3:
                for worker in node.workers:
                    worker.turn()
            if chance.random() < 0.05:
                node.settle()
        node.settle()
        logged = {name: [payload.decode() for payload in payloads(node, name)] for name in names}
        for peer, row in zip(peers, expected, strict=True):
            lines = peer.take()
            assert len(lines) == len(row)
            for line, (start, payload) in zip(lines, row, strict=True):
                assert line.startswith(start)
                if payload:
                    assert logged[line.split()[2]][int(line.split()[3])] == payload
        assert sum(map(len, logged.values())) == sum(bool(payload) for row in expected for _start, payload in row)
        assert not any(node.client_of(peer).awaited for peer in peers)


def _speak(chance: random.Random, peer: Peer, names: list[str], expected: list[tuple[str, str]], mark: str) -> None:
    """Most of all single lines; several in one send, pings, and lines in two pieces."""
    if chance.random() < 0.1:
        peer.send("ping")
        expected.append(("ok pong", ""))
        return
    data = b""
    for part in range(chance.choice([1, 1, 1, 1, 2, 3])):
        name, payload = chance.choice(names), f"{mark} {part}"
        data += f"pub {name} |{payload}\r\n".encode()
        expected.append((f"ok pub {name} ", payload))
    cut = chance.randrange(len(data)) if chance.random() < 0.1 else 0
    if cut:
        peer.send_raw(data[:cut])
    peer.send_raw(data[cut:])


def numbered_frame(payload: bytes, producer: bytes, number: int) -> bytes:
    return bytes(mark_run(pack_frame(payload), write_numbering(b"", producer, number)))


def publish_numbered(peer: BinaryPeer, handle: int, payload: bytes, number: int) -> int:
    peer.requests += 1
    frame = numbered_frame(payload, b"a producer", number)
    peer.peer.send_raw(m.pack_publish(peer.requests, Ack.APPENDED, [handle], frame) + frame)
    return peer.requests


def test_the_bound_on_disk_space_holds_for_single_publishes(tmp_path: Path) -> None:
    """Appends by them count, and are refused while the node is full."""
    most = 64 << 20
    with world(tmp_path, node_max_bytes=most) as node:
        (peer,), name = publishers(node, 1, "s"), b"s"
        (speaker,) = line_publishers(node, 1, "s")
        space = node.workers[0].owner.space
        before = space._sizes[name]
        for sent in (1, 2):
            peer.publish(1, b"x" * 100)
            node.settle()  # else both are one batch
            speaker.send("pub s |" + "x" * 100)
            node.settle()
            frame_bytes = len(pack_frame(b"x" * 100)) + INDEX_ENTRY_BYTES
            assert space._sizes[name] - before == sent * 2 * frame_bytes
        peer.take()
        speaker.take()
        space._share = lambda _nbytes, _is_whole: most
        space.look()
        peer.publish(1, b"x")
        node.settle()
        speaker.send("pub s |x")
        node.settle()
        (answer,) = peer.take()
        assert isinstance(answer, m.Failed) and answer.code == "full"
        assert speaker.take()[0].startswith("err full ")


def test_numbered_publishes_are_read_together_and_logged_once(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    here, away = node.name(0), node.name(1)
    peer = BinaryPeer(node, 0)
    peer.open(here, away)
    publish_numbered(peer, 1, b"0", 0)
    node.settle()
    assert are_together(node, [peer])
    monkeypatch.setattr(BinaryClient, "received", None)  # nothing goes the way of all
    for handle, number in ((1, 1), (1, 1), (2, 0), (1, 2)):
        publish_numbered(peer, handle, b"%d" % number, number)
        node.settle()
        if (handle, number) == (1, 1):
            peer.publish(1, b"unnumbered")
            node.settle()
    found = [answer.results[0][0] for answer in peer.take() if isinstance(answer, m.Published)]
    assert found == [0, 1, 2, 1, 3, 0, 4]
    assert payloads(node, here) == [b"0", b"1", b"unnumbered", b"unnumbered", b"2"]
    assert not node.binary_client_of(peer.peer).awaited


def test_a_numbered_publish_in_the_same_turn_keeps_its_place(node: World) -> None:
    name = node.name(0)
    (peer,) = publishers(node, 1, name)
    worker = node.workers[0]
    for number in range(2):
        peer.publish(1, b"plain %d" % number)
        worker._handle(worker.poller.poll(0))
        publish_numbered(peer, 1, b"numbered %d" % number, number)
        worker._handle(worker.poller.poll(0))
    node.settle()
    assert payloads(node, name) == [b"first", b"plain 0", b"numbered 0", b"plain 1", b"numbered 1"]
    assert [answer.results[0][0] for answer in peer.take() if isinstance(answer, m.Published)] == [1, 2, 3, 4]


def test_a_gap_is_refused(node: World) -> None:
    (peer,) = publishers(node, 1, node.name(0))
    publish_numbered(peer, 1, b"0", 0)
    node.settle()
    peer.take()
    request = publish_numbered(peer, 1, b"2", 2)
    node.settle()
    (answer,) = peer.take()
    assert isinstance(answer, m.Failed) and (answer.code, answer.id) == ("gap", request)
    assert not node.binary_client_of(peer.peer).awaited


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("workers", [1, 2])
def test_a_random_life(tmp_path: Path, workers: int, seed: int) -> None:
    """Every acknowledged message is at its seq, once, and those of a connection are in their order."""
    chance = random.Random(seed)
    with world(tmp_path, workers=workers, affinity=bool(seed % 2)) as node:
        names = [node.name(slot, prefix) for slot in range(workers) for prefix in "ab"]
        peers = [BinaryPeer(node, chance.randrange(workers)) for _ in range(8)]
        sent: dict[tuple[int, int], tuple[str, bytes]] = {}  # by peer and request
        found: dict[tuple[int, int], int] = {}
        numbers: dict[tuple[int, int], int] = {}  # of every second peer, the last to each stream
        for peer in peers:
            peer.open(*names)
        for step in range(400):
            place = chance.randrange(len(peers))
            _act(chance, place, peers[place], names, sent, step, numbers)
            if chance.random() < 0.3:
                for worker in node.workers:
                    worker.turn()
            if chance.random() < 0.05:
                node.settle()
                _collect(peers, found)
        node.settle()
        _collect(peers, found)
        reader = BinaryPeer(node)
        for number, name in enumerate(names, start=1):
            reader.subscribe(number, name)
        node.settle()
        reader.take()
        _compare(names, sent, found, reader.got)
        assert not any(node.binary_client_of(peer.peer).awaited for peer in peers)


def _act(
    chance: random.Random,
    place: int,
    peer: BinaryPeer,
    names: list[str],
    sent: dict[tuple[int, int], tuple[str, bytes]],
    step: int,
    numbers: dict[tuple[int, int], int],
) -> None:
    """Most of all single publishes; silent ones, several in one send, pings, and requests in two pieces."""
    what = chance.random()
    if what < 0.1:
        peer.say(m.Ping())
        return
    data = b""
    for part in range(chance.choice([1, 1, 1, 2, 3])):
        handle, payload = chance.randrange(len(names)) + 1, b"%d %d %d" % (place, step, part)
        ack = Ack.NONE if chance.random() < 0.2 else Ack.APPENDED
        peer.requests += 1
        frames = pack_frame(payload)
        if place % 2:
            numbers[place, handle] = number = numbers.get((place, handle), -1) + 1
            frames = numbered_frame(payload, b"producer %d" % place, number)
        data += m.pack_publish(peer.requests, ack, [handle], frames) + frames
        sent[place, peer.requests] = names[handle - 1], payload
    cut = chance.randrange(len(data)) if what > 0.9 else 0
    if cut:
        peer.peer.send_raw(data[:cut])
        for worker in peer.node.workers:
            worker.turn()
    peer.peer.send_raw(data[cut:])


def _collect(peers: list[BinaryPeer], found: dict[tuple[int, int], int]) -> None:
    for place, peer in enumerate(peers):
        for answer in peer.take():
            if isinstance(answer, m.Published):
                assert (place, answer.request) not in found
                found[place, answer.request] = answer.results[0][0]
            else:
                assert isinstance(answer, m.Pong), answer


def _compare(
    names: list[str],
    sent: dict[tuple[int, int], tuple[str, bytes]],
    found: dict[tuple[int, int], int],
    got: dict[int, list[tuple[int, bytes]]],
) -> None:
    logged = {name: [payload for _seq, payload in got.get(number, [])] for number, name in enumerate(names, start=1)}
    everything = [payload for payloads in logged.values() for payload in payloads]
    assert sorted(everything) == sorted(payload for _name, payload in sent.values())
    for request, seq in found.items():
        name, payload = sent[request]
        assert logged[name][seq] == payload
    orders: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for name, payloads in logged.items():
        for payload in payloads:
            place, step, part = map(int, payload.split())
            orders[name, place].append((step, part))
    assert all(order == sorted(order) for order in orders.values())
    assert len(found) > 200


def test_a_node_publishes_as_others_do_and_is_given_back_what_comes_when_the_worker_leaves(node: World) -> None:
    name, peer = node.name(0), BinaryPeer(node, node_id="node-below")
    peer.open(name)
    peer.publish(1, b"first")
    node.settle()
    assert are_together(node, [peer])
    peer.publish(1, b"second")
    node.settle()
    assert [each.results[0][0] for each in peer.take() if isinstance(each, m.Published)] == [0, 1]
    node.binary_client_of(peer.peer).take_no_more()
    peer.publish(1, b"third")
    node.settle()
    (answer,) = peer.take()
    assert isinstance(answer, m.Failed) and answer.code == "closing"
