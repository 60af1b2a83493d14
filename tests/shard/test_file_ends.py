from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from tailrace.shard.file_ends import FileEnds
from tailrace.shard.growth import UNRESERVED_BYTES
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.stream_files import FilePair, create_pair, stream_paths
from tailrace.shard.window import MAPS, SMALL_APPENDS_MIN, WINDOW_BATCH_BYTES_MAX
from tests.shard.helpers import NAME

START = HEADER_PAGE_BYTES


@pytest.fixture
def pair(tmp_path: Path) -> FilePair:
    return create_pair(stream_paths(tmp_path, NAME), 1)


def sizes(pair: FilePair) -> tuple[int, int]:
    return os.fstat(pair.content_fd).st_size, os.fstat(pair.index_fd).st_size


def test_space_is_reserved_for_the_file_that_has_grown_and_given_back_by_a_cut(pair: FilePair) -> None:
    ends = FileEnds(pair, START, START)
    end = START + UNRESERVED_BYTES + 1
    ends.reserve(START, end, START, START + 24)
    assert sizes(pair)[0] >= end
    assert sizes(pair)[1] == START
    assert ends.content.limit >= end
    ends.cut(START + 3, START + 24)
    assert sizes(pair) == (START + 3, START + 24)
    pair.close()


def test_a_file_that_is_as_long_as_its_messages_is_not_cut(pair: FilePair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is opened for one message does not pay for it."""
    ends = FileEnds(pair, START, START)
    ends.wrote(35, START + 35, START + 24)
    monkeypatch.setattr(os, "ftruncate", Mock(side_effect=AssertionError))
    ends.cut(START + 35, START + 24)
    pair.close()


@pytest.mark.skipif(not MAPS, reason="this build maps nothing")
def test_small_batches_open_the_window_which_is_surplus_and_a_fault_closes_it_for_good(pair: FilePair) -> None:
    ends = FileEnds(pair, START, START)

    def write(size: int) -> bool:
        """Returns whether anything is mapped then."""
        ends.wrote(size, START, START)
        return any(ends.words[:8])

    assert not any(write(100) for _ in range(SMALL_APPENDS_MIN - 1))
    assert not write(WINDOW_BATCH_BYTES_MAX + 1)
    assert not any(write(100) for _ in range(SMALL_APPENDS_MIN - 1))
    before = ends.surplus
    assert write(100)
    assert (before, ends.surplus) == (False, True)
    ends.window.fault()
    assert not any(write(100) for _ in range(3 * SMALL_APPENDS_MIN))
    ends.cut(START, START)
    assert sizes(pair) == (START, START)
    pair.close()
