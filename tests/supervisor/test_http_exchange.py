"""The requests that are served, and those that are not."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.supervisor.http_exchange import HEAD_MAX_BYTES, Exchange, HttpError, HttpPage, text_page

WHOLE = b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"
LOCAL = {"localhost", "here"}
PAGE = HttpPage(HTTPStatus.OK, b"body\n", "text/x")


def test_a_head_byte_by_byte() -> None:
    exchange = Exchange()
    assert [exchange.receive(bytes([byte])) for byte in WHOLE] == [None] * (len(WHOLE) - 1) + ["/metrics"]
    assert exchange.answer(PAGE).endswith(b"\r\n\r\nbody\n")
    assert Exchange().receive(WHOLE + b"more") == "/metrics"


@pytest.mark.parametrize(
    ("head", "path"),
    [
        (b"HEAD / HTTP/1.0\r\n\r\n", "/"),
        (b"GET /readyz HTTP/1.0\n\n", "/readyz"),
        (b"GET /%2e%2e/x HTTP/1.1\r\nHost:\r\n\r\n", "/%2e%2e/x"),
        (b"GET /m HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", "/m"),
    ],
)
def test_heads_that_are_served(head: bytes, path: str) -> None:
    assert Exchange().receive(head) == path


def refused(head: bytes, names: set[str] | None = None) -> HTTPStatus:
    exchange = Exchange(names)
    with pytest.raises(HttpError) as caught:
        exchange.receive(head)
    answer = exchange.answer(text_page(caught.value.status, str(caught.value)))
    assert answer.startswith(b"HTTP/1.1 %d " % caught.value.status)
    return caught.value.status


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"GET /metrics\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /a b HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", HTTPStatus.NOT_IMPLEMENTED),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", HTTPStatus.BAD_REQUEST),
        (b"G" * (HEAD_MAX_BYTES + 1), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 2_000, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
def test_heads_that_are_refused(head: bytes, status: HTTPStatus) -> None:
    assert refused(head) is status


@given(st.lists(st.binary(max_size=200) | st.sampled_from([WHOLE, b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x"])))
def test_any_bytes_are_a_request_or_refused_or_incomplete(pieces: list[bytes]) -> None:
    exchange = Exchange(LOCAL)
    for piece in filter(None, pieces):
        try:
            path = exchange.receive(piece)
        except HttpError as bad:
            assert bad.status in HTTPStatus and exchange.answer(text_page(bad.status, str(bad)))
            return
        if path is not None:
            assert exchange.answer(PAGE)
            return


def head_for(host: str) -> bytes:
    return f"GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:5051", "127.0.0.1", "127.0.0.1:5051", "[::1]:5051", "here:1", "10.1.2.3"]
)
def test_hosts_that_no_web_page_can_take_for_its_own(host: str) -> None:
    assert Exchange(LOCAL).receive(head_for(host)) == "/x"


@pytest.mark.parametrize(
    "host",
    ["rebound.example", "localhost.example:5051", "127.0.0.1.example", "[::1", "::1", "a:b:c", "here:x"],
)
def test_hosts_that_are_refused_if_names_are_given(host: str) -> None:
    assert refused(head_for(host), LOCAL) is HTTPStatus.MISDIRECTED_REQUEST
    assert Exchange().receive(head_for(host)) == "/x"


def test_an_answer_and_its_head_alone() -> None:
    answers = []
    for method in ("GET", "HEAD"):
        exchange = Exchange()
        assert exchange.receive(f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode()) == "/"
        answers.append(exchange.answer(PAGE))
    assert answers[0] == answers[1] + b"body\n"
    assert answers[1].startswith(b"HTTP/1.1 200 OK\r\n") and answers[1].endswith(b"\r\n\r\n")
    for header in (b"Content-Type: text/x\r\n", b"Content-Length: 5\r\n", b"Connection: close\r\n"):
        assert header in answers[1]


def test_a_method_that_is_not_allowed_gets_those_that_are() -> None:
    exchange = Exchange()
    with pytest.raises(HttpError):
        exchange.receive(b"PUT / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"Allow: GET, HEAD\r\n" in exchange.answer(text_page(HTTPStatus.METHOD_NOT_ALLOWED, "no"))
