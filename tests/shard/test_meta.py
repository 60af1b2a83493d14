from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from shard.errors import MetaDamaged
from shard.meta import META_MAGIC, Role, StreamMeta, crc32c, meta_path, read_meta, write_meta
from tests.shard.helpers import flip

SLAVE = StreamMeta("25", Role.SLAVE, 7, "master.example:5050")
LONG = "ü" * 100


def test_the_default_needs_no_file(tmp_path: Path) -> None:
    assert read_meta(tmp_path, "25") == StreamMeta("25", Role.MASTER, 1, "")
    write_meta(tmp_path, StreamMeta("25"))
    assert list(tmp_path.iterdir()) == []


def test_what_differs_is_kept_until_it_differs_no_more(tmp_path: Path) -> None:
    write_meta(tmp_path, SLAVE)
    assert read_meta(tmp_path, "25") == SLAVE
    assert [path.name for path in tmp_path.iterdir()] == ["25.meta"]
    write_meta(tmp_path, StreamMeta("25"))
    assert list(tmp_path.iterdir()) == []


def test_a_long_name_is_kept_in_full(tmp_path: Path) -> None:
    write_meta(tmp_path, StreamMeta(LONG))
    assert read_meta(tmp_path, LONG) == StreamMeta(LONG)
    assert meta_path(tmp_path, LONG).exists()


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    write_meta(tmp_path, SLAVE)
    path = meta_path(tmp_path, "25")
    for position in range(path.stat().st_size):
        flip(path, position, 0x20)
        with pytest.raises(MetaDamaged, match=r"25\.meta at byte"):
            read_meta(tmp_path, "25")
        flip(path, position, 0x20)
    assert read_meta(tmp_path, "25") == SLAVE


def test_every_cut_is_found(tmp_path: Path) -> None:
    write_meta(tmp_path, SLAVE)
    path = meta_path(tmp_path, "25")
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(MetaDamaged):
            read_meta(tmp_path, "25")


def test_another_streams_file_is_refused(tmp_path: Path) -> None:
    write_meta(tmp_path, SLAVE)
    meta_path(tmp_path, "25").rename(meta_path(tmp_path, "26"))
    with pytest.raises(MetaDamaged, match="of the stream '25'"):
        read_meta(tmp_path, "26")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        [],
        {"name": "25", "role": "king", "epoch": 1, "upstream": ""},
        {"name": "25", "role": "slave", "epoch": 0, "upstream": ""},
        {"name": "25", "role": "slave", "epoch": "1", "upstream": ""},
        {"name": "25", "role": "slave", "epoch": 1, "upstream": 5},
        {"name": "a b", "role": "slave", "epoch": 1, "upstream": ""},
        {"name": 25, "role": "slave", "epoch": 1, "upstream": ""},
    ],
)
def test_a_map_with_a_right_checksum_is_still_not_believed(tmp_path: Path, fields: object) -> None:
    body = msgpack.packb(fields)
    meta_path(tmp_path, "25").write_bytes(META_MAGIC + crc32c(body).to_bytes(4, "little") + body)
    with pytest.raises(MetaDamaged, match="not one of ours"):
        read_meta(tmp_path, "25")
