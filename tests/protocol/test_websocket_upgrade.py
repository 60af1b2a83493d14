from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.protocol.websocket_upgrade import HEAD_MAX_BYTES, NotUpgraded, Upgraded, UpgradeReader
from tests.thorough import examples

REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: broker.example:5050\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqttv3.1, mqtt\r\n\r\n"
)
ACCEPTED = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # for this key, in RFC 6455, section 1.3


def with_header(line: bytes) -> bytes:
    return REQUEST.replace(b"Upgrade: websocket\r\n", b"Upgrade: websocket\r\n" + line + b"\r\n")


def test_a_request_whole_and_byte_by_byte() -> None:
    outcome = UpgradeReader(()).feed(REQUEST + b"\x82\x80frame")
    assert isinstance(outcome, Upgraded) and outcome.rest == b"\x82\x80frame"
    assert outcome.answer.startswith(b"HTTP/1.1 101 ") and b"Sec-WebSocket-Accept: " + ACCEPTED in outcome.answer
    assert b"Sec-WebSocket-Protocol: mqtt\r\n" in outcome.answer, "MQTT-6.0.0-4"
    reader = UpgradeReader(())
    for at in range(len(REQUEST) - 1):
        assert reader.feed(REQUEST[at : at + 1]) is None
    assert isinstance(reader.feed(REQUEST[-1:]), Upgraded)


REFUSED = {
    "another version": (REQUEST.replace(b": 13", b": 8"), b"426", b"Sec-WebSocket-Version: 13"),
    "no version": (REQUEST.replace(b"Sec-WebSocket-Version: 13\r\n", b""), b"426", b"Sec-WebSocket-Version: 13"),
    "no key": (REQUEST.replace(b"-Key: ", b"-Kex: "), b"400", b"Sec-WebSocket-Key"),
    "a short key": (REQUEST.replace(b"dGhlIHNhbXBsZSBub25jZQ==", b"dGhl"), b"400", b"Sec-WebSocket-Key"),
    "a key that is not base64": (REQUEST.replace(b"dGhl", b"\xff\xffh!"), b"400", b"Sec-WebSocket-Key"),
    "two keys": (with_header(b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), b"400", b"Sec-WebSocket-Key"),
    "no connection header": (REQUEST.replace(b"keep-alive, Upgrade", b"close"), b"400", b"Connection: Upgrade"),
    "no mqtt: MQTT-6.0.0-3": (REQUEST.replace(b", mqtt", b""), b"400", b"Sec-WebSocket-Protocol: mqtt"),
    "a body": (with_header(b"Content-Length: 3"), b"400", b"no body"),
    "a page": (with_header(b"Origin: https://evil.example"), b"403", b"websocket_origins"),
    "a page of no origin": (with_header(b"Origin: null"), b"403", b"websocket_origins"),
    "a page whose name was turned to this machine": (
        with_header(b"Origin: http://broker.example:5050"),
        b"403",
        b"websocket_origins",
    ),
    "bytes in an origin": (with_header(b"Origin: \xff\xfe"), b"403", b"websocket_origins"),
}


@pytest.mark.parametrize("request_bytes, status, text", REFUSED.values(), ids=REFUSED)
def test_what_is_refused(request_bytes: bytes, status: bytes, text: bytes) -> None:
    outcome = UpgradeReader(()).feed(request_bytes)
    assert isinstance(outcome, NotUpgraded)
    assert outcome.answer.startswith(b"HTTP/1.1 " + status + b" ") and text in outcome.answer
    assert b"Connection: close\r\n" in outcome.answer


@pytest.mark.parametrize("host", [b"127.0.0.1:5050", b"localhost:5050", b"[::1]:5050", b"192.0.2.7"])
def test_the_address_of_the_broker_as_origin(host: bytes) -> None:
    """As paho sends it."""
    request = REQUEST.replace(b"broker.example:5050", host)
    for scheme, allowed in ((b"http://", True), (b"https://", True), (b"ftp://", False), (b"http://x", False)):
        asked = request.replace(b"Upgrade: ", b"Origin: " + scheme + host + b"\r\nUpgrade: ")
        assert isinstance(UpgradeReader(()).feed(asked), Upgraded if allowed else NotUpgraded)


def test_origins_that_are_allowed() -> None:
    request = with_header(b"Origin: https://app.example")
    for origins, expected in (
        (("https://app.example",), Upgraded),
        (("https://app.example:8443", "http://app.example"), NotUpgraded),
        (("*",), Upgraded),
    ):
        assert isinstance(UpgradeReader(origins).feed(request), expected)


OTHERS = {
    "a page": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "no host": REQUEST.replace(b"Host", b"Hosts"),
    "two hosts": with_header(b"Host: b"),
    "an old version": REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Upgrade: websocket", b"Upgrade: h2c"),
    "not HTTP, known by its first line": b"GET /a\r\n",
    "HTTP/2": b"GET / HTTP/2.0\r\n",
    "a header without a colon": with_header(b"no colon"),
    "too long": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (HEAD_MAX_BYTES // 6),
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_what_does_not_concern_websocket(data: bytes) -> None:
    assert UpgradeReader(()).feed(data) == NotUpgraded(b"")


@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from(REQUEST.split(b" "))), max_size=12), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_garbage_raises_nothing(pieces: list[bytes], in_headers: bool) -> None:
    reader = UpgradeReader(())
    if in_headers:
        pieces = [with_header(b" ".join(pieces))]
    for piece in pieces:
        if reader.feed(piece) is not None:
            return
