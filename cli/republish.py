"""`tailrace republish`: publishes the tail that was set aside of a stream to it again, each message once, even if run
again.

A message that its producer has numbered goes with that number: if the producer has sent it again meanwhile, the broker
knows it and appends nothing. The others are numbered in the name of their tail.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgpack

from tailrace.cli.credentials import client_options
from tailrace.cli.ending import NO_CONNECTION, OK, CommandError
from tailrace.cli.options import check_stream, json_option, server_options
from tailrace.cli.server import CONNECT_TIMEOUT_S, RECEIVE_BYTES, choose_server, connect_socket
from tailrace.cli.tables import show_json
from tailrace.cli.values import FilePath
from tailrace.core.link import CLIENT_NAME
from tailrace.core.login import Login
from tailrace.errors import BrokerFault
from tailrace.protocol import messages as m
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.strangers import STRANGER_BYTES, stranger
from tailrace.shard.diverged import DIVERGED_SUFFIX
from tailrace.shard.errors import StorageError
from tailrace.shard.export import Bounds, Section, diverged_sections, read_section
from tailrace.shard.frame import FLAG_CONTINUES, FLAG_PRODUCER, pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.names import name_of_stem
from tailrace.shard.numbering import ID_KEY, NUMBER_KEY, read_numbering, write_numbering
from tailrace.shard.walk import FrameRun

ANSWER_TIMEOUT_S: Final = 60.0
PIECE_MESSAGES: Final = 256
PIECE_BYTES: Final = 128 << 10
"""The most messages of one publish, and about the most bytes."""
HANDLE: Final = 1
LOGGED_BEFORE: Final = "was logged before"
"""In the text of ERROR `producer` for a message that is in the stream, nobody knows where."""

EPILOG = """\b
Examples:
  tailrace check /var/lib/tailrace
  tailrace republish /var/lib/tailrace/shard-11/orders.diverged --part 1
  tailrace republish orders.diverged --server 10.0.0.2:5050

The messages come to the end of the stream, in their order, with their payloads, headers and keys, and with new seqs and
times. A message that is in the stream already, because its producer has sent it again, or by an earlier run of this
command, is not appended. That holds for as long as the broker knows producers: `producer_expiry_s` (a day) after the
last run. Remove the file when you are done with it.

Exit codes: 0 done, 1 refused by the broker or damaged, 2 wrong arguments, 4 no connection or lost.
"""

_leaf = load("tailrace.shard.run_cy")
_parse = load("tailrace.shard.frame_cy").parse


class Piece(NamedTuple):
    """Messages of one publish. `own`: producer and number of the first, if its producer has numbered it; `metadata` is
    the first message's, without that.
    """

    frames: bytes
    messages: int
    own: tuple[bytes, int] | None
    metadata: bytes


@click.command("republish", epilog=EPILOG)
@click.argument("file", type=FilePath())
@click.option("--stream", "-t", callback=check_stream, help="Stream to publish to; by default, the file's name.")
@click.option("--part", type=click.IntRange(1), metavar="N", help="Publish only the Nth tail.")
@json_option
@server_options
def command(file: Path, stream: str | None, part: int | None, as_json: bool) -> int:
    """Publishes again the tails in FILE, a .diverged file."""
    name = stream or name_of_stem(file.stem)
    if file.suffix != DIVERGED_SUFFIX:
        raise click.UsageError(f"{file} is not a {DIVERGED_SUFFIX} file")
    if name is None:
        raise click.UsageError(f"{file} is not named STREAM{DIVERGED_SUFFIX}; name the stream with --stream")
    chosen = choose_server()
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    try:
        with connect_socket(chosen) as sock:
            publisher = RepublishConnection(sock, name)
            tails = [each for each in diverged_sections(fd, file, name) if part in (None, each.number)]
            for section in tails:
                count = republish(publisher, section, name)
                if as_json:
                    show_json([{"stream": name, "tail": section.number, "messages": count}])
                else:
                    click.echo(f"{name}: all {count:,} messages of tail {section.number} are in the stream")
            if not tails:
                raise CommandError(f"{file}: has no tail" + ("" if part is None else f" {part}"))
    except StorageError as error:
        raise CommandError(str(error)) from None
    except (OSError, PeerError) as error:
        text = f"connection to {chosen} lost ({error}); run this again: nothing is appended twice"
        raise CommandError(text, NO_CONNECTION) from None
    finally:
        os.close(fd)
    return OK


def republish(publisher: RepublishConnection, section: Section, name: str) -> int:
    """Publish a tail; how many messages it has. Raises CommandError, StorageError, OSError, PeerError."""
    digest = blake2b(name.encode(), digest_size=16)
    for run in _runs(section):
        digest.update(run.frames)
    tail_id, number, count = b"tail:" + digest.digest(), 0, 0
    for piece in pieces(row for run in _runs(section) for row in _parse(run.frames, 0, len(run.frames), True)):
        if piece.own is None or not publisher.publish(piece, *piece.own):
            publisher.publish(piece, tail_id, number, must=True)
            number += piece.messages
        count += piece.messages
    return count


def _runs(section: Section) -> Iterator[FrameRun]:
    for found in read_section(section, Bounds()):
        if not isinstance(found, FrameRun):
            raise CommandError(f"{section.title}: {found}; `tailrace dump --skip-damaged` writes out the rest")
        yield found


def pieces(rows: Iterable[tuple[int, int, int, int, bytes, bytes]]) -> Iterator[Piece]:
    """The messages, (seq, timestamp, epoch, flags, metadata, payload) each, in the same order."""
    frames, messages, first, metadata = bytearray(), 0, None, b""
    own: tuple[bytes, int] | None = None
    for _seq, _time, _epoch, flags, kept, payload in rows:
        following = None if own is None else (own[0], own[1] + 1)
        if flags & FLAG_PRODUCER:
            own, kept = read_numbering(kept), _without_numbering(kept)
        else:
            own = following if flags & FLAG_CONTINUES else None
        full = messages >= PIECE_MESSAGES or len(frames) >= PIECE_BYTES
        if messages and (full or own != (following if first is not None else None)):
            yield Piece(bytes(frames), messages, first, metadata)
            frames, messages = bytearray(), 0
        if not messages:
            first, metadata = own, kept
        frames += pack_frame(payload, metadata=kept)
        messages += 1
    if messages:
        yield Piece(bytes(frames), messages, first, metadata)


def _without_numbering(metadata: bytes) -> bytes:
    fields = msgpack.unpackb(metadata)
    left = {key: value for key, value in fields.items() if key not in (ID_KEY, NUMBER_KEY)}
    packed: bytes = msgpack.packb(left) if left else b""
    return packed


class RepublishConnection:
    """A connection that publishes numbered messages to one stream. Raises CommandError, OSError, PeerError."""

    def __init__(self, sock: socket.socket, stream: str) -> None:
        self._sock = sock
        self._codec = ClientCodec()
        self._answers: list[m.Response] = []
        self._request = 0
        self._is_known = False
        sock.settimeout(CONNECT_TIMEOUT_S)
        welcome = self._log_in()
        sock.settimeout(ANSWER_TIMEOUT_S)
        if m.PRODUCERS_FEATURE not in welcome.features:
            raise CommandError(f"{welcome.software} does not support producers")
        self._send(m.pack(m.Open(HANDLE, stream.encode())))
        opened = self._next()
        if not isinstance(opened, m.Opened):
            raise _refused(opened)

    def _log_in(self) -> m.Welcome:
        options = client_options()
        login = Login(options)
        self._send(m.pack(login.hello(m.Hello(m.VERSION, (m.PRODUCERS_FEATURE,), CLIENT_NAME, options.token), options)))
        answer = self._next()
        try:
            if isinstance(answer, m.Challenge):
                self._send(m.pack(login.answer(answer.data)))
                answer = self._next()
            if isinstance(answer, m.Welcome):
                login.check(answer.login)
                return answer
        except BrokerFault as error:
            raise CommandError(str(error)) from None
        raise _refused(answer)

    def publish(self, piece: Piece, producer: bytes, number: int, *, must: bool = False) -> bool:
        """Publishes under these numbers; returns False if the broker cannot append them so."""
        frames = _leaf.mark_run(piece.frames, write_numbering(piece.metadata, producer, number))
        self._request += 1
        self._send(m.pack_publish(self._request, m.Ack.SYNCED, [HANDLE], frames) + bytes(frames))
        answer = self._next()
        if isinstance(answer, m.Published):
            return True
        if isinstance(answer, m.Failed) and not must and answer.code in (Code.GAP, Code.PRODUCER):
            return LOGGED_BEFORE in answer.text
        raise _refused(answer)

    def _send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def _next(self) -> m.Response:
        """The next answer; pings are answered."""
        while True:
            while self._answers:
                answer = self._answers.pop(0)
                if not isinstance(answer, m.Ping):
                    return answer
                self._send(m.pack(m.Pong()))
            data = self._sock.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionError("the broker closed the connection")
            try:
                self._answers += self._codec.feed(data)
            except PeerError:
                if self._is_known:
                    raise
                raise CommandError(stranger(data[:STRANGER_BYTES]), NO_CONNECTION) from None
            self._is_known = True


def _refused(answer: m.Response) -> CommandError:
    text = f"{answer.code}: {answer.text}" if isinstance(answer, m.Failed) else f"answer was {type(answer).__name__}"
    return CommandError(f"{text}; run this again when that is fixed: nothing is appended twice")
