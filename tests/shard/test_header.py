from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.shard.header import (
    CONTENT_MAGIC,
    HEADER_PAGE_BYTES,
    INDEX_CUTS,
    INDEX_MAGIC,
    INDEX_SYNC_FAILED,
    INDEX_WORDS_MAX,
    STATE_CLOSED,
    STATE_OPEN,
    VALUE_MAX,
    ContentWords,
    FixedHeader,
    HeaderFault,
    IndexWords,
    boot_word,
    pack_page,
    parse_content,
    parse_index,
    read_boot_id,
    tagged,
    untagged,
)
from tests.thorough import places

FIXED = FixedHeader(0x1122334455667788, 3, 1_700_000_000_000_000, "größe/25")
CONTENT = ContentWords(5, 4_200, 9_000)
INDEX = IndexWords(5, 77, 70, 12345, STATE_OPEN)
CUT = INDEX._replace(cuts=2, cut_seq=60)
FAILED = INDEX._replace(sync_failed=71)


@given(st.integers(0, VALUE_MAX))
def test_a_word_gives_its_value_back(value: int) -> None:
    assert untagged(tagged(value)) == value


@given(st.integers(0, VALUE_MAX), st.integers(0, 7), st.integers(1, 255))
def test_a_flipped_byte_of_a_word_is_found(value: int, byte: int, mask: int) -> None:
    with pytest.raises(ValueError, match="checksum"):
        untagged(tagged(value) ^ mask << 8 * byte)


def test_zeros_are_no_word() -> None:
    with pytest.raises(ValueError, match="checksum"):
        untagged(0)


def test_a_value_has_48_bits() -> None:
    with pytest.raises(OverflowError):
        tagged(VALUE_MAX + 1)


def test_pages_give_back_what_was_packed() -> None:
    page = pack_page(CONTENT_MAGIC, FIXED, CONTENT)
    assert len(page) == HEADER_PAGE_BYTES
    assert parse_content(page) == (FIXED, CONTENT)
    assert parse_index(pack_page(INDEX_MAGIC, FIXED, INDEX)) == (FIXED, INDEX)
    assert parse_index(pack_page(INDEX_MAGIC, FIXED, CUT)) == (FIXED, CUT)
    assert parse_index(pack_page(INDEX_MAGIC, FIXED, FAILED)) == (FIXED, FAILED)


def test_words_that_most_streams_never_have_are_zeros_until_then() -> None:
    page = pack_page(INDEX_MAGIC, FIXED, INDEX)
    assert not any(page[8 * INDEX_CUTS :])
    assert len(parse_index(page)[1]) == INDEX_WORDS_MAX
    failed = pack_page(INDEX_MAGIC, FIXED, FAILED)
    assert not any(failed[8 * INDEX_CUTS : 8 * INDEX_SYNC_FAILED])


def test_the_longest_name_fits() -> None:
    fixed = FIXED._replace(name="ü" * 100)
    assert parse_content(pack_page(CONTENT_MAGIC, fixed, CONTENT))[0] == fixed


PAGES = {
    "content": (pack_page(CONTENT_MAGIC, FIXED, CONTENT), parse_content),
    "plain index": (pack_page(INDEX_MAGIC, FIXED, INDEX), parse_index),
    "cut index": (pack_page(INDEX_MAGIC, FIXED, CUT), parse_index),
    "failed index": (pack_page(INDEX_MAGIC, FIXED, FAILED), parse_index),
}


@pytest.mark.parametrize(("page", "parse"), PAGES.values(), ids=PAGES)
def test_a_flipped_byte_of_a_page_is_found(page: bytes, parse: Callable[[bytes], object]) -> None:
    """Each byte of the parts that mean something, which end below 640, and some of the zeros behind them."""
    meaning = range(640)
    assert not any(page[len(meaning) :])
    zeros = places(range(len(meaning), HEADER_PAGE_BYTES), 100, random.Random())
    for position in (*meaning, *zeros):
        damaged = bytearray(page)
        damaged[position] ^= 0x04
        with pytest.raises(HeaderFault):
            parse(bytes(damaged))


def test_a_page_of_the_other_file_or_of_zeros_or_too_short_is_refused() -> None:
    page = pack_page(INDEX_MAGIC, FIXED, INDEX)
    with pytest.raises(HeaderFault, match="begins with"):
        parse_content(page)
    with pytest.raises(HeaderFault, match="all zeros"):
        parse_index(bytes(HEADER_PAGE_BYTES))
    with pytest.raises(HeaderFault, match="ends within its header page"):
        parse_index(page[:-1])


@pytest.mark.parametrize(
    "words",
    [
        IndexWords(2, 77, 70, 1, STATE_OPEN),
        IndexWords(78, 77, 70, 1, STATE_OPEN),
        IndexWords(5, 77, 78, 1, STATE_OPEN),
        IndexWords(5, 77, 2, 1, STATE_CLOSED),
        IndexWords(5, 77, 70, 1, 0),
        IndexWords(5, 77, 70, 1, 3),
    ],
)
def test_words_that_contradict_each_other_are_refused(words: IndexWords) -> None:
    with pytest.raises(HeaderFault):
        parse_index(pack_page(INDEX_MAGIC, FIXED, words))


@pytest.mark.parametrize("words", [ContentWords(0, 4_095, 5_000), ContentWords(0, 5_001, 5_000)])
def test_offsets_that_contradict_each_other_are_refused(words: ContentWords) -> None:
    with pytest.raises(HeaderFault, match="first_offset"):
        parse_content(pack_page(CONTENT_MAGIC, FIXED, words))


def test_boots_differ() -> None:
    assert boot_word("one") != boot_word("two")
    assert 0 <= boot_word(read_boot_id()) <= VALUE_MAX
