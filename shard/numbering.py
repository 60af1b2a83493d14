"""A producer's id and the number of a message, in the metadata of the frame that begins a run."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from tailrace.shard.leaves import load

ID_BYTES_MAX: Final = 32
NUMBER_MAX: Final = (1 << 63) - 1
ID_KEY: Final = "p"
NUMBER_KEY: Final = "n"

_read_run = load("tailrace.shard.run_cy").read_run


def read_numbering(metadata: bytes | bytearray | memoryview) -> tuple[bytes, int]:
    """The producer's id and the number in the metadata of a run's first message. Raises ValueError."""
    found: tuple[bytes, int] | None = _read_run(metadata, 0, len(metadata))
    if found is not None:
        return found
    try:
        fields: Any = msgpack.unpackb(metadata)
        producer_id, number = fields[ID_KEY], fields[NUMBER_KEY]
        require_numbering(producer_id, number)
    except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
        raise ValueError(f"metadata without a producer's id ({ID_KEY}) and number ({NUMBER_KEY}): {error!r}") from None
    return producer_id, number


def write_numbering(metadata: bytes, producer_id: bytes, number: int) -> bytes:
    """Returns this metadata with the id and the number, which come first. Raises ValueError if it is not a msgpack
    map."""
    try:
        fields: Any = msgpack.unpackb(metadata) if metadata else {}
        numbers = {ID_KEY: producer_id, NUMBER_KEY: number}
        packed: bytes = msgpack.packb({**numbers, **fields, **numbers})
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ValueError(f"metadata that is not a map with text keys: {error!r}") from None
    return packed


def require_numbering(producer_id: object, number: object) -> None:
    """Raises ValueError."""
    if type(producer_id) is not bytes or not 0 < len(producer_id) <= ID_BYTES_MAX:
        raise ValueError(f"a producer's id is 1 to {ID_BYTES_MAX} bytes, not {producer_id!r}")
    if type(number) is not int or not 0 <= number <= NUMBER_MAX:
        raise ValueError(f"a producer's number is 0 to {NUMBER_MAX}, not {number!r}")
