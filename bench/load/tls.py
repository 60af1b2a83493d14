"""TLS for the load generator, and the rate of its cipher alone. Certificates are not verified: all is on loopback."""

from __future__ import annotations

import socket
import ssl
import subprocess
from typing import Any

from bench.load.limits import LoadError

CIPHERS = "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384"
RECORD_BYTES = 16 << 10
_RECORD_ADDED_BYTES = 5 + 8 + 16
"""Of AES-GCM in TLS 1.2: head, nonce, tag."""
_SPEED_S = 3


class TLSSocket(ssl.SSLSocket):
    """As a non-blocking socket: BlockingIOError if nothing is there, and no plaintext is left where epoll is blind."""

    def recv(self, buflen: int = RECORD_BYTES, flags: int = 0) -> bytes:
        try:
            return super().recv(max(buflen, RECORD_BYTES))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """With MSG_TRUNC all that is there, one record over the other."""
        left = nbytes or len(buffer)
        count = 0
        try:
            while left and (got := super().recv_into(buffer, left)):
                count, left = count + got, left - got if flags & socket.MSG_TRUNC else 0
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            if not count:
                raise BlockingIOError from error
        return count

    def send(self, data: Any, flags: int = 0) -> int:
        """All of it, or BlockingIOError; then the same is to be sent again."""
        try:
            return super().send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error


def client_context() -> ssl.SSLContext:
    """TLS 1.2, where both sides choose the cipher: in TLS 1.3 a server written in Go takes AES-128."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.sslsocket_class = TLSSocket
    return context


def secured(sock: socket.socket, context: ssl.SSLContext | None) -> socket.socket:
    """The connected socket under TLS, if there is a context. Raises OSError."""
    return sock if context is None else context.wrap_socket(sock)


def plaintext_bytes(encrypted_bytes: int) -> int:
    """How much plaintext full records of this length hold."""
    return encrypted_bytes * RECORD_BYTES // (RECORD_BYTES + _RECORD_ADDED_BYTES)


def cipher_bytes_per_s() -> float:
    """The rate of `openssl speed` on one core, in records of RECORD_BYTES. Raises LoadError."""
    command = ["openssl", "speed", "-mr", "-seconds", str(_SPEED_S), "-evp", "aes-256-gcm", "-bytes", str(RECORD_BYTES)]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return float(next(line for line in output.splitlines() if line.startswith("+F:")).rpartition(":")[2])
    except (OSError, subprocess.CalledProcessError, StopIteration, ValueError) as error:
        raise LoadError(f"{' '.join(command)}: {error}") from error
