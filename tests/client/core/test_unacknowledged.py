"""Messages that nobody waits for are held, to be sent together."""

from __future__ import annotations

import math

from tailrace.core.arguments import make_publication
from tailrace.core.headers import pack_headers
from tailrace.core.message import Receipt
from tailrace.core.places import NEW
from tailrace.core.unacknowledged import BUFFER_BYTES, MESSAGE_BYTES_MAX, Unacknowledged
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import HEADER_BYTES
from tests.client.pair import Pair


def test_one_request_a_stream() -> None:
    held = Unacknowledged()
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
    held = Unacknowledged()
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
        pair.session.unacknowledged.add("s", payload, b"")
    assert (pair.session.is_settled, pair.session.is_flushed) == (False, False)
    pair.publish(b"c")
    pair.session.unacknowledged.add("s", b"d", b"")
    subscription = pair.subscribe(NEW)
    pair.run()
    assert pair.session.is_flushed
    assert pair.model.stream(b"s").payloads() == [b"a", b"b", b"c", b"d"]
    assert len(pair.model.said(m.Publish)) == 3
    assert subscription.start_seq == 4


def test_errors_of_what_nobody_waits_for_are_counted() -> None:
    pair = Pair().ready()
    pair.session.unacknowledged.add("s", b"a", b"")
    pair.session.abort()
    pair.session.flush_unacknowledged(pair.now_s)
    assert pair.session.publications.refused == 1
    assert "closed" in str(pair.session.publications.last_refusal)


def test_a_lost_connection_keeps_what_was_not_sent() -> None:
    pair = Pair().ready()
    pair.session.unacknowledged.add("s", b"a", b"")
    pair.session.lost("cut", pair.now_s)
    pair.session.publish(make_publication(("s",), [b"b"], b"", Ack.APPENDED, 0, 30.0, True, 1 << 20), pair.now_s)
    pair.wait(10.0)
    assert pair.model.stream(b"s").payloads() == [b"a", b"b"]
