"""Deleting a stream's files, its companions' too, so that a crash at any moment leaves all of it or nothing.

    NAME.deleted is written, with the stems of all its files    from here on the stream is deleted
    readers that have its files open are told to look again
    the files go
    NAME.meta is written at the master: a stream of this name begins in a later term than the deleted one was in
    NAME.deleted is written again, without stems                 nothing is left to be done

The last one stays, with the .meta, as what is known of a deleted stream, until a stream of its name is made again. A
file with stems that is found when the shard is taken was left by a crash: its deletion is finished then.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgpack

from tailrace.shard.diverged import DIVERGED_SUFFIX
from tailrace.shard.epochs import EPOCH_MAX, EpochStart, History, make_history
from tailrace.shard.errors import MetaDamaged
from tailrace.shard.files import replace_file, sync_directory
from tailrace.shard.header import HEADER_PAGE_BYTES, INDEX_CUTS, map_page, tagged, untagged
from tailrace.shard.leaves import load
from tailrace.shard.meta import META_SUFFIX, StreamMeta, write_meta
from tailrace.shard.names import InvalidName, file_stem, validate_name
from tailrace.shard.stream_files import CONTENT_SUFFIX, INDEX_SUFFIX, PRODUCERS_SUFFIX
from tailrace.shard.torn import TORN_SUFFIX

DELETED_SUFFIX: Final = ".deleted"
DELETED_MAGIC: Final = b"TRgone\x001"
DELETED_BYTES_MAX: Final = 1 << 16
TERMS_KEPT: Final = 16
"""Terms of a deleted stream that are remembered, the last ones."""
SUFFIXES: Final = (INDEX_SUFFIX, CONTENT_SUFFIX, PRODUCERS_SUFFIX, TORN_SUFFIX, DIVERGED_SUFFIX, META_SUFFIX)
"""Of all files that a stream may have."""
_HEAD = struct.Struct("<8sI")

crc32c = load("tailrace.shard.frame_cy").crc32c


class DeletedStream(NamedTuple):
    """`stems`: of the files that are to go; () once they are gone.

    `epoch`: all terms of the deleted stream came before this one; 0 to remember nothing. `master`: the node that begins
    the stream of this name in that term; "" if another node may make it. `history`: the last terms of the deleted
    stream, by which a copy of it elsewhere is recognized.
    """

    name: str
    epoch: int
    master: str
    stems: tuple[str, ...]
    history: History = ()

    def next_history(self, master: str) -> History:
        """The terms of the stream of this name that `master` makes."""
        return (EpochStart(self.epoch, 0, master),)

    def is_of(self, theirs: History) -> bool:
        """Whether a stream with these terms is a copy of the deleted one: they have a term in common."""
        known = {(start.epoch, start.master) for start in self.history if start.master}
        return any((start.epoch, start.master) in known for start in theirs)


def deleted_path(directory: Path, name: str) -> Path:
    return directory / (file_stem(name) + DELETED_SUFFIX)


def delete_stream(directory: Path, deleted: DeletedStream) -> None:
    """Raises OSError. Whether the stream is deleted then, `deleted_path` tells: if it has stems, call it again."""
    _write(directory, deleted)
    step()
    finish_deletion(directory, deleted)


def finish_deletion(directory: Path, deleted: DeletedStream) -> None:
    """Everything after the first step; may be repeated. Raises OSError."""
    for stem in deleted.stems:
        _notify_readers(directory / (stem + INDEX_SUFFIX))
        step()
        for suffix in SUFFIXES:
            with suppress(FileNotFoundError):
                os.unlink(directory / (stem + suffix))
            step()
    sync_directory(directory)
    step()
    if not deleted.epoch:
        forget_deleted(directory, deleted.name)
        sync_directory(directory)
        return
    if deleted.master:
        history = deleted.next_history(deleted.master)
        write_meta(directory, StreamMeta(deleted.name, epoch=deleted.epoch, history=history))
        step()
    _write(directory, deleted._replace(stems=()))
    step()


def forget_deleted(directory: Path, name: str) -> None:
    """The name is in use again, or nothing is to be remembered of it. Raises OSError.

    Without stems the file says nothing of a stream that is there, so it does no harm if a crash brings it back.
    """
    with suppress(FileNotFoundError):
        os.unlink(deleted_path(directory, name))


def read_deleted(path: Path) -> DeletedStream:
    """Raises MetaDamaged, FileNotFoundError, OSError."""
    with open(path, "rb") as file:
        data = file.read(DELETED_BYTES_MAX)
    body = data[_HEAD.size :]
    if len(data) < _HEAD.size or _HEAD.unpack_from(data) != (DELETED_MAGIC, crc32c(body)):
        raise MetaDamaged(path.stem, path, 0, "it is no record of a deleted stream")
    try:
        fields = msgpack.unpackb(body)
        name, epoch, stems = validate_name(fields["name"]), fields["epoch"], tuple(map(str, fields["stems"]))
        if not 0 <= epoch <= EPOCH_MAX or any("/" in stem for stem in stems):
            raise ValueError("its term or its stems cannot be")
        history = make_history(EpochStart(*start) for start in fields.get("history", ()))
        if history and history[-1].epoch >= epoch:
            raise ValueError("a term of the deleted stream is not before its own")
        return DeletedStream(name, epoch, str(fields["master"]), stems, history)
    except (ValueError, KeyError, TypeError, InvalidName) as error:
        raise MetaDamaged(path.stem, path, _HEAD.size, f"its map is invalid: {error!r}") from error


def deleted_stems(directory: Path, files: Iterable[str]) -> set[str]:
    """The stems of the streams that are deleted and whose files may still be there. Raises OSError."""
    found: set[str] = set()
    for file in files:
        if file.endswith(DELETED_SUFFIX):
            with suppress(FileNotFoundError, MetaDamaged):
                found.update(read_deleted(directory / file).stems)
    return found


def step() -> None:
    """Called after each step, for tests that end the process there."""


def _write(directory: Path, deleted: DeletedStream) -> None:
    body: bytes = msgpack.packb(deleted._asdict())
    replace_file(deleted_path(directory, deleted.name), _HEAD.pack(DELETED_MAGIC, crc32c(body)) + body)


def _notify_readers(index_file: Path) -> None:
    """Processes that read the stream find that it was cut, open it anew, and find nothing, or a stream made later."""
    try:
        fd = os.open(index_file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if os.fstat(fd).st_size < HEADER_PAGE_BYTES:
            return
        mapping, words = map_page(fd, writable=True)
        try:
            words[INDEX_CUTS] = tagged((_cuts(words[INDEX_CUTS]) + 1) | 1)
        finally:
            words.release()
            mapping.close()
    finally:
        os.close(fd)


def _cuts(word: int) -> int:
    try:
        return untagged(word) if word else 0
    except ValueError:  # a damaged stream can be deleted too
        return 0
