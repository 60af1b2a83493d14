from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from tailrace.shard.epochs import DEFAULT_HISTORY, EPOCH_MAX, EPOCHS_MAX, EpochStart
from tailrace.shard.errors import MetaDamaged
from tailrace.shard.meta import (
    HOST_BYTES_MAX,
    META_BYTES_MAX,
    META_MAGIC,
    Contact,
    Role,
    StreamMeta,
    Upstream,
    crc32c,
    meta_path,
    read_meta,
    write_meta,
)
from tests.shard.helpers import flip

HISTORY = (EpochStart(1, 0, "a"), EpochStart(3, 10, "b"), EpochStart(7, 10))
SLAVE = StreamMeta("25", Role.SLAVE, 7, Upstream("master.example", 5050, "seq", 12), HISTORY)
OLD_SLAVE = {"name": "25", "role": "slave", "epoch": 7, "upstream": "master.example:5050"}
LONG = "ü" * 100


def test_the_default_needs_no_file(tmp_path: Path) -> None:
    assert read_meta(tmp_path, "25") == StreamMeta("25", Role.MASTER, 1, None, DEFAULT_HISTORY)
    write_meta(tmp_path, StreamMeta("25"))
    assert list(tmp_path.iterdir()) == []


def test_what_differs_is_kept_until_it_differs_no_more(tmp_path: Path) -> None:
    write_meta(tmp_path, SLAVE)
    assert read_meta(tmp_path, "25") == SLAVE
    assert [path.name for path in tmp_path.iterdir()] == ["25.meta"]
    write_meta(tmp_path, StreamMeta("25"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "meta",
    [
        StreamMeta("25", Role.DISABLED),
        StreamMeta("25", epoch=2),
        StreamMeta("25", upstream=Upstream("::1", 1)),
        StreamMeta("25", Role.SLAVE, upstream=Upstream("10.0.0.1", 65_535, "new")),
        StreamMeta("25", Role.SLAVE, upstream=Upstream("h", 5050, "time", 1_700_000_000_000_000)),
        StreamMeta("25", history=(EpochStart(1, 0, "node"),)),
        StreamMeta("25", epoch=9, history=()),
        StreamMeta("25", contacts=(Contact("10.0.0.1", 5050, 3), Contact("::1", 1, 0, False)), term_master="node"),
    ],
)
def test_each_difference_is_kept(tmp_path: Path, meta: StreamMeta) -> None:
    write_meta(tmp_path, meta)
    assert read_meta(tmp_path, "25") == meta
    assert meta_path(tmp_path, "25").exists()


def put(directory: Path, fields: object) -> None:
    body = msgpack.packb(fields)
    meta_path(directory, "25").write_bytes(META_MAGIC + crc32c(body).to_bytes(4, "little") + body)


@pytest.mark.parametrize(
    ("fields", "meta"),
    [
        (OLD_SLAVE, StreamMeta("25", Role.SLAVE, 7, Upstream("master.example", 5050), ())),
        ({"name": "25", "role": "disabled", "epoch": 1, "upstream": ""}, StreamMeta("25", Role.DISABLED)),
        ({"name": "25", "role": "master", "epoch": 3, "upstream": ""}, StreamMeta("25", epoch=3, history=())),
    ],
)
def test_files_from_before_there_were_slaves_are_read(
    tmp_path: Path, fields: dict[str, object], meta: StreamMeta
) -> None:
    put(tmp_path, fields)
    assert read_meta(tmp_path, "25") == meta


def test_a_program_from_before_there_were_slaves_finds_what_it_knows(tmp_path: Path) -> None:
    write_meta(tmp_path, SLAVE)
    fields = msgpack.unpackb(meta_path(tmp_path, "25").read_bytes()[12:])
    assert {key: fields[key] for key in OLD_SLAVE} == OLD_SLAVE


def test_the_longest_history_fits(tmp_path: Path) -> None:
    starts = (EpochStart(EPOCH_MAX - EPOCHS_MAX + i, (1 << 62) + i, "m" * 32) for i in range(EPOCHS_MAX))
    contacts = tuple(Contact(f"{number:0>{HOST_BYTES_MAX}}", 5050, EPOCH_MAX) for number in range(32))
    upstream = Upstream("h" * HOST_BYTES_MAX, 5050)
    meta = StreamMeta(LONG, Role.SLAVE, EPOCH_MAX, upstream, tuple(starts), contacts, "m" * 32)
    write_meta(tmp_path, meta)
    assert read_meta(tmp_path, LONG) == meta
    assert meta_path(tmp_path, LONG).stat().st_size < META_BYTES_MAX


@pytest.mark.parametrize(
    "meta",
    [
        StreamMeta("25", epoch=0),
        StreamMeta("25", epoch=EPOCH_MAX + 1),
        StreamMeta("25", epoch=2, history=HISTORY),
        StreamMeta("25", epoch=9, history=(EpochStart(3, 0), EpochStart(2, 5))),
        StreamMeta("25", upstream=Upstream("", 5050)),
        StreamMeta("25", upstream=Upstream("h", 0)),
        StreamMeta("25", epoch=2, contacts=(Contact("", 1),)),
        StreamMeta("25", contacts=(Contact("h", 1, -1),)),
        StreamMeta("25", term_master="m" * 33),
        StreamMeta("25", upstream=Upstream("h", 1, "now", 0)),
        StreamMeta("25", upstream=Upstream("h", 1, "seq", -1)),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, meta: StreamMeta) -> None:
    with pytest.raises(ValueError, match=r"epoch|upstream|from|contact|term_master"):
        write_meta(tmp_path, meta)
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
        OLD_SLAVE | {"upstream": "nohost"},
        OLD_SLAVE | {"upstream": "host:many"},
        OLD_SLAVE | {"from": ["never", 0]},
        OLD_SLAVE | {"from": ["seq"] * 3},
        OLD_SLAVE | {"from": 7},
        OLD_SLAVE | {"epochs": [[1, 0, ""], [1, 5, ""]]},
        OLD_SLAVE | {"epochs": [[8, 0, ""]]},
        OLD_SLAVE | {"epochs": [[1, 0, 0]]},
        OLD_SLAVE | {"epochs": [1]},
        OLD_SLAVE | {"epochs": 1},
    ],
)
def test_a_map_with_a_right_checksum_is_still_not_believed(tmp_path: Path, fields: object) -> None:
    put(tmp_path, fields)
    with pytest.raises(MetaDamaged, match="its map is invalid"):
        read_meta(tmp_path, "25")
