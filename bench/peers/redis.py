"""Redis: Streams in an append-only file synced every second; and its pub/sub, which stores nothing, for the fan-out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.peers.base import PAYLOAD_MARK, Contestant, Puller, RequestStep, Site
from bench.peers.consuming import BATCH, MEMBER
from bench.peers.programs import find_program, program_version

READ_COUNT = 10_000  # entries asked for at a time in a replay
_OPTIONS = [
    *("--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "everysec"),
    # No rewriting of the file in the background within a run: it would cost Redis a good part of the machine.
    *("--auto-aof-rewrite-percentage", "0"),
    # A subscriber that is a little behind is not dropped.
    *("--client-output-buffer-limit", "pubsub 0 0 0"),
    *("--maxclients", "5000"),
]
_REPLY_HEAD = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]+\r\n\*(\d+)\r\n")
_ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nd\r\n")
_ACKED = re.compile(rb":(\d+)\r\n")
_ENTRY_FIELDS = b"\r\n*2\r\n$1\r\nd\r\n"

_KINDS = frozenset({"ingest", "turns", "latency", "replay", "consume", "client-wait", "client-tasks"})


class Redis(Contestant):
    title = "Redis Streams"
    answer_mark = b"$"
    replay_part = 5

    def __init__(self, *, acked: bool = True) -> None:
        self.acked = acked
        self.name = "redis" if acked else "redis-silent"
        self.title = "Redis Streams, answers" if acked else "Redis Streams, reply off"
        self.kinds = _KINDS if acked else frozenset({"ingest", "turns"})

    def command(self, site: Site) -> list[str]:
        return [find_program("redis-server"), "--port", str(site.port), "--dir", str(site.directory), *_OPTIONS]

    def version(self) -> str:
        return program_version("redis-server", "--version")

    def ready(self) -> list[RequestStep]:
        return [RequestStep(_command(b"PING"), b"+PONG\r\n")]

    def publisher(self, client: int, names: Sequence[str] = ()) -> list[RequestStep]:
        off = [] if self.acked else [RequestStep(_command(b"CLIENT", b"REPLY", b"OFF"))]
        return [*self.ready(), *off]

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        return _command(b"XADD", name.encode(), b"*", b"d", payload)

    def barrier(self, name: str) -> RequestStep:
        if self.acked:
            return super().barrier(name)
        return RequestStep(_command(b"CLIENT", b"REPLY", b"ON") + _command(b"CLIENT", b"REPLY", b"OFF"), b"+OK\r\n")

    def stored(self, name: str, messages: int) -> RequestStep | None:
        return RequestStep(_command(b"XLEN", name.encode()), b":%d\r\n" % messages)

    def subscriber(self, name: str, client: int) -> list[RequestStep]:
        return self.ready()

    def live_puller(self, name: str) -> Puller:
        return RedisPuller(name, block=True)

    def replay_puller(self, name: str, client: int, messages: int) -> Puller:
        return RedisPuller(name, block=False)

    def consumer(self, name: str, client: int) -> list[RequestStep]:
        return [RequestStep(_command(b"XGROUP", b"CREATE", name.encode(), b"g", b"0"), b"+OK\r\n")]

    def consuming_puller(self, name: str, client: int, messages: int) -> Puller:
        return RedisConsumer(name, messages)


class RedisPubSub(Redis):
    def __init__(self) -> None:
        super().__init__(acked=False)
        self.name = "redis-pubsub"
        self.title = "Redis pub/sub"
        self.kinds = frozenset({"fanout", "topics-turns"})

    def publish(self, name: str, payload: bytes, serial: int = 0, client: int = 0) -> bytes:
        return _command(b"PUBLISH", name.encode(), payload)

    def stored(self, name: str, messages: int) -> None:
        """It stores nothing."""

    def subscriber(self, name: str, client: int) -> list[RequestStep]:
        return [RequestStep(_command(b"SUBSCRIBE", name.encode()), b":1\r\n")]

    def delivered_bytes(self, name: str, messages: int, payload_bytes: int) -> int:
        return messages * len(_command(b"message", name.encode(), bytes(payload_bytes)))


class _RedisReplies(Puller):
    """Collects one reply with entries, however it is cut."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._reply = bytearray()
        self._seen = 0  # entries of the reply that is coming in

    def _add(self, data: bytes) -> int:
        """Add received data; return the number of new entries."""
        found = data.count(PAYLOAD_MARK)
        self._reply += data
        self._seen += found
        return found

    def _is_whole(self) -> bool:
        head = _REPLY_HEAD.match(self._reply)
        return head is not None and self._seen >= int(head[1]) and self._reply.endswith(b"\r\n")

    def _clear(self) -> None:
        self._reply.clear()
        self._seen = 0


class RedisPuller(_RedisReplies):
    """XREAD again and again, each from the last entry of the answer before it."""

    def __init__(self, name: str, *, block: bool) -> None:
        super().__init__(name)
        self._options = [b"BLOCK", b"0"] if block else [b"COUNT", b"%d" % READ_COUNT]

    def open(self) -> bytes:
        return self._request(b"0-0")

    def feed(self, data: bytes) -> bytes:
        self.messages += self._add(data)
        if not self._is_whole():
            return b""
        fields = self._reply.rfind(_ENTRY_FIELDS)
        last = bytes(self._reply[self._reply.rfind(b"\n", 0, fields) + 1 : fields])
        self._clear()
        return self._request(last)

    def _request(self, after: bytes) -> bytes:
        return _command(b"XREAD", *self._options, b"STREAMS", self._name, after)


class RedisConsumer(_RedisReplies):
    """XREADGROUP, and XACK with the ids of the batch before it."""

    def __init__(self, name: str, due: int) -> None:
        super().__init__(name)
        self._left = due

    def open(self) -> bytes:
        return self._read()

    def feed(self, data: bytes) -> bytes:
        self._add(data)
        acked = _ACKED.match(self._reply)
        if acked:
            self.messages += int(acked[1])
            del self._reply[: acked.end()]
        if not self._is_whole():
            return b""
        ids = _ENTRY.findall(self._reply)
        self._clear()
        self._left -= len(ids)
        return _command(b"XACK", self._name, b"g", *ids) + (self._read() if self._left else b"")

    def _read(self) -> bytes:
        count = b"%d" % min(BATCH, self._left)
        return _command(b"XREADGROUP", b"GROUP", b"g", MEMBER, b"COUNT", count, b"STREAMS", self._name, b">")


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
