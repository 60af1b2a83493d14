"""The two files of a stream: their names, making them, and holding them open with their header pages mapped."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from tailrace.shard.errors import StorageFull, StreamDamaged, StreamMissing, is_full
from tailrace.shard.files import NEW_SUFFIX, sync_directory, write_new
from tailrace.shard.header import (
    CONTENT_MAGIC,
    HEADER_PAGE_BYTES,
    INDEX_MAGIC,
    NAME_OFFSET,
    STATE_OPEN,
    STREAM_ID_OFFSET,
    ContentWords,
    FixedHeader,
    HeaderFault,
    IndexWords,
    map_page,
    pack_page,
    parse_content,
    parse_index,
    put_word,
)
from tailrace.shard.mapping import Mapping
from tailrace.shard.names import file_stem, validate_name
from tailrace.shard.place import place_word

CONTENT_SUFFIX: Final = ".content"
INDEX_SUFFIX: Final = ".indx"
PageReader: TypeAlias = Callable[[int], bytes]
"""Makes a header page for the descriptor of its file."""
PRODUCERS_SUFFIX: Final = ".producers"
"""Of what `shard.producer_file` keeps beside them."""
TOPICS_SUFFIX: Final = ".topics"
"""Of what `shard.topic_index` has beside them."""


class StreamPaths(NamedTuple):
    """The paths of a stream's files; plain strings, as opening happens often."""

    directory: Path
    name: str
    stem: str
    content_file: str
    index_file: str

    def damaged(self, file: str, offset: int, cause: str) -> StreamDamaged:
        return StreamDamaged(self.name, Path(file), offset, cause)


class HeaderPair(NamedTuple):
    """Both header pages, parsed."""

    content_fixed: FixedHeader
    content_words: ContentWords
    index_fixed: FixedHeader
    index_words: IndexWords


class FilePair:
    """Both files open, their header pages mapped. Two descriptors."""

    __slots__ = (
        "content_fd",
        "content_map",
        "content_size",
        "content_words",
        "index_fd",
        "index_map",
        "index_size",
        "index_words",
        "paths",
    )

    content_map: Mapping
    content_words: memoryview
    index_map: Mapping
    index_words: memoryview

    def __init__(self, paths: StreamPaths, content_fd: int, index_fd: int) -> None:
        """Takes the descriptors over, also when it fails. Raises StreamDamaged when a file is shorter than its page."""
        self.paths = paths
        self.content_fd = content_fd
        self.index_fd = index_fd
        self.content_size = os.fstat(content_fd).st_size
        self.index_size = os.fstat(index_fd).st_size
        for file, size in ((paths.content_file, self.content_size), (paths.index_file, self.index_size)):
            if size < HEADER_PAGE_BYTES:
                _close((content_fd, index_fd))
                raise paths.damaged(file, size, f"the file ends within its header page of {HEADER_PAGE_BYTES} bytes")
        with ExitStack() as failed:
            failed.callback(_close, (content_fd, index_fd))
            self.content_map, self.content_words = map_page(content_fd, writable=True)
            failed.callback(self.content_map.close)
            failed.callback(self.content_words.release)
            self.index_map, self.index_words = map_page(index_fd, writable=True)
            failed.pop_all()

    def dirty_heads(self) -> None:
        """Write the first words of the header pages again, so that the whole pages go to the disk. Raises OSError on a
        file system that has failed, which would answer a store into them with a signal.
        """
        put_word(self.content_fd, 0, self.content_words[0])
        put_word(self.index_fd, 0, self.index_words[0])

    def headers(self) -> HeaderPair:
        """Reads both header pages again. Raises StreamDamaged."""
        return parse_headers(self.paths, bytes(self.content_map.view), bytes(self.index_map.view))

    def close(self) -> None:
        self.content_words.release()
        self.index_words.release()
        self.content_map.close()
        self.index_map.close()
        _close((self.content_fd, self.index_fd))


def stream_paths(directory: Path, name: str) -> StreamPaths:
    stem = file_stem(name)
    return StreamPaths(
        directory, name, stem, f"{directory}/{stem}{CONTENT_SUFFIX}", f"{directory}/{stem}{INDEX_SUFFIX}"
    )


def parse_headers(paths: StreamPaths, content_page: bytes, index_page: bytes) -> HeaderPair:
    """Checks that both pages are valid and of this very stream. Raises StreamDamaged."""
    try:
        index_fixed, index = parse_index(index_page)
    except HeaderFault as fault:
        raise paths.damaged(paths.index_file, fault.offset, fault.cause) from None
    try:
        content_fixed, content = parse_content(content_page)
    except HeaderFault as fault:
        raise paths.damaged(paths.content_file, fault.offset, fault.cause) from None
    check_identity(paths, content_fixed, index_fixed)
    return HeaderPair(content_fixed, content, index_fixed, index)


def check_identity(paths: StreamPaths, content: FixedHeader, index: FixedHeader) -> None:
    """Checks that both files are of this stream, and of one another. Raises StreamDamaged."""
    for file, fixed in ((paths.content_file, content), (paths.index_file, index)):
        if fixed.name != paths.name:
            raise paths.damaged(file, NAME_OFFSET, f"it is a file of the stream {fixed.name!r}")
    if content.stream_id != index.stream_id:
        raise paths.damaged(paths.index_file, STREAM_ID_OFFSET, "it is not the index of this content file")


def open_pair(paths: StreamPaths) -> FilePair:
    """Open both for writing. Raises StreamMissing when neither is there, StreamDamaged when one is, OSError."""
    return FilePair(paths, *open_fds(paths, os.O_RDWR))


def open_fds(paths: StreamPaths, flags: int) -> tuple[int, int]:
    """Descriptors of the content and of the index. Raises as `open_pair`."""
    content_fd = _open_or_none(paths.content_file, flags)
    try:
        index_fd = _open_or_none(paths.index_file, flags)
    except OSError:
        _close(fd for fd in (content_fd,) if fd is not None)
        raise
    if content_fd is not None and index_fd is not None:
        return content_fd, index_fd
    _close(fd for fd in (content_fd, index_fd) if fd is not None)
    if content_fd is None and index_fd is None:
        raise StreamMissing(paths.name, paths.directory)
    missing = paths.content_file if content_fd is None else paths.index_file
    raise paths.damaged(missing, 0, "the file is missing")


def create_pair(paths: StreamPaths, boot: int, base_seq: int = 0) -> FilePair:
    """Makes both files, without messages, and opens them. Existing files with their names are replaced.

    Raises InvalidName, StorageFull, OSError, and then leaves no file behind.
    """
    validate_name(paths.name)
    made: list[str] = []
    try:
        return _create_pair(paths, boot, base_seq, made)
    except OSError as error:
        for file in made:
            with suppress(OSError):
                os.unlink(file)
        if is_full(error):
            raise _full(paths) from error
        raise


def _create_pair(paths: StreamPaths, boot: int, base_seq: int, made: list[str]) -> FilePair:
    """As `create_pair`; `made` has the files made so far if it fails."""
    fds: list[int] = []
    try:
        for file, page in zip(
            (paths.content_file, paths.index_file), _empty_pages(paths.name, boot, base_seq), strict=True
        ):
            fds.append(_create(file, page))
            made.append(file)
        if base_seq:
            # The beginning of a stream that does not begin at 0 cannot be reconstructed.
            for fd in fds:
                os.fsync(fd)
            sync_directory(paths.directory)
    except OSError:
        _close(fds)
        raise
    return FilePair(paths, *fds)


class NewPair:
    """Two files without messages, whole and on the disk, to take the places of a stream's files.

    Raises StorageFull, OSError when they cannot be made; nothing is left of them then.
    """

    __slots__ = ("_content_fd", "_index_fd", "_paths")

    def __init__(self, paths: StreamPaths, boot: int, base_seq: int) -> None:
        self._paths = paths
        content_page, index_page = _empty_pages(paths.name, boot, base_seq)
        try:
            self._content_fd = write_new(paths.content_file, content_page, sync=True)
            try:
                self._index_fd = write_new(paths.index_file, index_page, sync=True)
            except OSError:
                os.close(self._content_fd)
                os.unlink(paths.content_file + NEW_SUFFIX)
                raise
        except OSError as error:
            if is_full(error):
                raise _full(paths) from error
            raise

    def put(self) -> FilePair:
        """Rename both into place. From the first rename on the old content is gone: its messages must be copied before,
        if they are to be kept. Between the two `is_begun_anew`. Raises OSError, and the descriptors are closed.
        """
        paths = self._paths
        try:
            os.rename(paths.content_file + NEW_SUFFIX, paths.content_file)
            sync_directory(paths.directory)
            os.rename(paths.index_file + NEW_SUFFIX, paths.index_file)
            sync_directory(paths.directory)
        except OSError:
            _close((self._content_fd, self._index_fd))
            raise
        return FilePair(paths, self._content_fd, self._index_fd)


def is_begun_anew(paths: StreamPaths) -> bool:
    """Returns whether the content was replaced by a new one without messages, but its index was not yet
    (`NewPair.put`)."""
    try:
        with open(paths.content_file, "rb") as content, open(paths.index_file, "rb") as index:
            fixed, words = parse_content(content.read(HEADER_PAGE_BYTES))
            old, _ = parse_index(index.read(HEADER_PAGE_BYTES))
            is_empty = words.end_offset == os.fstat(content.fileno()).st_size == HEADER_PAGE_BYTES
    except (FileNotFoundError, HeaderFault):
        return False
    return is_empty and fixed.name == old.name == paths.name and fixed.stream_id != old.stream_id


def finish_anew(paths: StreamPaths, boot: int) -> None:
    """Give a stream that `is_begun_anew` its index. Raises StorageFull, OSError."""
    with open(paths.content_file, "rb") as content:
        fixed, _ = parse_content(content.read(HEADER_PAGE_BYTES))
    try:
        os.close(_create(paths.index_file, lambda fd: _empty_index(fd, fixed, boot), sync=True))
    except OSError as error:
        if is_full(error):
            raise _full(paths) from error
        raise
    sync_directory(paths.directory)


def _empty_pages(name: str, boot: int, base_seq: int) -> tuple[PageReader, PageReader]:
    """The header pages of a stream without messages, for the descriptors of content and index."""
    fixed = FixedHeader(secrets.randbits(64), base_seq, time.time_ns() // 1000, name)
    words = ContentWords(base_seq, HEADER_PAGE_BYTES, HEADER_PAGE_BYTES)
    return (lambda _: pack_page(CONTENT_MAGIC, fixed, words)), (lambda fd: _empty_index(fd, fixed, boot))


def _empty_index(fd: int, fixed: FixedHeader, boot: int) -> bytes:
    seq = fixed.base_seq
    return pack_page(INDEX_MAGIC, fixed, IndexWords(seq, seq, seq, boot, STATE_OPEN, place=place_word(fd)))


def _full(paths: StreamPaths) -> StorageFull:
    return StorageFull(paths.name, Path(paths.content_file), 2 * HEADER_PAGE_BYTES)


def _create(file: str, page: PageReader, *, sync: bool = False) -> int:
    """A new file that appears under its name with its whole header page in it."""
    fd = write_new(file, page, sync=sync)
    try:
        os.rename(file + NEW_SUFFIX, file)
    except OSError:
        os.close(fd)
        os.unlink(file + NEW_SUFFIX)
        raise
    return fd


def _open_or_none(file: str, flags: int) -> int | None:
    try:
        return os.open(file, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
