from __future__ import annotations

import json
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.spark.options import PayloadForm
from tailrace.spark.payloads import UnsupportedType, make_decoder, natural_type

READING = pa.struct([("device", pa.string()), ("celsius", pa.float64()), ("at", pa.timestamp("us", tz="UTC"))])


def decode(form: PayloadForm, type_: pa.DataType, payloads: list[bytes]) -> tuple[list[Any], list[bytes | None]]:
    decoded = make_decoder(form, type_)(pa.array(payloads, pa.binary()))
    assert decoded.values.type == type_
    decoded.values.validate(full=True)
    return decoded.values.to_pylist(), decoded.corrupt.to_pylist()


def reading(**fields: object) -> dict[str, object]:
    return {"device": None, "celsius": None, "at": None, **fields}


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_readings(form: PayloadForm) -> None:
    pack = msgpack.packb if form == "msgpack" else lambda value: json.dumps(value).encode()
    said = [{"device": "a", "celsius": 1.5, "other": [1, {}]}, {"celsius": 2}, {}, None, {"device": None}]
    values, corrupt = decode(form, READING, [pack(each) for each in said])
    wanted = [reading(device="a", celsius=1.5), reading(celsius=2.0), reading(), None, reading()]
    assert values == wanted
    assert corrupt == [None] * 5


BAD_JSON = [
    b"",
    b" ",
    b"{",
    b"5",
    b'"text"',
    b"[]",
    b"{}{}",
    b"{}\n{}",
    b'{"device":5}',
    b'{"celsius":"warm"}',
    b'{"device":"\xff"}',
    b'{"at":"yesterday"}',
    b'{},"i":0}\n{"p":{}',
    b"{}}\n",
    b"[" * 100_000,
    b'{"device":' * 1_000,
    b"\0",
]


@pytest.mark.parametrize("bad", BAD_JSON)
def test_bad_json_is_set_apart_and_moves_nothing(bad: bytes) -> None:
    values, corrupt = decode("json", READING, [b'{"celsius":0}', bad, b'{"celsius":\n2}\n'])
    assert corrupt == [None, bad, None]
    assert values == [reading(celsius=0.0), None, reading(celsius=2.0)]


BAD_MSGPACK = [
    b"",
    b"\xc1",
    b"\x81",
    b"\x01\x01",
    b"\x05",
    b"\x81\xa6device\x05",
    b"\x81\xa7celsius\xa1x",
    b"\x91" * 2_000,
]


def test_two_that_together_look_right_are_both_bad() -> None:
    """An empty one and a double one: as many lines as payloads, but not each its own."""
    values, corrupt = decode("json", READING, [b"", b'{},"i":0}\n{"p":{}'])
    assert values == [None, None]
    assert None not in corrupt


@pytest.mark.parametrize(
    "bad",
    [b"", b"\xc1", b"\x81", b"\x01\x01", b"\x05", b"\x81\xa6device\x05", b"\x81\xa7celsius\xa1x", b"\x91" * 2_000],
)
def test_bad_msgpack_is_set_apart(bad: bytes) -> None:
    good = msgpack.packb({"device": "b"})
    values, corrupt = decode("msgpack", READING, [good, bad, good])
    assert values == [reading(device="b"), None, reading(device="b")]
    assert corrupt == [None, bad, None]


@given(
    st.lists(st.one_of(st.binary(max_size=8), st.sampled_from(BAD_JSON[:14]), st.just(b'{"celsius":1}')), max_size=40)
)
def test_decoding_together_is_decoding_one_by_one(payloads: list[bytes]) -> None:
    for form in ("json", "msgpack"):
        alone = [decode(form, READING, [payload]) for payload in payloads]
        values, corrupt = decode(form, READING, payloads)
        assert values == [each[0][0] for each in alone]
        assert corrupt == [each[1][0] for each in alone]


def test_texts() -> None:
    assert natural_type("utf8") == pa.string()
    texts = ["", "grün", "plain"]
    assert decode("utf8", pa.string(), [text.encode() for text in texts]) == (texts, [None] * 3)
    assert decode("utf8", pa.string(), [b"a", b"\xff", b"\xc3"]) == (["a", None, None], [None, b"\xff", b"\xc3"])


def test_binary_is_never_corrupt() -> None:
    assert decode("binary", natural_type("binary"), [b"\xff", b""]) == ([b"\xff", b""], [None, None])


@pytest.mark.parametrize("form", ["binary", "utf8", "json", "msgpack"])
def test_no_payloads(form: PayloadForm) -> None:
    assert decode(form, natural_type(form), []) == ([], [])


def test_other_types_of_json() -> None:
    assert decode("json", pa.list_(pa.int32()), [b"[1,2]", b"null", b"7"]) == ([[1, 2], None, None], [None, None, b"7"])
    assert decode("json", pa.string(), [b'"a"', b"{}"]) == (["a", None], [None, b"{}"])


@pytest.mark.parametrize(
    ("form", "type_", "text"),
    [
        ("binary", pa.string(), "payloads are binary, not string"),
        ("utf8", pa.binary(), "utf8 are a string, not binary"),
        ("json", pa.map_(pa.string(), pa.int32()), "JSON payloads cannot be read as map"),
    ],
)
def test_types_that_a_form_has_not(form: PayloadForm, type_: pa.DataType, text: str) -> None:
    with pytest.raises(UnsupportedType, match=text):
        make_decoder(form, type_)
