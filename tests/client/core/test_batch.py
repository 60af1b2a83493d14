"""Messages gathered into publishes."""

from __future__ import annotations

import random

import pytest

from tailrace.core.batch import Batches, BatchLimits, BatchResult
from tailrace.core.message import Receipt
from tailrace.core.publications import PendingPublication
from tailrace.errors import InvalidArgument, StreamDisabled
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import pack_frame


def batch_of(max_messages: int = 1_000, max_bytes: int = 1 << 20, linger_s: float = 1.0) -> Batches:
    return Batches("s", BatchLimits(max_messages, max_bytes, linger_s), Ack.APPENDED, 30.0, True)


def take(batch: Batches) -> PendingPublication:
    """Takes the open batch, when all earlier ones were handed over."""
    before = batch.unsent(lambda _publication: False)
    batch.take()
    return batch.unsent(lambda _publication: False)[len(before)]


def add_all(batch: Batches, payloads: list[bytes]) -> list[PendingPublication]:
    taken = []
    while payloads:
        payloads = payloads[batch.add(payloads, b"", lambda: 0.0) :]
        if batch.is_full:
            taken.append(take(batch))
    return [*taken, take(batch)] if batch.count else taken


def settle(publication: PendingPublication, error: Exception | None = None) -> None:
    publication.done = True
    if error is None:
        publication.receipts = (Receipt("s", 100, publication.count, 0),)
    else:
        publication.error = error  # type: ignore[assignment]


@pytest.mark.parametrize("max_messages", [1, 3, 1_000])
@pytest.mark.parametrize("max_bytes", [1, 100, 1 << 20])
def test_every_message_is_in_one_batch_in_order(max_messages: int, max_bytes: int) -> None:
    payloads = [random.Random(number).randbytes(number % 50) for number in range(200)]
    taken = add_all(batch_of(max_messages, max_bytes), payloads)
    assert b"".join(bytes(each.frames) for each in taken) == b"".join(map(pack_frame, payloads))
    assert all(each.count <= max_messages for each in taken)
    assert all(len(each.frames) < max_bytes + 32 + 50 for each in taken)
    assert sum(each.count for each in taken) == 200


def test_metadata_is_that_of_each_message() -> None:
    batch = batch_of()
    for payloads, metadata in (([b"a", b"b"], b""), ([b"c"], b"\x80"), ([b"d"], b"\x80"), ([b"e"], b"")):
        batch.add(payloads, metadata, lambda: 0.0)
    made = [
        pack_frame(each, metadata=metadata)
        for each, metadata in zip((b"a", b"b", b"c", b"d", b"e"), (b"", b"", b"\x80", b"\x80", b""), strict=True)
    ]
    assert bytes(take(batch).frames) == b"".join(made)


def test_it_lingers_from_its_first_message_on() -> None:
    batch = batch_of(linger_s=5.0)
    batch.add([b"a"], b"", lambda: 10.0)
    batch.add([b"b"], b"", lambda: 12.0)
    assert batch.due_s == 15.0
    batch.take()
    assert batch.due_s == float("inf")


def test_results_come_in_order() -> None:
    batch = batch_of(max_messages=2)
    one, two, three = add_all(batch, [b"a", b"b", b"c", b"d", b"e"])
    refusal = StreamDisabled("not here")
    settle(two, refusal)
    assert (batch.is_settled, batch.oldest_is_done, batch.take_results()) == (False, False, [])
    settle(one)
    first = BatchResult(0, 2, Receipt("s", 100, 2, 0), None)
    assert batch.take_results() == [first, BatchResult(2, 2, None, refusal)]
    settle(three)
    assert batch.is_settled
    assert batch.take_results() == [BatchResult(4, 1, Receipt("s", 100, 1, 0), None)]
    assert (batch.added, batch.acknowledged, batch.failed) == (5, 3, 2)


@pytest.mark.parametrize("limits", [(0, 1, 1.0), (1, 0, 1.0), (1, 1, -1.0), (1, 1, float("nan"))])
def test_what_is_no_limit(limits: tuple[int, int, float]) -> None:
    with pytest.raises(InvalidArgument):
        BatchLimits(*limits)
