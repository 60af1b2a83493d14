"""The upstream as the copies of its streams see it: frames that its log would have sent, and a reader of their
messages.
"""

from __future__ import annotations

from pathlib import Path

from tailrace.protocol.messages import Hello, Malformed, Request, pack
from tailrace.protocol.replication import FEATURE
from tailrace.shard.log import StreamLog
from tests.protocol.plain_codec import PlainCodec
from tests.shard.helpers import append, open_log

MESSAGE_MAX_BYTES = 1 << 20


class Ears:
    """Takes a slave's bytes; returns the messages in them."""

    def __init__(self) -> None:
        self._codec = PlainCodec(64 << 20, MESSAGE_MAX_BYTES)
        self._codec.features = frozenset({FEATURE})
        list(self._codec.feed(*_counted(pack(Hello(1, (FEATURE,), "test")))))

    def hear(self, data: bytes) -> list[Request]:
        heard: list[Request] = []
        for message in self._codec.feed(*_counted(data)):
            assert not isinstance(message, Malformed), message
            heard.append(message)
        return heard


class Original:
    """A stream as its master has it."""

    def __init__(self, directory: Path, name: str = "s") -> None:
        directory.mkdir(exist_ok=True)
        self._file = directory / f"{name}.content"
        self.log: StreamLog = open_log(directory, name)

    def append(self, *payloads: bytes, epoch: int = 1) -> None:
        append(self.log, *payloads, epoch=epoch)

    def frames(self, first_seq: int, next_seq: int) -> memoryview:
        """The frames of these messages, as a chunk has them."""
        if first_seq == next_seq:
            return memoryview(b"")
        last = self.log.entry(next_seq - 1)
        content = self._file.read_bytes()
        return memoryview(content[self.log.entry(first_seq).offset : last.offset + last.length])


def _counted(data: bytes) -> tuple[bytes, int]:
    return data, len(data)
