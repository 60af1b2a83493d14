"""Copies of data directories that are on a file system by URL, such as an object store: of the whole for a run on this
machine, which plans by it, and of single streams for a task on a node of a cluster.

The files of streams come whole. All index files come before the first content file, so that a content file has at least
the messages of its index, also if the directory at the URL is being brought up to date from its node meanwhile.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pyarrow import fs

from tailrace.shard.deletion import DELETED_SUFFIX
from tailrace.shard.directory import NODE_FILE, SHARDS_MAX, shard_folder
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.meta import META_SUFFIX
from tailrace.shard.names import file_stem, name_of_stem, stem_is_hashed
from tailrace.shard.stream_files import CONTENT_SUFFIX, INDEX_SUFFIX
from tailrace.spark.file_systems import Place, open_place
from tailrace.spark.patterns import is_wanted

TRANSFERS: Final = 8
"""Files that are fetched at one time."""
SPARE_BYTES: Final = 64 << 20
"""Of the temporary folder's file system that stay free."""
NODE_FILE_BYTES_MAX: Final = 1 << 16
_KINDS: Final = (INDEX_SUFFIX, META_SUFFIX, DELETED_SUFFIX, CONTENT_SUFFIX)
"""The files that readers use, in the order in which they are fetched."""
_FILE: Final = re.compile(rf"(shard-[0-9]{{2,4}})/([^/]+)({'|'.join(map(re.escape, _KINDS))})")

ByteProgress = Callable[[int, int], None]
"""Gets how many of how many bytes have come."""


class _ListedFile(NamedTuple):
    """`name`: below the data directory."""

    name: str
    kind: str
    nbytes: int


def fetch_directory(url: str, target: Path, streams: Sequence[str], show: ByteProgress) -> None:
    """Copy the streams of a data directory that the patterns select (`spark.patterns`) to `target`, a new folder.

    Raises InvalidUrl, OSError. node.json is copied unchecked: opening `target` finds its faults.
    """
    place = open_place(url)
    target.mkdir()
    try:
        _fetch_node_file(place, target)
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, f"no data directory: it has no {NODE_FILE}", place.shown) from None
    files = [each for each in _list_files(place) if _is_wanted(each, streams)]
    _require_space(target, files, place)
    _fetch_all(place, target, files, show)


def _fetch_node_file(place: Place, target: Path) -> None:
    """node.json, and the folders of the shards: an object store has no empty ones."""
    with place.system.open_input_stream(f"{place.path}/{NODE_FILE}") as stream:
        text: bytes = stream.read(NODE_FILE_BYTES_MAX)
    (target / NODE_FILE).write_bytes(text)
    try:
        shards = json.loads(text)["shards"]
    except (ValueError, KeyError, TypeError):
        return
    if isinstance(shards, int) and shards <= SHARDS_MAX:
        for shard in range(shards):
            (target / shard_folder(shard)).mkdir()


def _list_files(place: Place) -> Iterable[_ListedFile]:
    prefix = f"{place.path}/"
    for info in place.system.get_file_info(fs.FileSelector(place.path, recursive=True)):
        name = info.path.removeprefix(prefix)
        if info.is_file and (found := _FILE.fullmatch(name)):
            yield _ListedFile(name, found[3], info.size or 0)


def _is_wanted(file: _ListedFile, streams: Sequence[str]) -> bool:
    """Files whose names do not show their streams are always fetched: readers find the names in the files."""
    stem = file.name.rpartition("/")[2].removesuffix(file.kind)
    name = None if stem_is_hashed(stem) else name_of_stem(stem)
    return name is None or is_wanted(name, streams)


def _require_space(target: Path, files: Sequence[_ListedFile], place: Place) -> None:
    """Raises OSError if the files do not fit."""
    total, free = sum(each.nbytes for each in files), shutil.disk_usage(target).free
    if total + SPARE_BYTES > free:
        text = f"{total:,} bytes do not fit into {target.parent}, which has {free:,}; let TMPDIR name a larger folder"
        raise OSError(errno.ENOSPC, text, place.shown)


def _fetch_all(place: Place, target: Path, files: Sequence[_ListedFile], show: ByteProgress) -> None:
    total, done = sum(each.nbytes for each in files), 0
    for kind in _KINDS:
        wanted = [each for each in files if each.kind == kind]
        with ThreadPoolExecutor(TRANSFERS) as pool:
            try:
                for each, _ in zip(wanted, pool.map(lambda file: _fetch(place, target, file), wanted), strict=True):
                    done += each.nbytes
                    show(done, total)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def _fetch(place: Place, target: Path, file: _ListedFile) -> None:
    """Leaves out a file that has vanished since the listing, and one of a shard that node.json does not have."""
    with suppress(FileNotFoundError):
        fs.copy_files(f"{place.path}/{file.name}", str(target / file.name), place.system, fs.LocalFileSystem())


class TaskCopy:
    """The streams of one task. A content file is only as long as it should be, without messages, until they are wanted:
    most tasks read the index alone.
    """

    def __init__(self, url: str, target: Path) -> None:
        """`target` is made. Raises InvalidUrl, OSError."""
        self._place = open_place(url)
        self._target = target
        self._contents: set[str] = set()
        target.mkdir()
        _fetch_node_file(self._place, target)

    def fetch_index(self, shard: int, stream: str) -> None:
        """Raises OSError. A stream that is missing is left out."""
        stem = f"{shard_folder(shard)}/{file_stem(stream)}"
        if (self._target / f"{stem}{INDEX_SUFFIX}").exists():
            return
        self._fetch([f"{stem}{kind}" for kind in _KINDS if kind != CONTENT_SUFFIX])
        content = f"{stem}{CONTENT_SUFFIX}"
        size = self._place.system.get_file_info(f"{self._place.path}/{content}").size
        if size is not None:
            with self._place.system.open_input_file(f"{self._place.path}/{content}") as file:
                (self._target / content).write_bytes(file.read_at(min(size, HEADER_PAGE_BYTES), 0))
            os.truncate(self._target / content, size)

    def fetch_content(self, shard: int, stream: str) -> None:
        """Raises OSError."""
        content = f"{shard_folder(shard)}/{file_stem(stream)}{CONTENT_SUFFIX}"
        if content not in self._contents:
            self._fetch([content])
            self._contents.add(content)

    def _fetch(self, names: Sequence[str]) -> None:
        infos = self._place.system.get_file_info([f"{self._place.path}/{name}" for name in names])
        listed = zip(names, infos, strict=True)
        files = [_ListedFile(name, "", info.size or 0) for name, info in listed if info.is_file]
        _require_space(self._target, files, self._place)
        for each in files:
            _fetch(self._place, self._target, each)
