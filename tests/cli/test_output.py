"""What `tail` prints, byte for byte."""

from __future__ import annotations

import json
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import Message
from tailrace.cli.ending import CommandError
from tailrace.cli.output import render_json, render_plain, write_all
from tailrace.core.headers import pack_headers


def messages_of(*payloads: bytes, stream: str = "s") -> list[Message]:
    return [Message(stream, seq, seq, payload) for seq, payload in enumerate(payloads)]


def test_plain_is_payload_and_line_feed() -> None:
    assert render_plain(messages_of(b"a\r", b"", b"\xff\n")) == b"a\r\n\n\xff\n\n"
    assert render_plain([]) == b""


def test_json_fields_and_their_order() -> None:
    text = render_json([Message("é", 7, 1_717_156_800_250_001, b'say "hi"\n')]).decode()
    assert text == (
        '{"stream": "é", "seq": 7, "timestamp_us": 1717156800250001, '
        '"time": "2024-05-31T12:00:00.250001Z", "payload": "say \\"hi\\"\\n"}\n'
    )


def test_each_message_has_its_own_time() -> None:
    times = [1_999_999, 2_000_000, 2_000_001, 1_500_000, 10**18]
    lines = render_json([Message("s", seq, time, b"") for seq, time in enumerate(times)]).splitlines()
    assert [json.loads(line)["time"] for line in lines] == [
        "1970-01-01T00:00:01.999999Z",
        "1970-01-01T00:00:02.000000Z",
        "1970-01-01T00:00:02.000001Z",
        "1970-01-01T00:00:01.500000Z",
        "",
    ]


def test_headers_when_they_are_wanted() -> None:
    message = Message("s", 0, 0, b"payload", pack_headers({"k": 'v"', "raw": b"\xff"}))
    shown = '{"k": "v\\"", "raw": "/w=="}'
    assert render_plain([message], with_headers=True).decode() == f"{shown}\tpayload\n"
    assert json.loads(render_json([message], with_headers=True))["headers"] == {"k": 'v"', "raw": "/w=="}
    assert render_plain([message]) == b"payload\n"
    assert "headers" not in json.loads(render_json([message]))


def test_what_is_not_utf8_is_base64() -> None:
    shown = json.loads(render_json(messages_of(b"\xff\x00")))
    assert shown["payload_base64"] == "/wA="
    assert "payload" not in shown


@given(st.lists(st.binary()), st.text(min_size=1))
def test_json_is_one_object_a_line(payloads: list[bytes], stream: str) -> None:
    stream = stream.encode("utf-8", "replace").decode()
    lines = render_json(messages_of(*payloads, stream=stream)).split(b"\n")
    assert lines.pop() == b""
    assert [json.loads(line)["seq"] for line in lines] == list(range(len(payloads)))
    assert all(json.loads(line)["stream"] == stream for line in lines)


@pytest.mark.parametrize("blocking", [True, False])
def test_every_byte_is_written_whatever_the_pipe_takes(blocking: bool) -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, blocking)
    data = bytes(range(256)) * 4_096
    received = bytearray()

    def drain() -> None:
        while len(received) < len(data):
            received.extend(os.read(read_fd, 10_000))

    reader = threading.Thread(target=drain)
    reader.start()
    write_all(write_fd, data)
    reader.join(60)
    os.close(read_fd)
    assert received == data
    with pytest.raises(BrokenPipeError):
        write_all(write_fd, b"x")
    os.close(write_fd)


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full, pytest.raises(CommandError, match="cannot write the output: No space left"):
        write_all(full.fileno(), b"x")
