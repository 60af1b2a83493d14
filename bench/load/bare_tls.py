"""The least program in Python that sends a file under TLS, to every connection that asks, and does nothing else.

It does for each batch what a broker has to: read it from the file, encrypt it with `ssl.SSLObject`, take the encrypted
bytes out of its buffer, send them. A replay under TLS by one thread cannot be quicker than this. A connection that
sends G gets the file once; any other byte is answered with `!`.
Run as `python -m bench.load.bare_tls PORT FILE CERTIFICATE KEY`.
"""

from __future__ import annotations

import mmap
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable

BATCH_BYTES = 256 * 1024  # encrypted at once: smaller and larger ones were not faster
READ_BYTES = 16 * 1024


def main(port: str, path: str, certificate: str, key: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=1024)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=_serve, args=(sock, context, path), daemon=True).start()


def _serve(sock: socket.socket, context: ssl.SSLContext, path: str) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    with sock:
        try:
            _step(sock, incoming, outgoing, tls.do_handshake)
            if _step(sock, incoming, outgoing, lambda: tls.read(1)) == b"G":
                _send_file(sock, path, tls, outgoing)
            else:
                tls.write(b"!")
                sock.sendall(outgoing.read())
            sock.recv(READ_BYTES)  # the other side closes first
        except (OSError, EOFError):  # the peer is gone; SSLError is an OSError
            pass


def _step(
    sock: socket.socket, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, step: Callable[[], bytes | None]
) -> bytes | None:
    """Take a step of TLS with as many received bytes as it needs. Raises EOFError, OSError."""
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            pass
        finally:
            if outgoing.pending:
                sock.sendall(outgoing.read())
        data = sock.recv(READ_BYTES)
        if not data:
            raise EOFError
        incoming.write(data)


def _send_file(sock: socket.socket, path: str, tls: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> None:
    # Aligned as the file is: processors of AMD copy four times as slowly to memory that begins 1 to 31 bytes further.
    batch, offset = memoryview(mmap.mmap(-1, BATCH_BYTES)), 0
    with open(path, "rb", buffering=0) as file:
        while count := os.preadv(file.fileno(), (batch,), offset):
            tls.write(batch[:count])
            sock.sendall(outgoing.read())
            offset += count


if __name__ == "__main__":
    main(*sys.argv[1:])
