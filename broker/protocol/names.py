"""Stream names as peers write them: checked, and shown in answers when they are none."""

from __future__ import annotations

from typing import Final

from broker.protocol.errors import Code, PeerError
from shard.names import NAME_BYTES_MAX, is_reserved, name_bytes_valid

SHOWN_BYTES_MAX: Final = 60


def shown(data: bytes) -> str:
    """A peer's bytes as they may stand in an answer or a log line: printable, quoted, bounded."""
    text = ascii(data[:SHOWN_BYTES_MAX].decode("utf-8", "backslashreplace"))
    return text if len(data) <= SHOWN_BYTES_MAX else f"{text} and {len(data) - SHOWN_BYTES_MAX} bytes more"


def stream_name(data: bytes) -> bytes:
    """The name itself. Raises PeerError with `name` or `reserved`."""
    if not name_bytes_valid(data):
        rule = f"1 to {NAME_BYTES_MAX} bytes of UTF-8 without white space, control characters or |"
        raise PeerError(Code.NAME, f"{shown(data)} is not a stream name: {rule}")
    if is_reserved(data):
        raise PeerError(Code.RESERVED, f"{shown(data)} begins with $, as only the broker's own do; choose another")
    return data
