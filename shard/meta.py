"""NAME.meta: what of a stream differs from the default (a master in its first term, with a short name).

Most streams have no such file. It is replaced whole, and is on the disk before `write_meta` returns.

    offset 0   8 bytes   magic
    offset 8   u32       CRC-32C of what follows
    offset 12            a msgpack map: name, role, epoch, upstream
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgpack

from shard.errors import MetaDamaged
from shard.files import replace_file, sync_directory
from shard.leaves import load
from shard.names import InvalidName, file_stem, stem_is_hashed, validate_name

META_SUFFIX: Final = ".meta"
META_MAGIC: Final = b"TRmeta\x001"
META_BYTES_MAX: Final = 64 * 1024
_HEAD = struct.Struct("<8sI")

crc32c = load("shard.frame_cy").crc32c


class Role(StrEnum):
    """What this node is to a stream."""

    MASTER = "master"
    SLAVE = "slave"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class StreamMeta:
    """`upstream` is the HOST:PORT a slave follows, "" otherwise."""

    name: str
    role: Role = Role.MASTER
    epoch: int = 1
    upstream: str = ""

    @property
    def is_default(self) -> bool:
        """Whether no file need say this."""
        short = not stem_is_hashed(file_stem(self.name))
        return short and self.role is Role.MASTER and self.epoch == 1 and not self.upstream


def meta_path(directory: Path, name: str) -> Path:
    return directory / (file_stem(name) + META_SUFFIX)


def read_meta(directory: Path, name: str) -> StreamMeta:
    """The stream's meta, the default where there is no file. Raises MetaDamaged, OSError."""
    path = meta_path(directory, name)
    try:
        meta = read_meta_file(path, name)
    except FileNotFoundError:
        return StreamMeta(name)
    if meta.name != name:
        raise MetaDamaged(name, path, 0, f"it is of the stream {meta.name!r}")
    return meta


def read_meta_file(path: Path, name: str = "") -> StreamMeta:
    """The meta in this very file; `name` is for the error's text. Raises MetaDamaged, FileNotFoundError, OSError."""
    with open(path, "rb") as file:
        data = file.read(META_BYTES_MAX + 1)
    if len(data) < _HEAD.size or len(data) > META_BYTES_MAX:
        raise MetaDamaged(name, path, 0, f"it has {len(data)} bytes")
    magic, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != META_MAGIC:
        raise MetaDamaged(name, path, 0, f"it begins with {magic!r}, not {META_MAGIC!r}")
    if crc != crc32c(body):
        raise MetaDamaged(name, path, 8, "its checksum does not fit")
    return _parse(path, name, body)


def write_meta(directory: Path, meta: StreamMeta) -> None:
    """Put the meta on the disk, or take the file away when it would say nothing. Raises OSError, InvalidName."""
    path = meta_path(directory, validate_name(meta.name))
    if meta.is_default:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        sync_directory(directory)
        return
    fields = {"name": meta.name, "role": str(meta.role), "epoch": meta.epoch, "upstream": meta.upstream}
    body: bytes = msgpack.packb(fields)
    replace_file(path, _HEAD.pack(META_MAGIC, crc32c(body)) + body)


def _parse(path: Path, name: str, body: bytes) -> StreamMeta:
    try:
        fields: dict[str, Any] = msgpack.unpackb(body)
        epoch, upstream = fields["epoch"], fields["upstream"]
        if not isinstance(epoch, int) or not 0 < epoch < 2**32 or not isinstance(upstream, str):
            raise ValueError(f"epoch = {epoch!r}, upstream = {upstream!r}")
        return StreamMeta(validate_name(fields["name"]), Role(fields["role"]), epoch, upstream)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidName) as error:
        raise MetaDamaged(name, path, _HEAD.size, f"its map is not one of ours: {error!r}") from error
