"""docs/file-format.md matches the code: its tables are compared with the code's own constants."""

from __future__ import annotations

import importlib
import re
import struct
from pathlib import Path

import msgpack
import pytest

from tailrace.shard import diverged
from tailrace.shard.diverged import TITLE_BYTES, DivergedTail, SetAsideTail
from tailrace.shard.epochs import EpochStart
from tailrace.shard.frame import HEADER, HEADER_BYTES, INDEX_ENTRY, FrameHeader, IndexEntry
from tailrace.shard.header import (
    CONTENT_END_OFFSET,
    CONTENT_FIRST_OFFSET,
    CONTENT_FIRST_SEQ,
    CONTENT_MAGIC,
    FIXED,
    FIXED_FIELDS,
    FORMAT_VERSION,
    HEADER_PAGE_BYTES,
    INDEX_BOOT,
    INDEX_CUT_SEQ,
    INDEX_CUTS,
    INDEX_FIRST_SEQ,
    INDEX_MAGIC,
    INDEX_NEXT_SEQ,
    INDEX_PLACE,
    INDEX_STATE,
    INDEX_SYNC_FAILED,
    INDEX_SYNCED_SEQ,
    STATE_CLOSED,
    STATE_OPEN,
    TAG_START,
    ContentWords,
    FixedHeader,
    IndexWords,
    pack_page,
    parse_index,
    tagged,
)
from tailrace.shard.journal import BLOCK, BLOCK_FIELDS, BLOCK_MAGIC, JOURNAL_MAGIC, RECORD, RECORD_FIELDS
from tailrace.shard.meta import META_MAGIC, Contact, Role, StreamMeta, crc32c, meta_path, write_meta
from tailrace.shard.producer_file import HEAD, PRODUCERS_MAGIC, ProducerCheckpoint

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "file-format.md").read_text()
KINDS = {"I": "u32", "Q": "u64", "H": "u16"}


def table(name: str) -> list[list[str]]:
    """The cells of a table in the page, without its head."""
    match = re.search(rf"<!-- table: {name} -->\n(.*?)\n\n", PAGE + "\n\n", re.DOTALL)
    assert match, f"the page has no table {name!r}"
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in match[1].splitlines()]
    return rows[2:]


def layout(form: struct.Struct, fields: tuple[str, ...]) -> list[list[str]]:
    """Offset, type and name of each field of a struct."""
    rows, offset = [], 0
    for (count, code), field in zip(re.findall(r"(\d*)([A-Za-z])", form.format), fields, strict=True):
        kind = f"{count} bytes" if code == "s" else KINDS[code]
        rows.append([str(offset), kind, field])
        offset += struct.calcsize(f"<{count}{code}")
    assert offset == form.size
    return rows


def words(places: tuple[int, ...], fields: tuple[str, ...]) -> list[list[str]]:
    return [[str(8 * place), field] for place, field in zip(places, fields, strict=True)]


def test_the_frame() -> None:
    rows = table("frame")
    assert [row[:3] for row in rows[:-1]] == layout(HEADER, FrameHeader._fields)
    assert rows[-1][0] == str(HEADER_BYTES)


def test_the_flags() -> None:
    for number, constant, _ in table("flags"):
        module, _, name = constant.rpartition(".")
        assert getattr(importlib.import_module(module), name) == int(number)


def test_the_producers() -> None:
    assert PRODUCERS_MAGIC == b"TRprod\x001"
    rows = table("producers")
    assert [row[:3] for row in rows[:-1]] == layout(HEAD, ("magic", "crc32c"))
    assert rows[-1][0] == str(HEAD.size)
    assert [f"`{field}`" for field in ProducerCheckpoint._fields[:3]] == re.findall(r"`\w+`", rows[-1][3])


def test_the_journal() -> None:
    assert (JOURNAL_MAGIC, BLOCK_MAGIC) == (b"TRjrnl\x001", b"TRblock\n")
    for name, form, fields in (("block", BLOCK, BLOCK_FIELDS), ("record", RECORD, RECORD_FIELDS)):
        rows = table(name)
        assert [row[:3] for row in rows[:-1]] == layout(form, fields)
        assert rows[-1][0] == str(form.size)


def test_the_index_entry() -> None:
    assert [row[:3] for row in table("index")] == layout(INDEX_ENTRY, IndexEntry._fields)


def test_the_fixed_part_of_the_header_pages() -> None:
    rows = table("fixed")
    assert [row[:3] for row in rows] == layout(FIXED, FIXED_FIELDS)
    meanings = {row[2]: row[3] for row in rows}
    assert meanings["version"] == str(FORMAT_VERSION)
    assert meanings["page_bytes"] == str(HEADER_PAGE_BYTES)
    assert f"`{CONTENT_MAGIC.decode()}`" in meanings["magic"]
    assert f"`{INDEX_MAGIC.decode().rstrip()}` and a line feed" in meanings["magic"]
    assert INDEX_MAGIC.endswith(b"\n")


def test_the_mutable_words() -> None:
    content = (CONTENT_FIRST_SEQ, CONTENT_FIRST_OFFSET, CONTENT_END_OFFSET)
    assert [row[:2] for row in table("content words")] == words(content, ContentWords._fields)
    index = (
        *(INDEX_FIRST_SEQ, INDEX_NEXT_SEQ, INDEX_SYNCED_SEQ, INDEX_BOOT, INDEX_STATE),
        *(INDEX_CUTS, INDEX_CUT_SEQ, INDEX_SYNC_FAILED, INDEX_PLACE),
    )
    rows = table("index words")
    assert [row[:2] for row in rows] == words(index, IndexWords._fields)
    states = rows[index.index(INDEX_STATE)][2]
    assert states.startswith(f"{STATE_OPEN}: open")
    assert f"{STATE_CLOSED}: closed" in states
    assert f"start {TAG_START:#06X}".replace("0X", "0x") in PAGE


def test_a_page_as_it_is_packed_has_its_words_there() -> None:
    """The places that the code packs are those it stores to."""
    page = pack_page(INDEX_MAGIC, FixedHeader(1, 0, 2, "x"), (3, 5, 4, 6, STATE_OPEN))
    for place, value in ((INDEX_FIRST_SEQ, 3), (INDEX_NEXT_SEQ, 5), (INDEX_SYNCED_SEQ, 4), (INDEX_BOOT, 6)):
        assert page[8 * place : 8 * place + 8] == tagged(value).to_bytes(8, "little")
    assert parse_index(page)[1] == (3, 5, 4, 6, STATE_OPEN, 0, 0, 0, 0)


def test_the_meta_file() -> None:
    rows = table("meta")
    head = struct.Struct("<8sI")
    assert [row[:3] for row in rows[:-1]] == layout(head, ("magic", "crc32c"))
    assert rows[-1][0] == str(head.size)
    assert META_MAGIC == b"TRmeta" + b"\0" + b"1"


def test_what_is_in_the_meta_file(tmp_path: Path) -> None:
    node = (EpochStart(2, 5, "node"),)
    write_meta(
        tmp_path,
        StreamMeta("25", epoch=2, history=node, contacts=(Contact("h", 1),), term_master="m", fence=2, not_before=3),
    )
    fields = msgpack.unpackb(meta_path(tmp_path, "25").read_bytes()[12:])
    assert [row[0] for row in table("meta fields")] == list(fields)
    assert fields["epochs"] == [[2, 5, "node"]]
    roles = next(row[1] for row in table("meta fields") if row[0] == "role")
    assert re.findall("`(.*?)`", roles) == [str(role) for role in Role]


def test_the_titles_of_tails() -> None:
    title = diverged._title(DivergedTail(1, SetAsideTail(1, 2, 3, 4, 5, 6, 7), 8, TITLE_BYTES)).decode()
    assert len(title) == TITLE_BYTES
    line, _, crc = title.rstrip().rpartition(" crc=")
    assert line == " ".join(["diverged", *(f"{row[0]}={i}" for i, row in enumerate(table("diverged"), 1))])
    assert int(crc, 16) == crc32c(line.encode())
    assert f"a title of {TITLE_BYTES} bytes" in PAGE


@pytest.mark.parametrize("row", table("limits"), ids=lambda row: str(row[0]))
def test_limits(row: list[str]) -> None:
    module, _, name = row[0].rpartition(".")
    assert getattr(importlib.import_module(module), name) == int(row[1])
