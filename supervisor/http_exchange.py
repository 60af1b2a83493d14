"""One request and its answer on a connection, by h11. No socket, no clock.

Every connection carries one request and is closed after its answer. Bodies are not read: no page here takes one.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus

import h11

HEAD_MAX_BYTES = 8 << 10
TEXT = "text/plain; charset=utf-8"

_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*))(?::[0-9]*)?")
_HOST_REFUSED = "this port serves requests for localhost and for addresses; a proxy in front of it must set Host so"


class HttpError(Exception):
    """An invalid or unsupported request; `status` is the answer's."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpPage:
    """An answer: status, body and its type."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


def text_page(status: HTTPStatus, text: str) -> HttpPage:
    """A page of one or more lines of text."""
    return HttpPage(status, (text.rstrip("\n") + "\n").encode())


class Exchange:
    """Call `receive` until it returns or raises, then `answer` once.

    names: the host names that a request may be for, besides addresses; None for any.
    """

    __slots__ = ("_connection", "_is_head", "_names")

    def __init__(self, names: Collection[str] | None = None) -> None:
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX_BYTES)
        self._names = names
        self._is_head = False

    def receive(self, received: bytes) -> str | None:
        """The path that is asked for, without its query; None while the head is incomplete. Raises HttpError."""
        self._connection.receive_data(received)
        try:
            event = self._connection.next_event()
        except h11.RemoteProtocolError as error:
            raise HttpError(HTTPStatus(error.error_status_hint), str(error)) from None
        return self._path(event) if isinstance(event, h11.Request) else None

    def _path(self, request: h11.Request) -> str:
        self._is_head = request.method == b"HEAD"
        if request.method not in (b"GET", b"HEAD"):
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served")
        if self._names is not None:
            for name, value in request.headers:
                if name == b"host" and not _names_us(value.decode("latin-1"), self._names):
                    raise HttpError(HTTPStatus.MISDIRECTED_REQUEST, _HOST_REFUSED)
        return request.target.decode("latin-1").partition("?")[0]

    def answer(self, page: HttpPage) -> bytes:
        """The bytes of the answer; HEAD gets the same head and no body."""
        headers = [
            ("Content-Type", page.content_type),
            ("Content-Length", str(len(page.body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ]
        if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        response = h11.Response(status_code=page.status, headers=headers, reason=page.status.phrase)
        head = self._connection.send(response) or b""
        return head if self._is_head else head + page.body


def _names_us(host: str, names: Collection[str]) -> bool:
    """Whether a Host header is an address or one of `names`. A web page that has its own name resolve to this machine
    sends that name.
    """
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = (match[1] or match[2]).lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in names
    return True
