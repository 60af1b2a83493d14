from __future__ import annotations

from bench.peers.base import stream_names
from bench.peers.jetstream import PULL_BATCH, JetStream, JetStreamPuller


def test_jetstream_answers_count_from_one_over_all_subjects() -> None:
    bodies = [b'{"stream":"BENCH","seq":%d}' % seq for seq in range(1, 1_201)]
    answers = [b"MSG _IN.000007 1 %d\r\n%s\r\n" % (len(body), body) for body in bodies]
    assert JetStream().answers_bytes(stream_names(9), 1_200) == len(b"".join(answers))
    assert JetStream().publish("b.1", b"@hello", client=7) == b"PUB b.1 _IN.000007 6\r\n@hello\r\n"


def test_jetstream_puller_keeps_two_batches_asked_for() -> None:
    puller = JetStreamPuller(3)
    assert puller.open().count(b"CONSUMER.MSG.NEXT.BENCH.r3") == 2
    assert puller.feed(b"@" * (PULL_BATCH - 1)) == b""
    assert puller.feed(b"@").count(b"MSG.NEXT") == 1
    assert puller.feed(b"@" * 2 * PULL_BATCH).count(b"MSG.NEXT") == 2
    assert puller.messages == 3 * PULL_BATCH
