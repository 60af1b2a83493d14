"""Answers of the line protocol as `tailrace admin` prints them: as they are, or as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from tailrace.cli.ending import complain
from tailrace.cli.output import write_all
from tailrace.cli.tables import show_json

STDOUT: Final = 1
BEGINNINGS: Final = (b"ok", b"err ", b"msg ")
"""Every answer of a broker begins with one of these."""
STOPPING: Final = b"ok shutdown"
"""The answer after which the node stops; it may still say to this connection, too, that it closes."""
WITH_MESSAGES: Final[Mapping[str, str]] = {
    "sub": "`tailrace tail STREAM --json`",
    "last": "`tailrace last NAME --json`",
    "get": "`tailrace get STREAM GROUP --json`",
}
"""Commands that are answered with messages, and the command that prints them as JSON."""
AS_TEXT: Final = "pull"
"""A command that is answered with the text of another broker."""
FIELDS: Final = ["field", "value"]
COMMANDS: Final = ["command", "meaning"]
REPEATED: Final = "grown"
"""A field that comes once for each of several values."""
NAMES: Final = frozenset(("stream", "consumer", "client", REPEATED))
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)
_TEXTS: Final = re.compile(
    "stream|consumer|client|user|role|state|peer|durability|command|meaning|mark|grown|.*master|.*node|upstream|slave:.*"
)
"""Columns and fields whose values are texts, also where they look like a number."""


def parse_error(line: bytes) -> tuple[str, str] | None:
    """(code, text) of a line `err CODE text`, None for any other line."""
    if not line.startswith(b"err "):
        return None
    code, _, text = line[4:].decode("utf-8", "replace").partition(" ")
    return code, text


class Answer:
    """Prints whole lines as they come, without the lone `.` that ends an answer of several; remembers an `err`."""

    def __init__(self) -> None:
        self._rest = b""
        self.refused = False
        self.has_begun = False
        self.is_of_a_broker = True
        self._stops = False

    def take(self, received: bytes) -> None:
        if not self.has_begun:
            self.is_of_a_broker = any(received.startswith(each[: len(received)]) for each in BEGINNINGS)
            if not self.is_of_a_broker:
                return
            self.has_begun = True
        lines = (self._rest + received).split(b"\r\n")
        self._rest = lines.pop()
        shown = []
        for line in lines:
            error = parse_error(line)
            self._stops = self._stops or line == STOPPING
            if error is not None and self._stops and error[0] == "closing":
                continue
            if error is not None:
                self.refused = True
                complain(f"tailrace: {error[0]}: {error[1]}")
            elif line != b".":
                shown.append(line)
        self._print(shown)

    def _print(self, lines: Sequence[bytes]) -> None:
        write_all(STDOUT, b"".join(line + b"\n" for line in lines))

    def end(self) -> None:
        """The answer is whole."""

    @property
    def is_cut(self) -> bool:
        """Returns whether the last line is incomplete."""
        return bool(self._rest)


class TableAnswer(Answer):
    """Keeps the rows of a table, by column."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, str | int | float | None]] = []
        self._columns: list[str] = []

    def _print(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            words = line.decode("utf-8", "replace").split()
            if self._columns:
                self.rows.append({name: value_of(name, cell) for name, cell in zip(self._columns, words, strict=True)})
            else:
                self._columns = words[1:]


class JsonAnswer(Answer):
    """Prints the rows of a table as they come, and an answer of fields and values, or of one line, at its end."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self._verb = verb
        self._columns: list[str] = []
        self._fields: dict[str, object] = {}

    def _print(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self._take_line(line.decode("utf-8", "replace"))

    def _take_line(self, line: str) -> None:
        words = line.split()
        if self._columns == FIELDS:
            self._take_field(words[0], words[1])
        elif self._columns:
            cells = re.split(" {2,}", line.strip(), maxsplit=1) if self._columns == COMMANDS else words
            show_json([{name: value_of(name, cell) for name, cell in zip(self._columns, cells, strict=True)}])
        elif len(words) > 2 and words[1] != self._verb:  # an answer of one line repeats its command
            self._columns = words[1:]
        else:
            show_json([{"answer": " ".join(words[1:])}])

    def _take_field(self, name: str, text: str) -> None:
        if name == REPEATED:
            shown = self._fields.setdefault(name, [])
            assert isinstance(shown, list)
            shown.append(text)
        else:
            self._fields[name] = value_of(name, text)

    def end(self) -> None:
        if self._fields:
            if self._verb == REPEATED:
                self._fields.setdefault(REPEATED, [])
            show_json([self._fields])


def value_of(name: str, text: str) -> str | int | float | None:
    """A number if it is one, unless the column holds texts; null for a dash, which stands for nothing but in names."""
    if text == "-" and name not in NAMES:
        return None
    if _TEXTS.fullmatch(name) or not _NUMBER.fullmatch(text):
        return text
    return float(text) if "." in text else int(text)
