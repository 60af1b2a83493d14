"""What an owner says to whom it does not serve."""

from __future__ import annotations

from tailrace.protocol.errors import Code


class Refused(Exception):
    """A publish or a call that the owner does not do, with the code for its sender."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
