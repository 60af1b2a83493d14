"""Messages between siblings: round trips, and a clean error for invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import sibling
from tailrace.protocol.envelope import HEAD_BYTES, EnvelopeReader
from tailrace.protocol.errors import PeerError

UNPACK: dict[int, Callable[[memoryview], Any]] = {
    sibling.FORWARD: sibling.unpack_forward,
    sibling.FORWARDED: sibling.unpack_forwarded,
    sibling.CALL: sibling.unpack_call,
    sibling.REPLY: sibling.unpack_reply,
    sibling.MOVED: sibling.unpack_moved,
    sibling.INTEREST: sibling.unpack_interest,
    sibling.GREW: sibling.unpack_grew,
    sibling.HANDOVER: sibling.unpack_handover,
    sibling.HELD: sibling.unpack_held,
    sibling.GONE: sibling.unpack_gone,
    sibling.NEWS: sibling.unpack_news,
    sibling.TAKEN: sibling.unpack_taken,
    sibling.WANT: sibling.unpack_want,
}


def there(data: bytes) -> tuple[int, Any]:
    """(opcode, what the other end reads) of one whole envelope."""
    ((opcode, body),) = EnvelopeReader(1 << 20).feed(data)
    return opcode, UNPACK[opcode](body)


def test_forward_carries_frames_behind_it() -> None:
    groups = [(b"s", 2, 5, True, False, 0), (b"t", 1, 3, False, True, 2)]
    head = sibling.pack_forward(9, groups)
    opcode, (request_id, found, frames) = there(head + b"aaaaabbb")
    assert (opcode, request_id, found, bytes(frames)) == (sibling.FORWARD, 9, groups, b"aaaaabbb")


def test_forwarded() -> None:
    results = [(7, 2, True, "", ""), (0, 0, False, "full", "no space")]
    assert there(sibling.pack_forwarded(9, results)) == (sibling.FORWARDED, (9, results))


def test_call_and_reply() -> None:
    assert there(sibling.pack_call(9, "trim", [b"s", ["seq", 5]])) == (sibling.CALL, (9, "trim", [b"s", ["seq", 5]]))
    assert there(sibling.pack_reply(9, {"a": [1]}, "", "")) == (sibling.REPLY, (9, {"a": [1]}, "", ""))
    assert there(sibling.pack_reply(9, None, "unknown", "no such")) == (sibling.REPLY, (9, None, "unknown", "no such"))


def test_moved() -> None:
    assert there(sibling.pack_moved(9)) == (sibling.MOVED, 9)


def test_switched_says_nothing_more() -> None:
    assert [(opcode, bytes(body)) for opcode, body in EnvelopeReader(1 << 20).feed(sibling.pack_switched())] == [
        (sibling.SWITCHED, b"")
    ]


def test_interest_and_growth() -> None:
    counts = [(b"s", 3, False, [b"a/+", b"b"], [b"c"]), (b"t", 0, True, [], [])]
    assert there(sibling.pack_interest(counts)) == (sibling.INTEREST, counts)
    grown = [(b"s", 2**48, 2**47), (b"t", 0, 0)]
    assert there(sibling.pack_grew(grown)) == (sibling.GREW, grown)


def test_what_followers_hold() -> None:
    rows = [(b"s", 2**60, 3, "node-b", 2**48, 0), (b"s", 7, 3, "node-c", 5, 5)]
    assert there(sibling.pack_held(rows)) == (sibling.HELD, rows)
    gone = [(b"s", "node-b")]
    assert there(sibling.pack_gone(3, gone)) == (sibling.GONE, (3, gone))
    assert there(sibling.pack_gone(3, [])) == (sibling.GONE, (3, []))


def test_taken() -> None:
    assert there(sibling.pack_taken([9, 2**40])) == (sibling.TAKEN, [9, 2**40])


def test_news() -> None:
    news = [(b"s", ["slave", [[1, 0, "node-a"]], ["here", "node-a"], 0, 9, 7])]
    assert there(sibling.pack_news(news)) == (sibling.NEWS, news)
    assert there(sibling.pack_want([b"s", b"t"])) == (sibling.WANT, [b"s", b"t"])


def test_handover() -> None:
    state = {"peer": "127.0.0.1:1", "codec": [b"held", True, None], "cursors": [[b"s", 1, 0, False]]}
    assert there(sibling.pack_handover(state)) == (sibling.HANDOVER, state)


def test_opcodes_differ() -> None:
    assert len(UNPACK) == 13


@pytest.mark.parametrize("opcode", UNPACK)
@given(body=st.binary(max_size=40))
def test_garbage_is_told_apart(opcode: int, body: bytes) -> None:
    try:
        UNPACK[opcode](memoryview(body))
    except PeerError as error:
        assert error.fatal


WHOLE = {
    sibling.FORWARD: sibling.pack_forward(9, [(b"s", 1, 3, True, False, 0)]) + b"abc",
    sibling.FORWARDED: sibling.pack_forwarded(9, [(7, 2, True, "", "")]),
    sibling.CALL: sibling.pack_call(9, "trim", []),
    sibling.REPLY: sibling.pack_reply(9, None, "", ""),
    sibling.MOVED: sibling.pack_moved(9),
    sibling.INTEREST: sibling.pack_interest([(b"s", 1, False, [b"a"], [])]),
    sibling.GREW: sibling.pack_grew([(b"s", 1, 4096)]),
    sibling.HANDOVER: sibling.pack_handover({"peer": "x"}),
    sibling.HELD: sibling.pack_held([(b"s", 1, 1, "n", 1, 1)]),
    sibling.GONE: sibling.pack_gone(1, [(b"s", "n")]),
    sibling.NEWS: sibling.pack_news([(b"s", [])]),
    sibling.TAKEN: sibling.pack_taken([9]),
    sibling.WANT: sibling.pack_want([b"s"]),
}


@pytest.mark.parametrize("opcode", UNPACK)
def test_a_body_cut_short_or_too_long_is_refused(opcode: int) -> None:
    body = WHOLE[opcode][HEAD_BYTES:]
    for wrong in (*(body[:size] for size in range(len(body))), body + b"x"):
        with pytest.raises(PeerError):
            UNPACK[opcode](memoryview(wrong))
