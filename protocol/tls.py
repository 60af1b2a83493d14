"""TLS without a socket: received bytes in, plaintext out, and plaintext in, bytes to send out.

OpenSSL works on two buffers in memory, which are empty between two calls. So all connections of one thread can share a
pair: it stays in the processor's cache, and a quiet connection holds no buffers. OpenSSL never gets a descriptor, so it
cannot give keys to the kernel (kTLS), and nothing here can send a file as it is.
"""

from __future__ import annotations

import errno
import re
import ssl
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

TLSInput: TypeAlias = bytes | bytearray | memoryview

RECORD_BYTES: Final = 16 << 10
"""The most plaintext in one record."""
RECORD_HEAD_BYTES: Final = 5
"""Type, version, and the length of what follows in two bytes."""
READ_SLACK_BYTES: Final = RECORD_BYTES + (1 << 10)
"""More plaintext than the bytes asked for that one call may give: the rest of a record that had begun before."""
ALPN: Final = "tailrace"
"""What both sides offer: the protocols of a broker's port, distinguished by their first byte."""
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and authenticated encryption only. TLS 1.3 has no others."""

_NEEDS_MORE = ssl.SSLWantReadError


class TLSFailed(OSError):
    """The connection cannot go on, such as after bytes that are not TLS; `strerror` gives the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EPROTO, reason)


class TLSBuffers(NamedTuple):
    """The two buffers of OpenSSL, for one thread."""

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO

    @classmethod
    def make(cls) -> TLSBuffers:
        return cls(ssl.MemoryBIO(), ssl.MemoryBIO())


class PeerCertificate(NamedTuple):
    """The verified certificate of the other side.

    subject: as RFC 4514 has it, such as "CN=orders,O=Example"; names: the subject's alternative names, such as
    "a.example", "spiffe://x/y", "a@b.example", "10.0.0.1".
    """

    subject: str
    names: tuple[str, ...]


def harden(context: ssl.SSLContext) -> None:
    """TLS 1.2 and newer, good ciphers, neither renegotiation nor compression."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols([ALPN])


class TLSEngine:
    """One connection. After `handshake` has returned True, `decrypt` and `encrypt` may be called.

    `take` gives the bytes to send. Call it after every other call, also one that has raised: the buffers are shared.
    """

    __slots__ = ("_buffers", "_ssl", "_write", "ended", "left", "take")

    def __init__(
        self,
        context: ssl.SSLContext,
        buffers: TLSBuffers,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        """Raises ValueError for an invalid `server_hostname`."""
        self._buffers = buffers
        self._ssl = context.wrap_bio(*buffers, server_side=server_side, server_hostname=server_hostname)
        self._write = self._ssl.write
        self.take = buffers.outgoing.read
        """Returns the bytes to send."""
        self.left = b""  # came behind the handshake: `decrypt` is to be called without waiting for more
        self.ended = False  # the other side has said that it sends no more

    def handshake(self, received: TLSInput) -> bool:
        """A step; the client's first is without bytes. True when it is done. Raises TLSFailed."""
        incoming = self._buffers.incoming
        incoming.write(received)
        try:
            self._ssl.do_handshake()
        except _NEEDS_MORE:
            return False
        except ssl.SSLError as error:
            raise TLSFailed(_reason(error)) from None
        finally:
            self.left = incoming.read() if incoming.pending else b""
        return True

    def decrypt(self, received: TLSInput, room: memoryview) -> int:
        """How many bytes of plaintext are in `room` now, which is READ_SLACK_BYTES longer than `received`.

        Raises TLSFailed. Plaintext from before the fault is lost with the connection.
        """
        incoming, read = self._buffers.incoming, self._ssl.read
        if self.left:
            received, self.left = self.left + bytes(received), b""
        incoming.write(received)
        count = 0
        try:
            while got := read(RECORD_BYTES, room[count:]):
                count += got  # type: ignore[operator]  # with a buffer it is a number
            self.ended = True
        except _NEEDS_MORE:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise TLSFailed(_reason(error)) from None
        finally:
            if incoming.pending:
                incoming.read()
        return count

    def encrypt(self, data: TLSInput) -> None:
        """Encrypts at least one byte. Raises TLSFailed."""
        try:
            self._write(data)
        except ssl.SSLError as error:
            self.take()  # the buffer is shared: leave nothing of this connection in it
            raise TLSFailed(_reason(error)) from None

    @property
    def pending_bytes(self) -> int:
        """Bytes that `take` would give."""
        return self._buffers.outgoing.pending

    def end(self) -> None:
        """Say that no more is sent (close_notify). A connection that is not open says nothing."""
        try:
            self._ssl.unwrap()
        except ssl.SSLError:  # it waits for the other side's, or there is nothing to be ended
            pass

    def peer_certificate(self) -> PeerCertificate | None:
        """The other side's certificate, if it has shown one and that was verified."""
        found = self._ssl.getpeercert()
        if not found:
            return None
        alternatives = (value for _kind, value in _pairs(found.get("subjectAltName", ())))
        names = tuple([value for value in alternatives if not _LIKE_A_SUBJECT.match(value)])
        return PeerCertificate(_subject(found.get("subject", ())), names)

    @property
    def is_server(self) -> bool:
        return self._ssl.server_side

    @property
    def version(self) -> str:
        """Such as "TLSv1.3"."""
        return self._ssl.version() or ""


_LIKE_A_SUBJECT = re.compile("[^:]*=")
"""An alternative name with which another subject could pass for this one. That of a URI has its scheme in front."""
_SHORT = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_SPECIAL = re.compile(r'(^[ #]|[,+"\\<>;]| $)')


def _subject(parts: object) -> str:
    """A name as the module ssl gives it, as RFC 4514 text: the last part first."""
    found = parts if isinstance(parts, tuple) else ()
    return ",".join("+".join(map(_attribute, _pairs(part))) for part in reversed(found))


def _attribute(pair: tuple[str, str]) -> str:
    key, value = pair
    escaped = _SPECIAL.sub(r"\\\1", value)
    return f"{_SHORT.get(key, key)}={escaped}"


def _pairs(found: object) -> Iterator[tuple[str, str]]:
    for kind, value in found if isinstance(found, tuple) else ():
        yield str(kind), str(value)


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is refused: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLEOFError):
        return "the connection ended within the handshake"
    return (error.reason or "the connection is of no use any more").lower().replace("_", " ")
