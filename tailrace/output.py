"""Messages as `tailrace tail` prints them: payload and line feed, or one JSON object a line."""

from __future__ import annotations

import base64
import os
import select
from json.encoder import encode_basestring

from tailrace.line_client import Message
from tailrace.start import to_iso


def render_plain(messages: list[Message]) -> bytes:
    """The payloads byte for byte, a line feed after each."""
    lines = [message[2] for message in messages]
    lines.append(b"")
    return b"\n".join(lines)


def render_json(messages: list[Message], stream: str) -> bytes:
    """One object a line: stream, seq, timestamp_us, time, and payload (text) or payload_base64 (not UTF-8)."""
    head = f'{{"stream": {encode_basestring(stream)}, "seq": '
    lines = []
    second, second_text = -1, ""
    for seq, timestamp_us, payload in messages:
        if timestamp_us // 1_000_000 != second:  # most messages share theirs with the one before
            second = timestamp_us // 1_000_000
            second_text = to_iso(second * 1_000_000).partition(".")[0]
        time = f"{second_text}.{timestamp_us % 1_000_000:06}Z" if second_text else ""
        lines.append(f'{head}{seq}, "timestamp_us": {timestamp_us}, "time": "{time}", {_payload(payload)}}}\n')
    return "".join(lines).encode()


def _payload(payload: bytes) -> str:
    try:
        return f'"payload": {encode_basestring(payload.decode())}'
    except UnicodeDecodeError:
        return f'"payload_base64": "{base64.b64encode(payload).decode()}"'


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, waiting where the descriptor does not take it now. Raises BrokenPipeError, OSError."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            poller = select.poll()
            poller.register(fd, select.POLLOUT)
            poller.poll()
