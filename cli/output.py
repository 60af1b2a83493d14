"""Messages as `tailrace tail` prints them: payload and line feed, or one JSON object a line."""

from __future__ import annotations

import base64
import json
import os
import select
from collections.abc import Callable
from json.encoder import encode_basestring

from tailrace import Message
from tailrace.cli.ending import CommandError
from tailrace.cli.start import to_iso
from tailrace.protocol.topics import escaped
from tailrace.shard.topics import topic_in


def render_plain(
    messages: list[Message],
    *,
    with_headers: bool = False,
    with_topic: bool = False,
    name_of: Callable[[Message], bytes] | None = None,
) -> bytes:
    """The payloads byte for byte, a line feed after each; what `name_of` gives, the topic and the headers before them,
    with a tab behind each.
    """
    if with_headers:
        lines = [b"%s\t%s" % (_headers(message).encode(), message.payload) for message in messages]
    else:
        lines = [message[3] for message in messages]
    if with_topic:
        lines = [
            b"%s\t%s" % (escaped(message.topic.encode()), line) for message, line in zip(messages, lines, strict=True)
        ]
    if name_of is not None:
        lines = [b"%s\t%s" % pair for pair in zip(map(name_of, messages), lines, strict=True)]
    lines.append(b"")
    return b"\n".join(lines)


def render_json(messages: list[Message], *, with_headers: bool = False) -> bytes:
    """One object in a line: stream, seq, timestamp_us, time, topic if it has one, and payload (text) or payload_base64
    (not UTF-8).
    """
    lines = []
    second, second_text = -1, ""
    for message in messages:
        stream, seq, timestamp_us, payload, metadata, _epoch = message
        if timestamp_us // 1_000_000 != second:  # most messages share theirs with the one before
            second = timestamp_us // 1_000_000
            second_text = to_iso(second * 1_000_000).partition(".")[0]
            head = f'{{"stream": {encode_basestring(stream)}, "seq": '
        time = f"{second_text}.{timestamp_us % 1_000_000:06}Z" if second_text else ""
        headers = f'"headers": {_headers(message)}, ' if with_headers else ""
        if metadata and (topic := topic_in(metadata)):
            headers = f'"topic": {encode_basestring(topic.decode(errors="replace"))}, {headers}'
        times = f'"timestamp_us": {timestamp_us}, "time": "{time}"'
        lines.append(f"{head}{seq}, {times}, {headers}{_payload(payload)}}}\n")
    return "".join(lines).encode()


def _headers(message: Message) -> str:
    """Converts to JSON types; bytes that are not UTF-8 become base64."""
    shown = {
        key: value if isinstance(value, str) else base64.b64encode(value).decode()
        for key, value in message.headers.items()
    }
    return json.dumps(shown, ensure_ascii=False)


def _payload(payload: bytes) -> str:
    try:
        return f'"payload": {encode_basestring(payload.decode())}'
    except UnicodeDecodeError:
        return f'"payload_base64": "{base64.b64encode(payload).decode()}"'


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, waiting where the descriptor does not take it now. Raises BrokenPipeError, CommandError."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            poller = select.poll()
            poller.register(fd, select.POLLOUT)
            poller.poll()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandError(f"cannot write the output: {error.strerror}") from error
