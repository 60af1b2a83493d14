"""The preamble of a proxy, PROXY protocol v1 and v2: the address of the client that it stands for. Pure.

https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt
"""

from __future__ import annotations

import ipaddress
import re
import struct
from typing import Final

from tailrace.protocol.errors import Code, PeerError

SIGNATURE_V2: Final = b"\r\n\r\n\0\r\nQUIT\n"
V1_MAX_BYTES: Final = 107
"""Of a preamble of version 1, line end included."""
V2_MAX_BYTES: Final = 2_048
"""Of a preamble of version 2: addresses, and extensions that are skipped."""

_V1 = b"PROXY "
_V2_HEAD = struct.Struct(">12sBBH")
_ADDRESSES = {0x1: struct.Struct(">4s4sHH"), 0x2: struct.Struct(">16s16sHH")}
_V1_ADDRESSES = re.compile(rb"[\da-fA-F:.]+ [\da-fA-F:.]+ \d{1,5} \d{1,5}")  # no scope, which may be any text
_FAMILIES = {b"TCP4": 4, b"TCP6": 6}


class PreambleReader:
    """Takes a preamble that comes in pieces, and not a byte more. `client`: HOST:PORT, "" for the proxy itself."""

    __slots__ = ("_held", "client")

    def __init__(self) -> None:
        self._held = bytearray()
        self.client = ""

    @property
    def wanted_bytes(self) -> int:
        """How many bytes to read next; 0 when the preamble is complete. Raises PeerError."""
        held = self._held
        if len(held) < len(SIGNATURE_V2):
            return len(SIGNATURE_V2) - len(held)
        if held.startswith(SIGNATURE_V2):
            return self._wanted_v2()
        if not held.startswith(_V1):
            raise PeerError(Code.PROTOCOL, "this address is one of [listen] proxies: begin with a PROXY preamble")
        if held.endswith(b"\r\n"):
            return 0
        if len(held) >= V1_MAX_BYTES:
            raise _malformed("it has no line end")
        return 1 if held.endswith(b"\r") else 2

    def _wanted_v2(self) -> int:
        held = self._held
        if len(held) < _V2_HEAD.size:
            return _V2_HEAD.size - len(held)
        size: int = _V2_HEAD.size + _V2_HEAD.unpack_from(held)[3]
        if size > V2_MAX_BYTES:
            raise _malformed(f"it is longer than {V2_MAX_BYTES} bytes")
        return size - len(held)

    def take(self, data: bytes) -> bool:
        """Take what was read, at most `wanted_bytes`. Returns whether the preamble is complete. Raises PeerError."""
        self._held += data
        if self.wanted_bytes:
            return False
        held = bytes(self._held)
        self.client = _client_v2(held) if held.startswith(SIGNATURE_V2) else _client_v1(held)
        return True


def _client_v1(line: bytes) -> str:
    words = line[:-2].split(b" ")
    if words[1] == b"UNKNOWN":
        return ""
    try:
        version = _FAMILIES[words[1]]
        source, _destination = (ipaddress.ip_address(word.decode("ascii")) for word in words[2:4])
        port, _destination_port = (int(word) for word in words[4:])
    except (KeyError, ValueError):
        raise _malformed(f"its line is {line[:V1_MAX_BYTES]!r}") from None
    if not _V1_ADDRESSES.fullmatch(b" ".join(words[2:])):
        raise _malformed(f"its line is {line[:V1_MAX_BYTES]!r}")
    if source.version != version or not 0 <= port < 1 << 16:
        raise _malformed("its addresses are not of the family that it names")
    return _shown(source, port)


def _client_v2(data: bytes) -> str:
    _signature, version, family, _size = _V2_HEAD.unpack_from(data)
    if version not in (0x20, 0x21):
        raise _malformed(f"version and command are 0x{version:02x}")
    layout = _ADDRESSES.get(family >> 4)
    if version == 0x20 or layout is None or family & 0xF != 1:
        return ""
    if len(data) < _V2_HEAD.size + layout.size:
        raise _malformed("its addresses are cut off")
    source, _destination, port, _destination_port = layout.unpack_from(data, _V2_HEAD.size)
    return _shown(ipaddress.ip_address(source), port)


def _shown(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _malformed(why: str) -> PeerError:
    return PeerError(Code.PROTOCOL, f"invalid PROXY preamble: {why}")
