"""What shows that a peer speaks another protocol, and the answer it gets."""

from __future__ import annotations

import http.client
import io

import pytest

from tailrace.protocol.foreign import HTTP_2_GOAWAY, HTTP_400, foreign_refusal, foreign_start, http_400

REQUESTS = [
    b"GET / HTTP/1.1",
    b"POST /a/b?c=d HTTP/1.0",
    b"OPTIONS * HTTP/1.1",
    b"CONNECT example.com:443 HTTP/1.1",
    b"GET http://127.0.0.1:5050/ HTTP/1.1",
    b"shutdown /x HTTP/1.1",
    b"Host: 127.0.0.1:5050",
    b"HOST:rebound.example",
    b"host : [::1]:5050",
]
COMMANDS = [b"", b"ping", b"get a b", b"GET a b", b"get /a b", b"pub a |GET / HTTP/1.1", b"pub host: |x", b"hosts: x"]


class Received(io.BytesIO):
    """Bytes that `http.client` takes for a socket."""

    def makefile(self, *_arguments: object) -> Received:
        return self


@pytest.mark.parametrize("line", REQUESTS)
def test_http_anywhere(line: bytes) -> None:
    assert foreign_refusal(line) == foreign_start(line) == HTTP_400


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_no_other_protocol(line: bytes) -> None:
    assert foreign_refusal(line) is None
    assert foreign_start(line) is None


@pytest.mark.parametrize("line", [b"GET /", b"GET /a b", b"POST https://example.com/"])
def test_a_request_that_was_cut_is_one_as_the_first_line_only(line: bytes) -> None:
    assert foreign_start(line) == HTTP_400
    assert foreign_refusal(line) is None


@pytest.mark.parametrize(
    ("line", "version"), [(b"PROXY TCP4 1.2.3.4 5.6.7.8 9 10", b"v1"), (b"PROXY UNKNOWN", b"v1"), (b"\0", b"v2")]
)
def test_proxies_are_refused_by_name(line: bytes, version: bytes) -> None:
    refusal = foreign_start(line)
    assert refusal is not None
    assert refusal.startswith(b"err protocol ")
    assert b"PROXY protocol " + version in refusal


def test_the_answer_is_a_whole_http_response() -> None:
    response = http.client.HTTPResponse(Received(http_400(5_051)))  # type: ignore[arg-type]
    response.begin()
    assert (response.status, response.getheader("Connection")) == (400, "close")
    text = response.read()
    assert b"not HTTP" in text and text.endswith(b"/metrics is on port 5051\n")


def test_http_2_is_told_to_use_another_version() -> None:
    assert foreign_start(b"PRI * HTTP/2.0") == HTTP_2_GOAWAY
    kinds, rest = [], HTTP_2_GOAWAY
    while rest:
        size = int.from_bytes(rest[:3])
        kinds.append((rest[3], rest[9 : 9 + size]))
        rest = rest[9 + size :]
    assert kinds == [(4, b""), (7, bytes(7) + b"\x0d")]
