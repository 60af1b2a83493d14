"""Requests for last values, and the answers to them."""

from __future__ import annotations

import pytest

from tailrace import BrokerFault, DamagedMessage, InvalidStreamName
from tailrace.core.last_values import find_last, messages_in
from tailrace.protocol.recalling import Recall, Recalled
from tailrace.shard.frame import pack_frame
from tests.protocol.wires import stamped


def frames(*payloads: bytes, seq: int = 0) -> bytes:
    return bytes(stamped(b"".join(map(pack_frame, payloads)), seq))


def run(*answers: Recalled) -> tuple[list[bytes], list[Recall]]:
    """The payloads, and the requests."""
    calls, asked = find_last("a/#", 1.0), []
    call = next(calls)
    for answer in answers:
        asked.append(call.make(1))
        call.done, call.answer = True, answer
        try:
            call = calls.send(call)
        except StopIteration as end:
            return [each.payload for each in end.value], asked
    raise AssertionError("it asks for more")


def test_pages_are_asked_for_until_the_end() -> None:
    values = frames(b"later", seq=9) + frames(b"earlier", seq=3)
    found, asked = run(
        Recalled(1, (("s", values),), "s", "a/2"), Recalled(1, (), "t", "a/1"), Recalled(1, (("u", frames(b"x")),))
    )
    assert found == [b"later", b"earlier", b"x"]
    assert asked == [Recall(1, b"a/#"), Recall(1, b"a/#", b"s", b"a/2"), Recall(1, b"a/#", b"t", b"a/1")]


def test_a_broker_that_goes_back() -> None:
    with pytest.raises(BrokerFault):
        run(Recalled(1, (), "s", "b"), Recalled(1, (), "s", "b"))


def test_frames_that_are_damaged() -> None:
    for damaged in (frames(b"x")[:-1] + b"y", frames(b"x")[:-1]):
        with pytest.raises(DamagedMessage):
            messages_in("s", damaged)


def test_a_name_that_cannot_be_one() -> None:
    with pytest.raises(InvalidStreamName):
        next(find_last("a b", 1.0))
