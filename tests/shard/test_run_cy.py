"""The leaf of runs: its functions, and that its two bodies are equal to the byte."""

from __future__ import annotations

from types import ModuleType

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load, load_source
from tests.thorough import examples

LEAF = "tailrace.shard.run_cy"
LOADED = load(LEAF)
SOURCE = load_source(LEAF)
stamp = load("tailrace.shard.frame_cy").stamp

frames_of = st.lists(
    st.builds(
        lambda payload, metadata, flags: pack_frame(payload, flags=flags, metadata=metadata),
        st.binary(max_size=300),
        st.binary(max_size=20),
        st.sampled_from([0, 0, 1, 2, 3, 8]),
    ),
    max_size=20,
)


@pytest.fixture(params=[LOADED, SOURCE], ids=["as loaded", "source"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def stamped(count: int = 3) -> bytearray:
    frames = bytearray(b"".join(pack_frame(b"payload %d" % i) for i in range(count)))
    stamp(frames, 7, 1_000, 2, 4_096)
    return frames


def test_the_source_is_interpreted() -> None:
    assert not SOURCE.is_compiled()


def test_a_run_is_marked(leaf: ModuleType) -> None:
    frames = pack_frame(b"one", metadata=b"old metadata") + pack_frame(b"", metadata=b"kept") + pack_frame(b"three")
    want = pack_frame(b"one", metadata=b"new", flags=1)
    want += pack_frame(b"", metadata=b"kept", flags=2) + pack_frame(b"three", flags=2)
    assert leaf.mark_run(frames, b"new") == leaf.mark_run(memoryview(want), b"new") == want
    stamped_frames = stamped()
    assert leaf.mark_run(stamped_frames, b"m")[:36] == pack_frame(b"payload 0", metadata=b"m", flags=1)[:36]
    for wrong in (b"", b"x", frames[:-1], frames + b"rest"):
        with pytest.raises(ValueError, match="has a length of"):
            leaf.mark_run(wrong, b"")
    with pytest.raises(ValueError, match="at most 65535"):
        leaf.mark_run(frames, bytes(65_536))


def test_runs_are_found(leaf: ModuleType) -> None:
    run = leaf.mark_run(pack_frame(b"one") + pack_frame(b"two") + pack_frame(b"three"), b"mine")
    frames = pack_frame(b"plain") + run + pack_frame(b"plain") + run[:-37] + run
    joined = bytearray(frames)
    stamp(joined, 10, 77, 1, 0)
    assert leaf.find_flagged(joined, 0, len(joined)) == [
        (11, 77, 3, b"mine"),
        (15, 77, 2, b"mine"),
        (17, 77, 3, b"mine"),
    ]
    assert leaf.find_flagged(joined, 37 + 39, len(joined)) == [
        (12, 77, 2, b""),
        (15, 77, 2, b"mine"),
        (17, 77, 3, b"mine"),
    ]
    assert leaf.find_flagged(joined, 0, 37) == leaf.find_flagged(b"", 0, 0) == []
    with pytest.raises(ValueError, match="bytes 1 to 0 of a buffer"):
        leaf.find_flagged(joined, 1, 0)


@pytest.mark.parametrize("number", [0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1])
def test_a_runs_numbers_are_read(leaf: ModuleType, number: int) -> None:
    for more in ({}, {"h": {"k": "v"}}):
        metadata: bytes = msgpack.packb({"p": b"me", "n": number, **more})
        assert leaf.read_run(b"head" + metadata + b"tail", 4, 4 + len(metadata)) == (b"me", number)
        for end in range(len(metadata)) if not more else ():
            assert leaf.read_run(metadata, 0, end) is None


@pytest.mark.parametrize(
    "fields",
    [{}, {"p": b"me"}, {"n": 1, "p": b"me"}, {"p": "me", "n": 1}, {"p": b"", "n": 1}, {"p": b"x" * 33, "n": 1},
     {"p": b"me", "n": -1}, {"p": b"me", "n": 2**63}, {"p": b"me", "n": 1.5}, {"p": b"me", "m": 1}],
)  # fmt: skip
def test_numbers_that_stand_elsewhere_are_not_read(leaf: ModuleType, fields: dict[str, object]) -> None:
    metadata: bytes = msgpack.packb(fields)
    assert leaf.read_run(metadata, 0, len(metadata)) is None
    with pytest.raises(ValueError, match="of a buffer of"):
        leaf.read_run(metadata, 0, len(metadata) + 1)


@settings(max_examples=examples(300))
@given(st.binary(min_size=1, max_size=34), st.integers(-1, 2**64 - 1), st.data())
def test_both_bodies_read_the_same_numbers(name: bytes, number: int, data: st.DataObject) -> None:
    metadata = bytearray(msgpack.packb({"p": name, "n": number}))
    if data.draw(st.booleans()):
        metadata[data.draw(st.integers(0, len(metadata) - 1))] ^= data.draw(st.integers(1, 255))
    end = data.draw(st.integers(0, len(metadata)))
    assert LOADED.read_run(metadata, 0, end) == SOURCE.read_run(metadata, 0, end)


@settings(max_examples=examples(200))
@given(frames_of, st.binary(max_size=40), st.data())
def test_both_bodies_mark_and_find_the_same(frames: list[bytes], metadata: bytes, data: st.DataObject) -> None:
    joined = bytearray(b"".join(frames))
    if frames:
        marked = LOADED.mark_run(joined, metadata)
        assert marked == SOURCE.mark_run(joined, metadata)
        stamp(marked, 1, 2, 3, 4)
        assert LOADED.find_flagged(marked, 0, len(marked)) == [(1, 2, len(frames), metadata)]
        stamp(joined, 1, 2, 3, 4)
    if joined and data.draw(st.booleans()):
        joined[data.draw(st.integers(0, len(joined) - 1))] ^= data.draw(st.integers(1, 255))
    starts = [0, *(sum(map(len, frames[:index])) for index in range(len(frames)))]
    start = data.draw(st.sampled_from(starts))
    end = data.draw(st.integers(start, len(joined)))
    assert LOADED.find_flagged(joined, start, end) == SOURCE.find_flagged(joined, start, end)


@given(st.binary(max_size=200))
def test_both_bodies_judge_garbage_the_same(garbage: bytes) -> None:
    assert LOADED.find_flagged(garbage, 0, len(garbage)) == SOURCE.find_flagged(garbage, 0, len(garbage))
    assert _marked(LOADED, garbage) == _marked(SOURCE, garbage)
    assert LOADED.read_run(garbage, 0, len(garbage)) == SOURCE.read_run(garbage, 0, len(garbage))


def _marked(leaf: ModuleType, frames: bytes) -> object:
    try:
        return leaf.mark_run(frames, b"mm")
    except ValueError as error:
        return str(error)
