from __future__ import annotations

import pytest

from bench.peers.redis import Redis, RedisPubSub, RedisPuller


def test_redis_commands() -> None:
    expected = b"*5\r\n$4\r\nXADD\r\n$3\r\nb.1\r\n$1\r\n*\r\n$1\r\nd\r\n$6\r\n@hello\r\n"
    assert Redis().publish("b.1", b"@hello") == expected
    assert Redis().answer_mark == b"$"
    message = b"*3\r\n$7\r\nmessage\r\n$3\r\nb.1\r\n$6\r\n@hello\r\n"
    assert RedisPubSub().delivered_bytes("b.1", 10, 6) == 10 * len(message)


def _entries(*ids: bytes) -> bytes:
    body = b"".join(b"*2\r\n$%d\r\n%s\r\n*2\r\n$1\r\nd\r\n$6\r\n@hello\r\n" % (len(name), name) for name in ids)
    return b"*1\r\n*2\r\n$8\r\nb.000000\r\n*%d\r\n" % len(ids) + body


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_redis_puller_asks_again_from_the_last_entry_once_the_answer_is_whole(piece: int) -> None:
    puller = RedisPuller("b.000000", block=True)
    assert puller.open().endswith(b"$3\r\n0-0\r\n")
    for ids in ((b"1700000000000-0", b"1700000000000-1"), (b"1700000000002-0",)):
        answer = _entries(*ids)
        requests = [puller.feed(answer[i : i + piece]) for i in range(0, len(answer), piece)]
        assert requests[:-1] == [b""] * (len(requests) - 1)
        assert requests[-1].endswith(b"$15\r\n%s\r\n" % ids[-1])
    assert puller.messages == 3
