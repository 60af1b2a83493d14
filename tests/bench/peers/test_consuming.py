from __future__ import annotations

import pytest

from bench.peers import redis
from bench.peers.base import make_payload
from bench.peers.consuming import AHEAD, BATCH, TailraceConsumers
from bench.peers.jetstream import JetStreamConsumer
from bench.peers.redis import RedisConsumer
from tailrace.protocol.consuming import FEATURE, Get, Got
from tailrace.protocol.messages import Failed, Hello, Ping, pack
from tailrace.shard.frame import pack_frame
from tests.protocol.plain_codec import PlainCodec

FRAME = pack_frame(make_payload(100))


class _Broker:
    """Gives every GET the messages it asks for, and notes those reported as finished."""

    def __init__(self) -> None:
        self.codec = PlainCodec(1 << 24, 1 << 20)
        self.codec.features = frozenset({FEATURE})
        list(self.codec.feed(hello := pack(Hello(1, (FEATURE,), "test")), len(hello)))
        self.next_seqs: dict[bytes, int] = {}
        self.finished: dict[bytes, set[int]] = {}

    def answer(self, data: bytes) -> bytes:
        return b"".join(self._got(get) for get in self.codec.feed(data, len(data)) if isinstance(get, Get))

    def _got(self, get: Get) -> bytes:
        done, first = self.finished.setdefault(get.name, set()), self.next_seqs.get(get.name, 0)
        for start, end, _epoch in get.finished:
            assert done.isdisjoint(range(start, end + 1))
            done.update(range(start, end + 1))
        self.next_seqs[get.name] = first + get.max_messages
        runs = ((first, get.max_messages, 0, 1),) if get.max_messages else ()
        return pack(Ping()) + pack(Got(get.id, runs, (), 0, memoryview(FRAME * get.max_messages)))


@pytest.mark.parametrize("piece", [7, 1_000, 1 << 20])
def test_every_message_of_every_consumer_is_finished_once(piece: int) -> None:
    consumers = [b"a", b"b", b"c"]
    broker, puller = _Broker(), TailraceConsumers("b.000000", consumers, 250, lanes=4, batch=100)
    said = puller.open()
    while said:
        answer = broker.answer(said)
        said = b"".join(puller.feed(answer[start : start + piece]) for start in range(0, len(answer), piece))
    assert broker.finished == {name: set(range(250)) for name in consumers}
    assert puller.messages == 750


def test_what_is_confirmed_counts_and_nothing_before() -> None:
    broker, puller = _Broker(), TailraceConsumers("b.000000", [b"a"], BATCH, lanes=1)
    said = puller.feed(broker.answer(puller.open()))
    assert puller.messages == 0 and broker.finished == {b"a": set()}
    puller.feed(broker.answer(said))
    assert puller.messages == BATCH


def test_an_error_ends_it() -> None:
    puller = TailraceConsumers("b.000000", [b"a"], 1)
    puller.open()
    with pytest.raises(ValueError, match="not you"):
        puller.feed(pack(Failed("denied", "not you")))


def _jetstream(first: int, count: int) -> bytes:
    heads = (b"MSG b.000000 1 $JS.ACK.S.r0.1.%d.1.2.3 100\r\n" % seq for seq in range(first, first + count))
    return b"".join(head + make_payload(100) + b"\r\n" for head in heads)


@pytest.mark.parametrize("piece", [999, 1 << 20])
def test_the_last_of_each_batch_is_acknowledged_to_jetstream(piece: int) -> None:
    puller = JetStreamConsumer(lambda count: b"<%d>" % count, 2 * BATCH + 500)
    assert puller.open() == b"<%d>" % BATCH * AHEAD
    said = []
    for first, count in ((0, BATCH), (BATCH, BATCH), (2 * BATCH, 500)):
        data = _jetstream(first, count)
        parts = [puller.feed(data[start : start + piece]) for start in range(0, len(data), piece)]
        said.append(b"".join(parts))
    assert said[0].startswith(b"PUB $JS.ACK.S.r0.1.") and said[0].endswith(b"+ACK\r\n<500>")
    assert said[2].endswith(b"PUB $JS.ACK.S.r0.1.2499.1.2.3 4\r\n+ACK\r\nPING\r\n")
    assert puller.messages == 0
    puller.feed(b"PONG\r\n")
    assert puller.messages == 2 * BATCH + 500


def test_every_entry_is_acknowledged_to_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "_command", lambda *words: b" ".join(words) + b"\n")
    puller = RedisConsumer("b.000000", BATCH + 1)
    assert b"COUNT %d " % BATCH in puller.open()
    for ids, left in (([b"%d-0" % n for n in range(BATCH)], True), ([b"9999-1"], False)):
        fields = b"".join(
            b"*2\r\n$%d\r\n%s\r\n*2\r\n$1\r\nd\r\n$100\r\n%s\r\n" % (len(each), each, make_payload(100)) for each in ids
        )
        answer = b"*1\r\n*2\r\n$8\r\nb.000000\r\n*%d\r\n" % len(ids) + fields
        assert puller.feed(answer[:-50]) == b""
        said = puller.feed(answer[-50:])
        assert said.split(b"\n")[0] == b" ".join([b"XACK b.000000 g", *ids])
        assert (b"COUNT 1 " in said) == left
        puller.feed(b":%d\r\n" % len(ids))
    assert puller.messages == BATCH + 1
