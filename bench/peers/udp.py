"""Those that are measured by datagrams: tailrace's UDP door, and a process that does the least it could do."""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path

from bench.load.limits import LoadError
from bench.peers.base import Contestant, RequestStep, Site
from bench.peers.programs import compiled_c
from bench.peers.tailrace import Tailrace

HOST = "127.0.0.1"
_PLAIN = Path(__file__).resolve().parent.parent / "plain_udp.c"
_STREAM = b"udp"
_ANSWER_BYTES = 1_000


class DatagramPeer(Contestant):
    kinds = frozenset({"packets"})

    @abstractmethod
    def datagram(self, name: str, payload: bytes) -> bytes:
        """Publishes to a topic."""

    @abstractmethod
    def delivered_datagram_bytes(self, name: str, payload_bytes: int) -> int:
        """The length of a message as a subscriber gets it."""

    @abstractmethod
    def subscribe(self, sock: socket.socket, name: str) -> None:
        """The connected socket gets the messages of a topic from now on. Raises LoadError, OSError."""

    @abstractmethod
    def taken(self, port: int) -> int:
        """The messages that the server has taken so far. Raises LoadError, OSError."""


class TailraceUdp(DatagramPeer):
    name, title = "tailrace-udp", "tailrace UDP"

    def __init__(self, *, interpreted: bool = False, workers: int = 2) -> None:
        config = "[listen]\nudp = true\n"
        self._node = Tailrace(interpreted=interpreted, workers=workers).changed(config=config)

    def command(self, site: Site) -> list[str]:
        return self._node.command(site)

    def environment(self) -> Mapping[str, str]:
        return self._node.environment()

    def version(self) -> str:
        return self._node.version()

    def ready(self) -> list[RequestStep]:
        return self._node.ready()

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        return self._node.publish(name, payload, serial, client)

    def datagram(self, name: str, payload: bytes) -> bytes:
        return b"PUB %s\n%s" % (name.encode(), payload)

    def delivered_datagram_bytes(self, name: str, payload_bytes: int) -> int:
        return len(f"MSG {name}\n") + payload_bytes

    def subscribe(self, sock: socket.socket, name: str) -> None:
        sock.send(b"SUB %s\n" % name.encode())
        answer = sock.recv(_ANSWER_BYTES)
        if not answer.startswith(b"OK SUB "):
            raise LoadError(f"SUB of {name} was answered with {answer!r}")

    def taken(self, port: int) -> int:
        """0 before the first message, which makes the stream."""
        answer = ask(port, b"sub %s new" % _STREAM)
        return 0 if answer.startswith(b"err unknown") else _last_number(answer)


class PlainUdp(DatagramPeer):
    name, title = "plain-udp", "(bare recvmmsg, sendmmsg in C)"

    def __init__(self, payload_bytes: int) -> None:
        self._payload_bytes = payload_bytes
        self._like = TailraceUdp()

    def command(self, site: Site) -> list[str]:
        sizes = map(str, (site.port, self.delivered_datagram_bytes("b.000000", self._payload_bytes)))
        return [str(compiled_c(_PLAIN, site.directory)), *sizes]

    def ready(self) -> list[RequestStep]:
        return [RequestStep(b"count\r\n", b"ok 0\r\n")]

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        return self.datagram(name, payload)

    def datagram(self, name: str, payload: bytes) -> bytes:
        return self._like.datagram(name, payload)

    def delivered_datagram_bytes(self, name: str, payload_bytes: int) -> int:
        return self._like.delivered_datagram_bytes(name, payload_bytes)

    def subscribe(self, sock: socket.socket, name: str) -> None:
        ask(sock.getpeername()[1], b"subscribe %d" % sock.getsockname()[1])

    def taken(self, port: int) -> int:
        return _last_number(ask(port, b"count"))


def ask(port: int, line: bytes) -> bytes:
    """The first line of the answer to a line over TCP. Raises LoadError if none comes, OSError."""
    with socket.create_connection((HOST, port)) as sock:
        sock.sendall(line + b"\r\n")
        answer = b""
        while b"\n" not in answer:
            data = sock.recv(_ANSWER_BYTES)
            if not data:
                raise LoadError(f"{line!r} had no whole answer: {answer!r}")
            answer += data
    return answer.partition(b"\n")[0].strip()


def _last_number(answer: bytes) -> int:
    if not answer.startswith(b"ok "):
        raise LoadError(f"the messages taken were asked for; the answer is {answer!r}")
    return int(answer.rpartition(b" ")[2])
