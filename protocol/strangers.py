"""What listens at an address that is not a tailrace broker, by the first bytes that it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HTTP: Final = "it answers in HTTP: the metrics have a port of their own, the broker has another"
PROTOCOLS: Final[Mapping[bytes, str]] = {
    b"HTTP/": HTTP,
    b"<": HTTP,  # a page without a head, as of Python's http.server
    b"SSH-": "it speaks SSH",
    b"\x15\x03": "it wants TLS: write tails:// before the address",
    b"err ": "it answers in lines of text",
    b"INFO {": "it is a NATS server",
    b"-ERR": "it answers like Redis",
    b"220 ": "it speaks SMTP or FTP",
}

STRANGER_BYTES: Final = 16
"""So many of the first bytes are enough for `stranger`."""


def stranger(data: bytes, otherwise: str = "") -> str:
    """One sentence for a person; `data` are the first bytes that came, at least one. `otherwise`: what to say if they
    are of no known protocol.
    """
    known = next((text for start, text in PROTOCOLS.items() if data.startswith(start)), None)
    if known is None and otherwise:
        return otherwise
    return f"this is not a tailrace broker: {known or f'its first bytes are {repr(bytes(data[:8]))[1:]}'}"
