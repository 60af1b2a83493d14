"""From what a program passes in to frames."""

from __future__ import annotations

import pytest

from tailrace.core.arguments import (
    checked_payload,
    checked_payloads,
    checked_replicas,
    checked_stream,
    checked_streams,
    make_publication,
)
from tailrace.errors import InvalidArgument, InvalidStreamName, MessageTooLarge
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import pack_frame


def test_names() -> None:
    assert checked_stream("café") == "café"
    with pytest.raises(InvalidStreamName, match="white space"):
        checked_stream("a b")
    with pytest.raises(InvalidArgument, match="it is a str, not bytes"):
        checked_stream(b"a")
    assert checked_streams(["a", "b"]) == ("a", "b")
    for wrong in ("ab", [], ["a", "a"], [str(number) for number in range(1_025)]):
        with pytest.raises(InvalidArgument):
            checked_streams(wrong)


def test_payloads() -> None:
    changing = bytearray(b"ab")
    kept = checked_payload(changing)
    changing[0] = 0
    assert kept == b"ab"
    assert checked_payload(memoryview(b"ab")[1:]) == b"b"
    assert checked_payloads(each for each in (b"a", bytearray(b"b"))) == [b"a", b"b"]
    with pytest.raises(InvalidArgument, match=r"not str; write text\.encode\(\)"):
        checked_payload("text")
    with pytest.raises(InvalidArgument, match="not int"):
        checked_payloads([b"a", 5])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="one payload where several"):
        checked_payloads(b"abc")  # type: ignore[arg-type]


def test_a_publication() -> None:
    publication = make_publication(("s",), [b"a", b"bc"], b"\x80", Ack.SYNCED, 0, 5.0, True, 3)
    assert publication.frames == pack_frame(b"a", metadata=b"\x80") + pack_frame(b"bc", metadata=b"\x80")
    assert (publication.count, publication.ack, publication.replicas, publication.timeout_s) == (2, Ack.SYNCED, 0, 5.0)
    assert make_publication(("s",), [b"a"], b"", Ack.REPLICATED, 0, 5.0, True, 3).replicas == 1
    assert make_publication(("s",), [b"a"], b"", Ack.REPLICATED, 255, 5.0, True, 3).replicas == 255
    with pytest.raises(InvalidArgument, match="nothing to publish"):
        make_publication(("s",), [], b"", Ack.APPENDED, 0, 5.0, True, 3)
    with pytest.raises(ValueError, match="7 is not a valid Ack"):
        make_publication(("s",), [b"a"], b"", 7, 0, 5.0, True, 3)  # type: ignore[arg-type]


def test_what_the_broker_would_not_take() -> None:
    with pytest.raises(MessageTooLarge, match="message 2 of 2 has 4 bytes; the broker's limit is 3"):
        make_publication(("s",), [b"a", b"1234"], b"", Ack.APPENDED, 0, 5.0, True, 3)
    with pytest.raises(MessageTooLarge, match="the message has 4 bytes"):
        make_publication(("s",), [b"123"], b"\x80", Ack.APPENDED, 0, 5.0, True, 3)


@pytest.mark.parametrize("replicas", [-1, 256, 1.0, True, "1", None])
def test_no_number_of_replicas(replicas: object) -> None:
    with pytest.raises(InvalidArgument, match="it is a number of nodes from 1 to 255"):
        checked_replicas(Ack.REPLICATED, replicas)


def test_replicas_with_another_ack() -> None:
    assert (checked_replicas(Ack.NONE, 0), checked_replicas(Ack.APPENDED, 0)) == (0, 0)
    with pytest.raises(InvalidArgument, match=r"replicas=2 goes with ack=Ack\.REPLICATED, not with Ack\.SYNCED"):
        checked_replicas(Ack.SYNCED, 2)
