"""Stream names made from lines: `access.{1}` with the first word of a line, `orders.{country}` with a member of a JSON
object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from tailrace.core.arguments import checked_stream
from tailrace.errors import BrokerError

_PART = re.compile(r"\{([^{}]*)\}")


class BadTemplate(ValueError):
    """Not a valid template; the text gives the reason."""


class NoStream(ValueError):
    """A line lacks a field that the template needs; the text names it."""


def is_template(text: str) -> bool:
    return "{" in text or "}" in text


def parse_template(text: str) -> Callable[[bytes], str]:
    """A function from a line to its stream, which raises NoStream. Raises BadTemplate."""
    names = _PART.findall(text)
    if not names or is_template(_PART.sub("", text)):
        raise BadTemplate(
            f"{text!r}: write {{N}} for the Nth word of a line, or {{NAME}} for a member of a JSON object"
        )
    literals = _PART.split(text)[::2]
    if all(name.isascii() and name.isdigit() and int(name) > 0 for name in names):
        find = _words(tuple(int(name) for name in names))
    elif any(not name or name.isdigit() for name in names):
        raise BadTemplate(f"{text!r}: either words, counted from 1, or members of a JSON object")
    else:
        find = _members(tuple(names))

    def stream_of(line: bytes) -> str:
        values = find(line)
        name = literals[0] + "".join(value + literal for value, literal in zip(values, literals[1:], strict=True))
        try:
            return checked_stream(name)
        except BrokerError as error:
            raise NoStream(error.text) from None

    return stream_of


def _words(places: tuple[int, ...]) -> Callable[[bytes], list[str]]:
    most = max(places)

    def find(line: bytes) -> list[str]:
        words = line.split(None, most)
        if len(words) < most:
            raise NoStream(f"the line has no word {len(words) + 1}")
        return [words[place - 1].decode("utf-8", "replace") for place in places]

    return find


def _members(names: tuple[str, ...]) -> Callable[[bytes], list[str]]:
    def find(line: bytes) -> list[str]:
        try:
            members = json.loads(line)
        except (ValueError, RecursionError):  # also of very many [
            members = None
        if not isinstance(members, dict):
            raise NoStream("the line is not a JSON object")
        for name in names:
            if not isinstance(members.get(name), str | int):
                raise NoStream(f"the object has no text or number {name!r}")
        return [str(members[name]) for name in names]

    return find
