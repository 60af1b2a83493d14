"""The msgpack map of a control message: written, and read with suspicion.

Nothing in the body is trusted: its depth and size, its fields, their values. Errors name the message and the field.
Unknown fields are ignored, so that later versions may add some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgpack

from tailrace.protocol.envelope import pack_envelope
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.names import copied_name, led_name, readable_name, stream_name
from tailrace.protocol.places import FROM_NEW, From, FromKind
from tailrace.protocol.places import NUMBER_MAX as NUMBER_MAX
from tailrace.protocol.topics import SEPARATOR, published_name, read_name

CONTROL_BODY_MAX_BYTES: Final = 64 * 1024
"""The longest body of any envelope that carries no frames, from a client."""
ELEMENTS_MAX: Final = 64
"""The most elements of an array or a map, unless the message says otherwise."""
TEXT_CHARACTERS_MAX: Final = 4_096
"""The most characters of a text field."""
U16_MAX: Final = (1 << 16) - 1
U32_MAX: Final = (1 << 32) - 1

_UNREADABLE = (ValueError, TypeError, msgpack.UnpackException)
_KINDS = {dict: "a map", list: "an array", str: "a text", bytes: "binary", bool: "true or false", float: "a float"}


def pack_map(opcode: int, body: dict[str, Any]) -> bytes:
    """The envelope of a control message. Fields that are None are left out."""
    return pack_envelope(opcode, packed_map(body))


def packed_map(body: dict[str, Any]) -> bytes:
    """The body of a control message. Fields that are None are left out."""
    packed: bytes = msgpack.packb({key: value for key, value in body.items() if value is not None})
    return packed


def pack_fields(opcode: int, message: Any) -> bytes:
    """The envelope of a message whose body is its fields, by their names. `message`: of a dataclass with slots."""
    return pack_map(opcode, {name: getattr(message, name) for name in type(message).__slots__})


FROM_KINDS: Final = ("seq", "time", "new", "last")


class Fields:
    """The fields of one body. Each method gives one field, checked, or raises PeerError (`usage`) with its name."""

    __slots__ = ("_fields", "_message")

    def __init__(self, message: str, body: memoryview, elements_max: int = ELEMENTS_MAX) -> None:
        """Raises PeerError if the body is not a map. `message`: its name, for errors."""
        self._message = message
        self._fields = _unpacked_map(message, body, elements_max)

    @classmethod
    def _of(cls, message: str, fields: dict[str, Any]) -> Fields:
        """A map within a body."""
        inner = cls.__new__(cls)
        inner._message, inner._fields = message, fields
        return inner

    def __contains__(self, key: str) -> bool:
        """Returns whether the field is present; nil counts as absent."""
        return self._fields.get(key) is not None

    @property
    def id(self) -> int:
        """Returns the field `id` if it can be read, else 0: for the answer to a body with other faults."""
        value = self._fields.get("id")
        return value if type(value) is int and 0 <= value <= U32_MAX else 0

    def number(self, key: str, high: int = NUMBER_MAX, default: int | None = None) -> int:
        """`default`: if the field is not there; without one it must be."""
        value = self._fields.get(key)
        if value is None:
            if default is None:
                raise self._missing(key)
            return default
        if type(value) is not int or not 0 <= value <= high:
            raise self._wrong(key, f"is {_shown(value)}, not a number from 0 to {high}")
        return value

    def seconds(self, key: str, high: int, *, may_be_0: bool = False) -> float:
        """More than 0, or 0 if it may be; whole or not."""
        value = self._required(key)
        if type(value) not in (int, float) or not 0 <= value <= high or (value == 0 and not may_be_0):
            low = "from 0" if may_be_0 else "over 0"
            raise self._wrong(key, f"is {_shown(value)}, not a number of seconds {low}, to {high}")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self._required(key)
        if type(value) is not bool:
            raise self._wrong(key, f"is {_shown(value)}, not true or false")
        return value

    def text(self, key: str) -> str:
        value = self._fields.get(key)
        if value is None:
            raise self._missing(key)
        if type(value) is not str or len(value) > TEXT_CHARACTERS_MAX:
            raise self._wrong(key, f"is {_shown(value)}, not a text of at most {TEXT_CHARACTERS_MAX} characters")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._required(key)
        if type(value) is not list or not all(type(each) is str for each in value):
            raise self._wrong(key, f"is {_shown(value)}, not an array of texts")
        return tuple(value)

    def pair(self, key: str) -> tuple[int, int]:
        """An array of two numbers."""
        value = self._required(key)
        if type(value) is not list or [type(each) for each in value] != [int, int]:
            raise self._wrong(key, f"is {_shown(value)}, not an array of two numbers")
        return value[0], value[1]

    def numbers(self, key: str) -> dict[str, int]:
        """A map of texts to numbers."""
        value = self._required(key)
        if type(value) is not dict or not all(_is_entry(*entry) for entry in value.items()):
            raise self._wrong(key, f"is {_shown(value)}, not a map of texts to numbers")
        return value

    def binary(self, key: str) -> bytes:
        """Returns an array of any length."""
        value = self._required(key)
        if type(value) is not bytes:
            raise self._wrong(key, f"is {_shown(value)}, not binary")
        return value

    def rows(self, key: str, kinds: Sequence[type]) -> tuple[tuple[Any, ...], ...]:
        """An array of rows, each with one element of each of `kinds`."""
        value = self._required(key)
        if type(value) is not list or not all(_is_row(row, kinds) for row in value):
            form = ", ".join(kind.__name__ for kind in kinds)
            raise self._wrong(key, f"is {_shown(value)}, not an array of rows of [{form}]")
        return tuple([tuple(row) for row in value])

    def maps(self, key: str) -> list[Fields]:
        """An array of maps, each to be read as a body is."""
        value = self._required(key)
        if type(value) is not list or not all(type(each) is dict for each in value):
            raise self._wrong(key, f"is {_shown(value)}, not an array of maps")
        return [Fields._of(self._message, each) for each in value]

    def place(self, key: str, kinds: Sequence[str]) -> tuple[str, int]:
        """A place in a stream: [kind, value]. Raises PeerError (`from`)."""
        value = self._required(key)
        if not _is_row(value, (str, int)) or value[0] not in kinds or not 0 <= value[1] <= NUMBER_MAX:
            text = f"is not a position: [kind, number], where kind is one of {', '.join(kinds)}"
            raise self._wrong(key, text, Code.FROM)
        return value[0], value[1]

    def start(self, key: str) -> From:
        """Reads the position where reading begins. Raises PeerError (`from`)."""
        kind, value = self.place(key, FROM_KINDS)
        return FROM_NEW if kind == "new" else From(cast(FromKind, kind), value)

    def stream(self, key: str) -> bytes:
        """A stream's name. Raises PeerError (`name`, `reserved` too)."""
        return stream_name(self.text(key).encode())

    def writable_stream(self, key: str) -> bytes:
        """The name of a stream or a topic to publish to. Raises PeerError (`topic` too)."""
        return published_name(self.text(key).encode())

    def readable_stream(self, key: str) -> bytes:
        """The name of a stream, a topic or a filter to be read, or of a companion. Raises PeerError (`topic` too)."""
        name = self.text(key).encode()
        return read_name(name) if SEPARATOR in name else readable_name(name)

    def consumed_stream(self, key: str) -> bytes:
        """The same without companions."""
        name = self.text(key).encode()
        return read_name(name, stream_name) if SEPARATOR in name else stream_name(name)

    def led_stream(self, key: str) -> bytes:
        """The name of a stream that has a master of its own."""
        return led_name(self.text(key).encode())

    def copied_stream(self, key: str) -> bytes:
        """The name of a stream that nodes copy."""
        return copied_name(self.text(key).encode())

    def _required(self, key: str) -> Any:
        value = self._fields.get(key)
        if value is None:
            raise self._missing(key)
        return value

    def _missing(self, key: str) -> PeerError:
        return self._wrong(key, "is missing")

    def _wrong(self, key: str, problem: str, code: Code = Code.USAGE) -> PeerError:
        return PeerError(code, f"{self._message}: the field {key} {problem}")


def _unpacked_map(message: str, body: memoryview, elements_max: int) -> dict[str, Any]:
    problem = ""
    fields = None
    try:
        # The limits keep a short body from asking for long arrays, each within another.
        fields = msgpack.unpackb(
            body, raw=False, strict_map_key=True, max_array_len=elements_max, max_map_len=elements_max
        )
    except _UNREADABLE as error:
        problem = f": {error}"
    if type(fields) is not dict:
        # Raised here and not above, so that the error keeps no hold on the body.
        raise PeerError(Code.USAGE, f"{message}: a body of {len(body)} bytes that is not a msgpack map{problem}")
    return fields


def _is_entry(key: object, value: object) -> bool:
    return type(key) is str and type(value) is int and 0 <= value <= NUMBER_MAX


def _is_row(row: object, kinds: Sequence[type]) -> bool:
    return type(row) is list and [type(each) for each in row] == list(kinds)


def _shown(value: object) -> str:
    return str(value) if type(value) is int else _KINDS.get(type(value), "something else")
