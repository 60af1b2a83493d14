"""The leaf of mapped appends, and that its two bodies do the same."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.shard.header import tagged
from tailrace.shard.leaves import load, load_source
from tests.thorough import examples

LEAF = "tailrace.shard.window_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)
FRAMES = load("tailrace.shard.frame_cy")
ROOT = Path(__file__).resolve().parents[2]
FOR_EVER = 1 << 63
SIZE = 256
CONTENT_START, INDEX_START = 8_192, 4_096

FAULTS = """
import os, signal, struct, sys
from tailrace.shard.leaves import load
from tailrace.shard.mapping import Mapping
leaf = load("tailrace.shard.window_cy")
leaf.install_guard()
leaf.install_guard()
files = [os.open(os.path.join(sys.argv[1], name), os.O_RDWR | os.O_CREAT) for name in "abcd"]
maps = []
for number, fd in enumerate(files):
    os.ftruncate(fd, 4_096)
    maps.append(Mapping(fd, 0, 4_096, writable=True))
a, b, c, d = (mapping.address for mapping in maps)
words = bytearray(struct.pack("<11Q", a, 0, 4_096, b, 0, 4_096, c, d, 0, 1 << 63, 0))
assert leaf.append(words, b"frames", b"entries", 0, 0, 1) == leaf.DONE
first = bytes(maps[2].view[:8]), bytes(maps[3].view[:8])
for number in range(4):
    os.ftruncate(files[number], 0)
    assert leaf.append(words, b"frames", b"entries", 6, 7, 2) == leaf.FAULT, number
    os.ftruncate(files[number], 4_096)
    if number != 2:
        assert bytes(maps[2].view[:8]) == first[0], number
    maps[2].view[:8], maps[3].view[:8] = first
assert leaf.append(words, b"frames", b"entries", 6, 7, 2) == leaf.DONE
print("alive", flush=True)
if sys.argv[2] == "fault":
    os.ftruncate(files[0], 0)
    maps[0].view[0] = 1
else:
    os.kill(os.getpid(), signal.SIGBUS)
print("not reached")
"""


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


class Memory(NamedTuple):
    """Stands in for mapped files; the words of a window on it."""

    content: bytearray
    entries: bytearray
    headers: bytearray
    words: bytearray


def address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def memory(fresh_from: int = 0, fresh_until: int = FOR_EVER) -> Memory:
    content, index, headers = bytearray(SIZE), bytearray(SIZE), bytearray(16)
    at = address(content), CONTENT_START, CONTENT_START + SIZE, address(index), INDEX_START, INDEX_START + SIZE
    words = struct.pack("<11Q", *at, address(headers), address(headers) + 8, fresh_from, fresh_until, 0)
    return Memory(content, index, headers, bytearray(words))


def test_the_source_is_interpreted() -> None:
    assert not SOURCE.is_compiled()


def test_a_batch_is_copied_and_committed(leaf: ModuleType) -> None:
    found = memory()
    assert leaf.append(found.words, bytearray(b"frames"), memoryview(b"entries"), 8_200, 4_096, 77) == leaf.DONE
    assert found.content == bytes(8) + b"frames" + bytes(SIZE - 14)
    assert found.entries == b"entries" + bytes(SIZE - 7)
    assert found.headers == struct.pack("<2Q", tagged(8_206), tagged(77))
    assert found.words[8 * leaf.STORED_WORD] == 1
    assert leaf.append(found.words, bytearray(b"more"), b"entry", 8_206, 4_103, 78) == leaf.DONE
    assert found.words[8 * leaf.STORED_WORD] == 2


def test_nothing_is_stored_where_nothing_is_mapped(leaf: ModuleType) -> None:
    assert leaf.append(bytearray(8 * leaf.WORDS), b"f", b"e", 4_096, 4_096, 1) == leaf.PAST
    with pytest.raises(ValueError, match="too few words"):
        leaf.append(bytearray(8 * leaf.WORDS - 1), b"f", b"e", 4_096, 4_096, 1)


def test_nothing_is_stored_when_the_times_would_not_show_it(leaf: ModuleType) -> None:
    now_ns = leaf.file_clock_ns()
    assert abs(time.time_ns() - now_ns) < 10**9
    hour_ns = 3_600 * 10**9
    for found in (memory(0, now_ns), memory(now_ns + hour_ns, now_ns + 2 * hour_ns)):
        assert leaf.append(found.words, b"f", b"e", CONTENT_START, INDEX_START, 1) == leaf.STALE
        assert not any(found.content + found.entries + found.headers)
    found = memory(now_ns, now_ns + hour_ns)
    assert leaf.append(found.words, b"f", b"e", CONTENT_START, INDEX_START, 1) == leaf.DONE


@given(
    payloads=st.lists(st.binary(max_size=60), min_size=1, max_size=8),
    extra=st.sampled_from([b"", b"", b"", b"x", bytes(32)]),
    counted=st.sampled_from([0, 0, 0, 0, 1, -1]),
    offset=st.integers(CONTENT_START - 1, CONTENT_START + 99),
    index_offset=st.integers(INDEX_START - 1, INDEX_START + 99),
    seq=st.integers(0, (1 << 40) - 1),
)
@settings(max_examples=examples(300))
def test_unstamped_frames_are_stamped_and_appended(
    payloads: list[bytes], extra: bytes, counted: int, offset: int, index_offset: int, seq: int
) -> None:
    """As by `frame_cy.stamp` and `append`; frames that are not whole, or not as many, are left to others."""
    frames, count, place = FRAMES.pack_frames(payloads, b"") + extra, len(payloads) + counted, (seq, 5, 6, offset)
    wanted, stamped, outcome = memory(), bytearray(frames), LOADED.PAST
    if not (extra or counted):
        entries = FRAMES.stamp(stamped, *place)
        outcome = LOADED.append(wanted.words, stamped, entries, offset, index_offset, seq + count)
    for module in (LOADED, SOURCE):
        here, mine = memory(), bytearray(frames)
        assert module.append_unstamped(here.words, mine, count, *place, index_offset) == outcome
        assert here[:3] == wanted[:3] and here.words[72:] == wanted.words[72:]
        assert mine == stamped or outcome != LOADED.DONE


@pytest.mark.parametrize("sizes", [[10] * 41, [1_300]])
def test_many_unstamped_frames_and_large_ones_are_left_to_others(leaf: ModuleType, sizes: list[int]) -> None:
    found = memory()
    words = found.words[:16] + struct.pack("<Q", FOR_EVER) + found.words[24:]
    frames = FRAMES.pack_frames([bytes(size) for size in sizes], b"")
    place = 0, 5, 6, CONTENT_START, INDEX_START
    assert leaf.append_unstamped(bytearray(words), frames, len(sizes), *place) == leaf.PAST
    with pytest.raises(ValueError, match="too few words"):
        leaf.append_unstamped(bytearray(8), frames, len(sizes), *place)
    assert not any(found.content + found.entries + found.headers)


@given(value=st.integers(0, (1 << 48) - 1))
@settings(max_examples=examples(300))
def test_words_are_those_of_a_header_page(value: int) -> None:
    assert LOADED.tagged(value) == SOURCE.tagged(value) == tagged(value)


@given(
    frames=st.binary(max_size=SIZE + 2),
    entries=st.binary(max_size=SIZE + 2),
    offset=st.integers(CONTENT_START - 3, CONTENT_START + SIZE + 3),
    index_offset=st.integers(INDEX_START - 3, INDEX_START + SIZE + 3),
    next_seq=st.integers(0, (1 << 48) - 1),
)
@settings(max_examples=examples(600))
def test_both_bodies_do_the_same(frames: bytes, entries: bytes, offset: int, index_offset: int, next_seq: int) -> None:
    found = []
    for module in (LOADED, SOURCE):
        here = memory()
        outcome = module.append(here.words, frames, entries, offset, index_offset, next_seq)
        found.append((outcome, here.content, here.entries, here.headers, here.words[-8:]))
    assert found[0] == found[1]
    fits = offset >= CONTENT_START and offset + len(frames) <= CONTENT_START + SIZE
    fits = fits and index_offset >= INDEX_START and index_offset + len(entries) <= INDEX_START + SIZE
    assert found[0][0] == (LOADED.DONE if fits else LOADED.PAST)


@pytest.mark.skipif(not LOADED.is_compiled(), reason="a fault ends an interpreted process")
@pytest.mark.parametrize("last", ["fault", "signal"])
@pytest.mark.parametrize("before", [(), ("-X", "faulthandler")], ids=["", "faulthandler"])
def test_a_fault_in_a_window_is_a_result_and_any_other_still_ends_the_process(
    tmp_path: Path, last: str, before: tuple[str, ...]
) -> None:
    """Whichever page it was, and no commit is seen. The handler that was there before is asked about the others."""
    command = [sys.executable, *before, "-c", FAULTS, str(tmp_path), last]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert done.stdout == "alive\n", done.stderr
    assert done.returncode == -7
    assert ("Bus error" in done.stderr) == bool(before)


def test_without_a_compiler_there_is_no_guard() -> None:
    with pytest.raises(NotImplementedError):
        SOURCE.install_guard()
