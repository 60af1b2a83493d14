"""Lists the streams in a shard's directory, from the file names alone. No stream is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tailrace.shard.deletion import DELETED_SUFFIX, deleted_stems
from tailrace.shard.directory import DataDirectory
from tailrace.shard.diverged import DIVERGED_SUFFIX
from tailrace.shard.errors import MetaDamaged
from tailrace.shard.header import CONTENT_MAGIC, HEADER_PAGE_BYTES, INDEX_MAGIC, HeaderFault, parse_fixed
from tailrace.shard.lock import LOCK_NAME
from tailrace.shard.meta import META_SUFFIX, read_meta_file
from tailrace.shard.names import name_of_stem, stem_is_hashed
from tailrace.shard.stream_files import CONTENT_SUFFIX, INDEX_SUFFIX, PRODUCERS_SUFFIX, TOPICS_SUFFIX
from tailrace.shard.torn import TORN_SUFFIX

_BESIDE = (META_SUFFIX, TORN_SUFFIX, DIVERGED_SUFFIX, PRODUCERS_SUFFIX, TOPICS_SUFFIX)


class ShardListing(NamedTuple):
    """`names` are the streams, in no order; `strays` the files that no stream here explains."""

    names: list[str]
    strays: list[str]


def list_shard(directory: Path) -> ShardListing:
    """The streams with a content or an index file in this directory. Raises OSError."""
    stems: set[str] = set()
    others: list[str] = []
    files = os.listdir(directory)
    for file in files:
        if file.endswith(INDEX_SUFFIX):
            stems.add(file[: -len(INDEX_SUFFIX)])
        elif file.endswith(CONTENT_SUFFIX):
            stems.add(file[: -len(CONTENT_SUFFIX)])
        elif file != LOCK_NAME:
            others.append(file)
    gone = deleted_stems(directory, files)
    stems -= gone
    names: list[str] = []
    remembered = {file.removesuffix(DELETED_SUFFIX) for file in others if file.endswith(DELETED_SUFFIX)}
    others = [file for file in others if not _is_of_deleted(file, gone, remembered)]
    strays = [file for file in others if not _belongs_beside(file, stems)]
    for stem in stems:
        name = _hashed_name(directory, stem) if stem_is_hashed(stem) else name_of_stem(stem)
        if name is None:
            pair = (stem + CONTENT_SUFFIX, stem + INDEX_SUFFIX)
            strays += [file for file in pair if (directory / file).exists()]
        else:
            names.append(name)
    return ShardListing(names, strays)


def stream_names(directory: Path) -> list[str]:
    """The streams in a shard's directory, in no order. Raises OSError."""
    return list_shard(directory).names


def all_streams(data: DataDirectory) -> Iterator[tuple[int, str]]:
    """Every stream of the node with its shard, shard by shard. Raises OSError."""
    for shard in range(data.shards):
        for name in sorted(stream_names(data.shard_path(shard))):
            yield shard, name


def count_streams(data: DataDirectory) -> int:
    """Counts the node's streams. Raises OSError."""
    return sum(len(stream_names(path)) for path in data.shard_paths())


def _is_of_deleted(file: str, gone: set[str], remembered: set[str]) -> bool:
    """Whether it is a file that is about to go, or what is remembered of a deleted stream."""
    stem, _, suffix = file.rpartition(".")
    return stem in gone or (stem in remembered and f".{suffix}" in (DELETED_SUFFIX, META_SUFFIX))


def _belongs_beside(file: str, stems: set[str]) -> bool:
    """Returns whether it is a .meta, .torn, .diverged, .producers or .topics of an existing stream."""
    return any(file.endswith(suffix) and file[: -len(suffix)] in stems for suffix in _BESIDE)


def _hashed_name(directory: Path, stem: str) -> str | None:
    """The name of a stream whose stem is a hash: from its .meta, or else from a header page."""
    try:
        return read_meta_file(directory / (stem + META_SUFFIX)).name
    except (MetaDamaged, FileNotFoundError):
        pass
    for suffix, magic in ((CONTENT_SUFFIX, CONTENT_MAGIC), (INDEX_SUFFIX, INDEX_MAGIC)):
        try:
            with open(directory / (stem + suffix), "rb") as file:
                return parse_fixed(file.read(HEADER_PAGE_BYTES), magic).name
        except (HeaderFault, FileNotFoundError):
            continue
    return None
