"""What a caller of an owner passes and gets: arguments, the callback for the result, and `Refused`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.protocol.errors import Code


class Refused(Exception):
    """The owner refuses a publish or a call; `code` and `text` are for the caller."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


CallArgs = list[Any]
OnResult = Callable[[Any | Refused], None]
