"""The request heads that are served, and those that are not."""

from __future__ import annotations

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.supervisor.http_request import (
    HEAD_MAX_BYTES,
    BadRequest,
    Page,
    Request,
    parse_request,
    render_answer,
    text_page,
)

WHOLE = b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"


def test_a_head_byte_by_byte() -> None:
    for length in range(len(WHOLE)):
        assert parse_request(WHOLE[:length]) is None
    assert parse_request(bytearray(WHOLE + b"more")) == Request("GET", "/metrics")


@pytest.mark.parametrize(
    ("head", "request_"),
    [
        (b"HEAD / HTTP/1.0\r\n\r\n", Request("HEAD", "/")),
        (b"GET /readyz HTTP/1.1\n\n", Request("GET", "/readyz")),
        (b"GET /%2e%2e/x HTTP/1.1\r\n\r\n", Request("GET", "/%2e%2e/x")),
    ],
)
def test_heads_that_are_served(head: bytes, request_: Request) -> None:
    assert parse_request(head) == request_


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"OPTIONS * HTTP/1.1\r\n\r\n", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"GET /metrics\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET metrics HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /a b HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /metrics HTTP/2.0\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\x16\x03\x01\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"G" * (HEAD_MAX_BYTES + 1), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
def test_heads_that_are_refused(head: bytes, status: HTTPStatus) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_request(head)
    assert caught.value.status is status


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused_or_not_whole(received: bytes) -> None:
    try:
        parsed = parse_request(received)
    except BadRequest:
        return
    assert parsed is None or parsed.path.startswith("/")


def test_an_answer_and_its_head_alone() -> None:
    page = Page(HTTPStatus.OK, b"body\n", "text/x")
    whole, head = render_answer(page, with_body=True), render_answer(page, with_body=False)
    assert whole == head + b"body\n"
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 5\r\n")
    assert head.endswith(b"\r\n\r\n")
    assert b"Allow: GET, HEAD\r\n" in render_answer(text_page(HTTPStatus.METHOD_NOT_ALLOWED, "no"), with_body=True)
