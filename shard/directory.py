"""The data directory: node.json and one folder a shard.

node.json is written last, so a directory that has one is whole. The number of shards is fixed when it is made; so are
the first levels of names that are streams of their own (`first_levels.py`).
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tailrace.shard.errors import DirectoryError, peer_text
from tailrace.shard.files import NEW_SUFFIX, replace_file, sync_directory
from tailrace.shard.lock import LOCK_NAME
from tailrace.shard.memory_directory import MemoryDirectory
from tailrace.shard.names import shard_of

FORMAT_VERSION = 1
NODE_FILE = "node.json"
SHARDS_DEFAULT = 64
SHARDS_MAX = 4_096

_MADE_BEFORE_NODE_FILE = (LOCK_NAME, "lost+found", NODE_FILE + NEW_SUFFIX)


@dataclass(frozen=True)
class DataDirectory:
    """A data directory that was found whole. `own_levels`: None in one that was made before there were any."""

    path: Path
    shards: int
    node_id: str
    memory: MemoryDirectory | None = None
    own_levels: tuple[str, ...] | None = None

    @cached_property
    def _shard_paths(self) -> list[Path]:
        """Made once: making a path takes a tenth of what opening a stream does."""
        return [self.path / shard_folder(shard) for shard in range(self.shards)]

    def shard_path(self, shard: int) -> Path:
        return self._shard_paths[shard]

    def shard_paths(self) -> list[Path]:
        return list(self._shard_paths)

    def shard_of(self, name: str) -> int:
        return shard_of(name.encode(), self.shards)

    def is_in_memory(self, name: bytes) -> bool:
        """Whether a stream of this name is kept in memory; its files are in the folder of `stream_directory` there."""
        return self.memory is not None and self.memory.holds(name)

    def stream_path(self, name: bytes) -> Path:
        """The folder of the stream's files."""
        shard = shard_of(name, self.shards)
        memory = self.memory
        return memory.shard_path(shard) if memory is not None and memory.holds(name) else self._shard_paths[shard]

    def stream_directory(self, name: str) -> Path:
        """The folder of the shard that the stream belongs to."""
        return self.shard_path(self.shard_of(name))


def shard_folder(shard: int) -> str:
    return f"shard-{shard:02d}"


def data_dir_exists(path: Path) -> bool:
    """Returns whether `path` was made a data directory; `open_data_dir` may still refuse it."""
    return (path / NODE_FILE).exists()


def find_data_dir(path: Path) -> Path | None:
    """The data directory that `path` is or lies in, whether `path` exists or not; None without one."""
    real = Path(os.path.realpath(path))
    return next((each for each in (real, *real.parents) if os.path.exists(each / NODE_FILE)), None)


def make_node_id() -> str:
    """16 hexadecimal digits, of which the first is a letter: programs that guess types take no such text for a number,
    as they do with the folders node=ID of the rollup's tables."""
    return secrets.choice("abcdef") + secrets.token_hex(8)[1:]


def open_data_dir(path: Path) -> DataDirectory:
    """Read and check node.json and that every shard's folder is there. Raises DirectoryError."""
    try:
        text = (path / NODE_FILE).read_text()
    except FileNotFoundError:
        raise DirectoryError(path, f"is not a tailrace data directory: it has no {NODE_FILE}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DirectoryError(path, f"{NODE_FILE} cannot be read: {peer_text(error)}") from error
    directory = _parse_node(path, text)
    for shard_path in directory.shard_paths():
        if not shard_path.is_dir():
            raise DirectoryError(path, f"{NODE_FILE} has {directory.shards} shards, but {shard_path.name} is missing")
    return directory


def make_data_dir(path: Path, shards: int = SHARDS_DEFAULT) -> DataDirectory:
    """Make `path`, which must not exist yet or be empty, a data directory. Raises DirectoryError.

    An attempt that was cut short is taken up again.
    """
    if not 1 <= shards <= SHARDS_MAX:
        raise DirectoryError(path, f"cannot have {shards} shards: 1 to {SHARDS_MAX}")
    try:
        found = next(each for each in (path.resolve(), *path.resolve().parents) if each.exists())
        path.mkdir(parents=True, exist_ok=True)
        _require_empty(path)
        for shard in range(shards):
            (path / shard_folder(shard)).mkdir(exist_ok=True)
        node = {"format": FORMAT_VERSION, "shards": shards, "node_id": make_node_id(), "own_levels": []}
        replace_file(path / NODE_FILE, json.dumps(node, indent=1).encode() + b"\n")
        _sync_parents(path.resolve(), found)
    except OSError as error:
        raise DirectoryError(path, f"cannot be made a data directory: {peer_text(error)}") from error
    return open_data_dir(path)


def _sync_parents(path: Path, found: Path) -> None:
    """Put the names on the way from `found`, which was there before, to `path` on the disk. Raises OSError."""
    for parent in path.parents:
        sync_directory(parent)
        if parent == found or path == found:
            return


def _require_empty(path: Path) -> None:
    for name in sorted(os.listdir(path)):
        if name in _MADE_BEFORE_NODE_FILE:
            continue
        if name.startswith("shard-") and (path / name).is_dir() and not os.listdir(path / name):
            continue
        raise DirectoryError(path, f"is not a tailrace data directory, and is not empty: {name!r} is in it")


def _parse_node(path: Path, text: str) -> DataDirectory:
    try:
        node = json.loads(text)
    except ValueError as error:
        raise DirectoryError(path, f"{NODE_FILE} is damaged: {error}") from error
    if not isinstance(node, dict):
        raise DirectoryError(path, f"{NODE_FILE} is damaged: it does not hold a table")
    version, shards, node_id = node.get("format"), node.get("shards"), node.get("node_id")
    if version != FORMAT_VERSION:
        raise DirectoryError(path, f"{NODE_FILE} has format {version!r}; this program reads format {FORMAT_VERSION}")
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= SHARDS_MAX:
        raise DirectoryError(path, f"{NODE_FILE} is damaged: shards = {shards!r}")
    if not isinstance(node_id, str) or not node_id:
        raise DirectoryError(path, f"{NODE_FILE} is damaged: node_id = {node_id!r}")
    levels = node.get("own_levels")
    if levels is None:
        return DataDirectory(path, shards, node_id)
    if not isinstance(levels, list) or not all(isinstance(level, str) for level in levels):
        raise DirectoryError(path, f"{NODE_FILE} is damaged: own_levels = {levels!r}")
    return DataDirectory(path, shards, node_id, own_levels=tuple(levels))


def write_own_levels(directory: DataDirectory, levels: tuple[str, ...]) -> DataDirectory:
    """The same directory with these first levels. Raises OSError."""
    node = json.loads((directory.path / NODE_FILE).read_text()) | {"own_levels": levels}
    replace_file(directory.path / NODE_FILE, json.dumps(node, indent=1).encode() + b"\n")
    return replace(directory, own_levels=levels)
