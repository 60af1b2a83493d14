"""Finds the lines of sections and keys in a TOML text: tomllib reads the values and keeps no lines.

A scan of lines, not a parser: it runs beside tomllib on text that tomllib has accepted, and for an unknown place it
returns the nearest known one (the section, then none). Nothing but messages depends on it.
"""

from __future__ import annotations

import re
import tomllib

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
_TRIPLE = re.compile(r'"""|\'\'\'')

ConfigPlace = tuple[str, int]  # a section's name and, for [[name]], which of them (from 0)


class Lines:
    """Line numbers (from 1) of the sections and keys of one text."""

    def __init__(self, text: str) -> None:
        self._sections: dict[ConfigPlace, int] = {}
        self._keys: dict[tuple[ConfigPlace, str], int] = {}
        self._repeats: dict[str, int] = {}
        self._scan(text)

    def section(self, name: str, occurrence: int = 0) -> int | None:
        """The line of `[name]`, or of the first key that makes it (`name.key = ...`, `name = {...}`)."""
        found = self._sections.get((name, occurrence))
        return found if found is not None else self._keys.get((("", 0), name))

    def key(self, section: str, key: str, occurrence: int = 0) -> int | None:
        """The line of a key, else that of its section, else None. Keys outside any section are in section ""."""
        found = self._keys.get(((section, occurrence), key))
        if found is None and section:
            found = self._keys.get((("", 0), f"{section}.{key}"))
        return found if found is not None else self.section(section, occurrence)

    def _scan(self, text: str) -> None:
        place: ConfigPlace = ("", 0)
        closing = ""
        for number, line in enumerate(text.split("\n"), start=1):
            if not closing:
                place = self._read_line(place, line, number)
            closing = _open_string(line, closing)

    def _read_line(self, place: ConfigPlace, line: str, number: int) -> ConfigPlace:
        header = _HEADER.match(line)
        if header is not None and "=" not in header[2]:
            return self._enter(_bare(header[2]), header[1] == "[[", number)
        key = _KEY.match(line)
        if key is not None:
            name = _bare(key[1])
            self._keys.setdefault((place, name), number)
            self._keys.setdefault((place, name.split(".")[0]), number)
        return place

    def _enter(self, name: str, repeated: bool, number: int) -> ConfigPlace:
        occurrence = 0
        if repeated:
            occurrence = self._repeats.get(name, 0)
            self._repeats[name] = occurrence + 1
        place = (name, occurrence)
        self._sections.setdefault(place, number)
        if "." in name:
            self._sections.setdefault((name.split(".")[0], 0), number)
        return place


def _bare(dotted: str) -> str:
    return dotted if dotted.isidentifier() else ".".join(_unquote(part.strip()) for part in dotted.split("."))


def _unquote(part: str) -> str:
    if "\\" in part:
        try:
            return str(tomllib.loads(f"key = {part}")["key"])
        except tomllib.TOMLDecodeError:
            return part
    return part.strip("\"'")


def _open_string(line: str, closing: str) -> str:
    """The mark that ends the multi-line string open at the end of `line`, or ""."""
    for mark in _TRIPLE.findall(line):
        if not closing:
            closing = mark
        elif mark == closing:
            closing = ""
    return closing
