"""The HTTP request that asks for WebSocket, and its answer, by h11. No socket, no clock. See RFC 6455, section 4.

A web page may ask for a WebSocket of any address, also of its visitor's machine, without that machine's consent. But
its browser names in Origin the site of the page. So an Origin is refused unless it is one of those that are allowed.
Programs that are not browsers send none, or, as paho does, the broker's own address. That one is taken if it is an IP
address or localhost: the owner of a name could let it point to this machine after his page was loaded.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import re
from collections.abc import Collection
from http import HTTPStatus
from typing import Final, NamedTuple

import h11

from tailrace.protocol.websocket import ANY_ORIGIN

HEAD_MAX_BYTES: Final = 8 << 10
"""Of a request, from its first byte to the empty line."""
SUBPROTOCOL: Final = b"mqtt"
"""Both sides must name it: MQTT-6.0.0-3, MQTT-6.0.0-4."""

_VERSION = b"13"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES = 16
_REQUEST_LINE = re.compile(rb"GET [!-~]+ HTTP/1\.[01]\r?")

Headers = list[tuple[bytes, bytes]]


class Upgraded(NamedTuple):
    """answer: to be sent; rest: bytes of frames that came behind the request."""

    answer: bytes
    rest: bytes


class NotUpgraded(NamedTuple):
    """answer: to be sent before the connection ends; b"" for a request that does not concern WebSocket."""

    answer: bytes


class _Refusal(Exception):
    def __init__(self, status: HTTPStatus, text: str, headers: Headers | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or []


class UpgradeReader:
    """Feed it until it returns an outcome.

    origins: such as "https://app.example", as browsers send them; ANY_ORIGIN allows all. denied: why this peer may not
    connect at all.
    """

    __slots__ = ("_connection", "_denied", "_line", "_origins")

    def __init__(self, origins: Collection[str], denied: str = "") -> None:
        self._connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX_BYTES)
        self._origins = origins
        self._denied = denied
        self._line: bytes | None = b""  # the first one, as far as it has come; None once it is seen to be a request

    def feed(self, data: bytes) -> Upgraded | NotUpgraded | None:
        """None while the head is incomplete."""
        if self._line is not None:
            line, ended, _rest = (self._line + data).partition(b"\n")
            if ended and not _REQUEST_LINE.fullmatch(line):  # perhaps nothing comes behind it
                return NotUpgraded(b"")
            self._line = None if ended else line
        self._connection.receive_data(data)
        try:
            event = self._connection.next_event()
        except h11.RemoteProtocolError:
            return NotUpgraded(b"")
        if event is h11.NEED_DATA:
            return None
        if not isinstance(event, h11.Request) or b"websocket" not in _tokens(event, b"upgrade"):
            return NotUpgraded(b"")
        try:
            return self._accept(event)
        except _Refusal as refusal:
            return NotUpgraded(self._refuse(refusal))

    def _accept(self, request: h11.Request) -> Upgraded:
        key = _checked_key(request)
        self._check_origin(request)
        if self._denied:
            raise _Refusal(HTTPStatus.FORBIDDEN, self._denied)
        digest = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
        headers = [
            (b"Upgrade", b"websocket"),
            (b"Connection", b"Upgrade"),
            (b"Sec-WebSocket-Accept", digest),
            (b"Sec-WebSocket-Protocol", SUBPROTOCOL),
        ]
        if not isinstance(self._connection.next_event(), h11.EndOfMessage):
            raise _Refusal(HTTPStatus.BAD_REQUEST, "a request for WebSocket has no body")
        response = h11.InformationalResponse(status_code=101, headers=headers, reason=b"Switching Protocols")
        return Upgraded(self._connection.send(response) or b"", self._connection.trailing_data[0])

    def _check_origin(self, request: h11.Request) -> None:
        if ANY_ORIGIN in self._origins:
            return
        (host,) = _values(request, b"host") or [b""]
        for origin in _values(request, b"origin"):
            if origin.decode("ascii", "replace") not in self._origins and not _is_own(origin, host):
                text = "pages of this origin may not connect: name it in [listen] websocket_origins"
                raise _Refusal(HTTPStatus.FORBIDDEN, text)

    def _refuse(self, refusal: _Refusal) -> bytes:
        body = f"{refusal}\n".encode()
        headers = [
            (b"Content-Type", b"text/plain; charset=utf-8"),
            (b"Content-Length", b"%d" % len(body)),
            (b"Connection", b"close"),
            *refusal.headers,
        ]
        response = h11.Response(status_code=refusal.status, headers=headers, reason=refusal.status.phrase.encode())
        connection = self._connection
        parts = connection.send(response), connection.send(h11.Data(data=body)), connection.send(h11.EndOfMessage())
        return b"".join(part or b"" for part in parts)


def _checked_key(request: h11.Request) -> bytes:
    """The key of a request, which is checked but for its origin. Raises _Refusal."""
    is_get = request.method == b"GET" and request.http_version == b"1.1"
    if not is_get or b"upgrade" not in _tokens(request, b"connection"):
        raise _Refusal(HTTPStatus.BAD_REQUEST, "WebSocket is asked for by GET of HTTP/1.1 with Connection: Upgrade")
    if _values(request, b"sec-websocket-version") != [_VERSION]:
        headers = [(b"Sec-WebSocket-Version", _VERSION)]
        raise _Refusal(HTTPStatus.UPGRADE_REQUIRED, "only Sec-WebSocket-Version: 13 is spoken here", headers)
    keys = _values(request, b"sec-websocket-key")
    if len(keys) != 1 or not _is_key(keys[0]):
        raise _Refusal(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key must have 16 bytes in base64")
    if SUBPROTOCOL not in _tokens(request, b"sec-websocket-protocol"):
        raise _Refusal(HTTPStatus.BAD_REQUEST, "only Sec-WebSocket-Protocol: mqtt is spoken here")
    return keys[0]


def _is_own(origin: bytes, host: bytes) -> bool:
    """Whether an origin is this port itself, under an address that no other machine can take."""
    name = host.rpartition(b":")[0] if host.rpartition(b":")[2].isdigit() else host
    try:
        ipaddress.ip_address(name.decode("ascii").strip("[]"))
    except ValueError:
        if name != b"localhost":
            return False
    return origin in (b"http://" + host, b"https://" + host)


def _is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except binascii.Error:
        return False


def _values(request: h11.Request, name: bytes) -> list[bytes]:
    return [value for found, value in request.headers if found == name]


def _tokens(request: h11.Request, name: bytes) -> set[bytes]:
    """The members of a header that is a list, in small letters."""
    return {token.strip().lower() for value in _values(request, name) for token in value.split(b",")}
