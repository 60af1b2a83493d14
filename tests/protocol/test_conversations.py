"""Whole conversations between a live pair of codecs, over a socket pair that cuts wherever it likes."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import pytest

from tailrace.protocol import messages as m
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.collecting import Added, Collect, Collected
from tailrace.protocol.consuming import Consume, Consumed, Get, Got
from tailrace.protocol.envelope import pack_envelope
from tailrace.protocol.errors import PeerError
from tailrace.protocol.features import CONSUMERS, LAST, LISTING, PATTERNS, REPLICATION, SHARING
from tailrace.protocol.listing import List, Listed
from tailrace.protocol.places import FROM_NEW, From
from tailrace.protocol.recalling import Recall, Recalled
from tailrace.protocol.replication import (
    Ask,
    Call,
    Claim,
    Claimed,
    Fence,
    Fenced,
    Follow,
    Followed,
    Held,
    Names,
    NodeLink,
    Returned,
    Told,
    Watch,
)
from tailrace.protocol.sharing import SHARED_FROM, Interest
from tailrace.shard.frame import pack_frame
from tests.protocol.plain_codec import PlainCodec
from tests.protocol.wires import (
    ALL_FEATURES,
    HELLO,
    HISTORY,
    MAX_ENVELOPE_BYTES,
    MAX_MESSAGE_BYTES,
    REQUEST_KINDS,
    RESPONSE_KINDS,
    STANDING,
    STREAM_ROW,
    WORKER_ROW,
    flat,
    kept,
    publish,
    stamped,
)

Step: TypeAlias = "tuple[str, m.AnyMessage | bytes, object]"
"""Who speaks ("→" the client, "←" the broker), what (or mere bytes), and what the other end takes it for."""

WELCOME = m.Welcome(1, (), "tailrace/9", "node", 0, {"max_message_bytes": MAX_MESSAGE_BYTES})
LOGIN = m.Hello(1, (), "c", mechanism="SCRAM-SHA-256", user="ann", login=b"n,,n=ann,r=x")
LARGE = pack_frame(bytes(MAX_MESSAGE_BYTES)) * 2
ROWS = ((4, 3, 0, "", ""), (0, 3, 0, "full", "no space"))


def says(*messages: m.Request) -> list[Step]:
    return [("→", message, message) for message in messages]


def hears(*messages: m.Response) -> list[Step]:
    return [("←", message, message) for message in messages]


def garbles(data: bytes, op: int, number: int, code: str, fatal: bool = False) -> list[Step]:
    """The client sends invalid bytes, and receives an error."""
    return [("→", data, (op, number, code, fatal)), *hears(m.Failed(code, "what is wrong", fatal, op, number))]


GREETING = [*says(HELLO), *hears(WELCOME)]
BETWEEN_NODES = [
    *says(m.Hello(1, (REPLICATION,), "tailrace/9", None, "n2", ":5051")),
    *hears(m.Welcome(1, (REPLICATION,), "tailrace/9", "n1", 0, {})),
]
OF_A_CONSUMER = [
    *says(m.Hello(1, (CONSUMERS,), "tailrace/9")),
    *hears(m.Welcome(1, (CONSUMERS,), "tailrace/9", "n1", 0, {})),
]
OF_A_LIST = [
    *says(m.Hello(1, (LISTING,), "tailrace/9")),
    *hears(m.Welcome(1, (LISTING,), "tailrace/9", "n1", 0, {})),
]
SUBSCRIBED = [*says(m.Subscribe(1, b"s", From("seq", 4))), *hears(m.Subscribed(1, 4, 0))]

SCENARIOS: dict[str, list[Step]] = {
    "streams page by page": [
        *OF_A_LIST, *says(List(1, "streams"), List(2, "workers")), *hears(Listed(2, workers=(WORKER_ROW,))),
        *hears(Listed(1, streams=(STREAM_ROW,), next="é", total=2)),
        *says(List(3, "streams", b"", "é".encode())), *hears(Listed(3, total=2)),
        *garbles(m.pack(List(4, "names")).replace(b"names", b"games"), 36, 4, "usage"),
    ],
    "last values page by page": [
        *says(m.Hello(1, (LAST,), "tailrace/9")), *hears(m.Welcome(1, (LAST,), "tailrace/9", "n1", 0, {})),
        *says(Recall(1, b"a/#"), Recall(2, b"a/b")), *hears(Recalled(2)),
        *hears(Recalled(1, (("s", bytes(stamped())),), "s", "a/1")),
        *says(Recall(3, b"a/#", b"s", b"a/1")), *hears(Recalled(3)),
    ],
    "all streams of a pattern": [
        *says(m.Hello(1, (PATTERNS,), "tailrace/9")), *hears(m.Welcome(1, (PATTERNS,), "tailrace/9", "n1", 0, {})),
        *says(Collect(1, b"s*", From("time", 0), 0, ("now", 0), 99, positions={b"s": 4})),
        *hears(Collected(1, 1), Added(1, 2**31, "s", 4, 0, 6), m.Chunk(2**31, stamped())),
        *hears(m.Ended(2**31, 6), m.Ended(1, 0)),
    ],
    "greeting": GREETING,
    "another version": [("→", m.Hello(2, (), "c"), (1, 0, "unsupported", True))],
    "a wrong token": [*says(m.Hello(1, (), "c", "wrong")), *hears(m.Failed("denied", "the token is wrong", True))],
    "no greeting": garbles(m.pack(m.Ping()), 10, 0, "protocol", True),
    "a publish behind its OPEN, before WELCOME": [
        *says(HELLO, m.Open(7, b"s"), publish(1)), *hears(WELCOME, m.Opened(7), m.Published(1, ((0, 3, 0),))),
    ],
    "publishes that nobody answers": [*GREETING, *says(m.Open(7, b"s"), *(publish(i, ack=0) for i in range(20)))],
    "publishes answered out of order": [
        *GREETING, *says(publish(1, ack=m.Ack.SYNCED), publish(2)),
        *hears(m.Published(2, ((3, 3, 1),)), m.Published(1, ((0, 3, 1),))),
    ],
    "to several streams, one of which is full": [
        *GREETING, *says(publish(1, (7, 8))), *hears(m.Failed("full", "no space", False, 5, 1, ROWS)),
    ],
    "large publishes and large chunks": [
        *GREETING, *says(publish(1, frames=LARGE), publish(2)), *SUBSCRIBED,
        *hears(m.Chunk(1, stamped(LARGE)), m.Chunk(1, stamped(seq=6))),
    ],
    "history to its end": [
        *GREETING, *says(m.Subscribe(1, b"s", From("time", 0), 0, ("now", 0))), *hears(m.Subscribed(1, 0, 0, 6)),
        *hears(m.Chunk(1, stamped(seq=0)), m.Chunk(1, stamped(seq=3)), m.Ended(1, 6)),
        *says(m.Subscribe(1, b"s", FROM_NEW)), *hears(m.Subscribed(1, 6, 0)),
    ],
    "messages while they come, as far as there is credit": [
        *GREETING, *says(m.Subscribe(1, b"s", FROM_NEW, credit=100)), *hears(m.Subscribed(1, 4, 0)),
        *hears(m.Chunk(1, stamped())), *says(m.Credit(1, 200)), *hears(m.Chunk(1, stamped(seq=7))),
    ],
    "two subscriptions, one of which ends": [
        *GREETING, *says(m.Subscribe(1, b"s", FROM_NEW), m.Subscribe(2, b"s", FROM_NEW)),
        *hears(m.Subscribed(2, 4, 0), m.Subscribed(1, 4, 0), m.Chunk(1, stamped()), m.Chunk(2, stamped())),
        *says(m.Unsubscribe(1)), *hears(m.Chunk(2, stamped(seq=7)), m.Ended(1, 7)),
    ],
    "a trim": [*GREETING, *SUBSCRIBED, *hears(m.Failed("trimmed", "4 to 6", False, 7, 1), m.Chunk(1, stamped(seq=7)))],
    "damage": [*GREETING, *SUBSCRIBED, *hears(m.Ended(1, 4, "damaged", "s: its files are damaged"))],
    "a login": [
        *says(LOGIN), *hears(m.Challenge(b"r=")), *says(m.Prove(b"c=")), *hears(WELCOME), *says(m.Ping()),
    ],
    "heartbeats of both": [*GREETING, *says(m.Ping()), *hears(m.Pong(), m.Ping()), *says(m.Pong())],
    "an unknown opcode": [*GREETING, *garbles(b"\xc8\x02\0\0\0hi", 200, 0, "protocol"), *says(m.Ping())],
    "a body that is no map": [*GREETING, *garbles(b"\x03\x02\0\0\0hi", 3, 0, "usage"), *says(m.Ping())],
    "frames that do not add up": [
        *GREETING, *garbles(m.pack(publish(9, frames=LARGE[:-1])), 5, 9, "usage"), *says(publish(10)),
    ],
    "a message that is too large": [
        *GREETING, *garbles(m.pack(publish(9, frames=pack_frame(bytes(MAX_MESSAGE_BYTES + 1)))), 5, 9, "size"),
        *says(publish(10)),
    ],
    "an envelope that is too long": [*GREETING, *garbles(b"\x05\xff\xff\xff\xff" + LARGE, 5, 0, "size", True)],
    "a second greeting": [*GREETING, *garbles(m.pack(HELLO), 1, 0, "protocol"), *says(m.Ping())],
    "a farewell": [*GREETING, *says(publish(1), m.Close()), *hears(m.Published(1, ((0, 3, 0),)))],
    "a copy that follows, and says what it holds": [
        *BETWEEN_NODES, *says(Follow(1, b"s", 4, 1, "n1", last=(1, 99))),
        *hears(Followed(1, "following", 4, 0, 7, "master", HISTORY[:1], ("n1",)), m.Chunk(1, stamped())),
        *says(Held(((1, "n2", 7, 7),))), *hears(Followed(1, "news", 0, 0, 7, "disabled", HISTORY[:1], ("n1",))),
        *says(m.Unsubscribe(1)), *hears(m.Ended(1, 7)),
    ],
    "a copy that has parted, or is the longer one, or would make a circle": [
        *BETWEEN_NODES, *says(Follow(1, b"s", 4, 1, "n1", last=(1, 99))),
        *hears(Followed(1, "parted", 0, 0, 7, "master", HISTORY[:1], ("n1",))),
        *says(Follow(1, b"s", 0, 4, start=From("time", 0))),
        *hears(Followed(1, "behind", 0, 0, 7, "slave", HISTORY[:1], ("n1",))),
        *says(Follow(1, b"s", 0, 4, start=From("time", 0))), *hears(m.Failed("cycle", "n1 -> n2 -> n1", False, 17, 1)),
    ],
    "a copy that became the master, and one that asks": [
        *BETWEEN_NODES, *says(Watch(1, b"s")), *hears(Names(1, (b"s", b"sun"))),
        *says(Claim(2, b"s", HISTORY)), *hears(Claimed(2, "slave", 2**32 - 1, "n" * 32, True), Names(1, (b"sea",))),
        *says(Ask(3)),
        *hears(Told(3, "n1", ":5050", (NodeLink("down", "n2", "10.0.0.2:5051", "following", 1, 0, 0, 0),), 0, 1, 0)),
    ],
    "a node that fences another": [
        *BETWEEN_NODES, *says(Fence(1, b"s", 5)), *hears(Fenced(1, "slave", 5)),
    ],
    "a node that shares a stream in memory": [
        *says(m.Hello(1, (SHARING,), "tailrace/9", None, "n2")), *hears(m.Welcome(1, (SHARING,), "t", "n1", 0, {})),
        *says(Interest(SHARED_FROM, b"s", False, (b"a/+", b"b"), (b"c",)), Interest(SHARED_FROM, b"s", ends=True)),
        *hears(m.Chunk(SHARED_FROM, stamped()), m.Failed("denied", "no", False, 43, SHARED_FROM)),
        *garbles(pack_envelope(43, b"\x81\xa2id\x07"), 43, 7, "usage"),
    ],
    "a slave that asks its master": [
        *BETWEEN_NODES, *says(Call(1, b"s", "get", b"\x90"), Call(2, b"s", "steal", b"")),
        *hears(Returned(2, None, "unsupported", "no"), Returned(1, b"\x80")),
        *garbles(pack_envelope(30, b"\x81\xa2id\x07"), 30, 7, "usage"),
    ],
    "nodes that have not agreed on it": [
        *GREETING, *garbles(m.pack(Follow(1, b"s", 0, 4, start=FROM_NEW)), 17, 0, "protocol"), *says(m.Ping()),
    ],
    "a consumer that is made, gets, finishes and is ended": [
        *OF_A_CONSUMER, *says(Consume(1, "create", b"s", b"n", FROM_NEW)), *hears(Consumed(1, 4, True)),
        *says(Get(2, b"s", b"n", b"m", max_messages=9, wait_ms=500)), *hears(Got(2, ((4, 3, 0, 1),), (), 4, stamped())),
        *says(Get(3, b"s", b"n", b"m", ((4, 5, 1),), ((6, 1, "why"),)), Consume(4, "list", b"s")),
        *hears(Consumed(4, consumers=(STANDING,)), Got(3, (), ((4, 4),), 0, memoryview(b""))),
        *says(Consume(5, "leave", b"s", b"n", member=b"m")), *hears(Consumed(5)),
        *says(Consume(6, "delete", b"s", b"n")), *hears(Consumed(6, existed=True)),
    ],
    "a get that waits among other things, and one of nobody": [
        *OF_A_CONSUMER, *says(Get(1, b"s", b"n", b"m", max_messages=1, wait_ms=60_000), m.Ping(), publish(2)),
        *hears(m.Pong(), m.Published(2, ((4, 3, 0),)), Got(1, ((4, 1, 0, 1), (5, 2, 7, 1)), (), 0, stamped())),
        *says(Get(3, b"s", b"other", b"m")), *hears(m.Failed("consumer", "no such consumer", False, 28, 3)),
    ],
    "large answers to gets": [
        *OF_A_CONSUMER, *says(Get(1, b"s", b"n", b"m", max_messages=2)),
        *hears(Got(1, ((4, 2, 0, 1),), (), 0, stamped(LARGE))), *says(m.Ping()),
    ],
    "a client that has not agreed on consumers, or says what is none": [
        *GREETING, *garbles(m.pack(Get(7, b"s", b"n", b"m")), 28, 0, "protocol"),
        *garbles(m.pack(Consume(7, "list", b"s")), 26, 0, "protocol"), *says(m.Ping()),
    ],
    "gets that are wrong": [
        *OF_A_CONSUMER, *garbles(m.pack(Get(7, b"s", b"n", b"m", ((5, 4, 1),))), 28, 7, "usage"),
        *garbles(m.pack(Consume(6, "leave", b"s", b"n")), 26, 6, "usage"),
        *garbles(m.pack(Get(8, b"s", b"n n", b"m")), 28, 8, "usage"), *garbles(b"\x1c\x01\0\0\0\xc1", 28, 0, "usage"),
        *says(m.Ping()),
    ],
    "a broker that stops": [*GREETING, *SUBSCRIBED, *hears(m.Failed("closing", "the broker stops", True))],
}  # fmt: skip


class Pair:
    """A client's and a broker's codec with a socket pair between them; sends and reads are of any size."""

    def __init__(self, random_: random.Random) -> None:
        self.random = random_
        self.client, self.broker = ClientCodec(), PlainCodec(MAX_ENVELOPE_BYTES, MAX_MESSAGE_BYTES)
        self.near, self.far = socket.socketpair()
        for end in (self.near, self.far):
            end.setblocking(False)

    def close(self) -> None:
        self.near.close()
        self.far.close()

    def carry(self, who: str, data: bytes) -> list[object]:
        """Send the bytes, and what the other end makes of them."""
        sender, receiver = (self.near, self.far) if who == "→" else (self.far, self.near)
        rest = memoryview(data)
        heard: list[object] = []
        while rest:
            rest = rest[sender.send(rest[: self.random.choice((1, 7, 500, 50_000))]) :]
            if self.random.random() < 0.5 or not rest:
                heard += self._hear(who, receiver)
        return heard

    def _hear(self, who: str, receiver: socket.socket) -> Iterator[object]:
        buffer = bytearray(1 << 16)
        while True:
            try:
                count = receiver.recv_into(buffer, self.random.choice((1, 9, 999, 1 << 16)))
            except BlockingIOError:
                return
            if who == "→":
                for request in self.broker.feed(memoryview(buffer), count):
                    if isinstance(request, m.Hello):
                        self.broker.features = ALL_FEATURES.intersection(request.features)
                        self.client = ClientCodec(features=self.broker.features)  # it has received nothing yet
                    yield from flat([kept(request)])
            else:
                for response in self.client.feed(memoryview(buffer)[:count]):
                    yield _copied(response)


def _copied(response: m.Response) -> m.Response:
    """With frames that stay."""
    if isinstance(response, m.Chunk | Got):
        return replace(response, frames=memoryview(bytes(response.frames)))
    return response


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_conversation(name: str, seed: int) -> None:
    pair = Pair(random.Random(f"{name} {seed}"))
    try:
        for who, spoken, meant in SCENARIOS[name]:
            data = spoken if isinstance(spoken, bytes) else m.pack(spoken)
            assert pair.carry(who, data) == [meant]
        assert pair.client.pending_bytes == pair.broker.pending_bytes == 0
    finally:
        pair.close()


def test_every_message_is_spoken_in_some_conversation() -> None:
    spoken = {type(message) for steps in SCENARIOS.values() for _, message, _ in steps}
    assert spoken == {*REQUEST_KINDS, *RESPONSE_KINDS, bytes}


def test_a_client_that_is_no_client_and_a_broker_that_is_none() -> None:
    """Each codec accepts the other end's messages, and not its own."""
    with pytest.raises(PeerError):
        list(ClientCodec().feed(m.pack(HELLO)))
    broker = PlainCodec(MAX_ENVELOPE_BYTES, MAX_MESSAGE_BYTES)
    data = m.pack(HELLO) + m.pack(WELCOME)
    assert flat(broker.feed(data, len(data))) == [HELLO, (2, 0, "protocol", False)]
