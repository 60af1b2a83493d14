"""Telnet's option bytes: taken out of the input, and every option declined.

A telnet client may put commands into its bytes: IAC (0xFF) and what follows. `TelnetFilter` removes them, answers each
offer and request with a refusal (DO x: WONT x; WILL x: DONT x), so that a terminal waiting for the answer goes on
(after ^C telnet shows nothing until its DO TIMING-MARK is answered), and turns IAC IAC into the byte 0xFF it stands
for. CR NUL ends a line as CR LF does (RFC 1123, 3.3.1). Sub-negotiations are dropped without being stored.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

IAC: Final = 255
DONT: Final = 254
DO: Final = 253
WONT: Final = 252
WILL: Final = 251
SB: Final = 250
SE: Final = 240

_IAC_BYTE = bytes((IAC,))


class TelnetState(IntEnum):
    """The meaning of the next byte after the bytes so far. The value is also handed over to another worker."""

    DATA = 0
    CR = 1
    COMMAND = 2  # after IAC
    OPTION_DO = 3
    OPTION_WILL = 4
    OPTION_NONE = 5  # after DONT or WONT: nothing to answer
    SUB = 6
    SUB_IAC = 7


_AFTER_IAC = {
    DO: TelnetState.OPTION_DO,
    WILL: TelnetState.OPTION_WILL,
    DONT: TelnetState.OPTION_NONE,
    WONT: TelnetState.OPTION_NONE,
    SB: TelnetState.SUB,
}
_DECLINED = {TelnetState.OPTION_DO: WONT, TelnetState.OPTION_WILL: DONT}


class TelnetFilter:
    """Bytes in, in any pieces; bytes without telnet commands out, and the answers to send."""

    __slots__ = ("state",)

    def __init__(self, state: int = TelnetState.DATA) -> None:
        self.state = TelnetState(state)

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """(what the user sent, answers to send back)."""
        if self.state is TelnetState.DATA and IAC not in data and b"\r\0" not in data:
            if data.endswith(b"\r"):
                self.state = TelnetState.CR
            return data, b""
        out, replies = bytearray(), bytearray()
        position = 0
        while position < len(data):
            position = self._step(data, position, out, replies)
        return bytes(out), bytes(replies)

    def _step(self, data: bytes, position: int, out: bytearray, replies: bytearray) -> int:
        """Take the run of data, or the one byte, at `position`; returns where the next begins."""
        state = self.state
        if state is TelnetState.DATA:
            return self._data(data, position, out)
        byte = data[position]
        if state is TelnetState.CR:
            return self._after_cr(byte, position, out)
        if state is TelnetState.COMMAND:
            if byte == IAC:
                out.append(IAC)
            self.state = _AFTER_IAC.get(byte, TelnetState.DATA)
        elif state is TelnetState.SUB:
            return self._skip(data, position)
        elif state is TelnetState.SUB_IAC:
            self.state = TelnetState.DATA if byte == SE else TelnetState.SUB
        else:
            if state in _DECLINED:
                replies += bytes((IAC, _DECLINED[state], byte))
            self.state = TelnetState.DATA
        return position + 1

    def _data(self, data: bytes, position: int, out: bytearray) -> int:
        """Up to and with the next IAC or the next CR NUL (or a CR at the end, which may become one)."""
        stop = _found(data.find(_IAC_BYTE, position), len(data))
        cr = data.find(b"\r\0", position, stop)
        if cr >= 0:
            out += data[position:cr] + b"\r\n"
            return cr + 2
        out += data[position:stop]
        if stop > position and data[stop - 1] == 13:
            self.state = TelnetState.CR
            return stop
        if stop < len(data):
            self.state = TelnetState.COMMAND
        return stop + 1

    def _after_cr(self, byte: int, position: int, out: bytearray) -> int:
        self.state = TelnetState.DATA
        if byte:
            return position
        out.append(10)
        return position + 1

    def _skip(self, data: bytes, position: int) -> int:
        iac = data.find(_IAC_BYTE, position)
        if iac >= 0:
            self.state = TelnetState.SUB_IAC
        return _found(iac, len(data)) + 1


def _found(position: int, otherwise: int) -> int:
    return position if position >= 0 else otherwise
