from __future__ import annotations

import msgpack
import numpy as np

from tailrace.core.headers import pack_headers
from tailrace.spark.headers import HEADERS_TYPE, headers_array, keys_array


def headers_of(metadata: list[bytes]) -> list[dict[str, bytes]]:
    sizes = np.array([len(each) for each in metadata], np.int64)
    found = headers_array(memoryview(b"".join(metadata)), np.cumsum(sizes) - sizes, sizes)
    assert found.type == HEADERS_TYPE
    found.validate(full=True)
    return [dict(pairs) for pairs in found.to_pylist()]


def test_headers_are_a_map_of_texts_to_bytes() -> None:
    shop, both = pack_headers({"shop": "7"}), pack_headers({"shop": "ü", "raw": b"\xff"})
    wanted = [{"shop": b"7"}, {}, {"shop": "ü".encode(), "raw": b"\xff"}, {"shop": b"7"}]
    assert headers_of([shop, b"", both, shop]) == wanted


def test_no_messages_and_no_headers() -> None:
    assert headers_of([]) == []
    assert headers_of([b"", b""]) == [{}, {}]


def test_what_nobody_can_read_is_no_header() -> None:
    odd = [b"\xc1", msgpack.packb({"p": 1}), msgpack.packb({"h": 5}), msgpack.packb({"h": {"a": 1, "b": "x"}})]
    assert headers_of([*odd, b"\x81"]) == [{}, {}, {}, {"b": b"x"}, {}]


def test_keys() -> None:
    metadata = [pack_headers({"a": "1"}, "k"), b"", pack_headers(None, b"\xff"), pack_headers({"a": "1"}), b"\x81"]
    starts = np.cumsum([0, *map(len, metadata)])[:-1]
    found = keys_array(memoryview(b"".join(metadata)), starts, np.array(list(map(len, metadata))))
    assert found.to_pylist() == [b"k", None, b"\xff", None, None]
