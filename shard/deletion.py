"""Deleting a stream's files, its companions' too, so that a crash at any moment leaves all of it or nothing.

    NAME.deleted is written, with the stems of all its files    from here on the stream is deleted
    readers that have its files open are told to look again
    the files go
    NAME.meta is written at the master: a stream of this name begins in a later term than the deleted one was in
    NAME.deleted is written again, without stems                 nothing is left to be done

The last one stays, with the .meta, as what is known of a deleted stream, until a stream of its name is made again. A
file with stems that is found when the shard is taken was left by a crash: its deletion is finished then.

A shard keeps RECORDS_MAX such records, the latest. Of the others FORGOTTEN_FILE has the latest term: a stream without a
record begins in it.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack

from tailrace.shard.diverged import DIVERGED_SUFFIX
from tailrace.shard.epochs import EPOCH_MAX, EpochStart, History, make_history
from tailrace.shard.errors import MetaDamaged
from tailrace.shard.files import replace_file, sync_directory
from tailrace.shard.header import HEADER_PAGE_BYTES, INDEX_CUTS, map_page, tagged, untagged
from tailrace.shard.leaves import load
from tailrace.shard.meta import META_SUFFIX, StreamMeta, write_meta
from tailrace.shard.names import InvalidName, file_stem, validate_name
from tailrace.shard.stream_files import CONTENT_SUFFIX, INDEX_SUFFIX, PRODUCERS_SUFFIX, TOPICS_SUFFIX
from tailrace.shard.torn import TORN_SUFFIX

log = logging.getLogger(__name__)

DELETED_SUFFIX: Final = ".deleted"
DELETED_MAGIC: Final = b"TRgone\x001"
DELETED_BYTES_MAX: Final = 1 << 16
RECORDS_MAX: Final = 64
"""Records of deleted streams that a shard keeps."""
FORGOTTEN_FILE: Final = "=forgotten" + DELETED_SUFFIX
"""No stream has this stem: behind a `=` others have a hash."""
TERMS_KEPT: Final = 16
"""Terms of a deleted stream that are remembered, the last ones."""
SUFFIXES: Final = (
    INDEX_SUFFIX,
    CONTENT_SUFFIX,
    PRODUCERS_SUFFIX,
    TOPICS_SUFFIX,
    TORN_SUFFIX,
    DIVERGED_SUFFIX,
    META_SUFFIX,
)
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


def forget_record(directory: Path, deleted: DeletedStream) -> None:
    """Keep only the term of a record. Raises OSError.

    A stream of this name may have been made since; then it has files, and its .meta stays.
    """
    if deleted.epoch > read_forgotten(directory):
        _write_map(directory / FORGOTTEN_FILE, {"epoch": deleted.epoch})
        step()
    stem = file_stem(deleted.name)
    if deleted.master and not os.path.exists(directory / (stem + CONTENT_SUFFIX)):
        with suppress(FileNotFoundError):
            os.unlink(directory / (stem + META_SUFFIX))
        step()
    forget_deleted(directory, deleted.name)


def read_forgotten(directory: Path) -> int:
    """The term in which a stream begins that has no record; 0 if none was forgotten, or the file is damaged.

    Raises OSError.
    """
    try:
        epoch = _read_map(directory / FORGOTTEN_FILE)["epoch"]
    except FileNotFoundError:
        return 0
    except (MetaDamaged, KeyError) as damage:
        log.error("what is known of streams that were deleted long ago is damaged: %s", damage)
        return 0
    return epoch if isinstance(epoch, int) and 0 <= epoch <= EPOCH_MAX else 0


def read_deleted(path: Path) -> DeletedStream:
    """Raises MetaDamaged, FileNotFoundError, OSError."""
    fields = _read_map(path)
    try:
        name, epoch, stems = validate_name(fields["name"]), fields["epoch"], (*map(str, fields["stems"]),)
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
    _write_map(deleted_path(directory, deleted.name), deleted._asdict())


def _write_map(path: Path, fields: dict[str, Any]) -> None:
    body: bytes = msgpack.packb(fields)
    replace_file(path, _HEAD.pack(DELETED_MAGIC, crc32c(body)) + body)


def _read_map(path: Path) -> dict[str, Any]:
    """Raises MetaDamaged, FileNotFoundError, OSError."""
    with open(path, "rb") as file:
        data = file.read(DELETED_BYTES_MAX)
    body = data[_HEAD.size :]
    if len(data) < _HEAD.size or _HEAD.unpack_from(data) != (DELETED_MAGIC, crc32c(body)):
        raise MetaDamaged(path.stem, path, 0, "it is no record of a deleted stream")
    try:
        fields = msgpack.unpackb(body)
    except ValueError as error:
        raise MetaDamaged(path.stem, path, _HEAD.size, f"its map is invalid: {error!r}") from error
    if not isinstance(fields, dict):
        raise MetaDamaged(path.stem, path, _HEAD.size, "it has no map")
    return fields


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
