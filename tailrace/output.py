"""Messages as `tailrace tail` prints them: payload and line feed, or one JSON object a line."""

from __future__ import annotations

import base64
import json
import os
import select

from tailrace.line_client import Message
from tailrace.start import to_iso


def render_plain(messages: list[Message]) -> bytes:
    """The payloads byte for byte, a line feed after each."""
    lines = [message[2] for message in messages]
    lines.append(b"")
    return b"\n".join(lines)


def render_json(messages: list[Message], stream: str) -> bytes:
    """One object a line: stream, seq, timestamp_us, time, and payload (text) or payload_base64 (not UTF-8)."""
    head = json.dumps({"stream": stream}, ensure_ascii=False)[:-1]
    lines = [
        f'{head}, "seq": {m.seq}, "timestamp_us": {m.timestamp_us}, "time": {_time(m)}, {_payload(m)}}}'
        for m in messages
    ]
    return "\n".join([*lines, ""]).encode()


def _time(message: Message) -> str:
    return f'"{to_iso(message.timestamp_us)}"'


def _payload(message: Message) -> str:
    try:
        return f'"payload": {json.dumps(message.payload.decode(), ensure_ascii=False)}'
    except UnicodeDecodeError:
        return f'"payload_base64": "{base64.b64encode(message.payload).decode()}"'


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
