"""The broker's codec as peers in tests use it: each publish comes out by itself, none staged in a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from tailrace.protocol.binary import ServerCodec
from tailrace.protocol.messages import Malformed, Request


class PlainCodec(ServerCodec):
    __slots__ = ()
    stages = False

    def feed(self, buffer: memoryview | bytearray | bytes, count: int) -> Iterable[Request | Malformed]:
        return cast(Iterable[Request | Malformed], super().feed(buffer, count))
