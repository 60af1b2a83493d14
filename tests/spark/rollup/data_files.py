"""A data directory, read as docs/file-format.md describes it. Imports nothing of the product, so that a mistake of the
product is not made here as well.

Frames are the evidence; the index is only asked how far the messages go.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import mmap
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

import google_crc32c
import numpy as np
import numpy.typing as npt

Int64s: TypeAlias = npt.NDArray[np.int64]

PAGE_BYTES: Final = 4096
FIXED: Final = struct.Struct("<8sIIQQQH200s10sI")
FIXED_CRC_OFFSET: Final = 252
MAGICS: Final = {"content": b"TRcontnt", "indx": b"TRindex\n"}
FRAME: Final = struct.Struct("<IIQQIHH")
FRAME_BYTES_MAX: Final = 67_108_864
MESSAGE: Final = np.dtype([("seq", "i8"), ("timestamp_us", "i8"), ("size", "i8"), ("epoch", "i8"), ("is_whole", "?")])
CONTENT_WORDS: Final = {"first_seq": 512, "first_offset": 520, "end_offset": 528}
INDEX_WORDS: Final = {"first_seq": 512, "next_seq": 520, "synced_seq": 528, "boot": 536, "cuts": 552}
OPTIONAL_WORDS: Final = frozenset({"cuts"})
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Wrong(Exception):
    """The files do not follow the document."""


class Page(NamedTuple):
    """A header page."""

    stream_id: int
    base_seq: int
    name: str
    words: dict[str, int]


class Messages(NamedTuple):
    """The messages that are kept of a stream, in order. `size`: bytes of metadata and payload. `is_whole`: the
    checksum is right.
    """

    seq: Int64s
    timestamp_us: Int64s
    size: Int64s
    epoch: Int64s
    is_whole: npt.NDArray[np.bool_]


class Stream(NamedTuple):
    name: str
    shard: int
    stream_id: str
    messages: Messages


class Directory(NamedTuple):
    """`unreadable`: the streams of which some file does not follow the document, with the cause."""

    node_id: str
    streams: list[Stream]
    unreadable: dict[str, str]


def read_directory(path: Path) -> Directory:
    """All streams, the broker's own too. Raises Wrong if the directory itself does not follow the document."""
    node = json.loads((path / "node.json").read_text())
    if node["format"] != 1:
        raise Wrong(f"format {node['format']}")
    found = Directory(node["node_id"], [], {})
    boot = boot_word()
    for shard in range(node["shards"]):
        for stem in list_stems(path / f"shard-{shard:02d}"):
            try:
                stream = read_stream(path / f"shard-{shard:02d}", stem, shard, node["shards"], boot)
                found.streams.extend([stream] if stream else [])
            except (Wrong, OSError) as error:
                found.unreadable[stem] = str(error)
    return found


def list_stems(shard: Path) -> list[str]:
    """The stems of streams that have a file of messages or of entries. Files that end in `.new` are worth nothing."""
    return sorted({file.stem for file in shard.iterdir() if file.suffix in (".content", ".indx")})


def read_stream(folder: Path, stem: str, shard: int, shards: int, boot: int) -> Stream | None:
    """Returns None if the stream does not exist: the remains of making it, without a message. Raises Wrong, OSError."""
    index_file, content_file = folder / f"{stem}.indx", folder / f"{stem}.content"
    if is_lost(index_file) and content_file.stat().st_size <= PAGE_BYTES:
        return None
    index = read_page(index_file, INDEX_WORDS)
    content = read_page(content_file, CONTENT_WORDS)
    if (index.stream_id, index.name) != (content.stream_id, content.name):
        raise Wrong("the two files are of different streams")
    if stem_of(index.name) != stem or zlib.crc32(base_of(index.name).encode()) % shards != shard:
        raise Wrong(f"{index.name} does not belong here")
    if index.words["cuts"] % 2:
        raise Wrong("an end is being cut off")
    words = index.words
    end_seq = words["next_seq"] if words["boot"] == boot else min(words["synced_seq"], words["next_seq"])
    messages = read_messages(content_file, content, words["first_seq"], end_seq)
    return Stream(index.name, shard, f"{index.stream_id:016x}", messages)


def is_lost(path: Path) -> bool:
    """A header page that is missing, too short, or zeros."""
    if not path.exists():
        return True
    with path.open("rb") as file:
        page = file.read(PAGE_BYTES)
    return len(page) < PAGE_BYTES or not any(page)


def read_page(path: Path, wanted: dict[str, int]) -> Page:
    """Raises Wrong, OSError."""
    with path.open("rb") as file:
        page = file.read(PAGE_BYTES)
    if len(page) < PAGE_BYTES:
        raise Wrong(f"{path.name} ends within its header page")
    magic, version, page_bytes, stream_id, base_seq, _, name_bytes, name, reserved, crc = FIXED.unpack_from(page)
    if (magic, version, page_bytes, any(reserved)) != (MAGICS[path.suffix[1:]], 1, PAGE_BYTES, False):
        raise Wrong(f"{path.name} does not begin as such a file")
    if crc != google_crc32c.value(page[:FIXED_CRC_OFFSET]):
        raise Wrong(f"the fixed part of {path.name} has another checksum")
    words = {each: read_word(page, offset, each in OPTIONAL_WORDS) for each, offset in wanted.items()}
    return Page(stream_id, base_seq, name[:name_bytes].decode(), words)


def read_word(page: bytes, offset: int, is_optional: bool) -> int:
    """48 bits behind a checksum of 16. Raises Wrong."""
    (word,) = struct.unpack_from("<Q", page, offset)
    value: int = word & ((1 << 48) - 1)
    if word == 0 and is_optional:
        return 0
    if binascii.crc_hqx(value.to_bytes(6, "little"), 0xFFFF) != word >> 48 or word == 0:
        raise Wrong(f"the word at {offset} has another checksum")
    return value


def read_messages(path: Path, page: Page, first_seq: int, end_seq: int) -> Messages:
    """Walks the frames from the oldest one. Raises Wrong if they do not lead to `end_seq`."""
    found = np.empty(0, MESSAGE)
    if first_seq < end_seq:
        # A map: trimmed messages are a hole, which is not read.
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            found = np.fromiter(walk(content, page.words, end_seq), MESSAGE)
    if (np.diff(found["timestamp_us"]) < 0).any() or (np.diff(found["epoch"]) < 0).any():
        raise Wrong("times or epochs go back")
    found = found[found["seq"] >= first_seq]
    if len(found) != max(end_seq - first_seq, 0):
        raise Wrong(f"{len(found)} messages, not those from {first_seq} to {end_seq}")
    return Messages(*(found[name] for name in MESSAGE.names or ()))


def walk(content: mmap.mmap, words: dict[str, int], end_seq: int) -> Iterator[tuple[int, int, int, int, bool]]:
    """A MESSAGE for each frame before `end_seq`. Raises Wrong."""
    offset, expected = words["first_offset"], words["first_seq"]
    while expected < end_seq:
        if offset + FRAME.size > len(content):
            raise Wrong(f"the content ends at {len(content)}, before message {end_seq - 1}")
        length, crc, seq, timestamp_us, epoch, _, metadata_bytes = FRAME.unpack_from(content, offset)
        if not FRAME.size + metadata_bytes <= length <= FRAME_BYTES_MAX or offset + length > len(content):
            raise Wrong(f"no frame has the length {length}, at {offset}")
        # The last message stays in the file when all are trimmed.
        if seq != expected and (seq, offset) != (expected - 1, words["first_offset"]):
            raise Wrong(f"message {seq} at {offset}, not {expected}")
        is_whole = crc == google_crc32c.value(content[offset + 8 : offset + length])
        yield seq, timestamp_us, length - FRAME.size, epoch, is_whole
        expected, offset = seq + 1, offset + length


def stem_of(name: str) -> str:
    stem = quote(name, safe="")
    return stem if len(stem) <= 200 else "=" + hashlib.blake2b(name.encode(), digest_size=20).hexdigest()


def base_of(name: str) -> str:
    """The stream whose companion this is."""
    while found := re.fullmatch(r"\$cursor/(.+)|(.+)/\$dead", name, re.DOTALL):
        name = found[1] or found[2]
    return name


def boot_word() -> int:
    """The identifier of this boot of the machine."""
    return int.from_bytes(hashlib.blake2b(BOOT_ID.read_text().strip().encode(), digest_size=6).digest(), "little")
