"""Envelopes: in any pieces, with trailing bytes, never longer than allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.envelope import HEAD, HEAD_BYTES, EnvelopeReader, pack_envelope
from tailrace.protocol.errors import Code, PeerError, UsageError
from tests.protocol.lines import cut, cuts

MAX = 1_000
envelopes = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), max_size=8)


def read(reader: EnvelopeReader, pieces: list[bytes]) -> list[tuple[int, bytes]]:
    """Through one shared buffer, each body copied before the next step."""
    shared, found = bytearray(4_096), []
    for piece in pieces:
        shared[: len(piece)] = piece
        found += [(opcode, bytes(body)) for opcode, body in reader.feed(memoryview(shared)[: len(piece)])]
        shared[: len(piece)] = b"!" * len(piece)
    return found


def test_five_bytes_and_a_body() -> None:
    assert pack_envelope(10) == b"\x0a\0\0\0\0"
    assert pack_envelope(7, b"abc") == b"\x07\x03\0\0\0abc"
    assert pack_envelope(7, b"abc", follows_bytes=2) == b"\x07\x05\0\0\0abc"
    assert HEAD_BYTES == 5


def test_a_body_that_no_head_can_tell() -> None:
    with pytest.raises(UsageError, match="4294967296 bytes"):
        pack_envelope(7, b"", follows_bytes=1 << 32)


@given(envelopes, cuts, st.integers(0, 80))
def test_what_is_left_to_the_caller_is_fed_again(
    sent: list[tuple[int, bytes]], places: list[int], leave_bytes: int
) -> None:
    data = b"".join(pack_envelope(*each) for each in sent)
    reader, left, found = EnvelopeReader(MAX), b"", []
    for piece in cut(data, places):
        fed = left + piece
        found += [(opcode, bytes(body)) for opcode, body in reader.feed(fed, leave_bytes)]
        left = fed[len(fed) - reader.left_bytes :]
        assert not (left and reader.pending_bytes) and len(left) <= leave_bytes
    assert found == sent and not left and not reader.pending_bytes


@given(envelopes, cuts)
def test_in_any_pieces(sent: list[tuple[int, bytes]], places: list[int]) -> None:
    data = b"".join(pack_envelope(*each) for each in sent)
    reader = EnvelopeReader(MAX)
    assert read(reader, cut(data, places)) == sent
    assert reader.pending_bytes == 0


def test_byte_by_byte_and_with_trailing_bytes() -> None:
    sent = [(10, b""), (7, b"x" * 300), (8, b""), (9, b"y")]
    data = b"".join(pack_envelope(*each) for each in sent)
    reader = EnvelopeReader(MAX)
    assert read(reader, cut(data + data[:30], range(len(data) + 30))) == [*sent, (10, b"")]
    assert reader.pending_bytes == 25
    assert read(reader, [data[30:]]) == sent[1:]


def test_a_whole_body_is_not_copied() -> None:
    data = bytearray(pack_envelope(7, b"abc"))
    ((_, body),) = EnvelopeReader(MAX).feed(data)
    data[-1:] = b"d"
    assert bytes(body) == b"abd"


def test_a_body_that_came_in_pieces_has_a_buffer_of_its_own() -> None:
    reader = EnvelopeReader(MAX)
    data = pack_envelope(7, b"abc")
    assert list(reader.feed(data[:6])) == []
    found = []
    for _opcode, body in reader.feed(bytearray(data[6:] + data)):
        found.append((reader.owned, bytes(body), body))
        body[:1] = b"!"  # nobody else is in the way
    assert [each[:2] for each in found] == [(True, b"abc"), (False, b"abc")]
    assert bytes(found[0][2]) == b"!bc"


@given(envelopes, cuts)
def test_another_reader_goes_on_from_any_place(sent: list[tuple[int, bytes]], places: list[int]) -> None:
    reader, found = EnvelopeReader(MAX), []
    for piece in cut(b"".join(pack_envelope(*each) for each in sent), places):
        found += read(reader, [piece])
        state, reader = reader.export_state(), EnvelopeReader(MAX)
        reader.restore_state(state)
        assert reader.pending_bytes == len(state)
    assert found == sent


@pytest.mark.parametrize("cut_at", range(1, 6))
def test_a_body_over_the_limit_is_refused_before_it_is_held(cut_at: int) -> None:
    head = HEAD.pack(7, MAX + 1)
    reader = EnvelopeReader(MAX)
    with pytest.raises(PeerError, match="1001 bytes") as caught:
        read(reader, [head[:cut_at], head[cut_at:] + b"x" * 100])
    assert caught.value.fatal
    assert caught.value.code is Code.SIZE


def test_a_body_of_just_the_limit() -> None:
    assert read(EnvelopeReader(MAX), [pack_envelope(7, b"x" * MAX)]) == [(7, b"x" * MAX)]


@given(st.binary(max_size=100), cuts)
def test_garbage_gives_envelopes_or_the_one_error(data: bytes, places: list[int]) -> None:
    reader = EnvelopeReader(50)
    try:
        for piece in cut(data, places):
            read(reader, [piece])
            assert reader.pending_bytes < HEAD_BYTES + 50
    except PeerError as error:
        assert error.fatal


def test_a_large_body_in_small_pieces_is_not_searched_again() -> None:
    reader = EnvelopeReader(1 << 24)
    data = pack_envelope(7, bytes(1 << 23))
    pieces = [data[start : start + 1_024] for start in range(0, len(data), 1_024)]
    assert [(opcode, len(body)) for opcode, body in read(reader, pieces)] == [(7, 1 << 23)]
