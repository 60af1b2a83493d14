"""A connection that has not said anything yet: its first byte tells what it speaks, and so what it becomes.

One that cannot be taken (the node is full) hears so in its own protocol, or, when it stays silent, in a line.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from broker.binary_client import BinaryClient
from broker.connection import Connection
from broker.fanout import Cursor
from broker.line_client import LineClient
from broker.protocol import answers
from broker.protocol.errors import Code
from broker.protocol.sniff import protocol_of, refusal

if TYPE_CHECKING:
    from broker.worker import Worker

CLIENTS: dict[str, type[Connection]] = {each.protocol: each for each in (LineClient, BinaryClient)}


class Newcomer(Connection):
    protocol = ""

    __slots__ = ("refused",)

    def __init__(self, worker: Worker, sock: socket.socket, peer: str, local: bool) -> None:
        super().__init__(worker, sock, peer, local)
        self.traffic = worker.metrics.line
        self.refused: tuple[Code, str] | None = None

    def readable(self) -> None:
        """Look at the first byte, which whatever this becomes will read."""
        if self.lingering_since_s:
            super().readable()
            return
        try:
            first = self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:  # the peer reset the connection, or the network did
            self.close("reset")
            return
        if not first:
            self.close("ended")
            return
        protocol = protocol_of(first[0])
        if protocol is None:
            self.worker.metrics.refused.add(Code.PROTOCOL)
            self.out += refusal(first[0])
            self.finish()
        else:
            self.become(CLIENTS[protocol])

    def become(self, kind: type[Connection]) -> Connection:
        """What this is from here on; it has read what there was."""
        client = kind(self.worker, self.sock, self.peer, self.local)
        client.accepted_s = self.accepted_s
        self.closed = True  # whoever still holds this one has nothing to do with it any more
        self.worker.replace_client(client)
        if self.refused is not None:
            client.end_with(*self.refused)
        elif client.admitted():
            client.readable()
        return client

    def give_up(self) -> None:
        """It has not shown what it speaks."""
        if self.refused is not None and not self.closed:
            self.end_with(*self.refused)

    # --- what nobody has asked for yet ------------------------------------------------------------------------------

    def take(self, count: int) -> None:
        raise AssertionError(f"{count} bytes of a connection whose protocol is not known")

    @property
    def pending_bytes(self) -> int:
        return 0

    def end_of_input(self) -> None:
        pass

    def forget_input(self) -> None:
        pass

    @property
    def awaited(self) -> int:
        return 0

    def tell(self, code: Code, text: str, *, fatal: bool = False) -> None:
        self.out += answers.err(code, text)
        self.worker.note_answered(self)

    def tell_trimmed(self, cursor: Cursor, first_seq: int) -> None:
        raise AssertionError("a connection without subscriptions")

    def tell_ended(self, cursor: Cursor, code: Code | None, text: str) -> None:
        raise AssertionError("a connection without subscriptions")

    def send_chunk(self, cursor: Cursor, chunk: Any) -> int:
        raise AssertionError("a connection without subscriptions")

    def lose(self, key: Any, name: bytes, next_seq: int, why: str) -> None:
        raise AssertionError("a connection without subscriptions")

    def export_state(self) -> dict[str, Any]:
        return {}

    def restore_state(self, state: dict[str, Any]) -> None:
        pass
