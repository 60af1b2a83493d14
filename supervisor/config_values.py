"""Parses one value of the configuration, and formats it as text.

Sizes and times may be numbers in the unit of the key's name or text such as "8 MiB", "30 s", "7 d". Every error names
the value, the allowed range and the unit.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from tailrace.broker.process.setting_specs import DAY_S, HOUR_S, MINUTE_S, Kind, Spec
from tailrace.broker.replication.roles.peers import PEERS_MAX, UPSTREAMS_MAX, parse_peer
from tailrace.protocol.address import split_address
from tailrace.protocol.errors import PeerError
from tailrace.protocol.grammar import place
from tailrace.protocol.websocket import ANY_ORIGIN
from tailrace.shard.names import InvalidName, is_reserved, validate_name

BYTE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "PiB": 1 << 50,
}
MS_UNITS = {
    "ms": 1,
    "s": 1_000,
    "min": MINUTE_S * 1_000,
    "h": HOUR_S * 1_000,
    "d": DAY_S * 1_000,
    "w": 7 * DAY_S * 1_000,
}
# Only units that are written back exactly: no decimal multiples, no weeks.
_BYTE_TEXT_UNITS = ("PiB", "TiB", "GiB", "MiB", "KiB")
_MS_TEXT_UNITS = ("d", "h", "min", "s")

_QUANTITY = re.compile(r"([0-9][0-9_]{0,30}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9._-]+(?::[0-9]{1,5})?|[a-z]+://\[[0-9a-f:.]+\](?::[0-9]{1,5})?")
_WHOLE = re.compile(r"[+-]?[0-9][0-9_]{0,30}")
SECRET_MAX_BYTES = 1_024
PATTERNS_MAX = 64
ORIGINS_MAX = 64
NAME_CHARACTERS_MAX = 64
_UNIT_NAMES = {Kind.BYTES: "bytes", Kind.SECONDS: "s", Kind.MILLISECONDS: "ms"}
_SHOWN_CHARACTERS = 60
_SHOWN_NUMBER_MAX = 10**24

ConfigValue = int | float | bool | str | Path | tuple[str, ...]


class WrongValue(ValueError):
    """An invalid value; the text gives the reason and the remedy."""


def parse_value(spec: Spec, raw: object, *, whole: bool, from_flag: bool = False) -> ConfigValue:
    """Parses the value of a key. `whole` asks for an integer; `from_flag`: `raw` is text from the command line.

    Raises WrongValue.
    """
    if spec.kind is Kind.FLAG:
        return _parse_flag(raw)
    if spec.kind is Kind.CHOICE:
        return _parse_choice(spec, raw)
    if spec.kind in _ARRAYS:
        return _parse_array(_ARRAYS[spec.kind], raw, from_flag)
    if spec.kind is Kind.ADDRESSES:
        return _parse_addresses(raw)
    if spec.kind in (Kind.SECRET, Kind.ADDRESS, Kind.NAME, Kind.FILE) and raw == "":
        return ""
    if spec.kind is Kind.PLACE and type(raw) is int:
        raw = str(raw)
    if spec.kind in _TEXT_PARSERS:
        return _TEXT_PARSERS[spec.kind](_parse_text(raw))
    number = _parse_number(spec, raw, from_flag)
    _check_range(spec, number)
    if whole and number != int(number):
        raise WrongValue(f"{show(raw)} is not a whole number of {_UNIT_NAMES.get(spec.kind, 'anything')}")
    return int(number) if whole else float(number)


def show(raw: object) -> str:
    """Shows a value, short enough for one line, without characters that a terminal would interpret."""
    text = repr(raw) if not isinstance(raw, str) else '"' + raw.encode("unicode_escape").decode("ascii") + '"'
    if isinstance(raw, bool):
        text = str(raw).lower()
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def suggest(word: str, known: list[str]) -> str:
    """The known word most like `word`, or ""."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), list(by_lower), 1, 0.6)
    return by_lower[near[0]] if near else ""


# --- text and choices -------------------------------------------------------------------------------------------------


def _parse_flag(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    raise WrongValue(f"must be true or false, not {show(raw)}")


def _parse_choice(spec: Spec, raw: object) -> str:
    if isinstance(raw, str) and raw in spec.choices:
        return spec.choices[spec.choices.index(raw)]  # a member of the enumeration of its field, if it has one
    near = suggest(raw, list(spec.choices)) if isinstance(raw, str) else ""
    hint = f'; did you mean "{near}"?' if near else ""
    raise WrongValue(f"must be one of {', '.join(spec.choices)}, not {show(raw)}{hint}")


def _parse_text(raw: object) -> str:
    if not isinstance(raw, str):
        raise WrongValue(f"must be text in quotes, not {show(raw)}")
    if not raw:
        raise WrongValue("must not be empty")
    if not raw.isprintable():
        raise WrongValue(f"must not contain control characters: {show(raw)}")
    return raw


def _parse_host(text: str) -> str:
    if " " in text:
        raise WrongValue(f"{show(text)} is neither an address nor a host name")
    if ":" in text or text.replace(".", "").isdigit():
        try:
            ipaddress.ip_address(text)
        except ValueError:
            raise WrongValue(f"{show(text)} is not an IP address; the port is a key of its own") from None
    return text


def _parse_name(text: str) -> str:
    if " " in text or len(text) > NAME_CHARACTERS_MAX:
        raise WrongValue(f"{show(text)} is no name: it is one word of up to {NAME_CHARACTERS_MAX} characters")
    return text


def _parse_pattern(text: str) -> str:
    if " " in text or "|" in text:
        raise WrongValue(f'{show(text)} matches no stream: names contain neither blanks nor "|"')
    return text


def _parse_streams(text: str) -> str:
    """`*`, a prefix and `*`, or a stream's name."""
    stem = text.removesuffix("*")
    if "*" in stem:
        raise WrongValue(f"{show(text)} has a * before its end; write *, a prefix and *, or one stream's name")
    try:
        validate_name(stem or "*")
    except InvalidName as error:
        raise WrongValue(f"{show(text)} matches no stream: {error}") from None
    if is_reserved(stem):
        raise WrongValue(f"{show(text)} begins with $, as only the broker's own streams do")
    return text


def _parse_address(text: str) -> str:
    try:
        split_address(text)
    except ValueError as error:
        raise WrongValue(f"{show(text)} is no address: {error}") from None
    return text


def _parse_peer(text: str) -> str:
    try:
        parse_peer(text)
    except ValueError as error:
        raise WrongValue(f"{show(text)}: {error}") from None
    return text


def _parse_place(text: str) -> str:
    try:
        place(text.encode())
    except PeerError as error:
        raise WrongValue(error.text) from None
    return text


def _parse_origin(text: str) -> str:
    """As browsers send it: scheme, host, and a port that is not the scheme's own; or `*`."""
    if text == ANY_ORIGIN or _ORIGIN.fullmatch(text):
        return text
    example = "https://app.example or http://localhost:8080, in small letters and without a path"
    raise WrongValue(f"{show(text)} is not an origin such as {example}")


def _parse_secret(text: str) -> str:
    if len(text.encode()) > SECRET_MAX_BYTES:
        raise WrongValue(f"is longer than {SECRET_MAX_BYTES} bytes")
    return text


_TEXT_PARSERS: Mapping[Kind, Callable[[str], ConfigValue]] = {
    Kind.PATH: Path,
    Kind.FILE: str,
    Kind.HOST: _parse_host,
    Kind.NAME: _parse_name,
    Kind.PATTERN: _parse_pattern,
    Kind.STREAMS: _parse_streams,
    Kind.ADDRESS: _parse_address,
    Kind.PLACE: _parse_place,
    Kind.SECRET: _parse_secret,
}


# --- arrays -----------------------------------------------------------------------------------------------------------


class Array(NamedTuple):
    """An array of texts: an example for error texts, how many there may be and what to do about more, and the parser
    of each.
    """

    example: str
    most: int
    remedy: str
    parse: Callable[[str], str]


_ARRAYS: Mapping[Kind, Array] = {
    Kind.PEERS: Array('["10.0.0.1:5050", "10.0.1.0/24"]', PEERS_MAX, ", and a network is one", _parse_peer),
    Kind.ORIGINS: Array('["https://app.example"]', ORIGINS_MAX, ', and "*" allows all', _parse_origin),
    Kind.PATTERNS: Array('["orders.*", "payments"]', PATTERNS_MAX, ", and * matches any characters", _parse_pattern),
}


_UPSTREAMS = Array(
    '["10.0.0.1:5050", "10.0.0.2:5050"]', UPSTREAMS_MAX, "; list the ones that shall be tried first", _parse_address
)


def _parse_array(array: Array, raw: object, from_flag: bool) -> tuple[str, ...]:
    """An array of texts; on the command line one text, with commas."""
    entries = [each.strip() for each in raw.split(",") if each.strip()] if from_flag and isinstance(raw, str) else raw
    if not isinstance(entries, list):
        raise WrongValue(f"must be an array such as {array.example}, not {show(raw)}")
    if len(entries) > array.most:
        raise WrongValue(f"has {len(entries):,} entries; at most {array.most} are allowed{array.remedy}")
    return tuple([array.parse(_parse_text(each)) for each in entries])


def _parse_addresses(raw: object) -> tuple[str, ...]:
    """Addresses in an array; one of them may stand alone, and "" for none."""
    if isinstance(raw, str):
        return (_parse_address(_parse_text(raw)),) if raw else ()
    found = _parse_array(_UPSTREAMS, raw, from_flag=False)
    if not found:
        raise WrongValue('has no entries; write "" for streams that are this node\'s own')
    nodes = [split_address(each) for each in found]
    twice = [each for number, each in enumerate(found) if nodes[number] in nodes[:number]]
    if twice:
        raise WrongValue(f"has {show(twice[0])} twice; the nodes are tried in the order of the array, each once")
    return found


# --- numbers ----------------------------------------------------------------------------------------------------------


def _parse_number(spec: Spec, raw: object, from_flag: bool) -> Fraction:
    if isinstance(raw, bool):
        raise WrongValue(f"must be {_form(spec)}, not {show(raw)}")
    if isinstance(raw, int):
        return Fraction(raw)
    if isinstance(raw, float) and spec.kind is not Kind.COUNT and math.isfinite(raw):
        return Fraction(str(raw))
    if isinstance(raw, str):
        return _parse_number_text(spec, raw.strip(), from_flag)
    raise WrongValue(f"must be {_form(spec)}, not {show(raw)}")


def _parse_number_text(spec: Spec, text: str, from_flag: bool) -> Fraction:
    if from_flag and _WHOLE.fullmatch(text):
        return Fraction(text)
    matched = _QUANTITY.fullmatch(text)
    if spec.kind is Kind.COUNT or matched is None or not (from_flag or matched[2]):
        raise WrongValue(f"must be {_form(spec)}, not {show(text)}")
    number = Fraction(matched[1])
    return number if not matched[2] else number * _unit_factor(spec, matched[2])


def _unit_factor(spec: Spec, unit: str) -> Fraction:
    units = BYTE_UNITS if spec.kind is Kind.BYTES else MS_UNITS
    if unit not in units:
        near = suggest(unit, list(units))
        hint = f'; did you mean "{near}"?' if near else ""
        raise WrongValue(f'unknown unit "{unit[:_SHOWN_CHARACTERS]}"; units are {", ".join(units)}{hint}')
    return Fraction(units[unit]) / (1_000 if spec.kind is Kind.SECONDS else 1)


def _form(spec: Spec) -> str:
    if spec.kind is Kind.COUNT:
        return "a whole number"
    if spec.kind is Kind.BYTES:
        return 'a number of bytes or text such as "8 MiB"'
    return f'a number of {spec.kind} or text such as "30 s"'


def _check_range(spec: Spec, number: Fraction) -> None:
    if number == 0 and spec.zero:
        return
    if Fraction(str(spec.low)) <= number <= Fraction(str(spec.high)):
        return
    written = format_number(spec.kind, number) if abs(number) < _SHOWN_NUMBER_MAX else "a number out of all bounds"
    allowed = f"from {format_number(spec.kind, spec.low)} to {format_number(spec.kind, spec.high)}"
    zero = f"0 ({spec.zero}) or " if spec.zero else ""
    raise WrongValue(f"must be {zero}{allowed}, not {written}")


def format_number(kind: Kind, number: float | Fraction) -> str:
    """A number with its unit, exact, in the largest unit that divides it."""
    exact = Fraction(str(number))
    if kind is Kind.COUNT:
        return _decimal(exact)
    if kind is Kind.BYTES:
        return _in_units(exact, [(BYTE_UNITS[unit], unit) for unit in _BYTE_TEXT_UNITS], "B")
    scale = 1_000 if kind is Kind.SECONDS else 1
    return _in_units(exact * scale, [(MS_UNITS[unit], unit) for unit in _MS_TEXT_UNITS], "ms")


def _in_units(number: Fraction, units: list[tuple[int, str]], least: str) -> str:
    if number == 0:
        return "0"
    for factor, unit in units:
        if number % factor == 0:
            return f"{_decimal(number / factor)} {unit}"
    return f"{_decimal(number)} {least}"


def _decimal(number: Fraction) -> str:
    return f"{number.numerator:,}" if number.denominator == 1 else f"{float(number):,}"
