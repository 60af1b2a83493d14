"""PROXY v1 and v2: the client's address from any pieces, not a byte too much, and a fault for all else."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.preamble import SIGNATURE_V2, V1_MAX_BYTES, V2_MAX_BYTES, PreambleReader


def v2(command: int, family: int, body: bytes) -> bytes:
    return SIGNATURE_V2 + struct.pack(">BBH", command, family, len(body)) + body


V4 = socket.inet_aton("192.0.2.7") + socket.inet_aton("192.0.2.1") + struct.pack(">HH", 40_000, 5_050)
V6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7") + bytes(16) + struct.pack(">HH", 40_000, 5_050)
PREAMBLES = {
    b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 5050\r\n": "192.0.2.7:40000",
    b"PROXY TCP6 2001:db8::7 2001:db8::1 40000 5050\r\n": "[2001:db8::7]:40000",
    b"PROXY UNKNOWN\r\n": "",
    b"PROXY UNKNOWN ffff::1 ffff::1 65535 65535\r\n": "",
    v2(0x21, 0x11, V4): "192.0.2.7:40000",
    v2(0x21, 0x21, V6 + b"\x04\x00\x01x"): "[2001:db8::7]:40000",
    v2(0x20, 0x00, b""): "",
    v2(0x21, 0x31, bytes(216)): "",
}
FAULTY = [
    b"GET / HTTP/1.1\r\n",
    b"ping\r\nping\r\nping\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 40000\r\n",
    b"PROXY TCP4 2001:db8::7 2001:db8::1 40000 5050\r\n",
    b"PROXY TCP4 localhost 192.0.2.1 40000 5050\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 70000 5050\r\n",
    b"PROXY TCP4 192.0.2.7 192.0.2.1 4_0 5050\r\n",
    b"PROXY TCP6 fe80::7%\x1b[31m 2001:db8::1 40000 5050\r\n",
    b"PROXY TCP5 192.0.2.7 192.0.2.1 40000 5050\r\n",
    b"PROXY " + b"x" * V1_MAX_BYTES,
    v2(0x31, 0x11, V4),
    v2(0x21, 0x11, V4[:-1]),
    v2(0x21, 0x11, V4 + bytes(V2_MAX_BYTES)),
]


def read(data: bytes, piece_bytes: int) -> tuple[str, bytes]:
    """The client, and the bytes left for the protocol behind it."""
    reader, at = PreambleReader(), 0
    while True:
        size = min(reader.wanted_bytes, piece_bytes)
        piece, at = data[at : at + size], at + size
        assert piece, "it wants more than there is"
        if reader.take(piece):
            return reader.client, data[at:]


@pytest.mark.parametrize("preamble", PREAMBLES)
@pytest.mark.parametrize("piece_bytes", [1, 5, 4_096])
def test_the_client_is_read_and_not_a_byte_more(preamble: bytes, piece_bytes: int) -> None:
    assert read(preamble + b"\r\nping\r\n", piece_bytes) == (PREAMBLES[preamble], b"\r\nping\r\n")


@pytest.mark.parametrize("data", FAULTY)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(PeerError) as caught:
        read(data, 4_096)
    assert caught.value.code is Code.PROTOCOL


@given(st.sampled_from([SIGNATURE_V2, b"PROXY ", b""]), st.binary(max_size=300))
def test_no_bytes_raise_anything_else(head: bytes, rest: bytes) -> None:
    try:
        read(head + rest + bytes(V2_MAX_BYTES), 4_096)
    except PeerError:
        pass
