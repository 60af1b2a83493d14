from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tailrace.broker.consumers.state.arguments import Deed, Getting, read_deed, read_get, told
from tailrace.broker.consumers.state.decide import Ask, Given
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.protocol.places import NUMBER_MAX

GET = [b"s", b"c", b"m", [[1, 2, 7]], [[3, 8, "no"]], 10, 1_000, 500, True, True, 2, NUMBER_MAX]


def test_a_get() -> None:
    ask = Ask(b"c", b"m", ((1, 2, 7),), ((3, 8, "no"),), 10, 1_000, True, NUMBER_MAX)
    assert read_get(GET) == read_get(msgpack.unpackb(msgpack.packb(GET))) == Getting(b"s", ask, 0.5, True, 2)


def test_nobody_waits_for_ever() -> None:
    assert read_get([*GET[:7], 1 << 40, *GET[8:]]).wait_s == 60.0


WRONG: list[list[Any]] = [
    *[[*GET[:place], wrong, *GET[place + 1 :]] for place in range(8) for wrong in ("text", None, -1, 1.5)],
    [*GET[:3], [[1, 2]], *GET[4:]],
    [*GET[:3], [["a", 2, 1]], *GET[4:]],
    [*GET[:4], [[3, 1, b"no"]], *GET[5:]],
    [*GET[:10], 256, 0],
    [*GET[:10], True, 0],
    [*GET[:11], -1],
    GET[:11],
    [*GET, 0],
    [],
]


@pytest.mark.parametrize("args", WRONG, ids=repr)
def test_what_is_no_get(args: list[Any]) -> None:
    with pytest.raises(Refused, match="arguments of get") as caught:
        read_get(args)
    assert caught.value.code is Code.USAGE


def test_deeds() -> None:
    assert read_deed([b"s", {"do": "list"}]) == Deed(b"s", "list")
    full = {
        "do": "create",
        "name": b"c",
        "from": ["time", 5],
        "ack_wait_s": 1.5,
        "deliveries_max": 3,
        "sync": True,
        "replicas": 1,
    }
    assert read_deed([b"s", full]) == Deed(b"s", "create", b"c", b"", ("time", 5), 1_500_000, 3, 0, True, 1)
    leave = {"do": "leave", "name": b"c", "member": b"m", "replicas": 2}
    assert read_deed([b"s", leave]) == Deed(b"s", "leave", b"c", b"m", replicas=2)
    away = {"do": "away", "name": b"c", "member": b"m", "idle_ms": 7, "session": 9}
    assert read_deed([b"s", away]) == Deed(b"s", "away", b"c", b"m", idle_us=7_000, session=9)


@pytest.mark.parametrize(
    "args",
    [
        [],
        [b"s"],
        [b"s", []],
        [b"s", {}],
        ["s", {"do": "list"}],
        [b"s", {"do": 1}],
        [b"s", {"do": "create", "name": "c"}],
        [b"s", {"do": "create", "from": ["where", 1]}],
        [b"s", {"do": "create", "from": [[], 1]}],
        [b"s", {"do": "create", "from": ["seq", -1]}],
        [b"s", {"do": "create", "from": 7}],
        [b"s", {"do": "create", "ack_wait_s": "long"}],
        [b"s", {"do": "create", "ack_wait_s": float("nan")}],
        [b"s", {"do": "create", "ack_wait_s": 1e300}],
        [b"s", {"do": "create", "deliveries_max": 1.5}],
        [b"s", {"do": "create", "replicas": 999}],
        [b"s", {"do": "leave", "name": b"c", "member": "m"}],
        [b"s", {"do": "away", "idle_ms": -1}],
    ],
    ids=repr,
)
def test_what_is_no_deed(args: list[Any]) -> None:
    with pytest.raises(Refused, match="arguments of consume") as caught:
        read_deed(args)
    assert caught.value.code is Code.USAGE


def test_what_a_get_is_told() -> None:
    value = told(Given(((1, 2, 0, 3),), ((5, 6),), 4))
    assert msgpack.unpackb(msgpack.packb(value)) == {"runs": [[1, 2, 0, 3]], "stale": [[5, 6]], "trimmed": 4}
