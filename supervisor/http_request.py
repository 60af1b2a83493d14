"""The little of HTTP/1.x that a probe and a scrape need: one request head in, one answer out. No socket, no clock.

Every connection carries one request and is closed after its answer. Bodies are not read: no page here takes one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

HEAD_MAX_BYTES = 8 << 10
TEXT = "text/plain; charset=utf-8"

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]*|\*) HTTP/1\.[0-9]")
_HEAD_END = re.compile(rb"\r?\n\r?\n")


class BadRequest(Exception):
    """An invalid or unsupported request; `status` is the answer's."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """The method (GET or HEAD) and the path, without its query."""

    method: str
    path: str


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: status, body and its type."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


def parse_request(received: bytes | bytearray) -> Request | None:
    """The request whose head `received` begins with, None while the head is not whole. Raises BadRequest."""
    end = _HEAD_END.search(received)
    if end is None:
        if len(received) > HEAD_MAX_BYTES:
            raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"request head over {HEAD_MAX_BYTES:,} bytes")
        return None
    line = _REQUEST_LINE.fullmatch(bytes(received[: end.start()]).split(b"\n")[0].rstrip(b"\r"))
    if line is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "not an HTTP/1.x request")
    method = line[1].decode()
    if method not in ("GET", "HEAD"):
        raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served")
    return Request(method, line[2].decode().split("?")[0])


def render_answer(page: Page, *, with_body: bool) -> bytes:
    """The bytes of an answer; HEAD gets the same head and no body."""
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n"
    )
    if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
        head += "Allow: GET, HEAD\r\n"
    return (head + "\r\n").encode() + (page.body if with_body else b"")


def text_page(status: HTTPStatus, text: str) -> Page:
    """A page of one or more lines of text."""
    return Page(status, (text.rstrip("\n") + "\n").encode())
