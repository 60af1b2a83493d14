"""Messages that nobody waits for are held, to be sent together."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tailrace.core.arguments import make_publication
from tailrace.core.headers import pack_headers
from tailrace.core.held import BUFFER_BYTES, MESSAGE_BYTES_MAX, HoldBuffer
from tailrace.core.message import Receipt
from tailrace.core.places import NEW
from tailrace.core.publications import FRAME_LENGTH
from tailrace.errors import BrokerError, BrokerFault, ClientClosed, ConnectionLost, OperationTimeout, TailraceError
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import HEADER_BYTES
from tests.client.model import ModelConnection
from tests.client.pair import Pair


def test_one_request_a_stream() -> None:
    held = HoldBuffer()
    held.limit(1 << 20, 1 << 20)
    headers = pack_headers({"k": "v"})
    assert held.add("s", b"a", b"") == Receipt("s", -1, 1, 0)
    held.add("t", b"x", b"")
    held.add("s", b"bb", headers)
    held.add("s", b"c", b"")
    assert held.nbytes == 4 * HEADER_BYTES + 5 + len(headers)
    first, second = held.take(7.0, 3.0)
    assert (first.streams, first.count, first.ack, first.timeout_s) == (("s",), 3, Ack.NONE, 7.0)
    assert len(first.frames) + len(second.frames) == 4 * HEADER_BYTES + 5 + len(headers)
    assert (held.nbytes, held.sent_s, held.due_s, held.take(7.0, 3.0)) == (0, 3.0, math.inf, [])


def test_it_is_full_before_a_request_is_too_large() -> None:
    held = HoldBuffer()
    assert held.message_bytes_max == -1, "nothing is held before the broker has given its limits"
    held.limit(1 << 20, 100)
    assert (held.full_bytes, held.message_bytes_max) == (BUFFER_BYTES, 100)
    held.limit(20_000, 1 << 20)
    assert held.full_bytes + HEADER_BYTES + MESSAGE_BYTES_MAX <= 20_000
    held.limit(5_000, 1 << 20)
    assert held.message_bytes_max == -1, "the broker takes no request that is worth it"


def test_what_follows_does_not_overtake_it() -> None:
    pair = Pair().ready()
    for payload in (b"a", b"b"):
        pair.session.held.add("s", payload, b"")
    assert (pair.session.is_settled, pair.session.is_flushed) == (False, False)
    pair.publish(b"c")
    pair.session.held.add("s", b"d", b"")
    subscription = pair.subscribe(NEW)
    pair.run()
    assert pair.session.is_flushed
    assert pair.model.stream(b"s").payloads() == [b"a", b"b", b"c", b"d"]
    assert len(pair.model.said(m.Publish)) == 3
    assert subscription.start_seq == 4


def test_errors_of_what_nobody_waits_for_are_counted() -> None:
    pair = Pair().ready()
    pair.session.held.add("s", b"a", b"")
    pair.session.abort()
    pair.session.flush_held(pair.now_s)
    assert pair.session.publications.refused == 1
    assert "closed" in str(pair.session.publications.last_refusal)


def test_a_lost_connection_keeps_what_was_not_sent() -> None:
    pair = Pair().ready()
    pair.session.held.add("s", b"a", b"")
    pair.session.lost("cut", pair.now_s)
    pair.session.publish(make_publication(("s",), [b"b"], b"", Ack.APPENDED, 0, 30.0, True, 1 << 20), pair.now_s)
    pair.wait(10.0)
    assert pair.model.stream(b"s").payloads() == [b"a", b"b"]


def join(pair: Pair, *payloads: bytes) -> list[object]:
    """Published one by one within a turn; the waiter of each."""
    waiters = [object() for _ in payloads]
    for payload, waiter in zip(payloads, waiters, strict=True):
        pair.session.held.add("s", payload, b"", Ack.APPENDED, waiter)
    pair.session.flush_held(pair.now_s)
    return waiters


def outcomes(pair: Pair) -> dict[object, Receipt | TailraceError]:
    """By their waiters; each has one."""
    found: dict[object, Receipt | TailraceError] = {}
    for publication in pair.session.publications.settled:
        for at, waiter in enumerate(publication.waiters or ()):
            assert waiter not in found
            found[waiter] = publication.outcomes()[at]
    return found


def receipts(pair: Pair, waiters: list[object]) -> list[tuple[str, int, int]]:
    return [tuple(outcomes(pair)[waiter])[:3] for waiter in waiters]  # type: ignore[arg-type, misc]


def answer(pair: Pair, respond: Callable[[m.Publish], m.AnyMessage | None]) -> None:
    """Have each publish answered so."""

    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Publish):
            answered = respond(message)
            if answered is not None:
                connection.say(answered)
        return isinstance(message, m.Publish)

    pair.model.on_message = on_message


def test_acks_take_turns_in_their_order() -> None:
    held = HoldBuffer()
    held.limit(1 << 20, 1 << 20)
    for payload, ack in ((b"a", Ack.NONE), (b"b", Ack.APPENDED), (b"c", Ack.APPENDED), (b"d", Ack.NONE)):
        held.add("s", payload, b"", ack, None if ack is Ack.NONE else payload)
    assert held.waiting == 2
    assert [(each.ack, each.count, each.waiters) for each in held.take(7.0, 3.0)] == [
        (Ack.NONE, 1, None),
        (Ack.APPENDED, 2, [b"b", b"c"]),
        (Ack.NONE, 1, None),
    ]
    assert held.waiting == 0


def test_each_message_of_a_run_has_its_own_receipt() -> None:
    pair = Pair().ready()
    pair.model.publish(b"s", b"another's")
    waiters = join(pair, b"a", b"b", b"c")
    assert pair.session.publications.count == 3
    pair.run()
    assert len(pair.model.said(m.Publish)) == 1
    found = outcomes(pair)
    assert found.keys() == set(waiters)
    assert receipts(pair, waiters) == [("s", 1 + at, 1) for at in range(3)]
    assert pair.session.publications.count == 0


def test_a_run_without_an_answer_goes_again_message_by_message() -> None:
    """Part of it is lost meanwhile, and another's message is in that place: no receipt counts on."""
    pair = Pair().ready()
    waiters = join(pair, b"a", b"b", b"c")
    later = pair.publish(b"d")
    answer(pair, lambda message: lose(pair, message))
    pair.run()
    pair.model.on_message = lambda _connection, _message: False
    pair.wait(5.0)
    found = outcomes(pair)
    stream = pair.model.stream(b"s")
    assert sorted(stream.payloads()) == [b"a", b"another's", b"b", b"c", b"d"]
    for waiter, payload in zip(waiters, (b"a", b"b", b"c"), strict=True):
        outcome = found[waiter]
        assert isinstance(outcome, Receipt)
        assert stream.payloads()[outcome.seq] == payload
    assert stream.payloads()[later.outcome()[0].seq] == b"d"
    assert (pair.session.publications.count, pair.session.publications.nbytes, len(pair.session.publications)) == (
        0,
        0,
        0,
    )


def lose(pair: Pair, message: m.Publish) -> m.AnyMessage | None:
    """The first message of the first publish is logged, then another's; the connection breaks."""
    stream, frames = pair.model.stream(b"s"), bytes(message.frames)
    if not stream.frames:
        length = FRAME_LENGTH.unpack_from(frames)[0]
        stream.take(frames[:length], 1)
        pair.model.publish(b"s", b"another's")
        pair.peer.closed = True
    return None


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_run_that_is_refused_for_the_moment_keeps_its_order(idempotent: bool) -> None:
    pair = Pair(idempotent=idempotent).ready()
    waiters = join(pair, b"a", b"b", b"c")
    refusals = iter(["unavailable", "unavailable"])

    def refuse(connection: ModelConnection, message: m.AnyMessage) -> bool:
        code = next(refusals, None) if isinstance(message, m.Publish) else None
        if code is not None:
            connection.fail(code, op=m.Op.PUBLISH, id=message.request)  # type: ignore[union-attr]
        return code is not None

    pair.model.on_message = refuse
    pair.run()
    later = pair.publish(b"d")
    pair.wait(10.0)
    assert pair.model.stream(b"s").payloads() == [b"a", b"b", b"c", b"d"]
    assert receipts(pair, waiters) == [("s", at, 1) for at in range(3)]
    assert later.outcome()[0].seq == 3


def test_an_error_about_a_run_is_each_ones_own() -> None:
    pair = Pair().ready()
    waiters = join(pair, b"a", b"b")
    answer(pair, lambda message: m.Failed("full", "because of the test", op=m.Op.PUBLISH, id=message.request))
    pair.run()
    first, second = (outcomes(pair)[waiter] for waiter in waiters)
    assert isinstance(first, BrokerError)
    assert isinstance(second, BrokerError)
    assert (
        (first.code, first.stream, str(first))
        == (second.code, second.stream, str(second))
        == (
            "full",
            "s",
            "full: s: because of the test",
        )
    )
    assert first is not second


def test_a_run_ends_in_time_and_with_the_client() -> None:
    pair = Pair().ready()
    answer(pair, lambda _message: None)
    late = join(pair, b"a", b"b")
    pair.wait(15.0)
    closed = join(pair, b"c", b"d")
    pair.wait(20.0)
    found = outcomes(pair)
    assert all(isinstance(found[waiter], OperationTimeout) for waiter in late)
    pair.session.held.add("s", b"e", b"", Ack.APPENDED, b"e")
    pair.session.abort()
    pair.session.flush_held(pair.now_s)
    assert all(isinstance(outcomes(pair)[waiter], ClientClosed) for waiter in (*closed, b"e"))


def test_an_answer_about_another_number_of_messages() -> None:
    pair = Pair().ready()
    waiters = join(pair, b"a", b"b")
    answer(pair, lambda message: m.Published(message.request, ((7, 1, 0),)))
    pair.run()
    assert all(isinstance(outcomes(pair)[waiter], BrokerFault) for waiter in waiters)


def test_an_interrupted_step_keeps_runs_and_their_order() -> None:
    pair = Pair().ready()
    waiters = join(pair, b"a", b"b")
    publications = pair.session.publications
    publications.connection_lost(ConnectionLost("in the middle"))
    join(pair, b"c")
    pair.session.recover(pair.now_s)
    assert [each.number for each in publications.queue] == sorted(each.number for each in publications.queue)
    pair.wait(10.0)
    assert pair.model.stream(b"s").payloads() == [b"a", b"b", b"c"]
    assert receipts(pair, waiters) == [("s", at, 1) for at in range(2)]
