"""A connection handed over anywhere in the middle of its peer's requests: nothing is lost, doubled or reordered.

The same session is played again and again, cut after one byte or another of it, with a handover at the cut; then long
ones, with handovers at random places. The results are compared with those of a session that is not moved.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tailrace.broker.connection import handover
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.messages import (
    Ack,
    Chunk,
    Credit,
    Hello,
    Open,
    Ping,
    Published,
    Response,
    Subscribe,
    Welcome,
    pack,
    pack_publish,
)
from tailrace.protocol.places import From
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tests.broker.world import Peer, World, world
from tests.thorough import places

SEED_VARIABLE = "TAILRACE_TEST_SEED"
TURNS_MAX = 200
CUTS = 150  # of a session

_parse = load("tailrace.shard.frame_cy").parse


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False, chunk_bytes=4_096) as node:
        yield node


@pytest.fixture
def chance() -> random.Random:
    """Printed, so that a failure shows it, and taken back from the environment."""
    chosen = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"{SEED_VARIABLE}={chosen}")
    return random.Random(chosen)


def move(node: World, peer: Peer) -> None:
    """To the other worker, as soon as that may be; the other one need not have noticed when this returns."""
    for _ in range(TURNS_MAX):
        found = [
            client
            for worker in node.workers
            for client in worker.services.clients.values()
            if is_of(node, client, peer)
        ]
        if found and handover.possible(found[0]):
            break
        for worker in node.workers:
            worker.turn()
        for each in node.peers:
            each.read()
    (client,) = found
    source = node.worker_of(client)
    link = source.links.link_to(1 - source.slot)
    assert link is not None
    source.links.hand_over(link, *handover.detach(client))
    source.siblings.flush()


def is_of(node: World, client: object, peer: Peer) -> bool:
    return getattr(client, "peer", None) == f"peer:{node.peers.index(peer) + 1}"


# --- the two protocols ------------------------------------------------------------------------------------------------


@dataclass
class Heard:
    """What a peer got: its answers, and the payloads of each subscription."""

    answers: list[object] = field(default_factory=list)
    messages: dict[object, list[tuple[int, bytes]]] = field(default_factory=dict)


def line_session(here: str, there: str) -> bytes:
    lines = [
        "ack on", f"pub {here} |one", f"pub {there} |two", f"sub {here} 0 wait", f"sub {there} #1",
        f"pub {here} |three",
        "ping", "ack off", f"pub {there} |four", f"pub {here} |", "nonsense", "ack on", f"pub {there} |five",
    ]  # fmt: skip
    return "".join(f"{line}\r\n" for line in lines).encode()


def line_heard(peer: Peer) -> Heard:
    heard = Heard()
    heard.answers += [line for line in peer.lines if not line.startswith("msg ")]
    for name, seq, payload in peer.messages():
        heard.messages.setdefault(name, []).append((seq, payload.encode()))
    return heard


def binary_session(here: str, there: str) -> bytes:
    def publish(request: int, handles: list[int], payloads: list[bytes], ack: Ack = Ack.APPENDED) -> bytes:
        frames = b"".join(map(pack_frame, payloads))
        return pack_publish(request, ack, handles, frames) + frames

    start = From("seq", 0)
    return b"".join(
        (
            pack(Hello(1, (), "")),
            pack(Open(1, here.encode())),
            pack(Open(2, there.encode())),
            publish(1, [1], [b"one", b"two"]),
            publish(2, [2, 1], [b"three"]),
            pack(Subscribe(1, here.encode(), start, wait=True)),
            publish(3, [2], [b"four" * 20], Ack.NONE),
            pack(Subscribe(2, there.encode(), start, end=("seq", 3), credit=1 << 20, wait=True)),
            pack(Ping()),
            publish(4, [9], [b"to nobody"]),
            publish(5, [1], [b""]),
            publish(6, [2], [b"five"]),
        )
    )


def binary_heard(peer: Peer) -> Heard:
    """Answers may come in any order: they are sorted."""
    heard = Heard()
    answers: list[Response] = []
    for message in ClientCodec().feed(bytes(peer.received)):
        if isinstance(message, Chunk):
            found = _parse(message.frames, 0, len(message.frames), True)
            heard.messages.setdefault(message.id, []).extend((each[0], each[5]) for each in found)
        else:
            answers.append(message)
    # The worker that sends WELCOME, and the count of subscribers, are not part of the session.
    heard.answers += sorted(_plain(answer) for answer in answers)
    return heard


def _plain(answer: Response) -> str:
    if isinstance(answer, Published):
        return f"Published {answer.request} {[result[:2] for result in answer.results]}"
    return "Welcome" if isinstance(answer, Welcome) else repr(answer)


PROTOCOLS: dict[str, tuple[Callable[[str, str], bytes], Callable[[Peer], Heard]]] = {
    "line": (line_session, line_heard),
    "binary": (binary_session, binary_heard),
}


def renamed(node: World, number: int) -> tuple[str, str]:
    """Two streams of one session: of the first worker, of the second; names of the same length in each session."""
    return node.name(0, f"a{number:04}-"), node.name(1, f"b{number:04}-")


def with_names(heard: Heard, here: str, there: str) -> tuple[list[str], dict[str, list[tuple[int, bytes]]]]:
    """The answers and messages of a peer, with the names of the streams replaced."""

    def plain(text: object) -> str:
        return str(text).replace(here, "HERE").replace(there, "THERE")

    return [plain(each) for each in heard.answers], {plain(key): row for key, row in heard.messages.items()}


# --- any byte ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_handover_after_any_byte(node: World, protocol: str, chance: random.Random) -> None:
    make_session, hear = PROTOCOLS[protocol]
    length = len(make_session(*renamed(node, 0)))
    expected = None
    for cut in (-1, *places(range(length + 1), CUTS, chance)):
        here, there = renamed(node, cut + 1)
        session = make_session(here, there)
        assert len(session) == length
        peer = node.connect(0)
        if cut >= 0:
            peer.send_raw(session[:cut])
            if cut % 3:
                node.workers[0].turn()  # else the other worker reads all of it
            move(node, peer)
        peer.send_raw(session[max(cut, 0) :])
        node.settle()
        heard = with_names(hear(peer), here, there)
        if expected is None:
            expected = heard
            assert len(expected[0]) > 5 and len(expected[1]) == 2, "the session says something"
        assert heard == expected, f"handed over after byte {cut}"
        peer.close()
        node.settle()
    assert length > CUTS


# --- random bytes -----------------------------------------------------------------------------------------------------


def line_stream(names: list[str], count: int) -> bytes:
    return b"ack on\r\n" + b"".join(b"pub %s |%d\r\n" % (names[n % len(names)].encode(), n) for n in range(count))


def line_fates(peer: Peer, names: list[str], count: int) -> list[tuple[str, int]]:
    """The stream and seq of each message, in the order of sending."""
    assert peer.lines[0] == "ok ack on" and len(peer.lines) == count + 1
    fates = []
    for line in peer.lines[1:]:
        ok, pub, name, seq = line.split()
        assert (ok, pub) == ("ok", "pub")
        fates.append((name, int(seq)))
    assert [name for name, _seq in fates] == [names[n % len(names)] for n in range(count)]
    return fates


def binary_stream(names: list[str], count: int) -> bytes:
    opens = b"".join(pack(Open(number, name.encode())) for number, name in enumerate(names))
    frames = [pack_frame(b"%d" % n) for n in range(count)]
    publishes = (pack_publish(n, Ack.APPENDED, [n % len(names)], frames[n]) + frames[n] for n in range(count))
    return pack(Hello(1, (), "")) + opens + b"".join(publishes)


def binary_fates(peer: Peer, names: list[str], count: int) -> list[tuple[str, int]]:
    answers = list(ClientCodec().feed(bytes(peer.received)))[1 + len(names) :]
    found = {answer.request: answer.results[0][0] for answer in answers if isinstance(answer, Published)}
    assert len(answers) == len(found) == count
    return [(names[n % len(names)], found[n]) for n in range(count)]


STREAMS = {"line": (line_stream, line_fates), "binary": (binary_stream, binary_fates)}


@pytest.mark.parametrize("protocol", STREAMS)
def test_handovers_at_random_places_of_a_stream_of_publishes(node: World, protocol: str, chance: random.Random) -> None:
    """Several moves, in both directions, while the peer goes on sending and some of its answers are not sent yet."""
    make_stream, fates_of = STREAMS[protocol]
    count = 1_500
    for session in range(12):
        names = [node.name(slot, f"r{session}{letter}") for slot in (0, 1) for letter in "xy"]
        data = make_stream(names, count)
        peer = node.connect(chance.randrange(2), small=chance.random() < 0.5)
        cuts = sorted(chance.randrange(len(data)) for _ in range(chance.randrange(1, 6)))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            send_in_pieces(node, peer, data[start:end], chance)
            if end < len(data):
                move(node, peer)
        peer.deaf = False
        node.settle()
        check_logs(node, names, fates_of(peer, names, count))
        peer.close()
        node.settle()


def send_in_pieces(node: World, peer: Peer, data: bytes, chance: random.Random) -> None:
    """Send `data` in pieces of random sizes, with random turns of the workers between them; answers are read now and
    then.
    """
    start = 0
    while start < len(data):
        size = min(chance.choice((1, 7, 100, 5_000, 100_000)), len(data) - start)
        with contextlib.suppress(BlockingIOError):
            start += peer.sock.send(data[start : start + size])
        for worker in node.workers:
            for _ in range(chance.randrange(3)):
                worker.turn()
        peer.deaf = chance.random() < 0.9
        peer.read()


def check_logs(node: World, names: list[str], fates: list[tuple[str, int]]) -> None:
    """Each message is once in its log, at the acknowledged seq, in the order of sending."""
    for index, name in enumerate(names):
        numbers = range(index, len(fates), len(names))
        assert [seq for each, seq in fates if each == name] == list(range(len(numbers)))
        reader = node.connect(node.owner_of(name))
        reader.send(f"sub {name} 0 wait")
        node.settle()
        assert reader.messages() == [(name, seq, str(number)) for seq, number in enumerate(numbers)]
        reader.close()


# --- in the middle of its messages ------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("nbytes", [200, 30_000])
def test_handovers_in_the_middle_of_chunks(tmp_path: Path, nbytes: int, chance: random.Random) -> None:
    """Small chunks from memory, large ones from the file; one subscription with credit, one with an end, one plain."""
    with world(tmp_path, workers=2, affinity=False, chunk_bytes=8_000 if nbytes < 8_000 else 200_000) as node:
        name = node.name(0)
        payloads = [b"%d " % number + bytes(chance.randrange(nbytes)) for number in range(400_000 // nbytes + 60)]
        fill(node, name, payloads)
        peer = node.connect(0, small=True)
        start, end_seq = From("seq", 0), len(payloads) // 2
        peer.send_raw(
            pack(Hello(1, (), ""))
            + pack(Subscribe(1, name.encode(), start, wait=True))
            + pack(Subscribe(2, name.encode(), start, end=("seq", end_seq), wait=True))
            + pack(Subscribe(3, name.encode(), start, credit=nbytes, wait=True))
        )
        peer.deaf = True
        node.settle()
        in_chunk = looked_at = 0
        complete = False
        while not complete:
            if chance.random() < 0.1:
                peer.send_raw(pack(Credit(3, chance.randrange(20 * nbytes))))
            if chance.random() < 0.5:
                current = node.speaker_of(peer).current
                in_chunk += current is not None and current.skip > 0
                move(node, peer)
                node.workers[chance.randrange(2)].turn()
            try:
                peer.received += peer.sock.recv(chance.choice((1, 8, 3_000, 60_000)))
            except BlockingIOError:
                if len(peer.received) > looked_at:  # else it is as it was
                    looked_at = len(peer.received)
                    complete = is_complete(peer, payloads, end_seq)
            node.workers[0].turn()
            node.workers[1].turn()
        heard = binary_heard(peer)
        assert in_chunk > 10
        assert heard.messages[1] == heard.messages[3] == list(enumerate(payloads))
        assert heard.messages[2] == list(enumerate(payloads[:end_seq]))


def fill(node: World, name: str, payloads: list[bytes]) -> None:
    peer = node.connect(node.owner_of(name))
    peer.send_raw(pack(Hello(1, (), "")) + pack(Open(1, name.encode())))
    for payload in payloads:
        frame = pack_frame(payload)
        peer.send_raw(pack_publish(0, Ack.APPENDED, [1], frame) + frame)
        node.workers[node.owner_of(name)].turn()
    node.settle()
    peer.close()
    node.settle()


def is_complete(peer: Peer, payloads: list[bytes], end_seq: int) -> bool:
    """Whether all three subscriptions have all they will get."""
    counts = {key: len(row) for key, row in binary_heard(peer).messages.items()}
    return counts == {1: len(payloads), 2: end_seq, 3: len(payloads)}
