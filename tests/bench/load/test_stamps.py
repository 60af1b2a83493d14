from __future__ import annotations

import pytest

from bench.load.limits import LoadError
from bench.load.stamps import FramedStamps, MarkedStamps, make_stamps
from bench.peers.plain import Plain
from bench.peers.tailrace_binary import TailraceBinary
from tailrace.protocol.messages import Failed, pack
from tests.bench.load.frames import chunk


def _payload(stamp: int) -> bytes:
    return b"@%019d@filler" % stamp if stamp % 2 else b"@%019d" % stamp


def _in_pieces(stamps: MarkedStamps | FramedStamps, data: bytes, piece_bytes: int) -> list[int]:
    pieces = [data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes)]
    return [stamp for piece in pieces for stamp in stamps.feed(piece)]


@pytest.mark.parametrize("piece_bytes", [1, 7, 50, 1_000])
def test_marked_stamps_are_found_however_they_are_cut(piece_bytes: int) -> None:
    data = b"".join(b"msg b 0 |%s\r\n" % _payload(stamp) for stamp in (2, 4, 12_345_678_901_234))
    assert _in_pieces(MarkedStamps(), data, piece_bytes) == [2, 4, 12_345_678_901_234]


@pytest.mark.parametrize("piece_bytes", [1, 7, 50, 1_000])
def test_framed_stamps_are_found_however_they_are_cut(piece_bytes: int) -> None:
    metadata = b"\x81\xa1@\x01"
    data = chunk(_payload(7), 0, 2) + chunk(_payload(9), 2, 1, metadata=metadata) + chunk(_payload(2), 3, 64)
    assert _in_pieces(FramedStamps(), data, piece_bytes) == [7, 7, 9, *[2] * 64]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (chunk(_payload(1), 1, 1), "seq 1 .* where 0 was due"),
        (chunk(b"@short", 0, 1), "frame of 38 bytes"),
        (pack(Failed("slow", "too slow")), "opcode 12"),
    ],
)
def test_a_wrong_delivery_is_an_error(data: bytes, complaint: str) -> None:
    with pytest.raises(LoadError, match=complaint):
        FramedStamps().feed(data)


def test_the_protocol_decides_how_stamps_are_found() -> None:
    assert isinstance(make_stamps(TailraceBinary()), FramedStamps)
    assert isinstance(make_stamps(Plain(100)), MarkedStamps)
