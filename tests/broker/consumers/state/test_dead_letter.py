from __future__ import annotations

import msgpack
import pytest

from tailrace.broker.consumers.state.consumer import DeadLetter
from tailrace.broker.consumers.state.dead_letter import make_frame
from tailrace.shard.frame import FLAG_PRODUCER, HEADER_BYTES, MAX_METADATA_BYTES, pack_frame, unpack_header
from tailrace.shard.numbering import read_numbering, write_numbering

STREAM = "größe".encode()
LETTER = DeadLetter(b"billing", 1_000, 3, 41, 1, 5, "no such account")
TOLD = {
    "dead-stream": "größe",
    "dead-seq": "41",
    "dead-consumer": "billing",
    "dead-deliveries": "5",
    "dead-reason": "no such account",
}


def metadata_of(frame: bytearray) -> bytes:
    return bytes(frame[HEADER_BYTES : HEADER_BYTES + unpack_header(frame).metadata_bytes])


def headers_of(frame: bytearray) -> object:
    return msgpack.unpackb(metadata_of(frame))["h"]


def test_payload_and_headers_are_kept_and_what_became_of_it_is_added() -> None:
    metadata = write_numbering(msgpack.packb({"h": {"key": "k", "raw": b"\x00"}, "other": 7}), b"its producer", 12)
    frame = make_frame(STREAM, LETTER, pack_frame(b"payload", metadata=metadata, flags=2) + b"another frame")
    header = unpack_header(frame)
    assert frame[-7:] == b"payload" and header.length == len(frame) and header.flags == FLAG_PRODUCER
    assert headers_of(frame) == {"key": "k", "raw": b"\x00", **TOLD}
    assert msgpack.unpackb(metadata_of(frame))["other"] == 7
    assert read_numbering(metadata_of(frame)) == (LETTER.producer_id(STREAM), 0)


@pytest.mark.parametrize("metadata", [b"", b"\xc1", msgpack.packb({"h": 1}), msgpack.packb([1]), b"\x81\xa1"])
def test_metadata_without_headers(metadata: bytes) -> None:
    assert headers_of(make_frame(STREAM, LETTER, pack_frame(b"", metadata=metadata))) == TOLD


def test_headers_that_leave_no_room_are_left_out() -> None:
    metadata = msgpack.packb({"h": {"long": "x" * (MAX_METADATA_BYTES - 100)}})
    assert headers_of(make_frame(STREAM, LETTER, pack_frame(b"", metadata=metadata))) == TOLD
