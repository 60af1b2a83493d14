"""The frames of WebSocket, server side, without a socket. Specification: RFC 6455, section 5.

Of the messages only their bytes matter here: MQTT packets need not be aligned with them (MQTT 5.0, section 6). So a
frame is never collected, however long it is.
"""

from __future__ import annotations

from typing import Final

Received = bytes | bytearray | memoryview

CONTROL_MAX_BYTES: Final = 125
"""The payload of a ping, a pong or a close."""

ANY_ORIGIN: Final = "*"
"""Among the origins that may connect (`protocol.websocket_upgrade`): all of them."""

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_FIN, _MASKED, _CONTROL, _RESERVED = 0x80, 0x80, 0x08, 0x70
_LENGTH_16, _LENGTH_64 = 126, 127
_KEY_BYTES = 4

NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED_DATA = 1000, 1001, 1002, 1003
_CODE_BYTES = 2

_SMALL_BYTES = 500  # below it one large number is quicker to mask than four slices
_TRANSLATIONS = tuple([bytes(byte ^ key for byte in range(256)) for key in range(256)])


def frame_head(nbytes: int, opcode: int = BINARY) -> bytes:
    """The head of an unfragmented, unmasked frame whose payload has `nbytes`."""
    first = _FIN | opcode
    if nbytes < _LENGTH_16:
        return bytes((first, nbytes))
    if nbytes < 1 << 16:
        return bytes((first, _LENGTH_16)) + nbytes.to_bytes(2, "big")
    return bytes((first, _LENGTH_64)) + nbytes.to_bytes(8, "big")


def control_frame(opcode: int, payload: bytes) -> bytes:
    return frame_head(len(payload), opcode) + payload


def close_frame(code: int) -> bytes:
    return control_frame(CLOSE, code.to_bytes(_CODE_BYTES, "big"))


def masked(data: Received, key: bytes, at: int) -> bytes | bytearray:
    """The bytes masked with the key of 4 bytes, or unmasked; `at` is how many of the payload came before them."""
    turn = at % _KEY_BYTES
    key = key[turn:] + key[:turn]
    count = len(data)
    if count < _SMALL_BYTES:
        keys = (key * (count // _KEY_BYTES + 1))[:count]
        return (int.from_bytes(data, "little") ^ int.from_bytes(keys, "little")).to_bytes(count, "little")
    made = bytearray(data)
    for lane, byte in enumerate(key):
        made[lane::_KEY_BYTES] = made[lane::_KEY_BYTES].translate(_TRANSLATIONS[byte])
    return made


class FrameReader:
    """Takes received bytes, and gives the payload of binary messages.

    ended: a close has come, or something that ends the connection. reply_code: the code to close with then, None
    before. ping: the payload of the last ping that has not been answered.
    """

    __slots__ = ("_at", "_control", "_head", "_key", "_left", "_message", "_opcode", "ended", "ping", "reply_code")

    def __init__(self) -> None:
        self._head = b""  # of a frame, as far as it has come
        self._opcode = -1  # of the frame whose payload comes; -1 between two frames
        self._key = b""
        self._at = self._left = 0  # bytes of its payload that have come, and that have not
        self._control = b""  # the payload of a control frame, as far as it has come
        self._message = False  # a message of several frames has begun
        self.ended = False
        self.reply_code: int | None = None
        self.ping: bytes | None = None

    def feed(self, data: memoryview, room: memoryview) -> int:
        """Take all of `data`, and write the payload into `room`, which is no shorter. Returns the bytes written."""
        at = written = 0
        while at < len(data) and not self.ended:
            if self._opcode < 0:
                at = self._take_head(data, at)
                continue
            piece = data[at : at + self._left]
            at += len(piece)
            if len(piece):
                plain = masked(piece, self._key, self._at)
                self._at += len(piece)
                self._left -= len(piece)
                if self._opcode & _CONTROL:
                    self._control += plain
                else:
                    room[written : written + len(plain)] = plain
                    written += len(plain)
            if not self._left:
                self._end_frame()
        return written

    def _take_head(self, data: memoryview, at: int) -> int:
        """Returns where `data` goes on behind the bytes of a head that it has."""
        head = self._head
        wanted = _wanted_bytes(head) if len(head) >= 2 else 2
        while True:
            piece = bytes(data[at : at + wanted - len(head)])
            head += piece
            at += len(piece)
            if len(head) < wanted:
                self._head = head
                return at
            wanted = _wanted_bytes(head)
            if len(head) == wanted:
                break
        self._head = b""
        self._begin_frame(head)
        return at

    def _begin_frame(self, head: bytes) -> None:
        opcode, length = head[0] & 0x0F, int.from_bytes(head[2:-_KEY_BYTES], "big")
        if len(head) == 2 + _KEY_BYTES:
            length = head[1] & 0x7F
        fault = self._fault_of(head[0], opcode, head[1] & 0x7F, length) if head[1] & _MASKED else PROTOCOL_ERROR
        if fault:
            self._end(fault)
            return
        if not opcode & _CONTROL:
            self._message = not head[0] & _FIN
        self._opcode, self._key, self._at, self._left = opcode, head[-_KEY_BYTES:], 0, length
        if not length:
            self._end_frame()

    def _fault_of(self, first: int, opcode: int, announced: int, length: int) -> int:
        """The code to close with for a frame that may not come now; 0 for one that may."""
        if first & _RESERVED or length >> 63 or _is_long(announced, length):
            return PROTOCOL_ERROR
        if opcode & _CONTROL:
            whole = first & _FIN and length <= CONTROL_MAX_BYTES
            return 0 if whole and opcode in (CLOSE, PING, PONG) else PROTOCOL_ERROR
        if opcode == TEXT:
            return UNSUPPORTED_DATA
        begins = opcode == BINARY
        return 0 if (begins or opcode == CONTINUATION) and begins != self._message else PROTOCOL_ERROR

    def _end_frame(self) -> None:
        opcode, self._opcode = self._opcode, -1
        control, self._control = self._control, b""
        if opcode == PING:
            self.ping = control
        elif opcode == CLOSE:
            code = int.from_bytes(control[:_CODE_BYTES], "big") if control else NORMAL
            self._end(code if len(control) != 1 and _may_be_sent(code) else PROTOCOL_ERROR)

    def _end(self, code: int) -> None:
        self.ended, self.reply_code = True, code


def _wanted_bytes(head: bytes) -> int:
    """How long a head is, by its first two bytes."""
    announced = head[1] & 0x7F
    more = 2 if announced == _LENGTH_16 else 8 if announced == _LENGTH_64 else 0
    return 2 + more + (_KEY_BYTES if head[1] & _MASKED else 0)


def _is_long(announced: int, length: int) -> bool:
    """Whether a length takes more bytes than it needs."""
    return (announced == _LENGTH_16 and length < _LENGTH_16) or (announced == _LENGTH_64 and length < 1 << 16)


def _may_be_sent(code: int) -> bool:
    """Whether a code of a close is one that an endpoint sends (RFC 6455, section 7.4)."""
    return (1000 <= code <= 1014 and code not in (1004, 1005, 1006)) or 3000 <= code <= 4999
