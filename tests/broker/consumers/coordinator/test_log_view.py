from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.consumers.coordinator import log_view as look_module
from tailrace.broker.consumers.coordinator.log_view import LogView, key_of
from tailrace.shard.frame import pack_frame
from tailrace.shard.log import StreamLog


def made(tmp_path: Path, sizes: list[int], keys: list[bytes | None] | None = None) -> LogView:
    """A stream of messages with payloads of these sizes, in bytes."""
    log = StreamLog.open(tmp_path, "s", create=True, boot_id="boot")
    for number, size in enumerate(sizes):
        key = None if keys is None else keys[number]
        metadata = b"" if key is None else msgpack.packb({"h": {"key": key}})
        log.append(bytearray(pack_frame(b"x" * size, metadata=metadata)), 1, number, 1)
    return LogView(log, ())


def test_how_many_fit(tmp_path: Path) -> None:
    look = made(tmp_path, [10, 20, 30, 40, 50])
    assert (look.first_seq, look.next_seq) == (0, 5)
    sizes = [32 + size for size in (10, 20, 30, 40, 50)]
    for first in range(5):
        for last in range(first, 5):
            for room in (0, sizes[first] - 1, sizes[first], sum(sizes[first : last + 1]) - 1, 100, 10_000):
                fitting = 0
                while first + fitting <= last and sum(sizes[first : first + fitting + 1]) <= room:
                    fitting += 1
                assert look.fit(first, last, room) == (fitting, sum(sizes[first : first + fitting]))
    look.log.close()


def test_keys_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_module, "KEYS_KEPT_MAX", 20)
    keys = [None if number % 3 else b"%d" % number for number in range(60)]
    look = made(tmp_path, [1] * 60, keys)
    read: list[tuple[int, int]] = []
    metadata = StreamLog.metadata

    def counted(log: StreamLog, first_seq: int, messages: int) -> object:
        read.append((first_seq, messages))
        return metadata(log, first_seq, messages)

    monkeypatch.setattr(StreamLog, "metadata", counted)
    for first, last in [(0, 9), (5, 14), (3, 3), (15, 20), (10, 30)]:
        assert list(look.keys(first, last)) == keys[first : last + 1]
    assert read == [(0, 10), (10, 5), (15, 6), (21, 10)]
    assert list(look.keys(2, 4)) == keys[2:5], "which is not kept any more"
    assert list(look.keys(40, 59)) == keys[40:]
    assert list(look.keys(30, 59)) == keys[30:]
    assert read[4:] == [(2, 3), (40, 20), (30, 30)]
    look.log.close()


def test_messages_that_are_not_kept_have_no_key(tmp_path: Path) -> None:
    look = made(tmp_path, [1] * 6, [b"k"] * 6)
    look.log.trim(4)
    assert list(look.keys(0, 5)) == [None] * 4 + [b"k"] * 2
    assert list(look.keys(0, 2)) == [None] * 3
    look.log.close()


def test_other_messages_in_their_place_have_other_keys(tmp_path: Path) -> None:
    look = made(tmp_path, [1] * 4, [b"old"] * 4)
    assert list(look.keys(0, 3)) == [b"old"] * 4
    look.log.set_aside(2)
    look.log.append(bytearray(pack_frame(b"", metadata=msgpack.packb({"h": {"key": "new"}})) * 2), 2, 9, 2)
    assert list(look.keys(0, 3)) == [b"old", b"old", b"new", b"new"]
    look.log.close()


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"h": {"key": "größe"}}, "größe".encode()),
        ({"h": {"key": b"\xff"}}, b"\xff"),
        ({"p": b"id", "n": 3, "h": {"other": "key", "key": "k"}}, b"k"),
        ({"h": {"other": "key"}}, None),
        ({"h": {"key": 7}}, None),
        ({"h": "key"}, None),
        ({"key": "k"}, None),
        (["key"], None),
        ("key", None),
    ],
)
def test_the_key_is_a_header(fields: object, key: bytes | None) -> None:
    assert key_of(msgpack.packb(fields)) == key


@given(st.binary(max_size=30))
def test_metadata_that_is_anything(metadata: bytes) -> None:
    key_of(metadata)
    assert key_of(metadata + b"key") is None or b"key" in metadata
