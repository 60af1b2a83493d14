"""Other protocols in place of lines: what shows them, and the refusal in their own words. Pure.

A web page can make its visitor's browser send HTTP to any port, also of the visitor's own machine, and choose what
stands in the body. So nothing of an HTTP request may be taken for commands.
"""

from __future__ import annotations

import re
from typing import Final

from tailrace.protocol.answers import err
from tailrace.protocol.errors import Code

_REQUEST = re.compile(rb"[!#-'*+.^-`|~0-9A-Za-z-]++ ++[^ ]++ ++HTTP/([0-9])(?:\.[0-9])?")
_CUT_REQUEST = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|TRACE|PATCH|CONNECT)[ \t]+(?:/|https?://)")
_HOST = re.compile(rb"host[ \t]*:", re.IGNORECASE)
_PROXY_V1 = re.compile(rb"PROXY (?:TCP4|TCP6|UNKNOWN)\b")
_PROXY_V2_LINE = b"\0"  # the signature is two empty lines, this, and a line that reads QUIT

_TEXT = "this port speaks lines (send: help) and a binary protocol, not HTTP; /metrics is on port {port}\n"


def http_400(port: int) -> bytes:
    """The answer to a request of HTTP; `port` is that of the metrics."""
    text = _TEXT.format(port=port)
    return (
        "HTTP/1.1 400 Bad Request\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(text)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n"
        f"\r\n{text}"
    ).encode()


HTTP_400: Final = http_400(0)
"""Stands for the answer until a connection of a node puts in the port."""
_SETTINGS: Final = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_HTTP_1_1_REQUIRED: Final = 13
HTTP_2_GOAWAY: Final = _SETTINGS + bytes((0, 0, 8, 7, 0, 0, 0, 0, 0)) + bytes((0, 0, 0, 0, 0, 0, 0, _HTTP_1_1_REQUIRED))
"""The settings with which an HTTP/2 server begins, none of them, and GOAWAY."""


def foreign_refusal(line: bytes) -> bytes | None:
    """Returns the answer to a line that only another protocol sends, given without its line end; None for any other."""
    request = _REQUEST.fullmatch(line)
    if request is not None:
        return HTTP_2_GOAWAY if request[1] == b"2" else HTTP_400
    return HTTP_400 if _HOST.match(line) else None


def foreign_start(line: bytes) -> bytes | None:
    """As `foreign_refusal`, for the first line of a connection that is not empty."""
    refusal = foreign_refusal(line)
    if refusal is None and _CUT_REQUEST.match(line):
        return HTTP_400
    version = 1 if _PROXY_V1.match(line) else 2 if line == _PROXY_V2_LINE else 0
    if not version:
        return refusal
    text = f"this is the preamble of a proxy, PROXY protocol v{version}, not supported here: configure it to send none"
    return err(Code.PROTOCOL, text)
