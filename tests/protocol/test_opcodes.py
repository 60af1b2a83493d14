"""The numbers that stand first in every envelope."""

from __future__ import annotations

from tailrace.protocol.messages import CHUNK
from tailrace.protocol.opcodes import VERSION, Op


def test_the_opcodes_run_from_one_on() -> None:
    assert list(Op) == list(range(1, 44))
    assert (Op.PING, Op.PONG, Op.CLOSE, Op.FOLLOW) == (10, 11, 16, 17)
    assert (Op.CONSUME, Op.CONSUMED, Op.GET, Op.GOT, Op.CALL, Op.RETURNED) == (26, 27, 28, 29, 30, 31)
    assert (Op.FENCE, Op.FENCED, Op.CHALLENGE, Op.PROVE) == (32, 33, 34, 35)
    assert (Op.LIST, Op.LISTED, Op.RECALL, Op.RECALLED) == (36, 37, 38, 39)
    assert (Op.COLLECT, Op.COLLECTED, Op.ADDED) == (40, 41, 42)


def test_the_first_byte_of_a_connection_is_that_of_hello() -> None:
    assert (VERSION, Op.HELLO, CHUNK) == (1, 1, Op.CHUNK)
