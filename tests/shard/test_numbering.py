from __future__ import annotations

import msgpack
import pytest

from tailrace.shard.frame import RUN_METADATA_BYTES
from tailrace.shard.numbering import ID_BYTES_MAX, NUMBER_MAX, read_numbering, write_numbering


def test_the_numbering_in_metadata() -> None:
    metadata = write_numbering(msgpack.packb({"h": {"k": "v"}}), b"me", 7)
    assert msgpack.unpackb(metadata) == {"h": {"k": "v"}, "p": b"me", "n": 7}
    assert read_numbering(metadata) == read_numbering(write_numbering(b"", b"me", 7)) == (b"me", 7)
    assert len(write_numbering(b"", bytes(ID_BYTES_MAX), NUMBER_MAX)) < RUN_METADATA_BYTES
    with pytest.raises(ValueError, match="not a map"):
        write_numbering(b"\x01", b"me", 7)


@pytest.mark.parametrize(
    "fields",
    [{}, {"p": b"", "n": 1}, {"p": b"x" * 33, "n": 1}, {"p": "x", "n": 1}, {"p": b"x"}, {"p": b"x", "n": -1}, [1], 5],
)
def test_metadata_without_a_numbering(fields: object) -> None:
    with pytest.raises(ValueError, match="without a producer's id"):
        read_numbering(msgpack.packb(fields))
