"""The header pages: the first 4,096 bytes of both files of a stream.

A page has a fixed part, written once, with a CRC-32C of its own, and a few mutable words. Each word is one aligned
8-byte store into the mapped page: 48 bits of value and, above them, a 16-bit checksum of the value, so that the next
reader detects a flipped byte. All else in the page is zero.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from binascii import crc_hqx
from functools import lru_cache
from typing import Final, NamedTuple

from tailrace.shard.leaves import load
from tailrace.shard.mapping import Mapping
from tailrace.shard.names import NAME_BYTES_MAX

crc32c = load("tailrace.shard.frame_cy").crc32c

HEADER_PAGE_BYTES: Final = 4_096
FORMAT_VERSION: Final = 1
CONTENT_MAGIC: Final = b"TRcontnt"
INDEX_MAGIC: Final = b"TRindex\n"

FIXED: Final = struct.Struct(f"<8sIIQQQH{NAME_BYTES_MAX}s10sI")
FIXED_FIELDS: Final = (
    "magic",
    "version",
    "page_bytes",
    "stream_id",
    "base_seq",
    "created_us",
    "name_bytes",
    "name",
    "reserved",
    "crc32c",
)
FIXED_BYTES: Final = 256
STREAM_ID_OFFSET: Final = 16
STREAM_ID_WORD: Final = STREAM_ID_OFFSET // 8
NAME_OFFSET: Final = 42
WORDS_OFFSET: Final = 512
"""The mutable words begin here, in a disk sector of their own."""

# Places of the mutable words, counted in 8-byte words from the start of the page.
CONTENT_FIRST_SEQ: Final = 64
CONTENT_FIRST_OFFSET: Final = 65
CONTENT_END_OFFSET: Final = 66
CONTENT_WORDS: Final = 3

INDEX_FIRST_SEQ: Final = 64
INDEX_NEXT_SEQ: Final = 65
INDEX_SYNCED_SEQ: Final = 66
INDEX_BOOT: Final = 67
INDEX_STATE: Final = 68
INDEX_WORDS: Final = 5
# Zeros, which are an invalid word, until the stream's tail is set aside for the first time.
INDEX_CUTS: Final = 69
INDEX_CUT_SEQ: Final = 70
# Zeros, which are an invalid word, unless a sync of the stream has failed and was not repaired.
INDEX_SYNC_FAILED: Final = 71
# Zeros, which are an invalid word, if the kernel does not report the file's mount.
INDEX_PLACE: Final = 72
INDEX_WORDS_MAX: Final = 9

STATE_OPEN: Final = 1
STATE_CLOSED: Final = 2

VALUE_BITS: Final = 48
VALUE_MAX: Final = (1 << VALUE_BITS) - 1
TAG_START: Final = 0xFFFF
"""What the checksum of a word starts from: not zero, so that a word of zeros is no valid word."""

_ZEROS: Final = bytes(HEADER_PAGE_BYTES)

assert FIXED.size == FIXED_BYTES
assert WORDS_OFFSET == 8 * CONTENT_FIRST_SEQ == 8 * INDEX_FIRST_SEQ
if sys.byteorder != "little":
    raise ImportError("tailrace stores little-endian words through mapped pages; this machine is big-endian")


class HeaderFault(Exception):
    """A header page differs from the written one; callers know the file and raise StreamDamaged."""

    def __init__(self, offset: int, cause: str) -> None:
        super().__init__(f"byte {offset}: {cause}")
        self.offset = offset
        self.cause = cause


class FixedHeader(NamedTuple):
    """The fixed part of both files. `base_seq` of an index is the seq of its first entry."""

    stream_id: int
    base_seq: int
    created_us: int
    name: str


class ContentWords(NamedTuple):
    first_seq: int
    first_offset: int
    end_offset: int


class IndexWords(NamedTuple):
    """`cuts` grows by one when a tail begins to be cut off the stream and by one when that is done, so that it is odd
    in between; `cut_seq` is where the last cut was made. `sync_failed` is 0, or 1 more than the seq from which on a
    failed sync has left messages of which nobody knows whether they are on the disk. `place`: see `shard.place`."""

    first_seq: int
    next_seq: int
    synced_seq: int
    boot: int
    state: int
    cuts: int = 0
    cut_seq: int = 0
    sync_failed: int = 0
    place: int = 0


def tagged(value: int) -> int:
    """The word that holds `value`. OverflowError when it has more than 48 bits."""
    return value | crc_hqx(value.to_bytes(6, "little"), TAG_START) << 48


def untagged(word: int) -> int:
    """The value of a word. Raises ValueError when its checksum does not fit."""
    value = word & VALUE_MAX
    if crc_hqx(value.to_bytes(6, "little"), TAG_START) != word >> 48:
        raise ValueError(_bad_tag_text(word))
    return value


@lru_cache(maxsize=8)
def boot_word(boot_id: str) -> int:
    """48 bits of the machine's boot id, which distinguish a crash of the machine from one of the process."""
    return int.from_bytes(hashlib.blake2b(boot_id.encode(), digest_size=6).digest(), "little")


def read_boot_id() -> str:
    """This boot of the machine, as the kernel calls it. Raises OSError."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def pack_page(magic: bytes, fixed: FixedHeader, words: tuple[int, ...]) -> bytes:
    """A whole header page; `words` are the values of the mutable words, in their order.

    The words past the first INDEX_WORDS of an index stay zeros while their value is 0, so that a program that does not
    know them reads the page.
    """
    name = fixed.name.encode()
    numbers = (fixed.stream_id, fixed.base_seq, fixed.created_us, len(name))
    body = FIXED.pack(magic, FORMAT_VERSION, HEADER_PAGE_BYTES, *numbers, name, b"", 0)[:-4]
    crc: int = crc32c(body)
    head = body + crc.to_bytes(4, "little")
    stored = [tagged(value) if value or i < INDEX_WORDS else 0 for i, value in enumerate(words)]
    mutable = struct.pack(f"<{len(words)}Q", *stored)
    return (head.ljust(WORDS_OFFSET, b"\0") + mutable).ljust(HEADER_PAGE_BYTES, b"\0")


def parse_fixed(page: bytes, magic: bytes) -> FixedHeader:
    """The fixed part of a header page. Raises HeaderFault."""
    if len(page) < HEADER_PAGE_BYTES:
        raise HeaderFault(len(page), f"the file ends within its header page of {HEADER_PAGE_BYTES} bytes")
    found, version, page_bytes, stream_id, base_seq, created_us, name_bytes, name, _, crc = FIXED.unpack_from(page)
    if found != magic:
        what = "the header page is all zeros" if not any(page) else f"it begins with {found!r}, not {magic!r}"
        raise HeaderFault(0, what)
    if crc != crc32c(page[: FIXED_BYTES - 4]):
        raise HeaderFault(FIXED_BYTES - 4, "the checksum of the header's fixed part does not fit")
    if version != FORMAT_VERSION or page_bytes != HEADER_PAGE_BYTES:
        raise HeaderFault(8, f"format version {version}, header of {page_bytes} bytes: this program reads version 1")
    return FixedHeader(stream_id, base_seq, created_us, name[:name_bytes].decode())


def parse_content(page: bytes) -> tuple[FixedHeader, ContentWords]:
    """A whole header page of a content file. Raises HeaderFault, also for words that contradict each other."""
    fixed = parse_fixed(page, CONTENT_MAGIC)
    words = ContentWords._make(_parse_words(page, CONTENT_WORDS, CONTENT_WORDS))
    if not HEADER_PAGE_BYTES <= words.first_offset <= words.end_offset:
        raise HeaderFault(8 * CONTENT_FIRST_OFFSET, f"first_offset {words.first_offset}, end_offset {words.end_offset}")
    return fixed, words


def parse_index(page: bytes) -> tuple[FixedHeader, IndexWords]:
    """A whole header page of an index file. Raises HeaderFault, also for words that contradict each other."""
    fixed = parse_fixed(page, INDEX_MAGIC)
    words = IndexWords(*_parse_words(page, INDEX_WORDS, INDEX_WORDS_MAX))
    if not fixed.base_seq <= words.first_seq <= words.next_seq:
        raise HeaderFault(8 * INDEX_FIRST_SEQ, f"first_seq {words.first_seq}, next_seq {words.next_seq}")
    if not fixed.base_seq <= words.synced_seq <= words.next_seq:
        raise HeaderFault(8 * INDEX_SYNCED_SEQ, f"synced_seq {words.synced_seq}, next_seq {words.next_seq}")
    if words.state not in (STATE_OPEN, STATE_CLOSED):
        raise HeaderFault(8 * INDEX_STATE, f"state {words.state}")
    return fixed, words


def map_page(fd: int, *, writable: bool) -> tuple[Mapping, memoryview]:
    """Map a file's header page, which must be there; gives the mapping and its 512 words. Release the words, then close
    the mapping. Raises OSError.
    """
    mapping = Mapping(fd, 0, HEADER_PAGE_BYTES, writable=writable)
    return mapping, mapping.view.cast("Q")


def put_word(fd: int, place: int, word: int) -> None:
    """Store a word of a header page by a system call. It raises OSError on a file system that has failed, where a store
    into the mapped page can end the process. For words that no other process reads meanwhile.
    """
    os.pwrite(fd, word.to_bytes(8, "little"), 8 * place)


def _parse_words(page: bytes, count: int, count_max: int) -> list[int]:
    """The values of the words. Those past `count` may be zeros, for the value 0."""
    end = WORDS_OFFSET + 8 * count_max
    if page[FIXED_BYTES:WORDS_OFFSET] != _ZEROS[FIXED_BYTES:WORDS_OFFSET] or page[end:] != _ZEROS[end:]:
        place = next(i for i in range(FIXED_BYTES, len(page)) if page[i] and not WORDS_OFFSET <= i < end)
        raise HeaderFault(place, "a reserved byte is not zero")
    values: list[int] = []
    place = WORDS_OFFSET
    for i, word in enumerate(struct.unpack_from(f"<{count_max}Q", page, WORDS_OFFSET)):
        if (word or i < count) and crc_hqx(page[place : place + 6], TAG_START) != word >> VALUE_BITS:
            raise HeaderFault(place, _bad_tag_text(word))
        values.append(word & VALUE_MAX)
        place += 8
    return values


def _bad_tag_text(word: int) -> str:
    return f"the word {word:#018x} has a checksum that does not fit its value {word & VALUE_MAX}"
