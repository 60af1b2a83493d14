"""The stream files that a worker has open to read, the least recently used closed first.

Nobody keeps a reader beyond the turn of the loop: ask again, it is a dictionary look-up.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

from tailrace.shard.directory import DataDirectory
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import stream_paths


class StreamReaders:
    """`memory`: where streams in memory are. Their trimmed messages are given back soon: bytes of them may be zeros."""

    def __init__(self, directory: DataDirectory, max_open: int, boot_id: str) -> None:
        self._directory = directory
        self.memory = directory.memory
        self._max_open = max_open
        self._boot_id = boot_id
        self._open: OrderedDict[bytes, StreamReader] = OrderedDict()

    def get(self, name: bytes) -> StreamReader:
        """The reader of a stream. Raises StreamMissing, StreamDamaged, OSError."""
        reader = self._open.get(name)
        if reader is not None:
            self._open.move_to_end(name)
            return reader
        reader = self._open[name] = StreamReader.open(self.path(name), name.decode(), boot_id=self._boot_id)
        if len(self._open) > self._max_open:
            self._open.popitem(last=False)[1].close()
        return reader

    def open_apart(self, name: bytes) -> StreamReader:
        """Another reader, for another thread, which closes it. Raises as `get`."""
        return StreamReader.open(self.path(name), name.decode(), boot_id=self._boot_id)

    def __contains__(self, name: bytes) -> bool:
        """Whether the stream's files are open."""
        return name in self._open

    def path(self, name: bytes) -> Path:
        """The folder of the stream's files."""
        return self._directory.stream_path(name)

    def is_gone(self, name: bytes) -> bool:
        """Whether the stream is gone, and is not just having its end set aside."""
        return not os.path.exists(stream_paths(self.path(name), name.decode()).content_file)

    def forget(self, name: bytes) -> None:
        reader = self._open.pop(name, None)
        if reader is not None:
            reader.close()

    def close(self) -> None:
        for reader in self._open.values():
            reader.close()
        self._open.clear()

    def __len__(self) -> int:
        return len(self._open)
