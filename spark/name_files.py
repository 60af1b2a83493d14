"""The names of very many streams in files of a checkpoint, so that not each of its offsets has all of them.

A file never changes: it is there, and on the disk, before the first offset that refers to it. Its name has a number, by
which old ones are removed, and a hash of its content.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgpack

from tailrace.shard.files import replace_file, sync_directory

if TYPE_CHECKING:
    from tailrace.spark.file_systems import Place

FOLDER: Final = "tailrace-names"
"""In the checkpoint, whose other folders are Spark's."""
KEPT_MAX: Final = 32
"""Files of a source; older ones go, but for those that were read. Spark goes on from the last offset of a checkpoint,
or the last but one."""
CONTENT_BYTES_MAX: Final = 1 << 30
_LOCAL_URL: Final = re.compile(r"file:/+", re.IGNORECASE)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_FILE: Final = re.compile(r"(?P<source>[0-9a-f]{8})-(?P<number>[0-9]{8})-(?P<hash>[0-9a-f]{16})")


class MissingNames(ValueError):
    """A file of names cannot be read. The text says which."""


class NameFiles:
    """Those of one source of a query. `checkpoint`: a path, or a URL of PyArrow's file systems."""

    def __init__(self, checkpoint: str, source: str) -> None:
        local = _LOCAL_URL.sub("/", checkpoint)
        self._is_local = _URL.match(local) is None
        self._checkpoint = local
        self._read: set[str] = set()  # the files of the offsets that the query went on from
        self._source = f"{zlib.crc32(source.encode()):08x}"

    def write(self, names: Sequence[str]) -> str:
        """Returns the name of the file. Raises OSError, InvalidUrl."""
        content = pack_names(names)
        others = self._others()
        same = next((file for _, file in others if file.endswith(_hash(content))), None)
        if same is not None:  # such as of a query that did not come to write down its offset
            return same
        file = f"{self._source}-{others[-1][0] + 1 if others else 1:08}-{_hash(content)}"
        if self._is_local:
            self._path("").mkdir(parents=True, exist_ok=True)
            sync_directory(self._path("").parent)
            replace_file(self._path(file), content)
        else:
            self._place().write(f"{FOLDER}/{file}", content)
        for _, old in others[: -(KEPT_MAX - 1)]:
            if old not in self._read:
                with suppress(OSError):
                    self._remove(old)
        return file

    def read(self, file: str) -> list[str]:
        """Raises MissingNames, also if the file has other content than was written."""
        found = _FILE.fullmatch(file)
        try:
            if found is None:
                raise ValueError("this is not the name of such a file")
            content = self._path(file).read_bytes() if self._is_local else self._place().read(f"{FOLDER}/{file}")
            if _hash(content) != found["hash"]:
                raise ValueError("it has other content than was written")
            names = unpack_names(content)
        except (OSError, ValueError) as error:
            raise MissingNames(f"the names of the checkpoint's streams, {self._path(file)}: {error}") from error
        self._read.add(file)
        return names

    def _others(self) -> list[tuple[int, str]]:
        """The files of this source by their numbers."""
        if self._is_local:
            folder = self._path("")
            files = os.listdir(folder) if folder.is_dir() else []
        else:
            files = [info.base_name for info in self._place().list_files(FOLDER)]
        found = (_FILE.fullmatch(file) for file in files)
        return sorted((int(each["number"]), each[0]) for each in found if each and each["source"] == self._source)

    def _remove(self, file: str) -> None:
        if self._is_local:
            self._path(file).unlink()
        else:
            place = self._place()
            place.system.delete_file(f"{place.path}/{FOLDER}/{file}")

    def _path(self, file: str) -> Path:
        return Path(self._checkpoint, FOLDER, file)

    def _place(self) -> Place:
        """PyArrow's file systems take long to import."""
        from tailrace.spark.file_systems import open_place

        return open_place(self._checkpoint)


def pack_names(names: Sequence[str]) -> bytes:
    """Sorted names are short: each goes without the beginning that it shares with the one before it."""
    common, rests, last = bytearray(), [], ""
    for name in names:
        pairs = enumerate(zip(last, name, strict=False))
        length = next((place for place, (one, other) in pairs if one != other), min(len(last), len(name)))
        common.append(length)  # a name has at most 200 bytes
        rests.append(name[length:])
        last = name
    return zlib.compress(msgpack.packb([bytes(common), "\n".join(rests)]))


def unpack_names(data: bytes) -> list[str]:
    """Raises ValueError, zlib.error, msgpack.UnpackException."""
    common, rests = msgpack.unpackb(zlib.decompressobj().decompress(data, CONTENT_BYTES_MAX))
    names, last = [], ""
    for length, rest in zip(common, rests.split("\n") if common else (), strict=True):
        last = last[:length] + rest
        names.append(last)
    return names


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
