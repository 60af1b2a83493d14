"""A peer in a test's world that encrypts its output; `received` holds the decrypted bytes."""

from __future__ import annotations

import ssl

from tests.broker.world import Peer, World


class TLSPeer(Peer):
    """`ended` also if the handshake has failed."""

    def __init__(self, peer: Peer, context: ssl.SSLContext) -> None:
        super().__init__(peer.sock)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._engine = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._is_open = False

    @classmethod
    def of(cls, node: World, context: ssl.SSLContext, *, local: bool = False) -> TLSPeer:
        """A new connection after its handshake."""
        plain = node.connect(local=local)
        made = node.peers[node.peers.index(plain)] = cls(plain, context)
        made._step()
        node.settle()
        return made

    def send_raw(self, data: bytes) -> None:
        self._engine.write(data)
        self.sock.sendall(self._outgoing.read())

    def read(self) -> bool:
        if self.deaf or self.ended:
            return False
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        self._incoming.write(data)
        self.ended = not data
        self._step()
        return True

    def _step(self) -> None:
        try:
            if not self._is_open:
                self._engine.do_handshake()
                self._is_open = True
            while data := self._engine.read(1 << 16):
                self.received += data
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # an alert
            self.ended = True
        if self._outgoing.pending:
            self.sock.sendall(self._outgoing.read())
