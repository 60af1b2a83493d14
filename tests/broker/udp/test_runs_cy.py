"""Runs of datagrams that subscribe, compiled and interpreted."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tailrace.protocol.topic_table import pack_table
from tailrace.shard.leaves import load, load_source
from tests.broker.udp.test_table_cy import MOST, NOW_S, Table, frame_of, name_of

MODULE = "tailrace.broker.udp.runs_cy"


@pytest.fixture(params=["loaded", "interpreted"])
def leaf(request: pytest.FixtureRequest) -> ModuleType:
    return load(MODULE) if request.param == "loaded" else load_source(MODULE)


class Run:
    """Datagrams as the door has them, and a table that takes them."""

    SLOT = 2_048

    def __init__(self, leaf: ModuleType, most: int = MOST) -> None:
        self.leaf = leaf
        self.table = Table(load("tailrace.broker.udp.table_cy"), most)
        self.entries, self.texts = bytearray(64 * leaf.ENTRY_BYTES), bytearray(64 * 1_100)

    def take(self, *sent: tuple[bytes, bytes], rules: bytes = b"", is_trusted: bool = True) -> tuple[int, list[Any]]:
        """Returns the number of datagrams that were done, and (number, topic) of the new topics."""
        slots, starts, names, lengths = bytearray(64 * self.SLOT), bytearray(), bytearray(), bytearray()
        for number, (name, data) in enumerate(sent):
            slots[number * self.SLOT : number * self.SLOT + len(data)] = data
            starts += (number * self.SLOT).to_bytes(4, "little")
            names += name
            lengths += len(data).to_bytes(4, "little")
        numbers = {b"udp": 4, b"own": 5, b"unwatched": -1}
        at, new = self.leaf.subscribe_run(
            *(self.table.buffer, (slots, starts, names, lengths), 0, len(sent), rules, b"udp", numbers),
            *(is_trusted, NOW_S, b" 120\n", (self.entries, self.texts)),
        )
        self.answers = [self.answer(number) for number in range(at)]
        return at, new

    def answer(self, number: int) -> tuple[bytes, bytes]:
        entry = self.entries[40 * number : 40 * number + 40]
        place, length = int.from_bytes(entry[32:36], "little"), int.from_bytes(entry[36:], "little")
        return bytes(entry[:28]), bytes(self.texts[place : place + length])


def test_a_run_of_subscriptions_is_answered_and_ends_with_the_first_other_datagram(leaf: ModuleType) -> None:
    run = Run(leaf)
    one, other = name_of(1), name_of(2)
    at, new = run.take(
        (one, b"SUB a/b\n"),
        (other, b"SUB \t a/b"),
        (one, b"SUB a/b\r\nc00c1e"),
        (other, b"SUB c d"),
        (one, b"UNSUB a/b"),
    )
    assert (at, new) == (4, [(4, b"a/b"), (4, b"c")])
    assert run.answers == [
        (one, b"OK SUB a/b 120\n"),
        (other, b"OK SUB a/b 120\n"),
        (one, b"OK SUB a/b 120\n"),
        (other, b"OK SUB c 120\n"),
    ]
    table, most = run.table, 10
    assert [table.leaf.count_of(table.buffer, each) for each in table.counts] == [2, 2, 3]
    entries, work, texts = bytearray(most * 40), bytearray(most * 16), bytearray(1_000)
    found = table.leaf.collect(
        table.buffer, frame_of(b"a/b", b"x"), 0, b"udp", None, lambda _: (), 0, entries, work, texts
    )
    assert found[2] == 2


@pytest.mark.parametrize(
    "data",
    [
        *(b"SUB", b"SUB ", b"SUB \n", b"SUBx a", b"SUB a+\n", b"SUB #", b"SUB $a", b"SUB a\0", b"SUB \xc3\xbc"),
        *(b"PUB a\n", b"SUB " + b"a" * 1_025, b"SUB " + b"/" * 128, b"S", b""),
    ],
)
def test_a_run_leaves_what_is_not_plain(leaf: ModuleType, data: bytes) -> None:
    run = Run(leaf)
    assert run.take((name_of(1), data), (name_of(1), b"SUB a")) == (0, []) and run.answers == []


def test_a_run_does_the_longest_topics(leaf: ModuleType) -> None:
    topic = b"a" * 1_024
    assert Run(leaf, 256).take((name_of(1), b"SUB " + topic), (name_of(1), b"SUB " + b"/" * 127))[0] == 2


def test_a_run_does_only_addresses_that_are_known_unless_all_are_trusted(leaf: ModuleType) -> None:
    run = Run(leaf)
    assert run.take((name_of(1), b"SUB a"), is_trusted=False) == (0, [])
    run.table.add(name_of(1), b"b")
    assert run.take((name_of(1), b"SUB a"), (name_of(2), b"SUB a"), is_trusted=False) == (1, [(4, b"a")])


def test_a_run_goes_by_the_rules_and_ends_at_streams_without_a_number(leaf: ModuleType) -> None:
    rules = pack_table([(b"here/#", [b"own"]), (b"there/#", [b"unwatched"])])
    run = Run(leaf)
    one = name_of(1)
    assert run.take((one, b"SUB here/1"), (one, b"SUB else"), (one, b"SUB there/1"), rules=rules) == (
        2,
        [(5, b"here/1"), (4, b"else")],
    )


def test_a_run_ends_when_the_table_is_full(leaf: ModuleType) -> None:
    run = Run(leaf, 16)
    sent = [(name_of(number), b"SUB %d" % number) for number in range(20)]
    at, new = run.take(*sent)
    assert at == len(new) == 16
    assert run.take(*sent)[0] == 16 and len(run.answers) == 16  # renewed
