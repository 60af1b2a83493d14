"""Making a subscription: the stream exists and its place is found, or the answer gives the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.delivery.subscribe import ABSENT, storage_refusals
from tailrace.broker.streams.owner import Refused
from tailrace.protocol.commands import Subscribe
from tailrace.protocol.errors import Code
from tailrace.protocol.places import From
from tailrace.shard.errors import StreamDamaged, StreamMissing
from tests.broker.world import World, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False) as node:
        yield node


def find(node: World, name: str, *, ask_end: bool, wait: bool = False) -> int | Refused:
    found: list[int | Refused] = []
    client = node.client_of(node.connect(0))
    wanted = Subscribe(name.encode(), From("seq", 0), wait=wait)
    node.workers[0].subscribing.find(client, wanted, found.append, ask_end=ask_end)
    node.settle()
    return found[0]


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("ask_end", [False, True])
def test_a_stream_that_does_not_exist_is_not_made(node: World, slot: int, ask_end: bool) -> None:
    name = node.name(slot)
    refused = find(node, name, ask_end=ask_end)
    assert isinstance(refused, Refused) and refused.code is Code.UNKNOWN
    assert find(node, name, ask_end=ask_end, wait=True) == ABSENT
    assert not any(worker.owner.catalog.names for worker in node.workers)
    assert not list(node.directory.path.glob("shard-*/*.content"))


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("place", ["0", "new", "#7"])
def test_who_waits_gets_a_stream_from_its_first_message_on(node: World, slot: int, place: str) -> None:
    name = node.name(slot)
    reader = node.connect(0)
    assert node.ask(reader, f"sub {name} {place} wait") == [f"ok sub {name} 0"]
    node.ask(node.connect(1), f"pub {name} |first", f"pub {name} |second")
    assert reader.messages() == [(name, 0, "first"), (name, 1, "second")]


@pytest.mark.parametrize("slot", [0, 1])
def test_the_owner_is_asked_for_the_end_only_where_it_matters(node: World, slot: int) -> None:
    name = node.name(slot)
    node.fill(name, [b"x"] * 3)
    assert find(node, name, ask_end=False) == 0
    assert find(node, name, ask_end=True) == 3


def stale(node: World, *, again: bool) -> str:
    """A stream of the second worker that was deleted, and may be made again, before the first one learns of it."""
    name = node.name(1)
    node.fill(name, [b"x"] * 3)
    assert node.workers[0].services.readers.get(name.encode()).next_seq() == 3
    owner = node.connect(1)
    owner.send(f"delete {name}")
    while not any(line.startswith("ok delete") for line in owner.lines):
        node.settle(1)
    owner.send(*([f"pub {name} |again"] if again else []))
    node.settle(1)
    assert not node.workers[0].services.readers.get(name.encode()).is_current
    return name


def test_a_stream_that_was_made_again_is_placed_once_its_deletion_is_known(node: World) -> None:
    name = stale(node, again=True)
    assert find(node, name, ask_end=False, wait=True) == 1
    client, wanted = node.client_of(node.connect(0)), Subscribe(name.encode(), From("seq", 0), wait=True)
    assert node.workers[0].subscribing.place(client, wanted, 1, 1).seq == 0


def test_who_waits_is_placed_before_the_deletion_is_known(node: World) -> None:
    """The owner says that the stream does not exist before it says that it was deleted."""
    name, worker = stale(node, again=False), node.workers[0]
    client, wanted = node.client_of(node.connect(0)), Subscribe(name.encode(), From("seq", 0), wait=True)
    cursor = worker.subscribing.place(client, wanted, 1, ABSENT)
    assert (cursor.seq, cursor.feed.end_seq, name.encode() in worker.services.readers) == (0, 0, False)


def test_damage_is_told(node: World) -> None:
    name = node.name(0)
    node.fill(name, [b"x"])
    path = next(node.directory.path.glob(f"shard-*/{name}.indx"))
    worker = node.workers[0]
    worker.owner.close_logs()
    with path.open("r+b") as file:
        file.write(b"????")
    client = node.client_of(node.connect(0))
    with pytest.raises(Refused) as refused:
        worker.subscribing.place(client, Subscribe(name.encode(), From("seq", 0)), 1, 0)
    assert refused.value.code is Code.DAMAGED
    with pytest.raises(Refused) as missing:
        worker.subscribing.place(client, Subscribe(b"none", From("seq", 0)), 1, 0)
    assert missing.value.code is Code.UNAVAILABLE
    assert not worker.fanout.feeds


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (StreamDamaged("s", Path("s.indx"), 7, "why"), Code.DAMAGED, "stream 's' is damaged: s.indx at byte 7: why"),
        (StreamMissing("s", Path("d")), Code.UNAVAILABLE, "cannot read s: no stream 's'"),
        (OSError(5, "bad disk"), Code.UNAVAILABLE, "cannot read s: bad disk"),
        (Refused(Code.FROM, "not yet"), Code.FROM, "not yet"),
    ],
)
def test_what_storage_raises_is_told_as_a_refusal(error: Exception, code: Code, text: str) -> None:
    with pytest.raises(Refused) as refused, storage_refusals(b"s"):
        raise error
    assert (refused.value.code, refused.value.text) == (code, text)


def test_a_cursor_stays_where_it_is_until_it_is_started(node: World) -> None:
    name = node.name(0)
    node.fill(name, [b"x"] * 3)
    worker = node.workers[0]
    client = node.client_of(node.connect(0))
    cursor = worker.subscribing.place(client, Subscribe(name.encode(), From("seq", 1)), name.encode(), 0)
    node.settle()
    assert (cursor.seq, cursor.key) == (1, name.encode()) and worker.siblings.subscribers(name.encode()) == 1
    worker.subscribing.start(client, cursor)
    node.settle()
    assert cursor.seq == 3
