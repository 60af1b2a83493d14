"""The configuration of a node: a TOML file and flags, validated whole, into `broker.process.settings.Settings`.

Every wrong key and value is found in one run and reported with its place, so that an operator mends a file once. Flags
win over the file; keys in neither have their defaults.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from tailrace.broker.access.rules import AccessRule
from tailrace.broker.access.users import User
from tailrace.broker.process.setting_specs import Kind, Spec, spec_of
from tailrace.broker.process.settings import USERS_FILE, Settings, SlaveRule, StreamPolicy, described_fields
from tailrace.broker.process.udp_settings import UdpPeer
from tailrace.broker.replication.roles.rules import covers
from tailrace.broker.topics.rules import TopicRule
from tailrace.shard.files import read_small
from tailrace.supervisor.config_lines import Lines
from tailrace.supervisor.config_relations import find_conflicts
from tailrace.supervisor.config_rules import RULE_SECTION, RULES_MAX, parse_rule
from tailrace.supervisor.config_topics import TOPIC_RULES_MAX, TOPICS_SECTION, parse_topic_rule
from tailrace.supervisor.config_udp import UDP_PEER_SECTION, UDP_PEERS_MAX, parse_udp_peer
from tailrace.supervisor.config_values import WrongValue, parse_value, show, suggest
from tailrace.supervisor.secret_file import SecretFileError, read_secret
from tailrace.supervisor.user_file import UserFileError, read_users

NOT_IN_MEMORY = ("last_values", "spare_consumers", "consumer_max_age_s", "interval_ms")
_NEEDS_DOLLAR = re.compile(r"[^\[]*\$")  # behind a [ it may be one of several characters
FILE_MAX_BYTES = 1 << 20
OTHERS_MODE = 0o007  # what everybody may do with a file
STREAM_SECTION, SLAVE_SECTION = "stream", "slave"
REPEATED: Mapping[str, type[StreamPolicy] | type[SlaveRule]] = {STREAM_SECTION: StreamPolicy, SLAVE_SECTION: SlaveRule}
REPEATED_SECTIONS_MAX = 1_000  # of each kind; they are tried in turn when a stream opens
REQUIRED = {
    STREAM_SECTION: {"pattern": 'pattern = "*" is for every stream'},
    SLAVE_SECTION: {
        "streams": 'streams = "*" is for every stream',
        "upstream": "write the HOST:PORT of the node that these streams follow",
    },
}

_TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One fault. `place` is `FILE:LINE`, `FILE` or a flag."""

    place: str
    text: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class ConfigError(ValueError):
    """The configuration cannot be used: `faults` lists all faults, in the order of the file."""

    def __init__(self, faults: list[ConfigFault]) -> None:
        self.faults = faults
        super().__init__("\n".join(map(str, faults)))


def load(path: Path | None = None, flags: Mapping[str, object] | None = None) -> Settings:
    """Read `path` (None: no file), lay `flags` over it and validate everything.

    `flags` maps field names of `Settings` to values of the command line, text or (for switches) bool; a field that is
    absent or None was not given. Raises ConfigError.
    """
    text = "" if path is None else _read(path)
    tables = _parse(str(path), text)
    reader = _ValueCollector(str(path), Lines(text))
    reader.read_tables(tables)
    if path is not None:
        reader.check_mode(path)
    reader.read_flags(flags or {})
    return reader.finish()


def flag_name(field_name: str) -> str:
    """The flag that sets the field: `--max-line-bytes` for `max_line_bytes`."""
    return "--" + field_name.replace("_", "-")


def _read(path: Path) -> str:
    try:
        content = read_small(path, FILE_MAX_BYTES).content
    except OSError as error:
        raise ConfigError([ConfigFault(str(path), f"cannot be read: {error.strerror}")]) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        text = f"is not UTF-8: byte 0x{content[error.start]:02x}"
        raise ConfigError([ConfigFault(f"{path}:{line}", text, line)]) from error


def _parse(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or int() refusing thousands of digits
        message = str(error)
        place = _TOML_PLACE.search(message)
        what = message[: place.start()] if place else message.split(":")[0]
        line = int(place[1]) if place and place[1] else text.rstrip().count("\n") + 1
        column = f" (column {place[2]})" if place and place[2] else ""
        raise ConfigError([ConfigFault(f"{name}:{line}", f"is not TOML: {what}{column}", line)]) from error
    except RecursionError as error:
        raise ConfigError([ConfigFault(name, "is not usable TOML: arrays or tables nested far too deep")]) from error


class _ValueCollector:
    """Collects values and faults; `finish` makes of them the settings or the error."""

    def __init__(self, file: str, lines: Lines) -> None:
        self._file = file
        self._lines = lines
        self._faults: list[ConfigFault] = []
        self._values: dict[str, Any] = {}
        self._faulty: set[str] = set()  # fields whose value could not be used
        self._places: dict[str, tuple[str, int]] = {}  # the place of each value
        self._streams: list[StreamPolicy] = []
        self._slaves: list[SlaveRule] = []
        self._rules: list[AccessRule] = []
        self._topics: list[TopicRule] = []
        self._udp_peers: list[UdpPeer] = []
        self._sections: dict[str, dict[str, Field[Any]]] = {}
        for each in described_fields():
            spec = spec_of(each)
            self._sections.setdefault(spec.section, {})[spec.key] = each

    # --- the file

    def read_tables(self, tables: dict[str, Any]) -> None:
        for name, table in tables.items():
            if name == RULE_SECTION:
                self._read_rules(name, table, RULES_MAX, self._add_rule)
            elif name == TOPICS_SECTION:
                self._read_rules(name, table, TOPIC_RULES_MAX, self._add_topic_rule)
            elif name == UDP_PEER_SECTION:
                self._read_rules(name, table, UDP_PEERS_MAX, self._add_udp_peer)
            elif name in REPEATED:
                self._read_repeated(name, table)
            elif name not in self._sections:
                self._unknown_section(name, table)
            elif not isinstance(table, dict):
                self._fault(self._lines.section(name), f"[{name}] must be a section, not {show(table)}")
            else:
                self._read_section(name, table)

    def _read_section(self, section: str, table: dict[str, Any]) -> None:
        known = self._sections[section]
        for key, raw in table.items():
            line = self._lines.key(section, key)
            if key not in known:
                self._fault(line, f"[{section}] {_word(key)}: no such key{self._key_hint(section, key)}")
                continue
            value = self._parse(known[key], raw, line, f"[{section}] ")
            if value is not None:
                self._values[known[key].name] = value
                self._places[known[key].name] = (self._place(line), line or 0)

    def _read_rules(self, section: str, tables: object, most: int, add: Callable[[dict[str, Any]], None]) -> None:
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            self._fault(self._lines.section(section), f"[{section}] must be written [[{section}]]")
        elif len(tables) > most:
            text = f"{len(tables):,} [[{section}]] sections; at most {most:,} are allowed"
            self._fault(self._lines.section(section, most), text)
        else:
            for occurrence, table in enumerate(tables):
                try:
                    add(table)
                except WrongValue as wrong:
                    self._fault(self._lines.section(section, occurrence), f"[[{section}]] {wrong}")

    def _add_rule(self, table: dict[str, Any]) -> None:
        self._rules.append(parse_rule(table))

    def _add_udp_peer(self, table: dict[str, Any]) -> None:
        self._udp_peers.append(parse_udp_peer(table))

    def _add_topic_rule(self, table: dict[str, Any]) -> None:
        self._topics.append(parse_topic_rule(self._topics, table))

    def _read_repeated(self, section: str, tables: object) -> None:
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            once = "pattern" if section == STREAM_SECTION else "upstream and its streams"
            self._fault(
                self._lines.section(section), f"[{section}] must be written [[{section}]], once for each {once}"
            )
            return
        if len(tables) > REPEATED_SECTIONS_MAX:
            line = self._lines.section(section, REPEATED_SECTIONS_MAX)
            text = f"{len(tables):,} [[{section}]] sections; at most {REPEATED_SECTIONS_MAX:,} are allowed"
            self._fault(line, text)
            return
        for occurrence, table in enumerate(tables):
            self._read_occurrence(section, occurrence, table)

    def _read_occurrence(self, section: str, occurrence: int, table: dict[str, Any]) -> None:
        known = {spec_of(each).key: each for each in fields(REPEATED[section])}
        values: dict[str, Any] = {}
        for key, raw in table.items():
            line = self._lines.key(section, key, occurrence)
            if key not in known:
                self._fault(line, f"[[{section}]] {_word(key)}: no such key{_did_you_mean(key, list(known))}")
            else:
                values[known[key].name] = self._parse(known[key], raw, line, f"[[{section}]] ")
        line = self._lines.section(section, occurrence)
        missing = [f"{key} is missing; {hint}" for key, hint in REQUIRED[section].items() if key not in table]
        if missing:
            self._fault(line, f"[[{section}]] {missing[0]}")
        elif "interval_ms" in table and table.get("durability") != "interval":
            self._fault(line, '[[stream]] interval_ms has no effect unless durability = "interval"')
        elif "linger_s" in table and table.get("durability") != "memory":
            self._fault(line, '[[stream]] linger_s has no effect unless durability = "memory"')
        elif table.get("durability") == "memory" and (useless := [key for key in NOT_IN_MEMORY if table.get(key)]):
            self._fault(line, f'[[stream]] {useless[0]} is not possible with durability = "memory"')
        elif table.get("durability") == "memory" and _NEEDS_DOLLAR.match(str(table.get("pattern"))):
            self._fault(line, '[[stream]] durability = "memory" has no effect on names with a $: they are on the disk')
        elif None not in values.values():
            self._add(REPEATED[section](**values), line)

    def _add(self, made: StreamPolicy | SlaveRule, line: int | None) -> None:
        if isinstance(made, StreamPolicy):
            shadowing = [each.pattern for each in self._streams if each.pattern in ("*", made.pattern)]
        else:
            patterns = [each.streams for each in self._slaves]
            shadowing = [each for each in patterns if covers(each.encode(), made.streams.encode())]
        if shadowing:
            section = STREAM_SECTION if isinstance(made, StreamPolicy) else SLAVE_SECTION
            text = f'is never used: an earlier section, "{shadowing[0]}", matches first'
            self._fault(line, f"[[{section}]] {text}")
        elif isinstance(made, StreamPolicy):
            self._streams.append(made)
        else:
            self._slaves.append(made)

    def check_mode(self, path: Path) -> None:
        """A file with a secret must not be open to all users of the machine."""
        secret = [each.name for each in described_fields() if spec_of(each).kind is Kind.SECRET]
        written = [name for name in secret if self._values.get(name)]
        if written and path.stat().st_mode & OTHERS_MODE:
            place, line = self._places[written[0]]
            text = f"is a secret in a file that every user of this machine may open; chmod o= {path}"
            self._faults.append(ConfigFault(place, text, line))

    # --- flags

    def read_flags(self, flags: Mapping[str, object]) -> None:
        known = {each.name: each for each in described_fields()}
        for name, raw in flags.items():
            if raw is None:
                continue
            value = self._parse(known[name], raw, None, "", flag_name(name))
            if value is not None:
                self._values[name] = value
                self._places[name] = (flag_name(name), 0)

    # --- the outcome

    def finish(self) -> Settings:
        users = self._read_users()
        password = self._read_password()
        settings = Settings(
            **self._values,
            streams=tuple(self._streams),
            slaves=tuple(self._slaves),
            users=users,
            rules=tuple(self._rules),
            topics=tuple(self._topics),
            udp_peers=tuple(self._udp_peers),
            replication_password=password,
        )
        for names, text in find_conflicts(settings):
            if not self._faulty.intersection(names):
                self._conflict(names, text)
        if self._faults:
            raise ConfigError(sorted(self._faults, key=lambda fault: fault.line))
        return settings

    def _read_users(self) -> tuple[User, ...] | None:
        """Those of the file of users; None if the default file does not exist. A link to nothing is a file."""
        wanted = self._values.get("users_file")
        if wanted is None and not os.path.lexists(USERS_FILE):
            return None
        try:
            return read_users(wanted or USERS_FILE)
        except UserFileError as error:
            place, _, text = str(error).partition(": ")
            self._faults.append(ConfigFault(place, text))
            return ()

    def _read_password(self) -> str:
        """The password as which this node logs in to others."""
        path = self._values.get("replication_password_file")
        try:
            return read_secret(Path(path)) if path else ""
        except SecretFileError as error:
            place, line = self._places["replication_password_file"]
            self._faults.append(ConfigFault(place, str(error), line))
            return ""

    def _conflict(self, names: tuple[str, ...], text: str) -> None:
        """A fault between fields, reported at the last of them that was written (defaults agree with each other)."""
        place, line = max((self._places[name] for name in names if name in self._places), key=lambda each: each[1])
        self._faults.append(ConfigFault(place, text, line))

    # --- helpers

    def _parse(self, field: Field[Any], raw: object, line: int | None, prefix: str, flag: str = "") -> Any:
        spec: Spec = spec_of(field)
        whole = isinstance(field.default, int)
        try:
            return parse_value(spec, raw, whole=whole, from_flag=bool(flag))
        except WrongValue as wrong:
            self._faulty.add(field.name)
            if flag:
                self._faults.append(ConfigFault(flag, str(wrong)))
            else:
                self._fault(line, f"{prefix}{spec.key}: {wrong}")
            return None

    def _unknown_section(self, name: str, table: object) -> None:
        if isinstance(table, dict) or (isinstance(table, list) and table and isinstance(table[0], dict)):
            hint = _did_you_mean(f"[{name}]", self._section_names())
            self._fault(self._lines.section(name), f"[{_word(name)}]: no such section{hint}")
        else:
            hint = self._key_hint("", name)
            self._fault(self._lines.key("", name), f"{_word(name)}: stands outside any section{hint}")

    def _key_hint(self, section: str, key: str) -> str:
        homes = [f"[{name}]" for name, keys in self._sections.items() if key in keys and name != section]
        if homes:
            return f"; it belongs in {' or '.join(homes)}"
        return _did_you_mean(key, list(self._sections[section]) if section else self._section_names())

    def _section_names(self) -> list[str]:
        return [
            *(f"[{name}]" for name in self._sections),
            *(f"[[{name}]]" for name in (*REPEATED, RULE_SECTION, TOPICS_SECTION, UDP_PEER_SECTION)),
        ]

    def _fault(self, line: int | None, text: str) -> None:
        self._faults.append(ConfigFault(self._place(line), text, line or 0))

    def _place(self, line: int | None) -> str:
        return f"{self._file}:{line}" if line else self._file


def _word(key: str) -> str:
    """A key as it was written, unless it holds what a message should not."""
    return key if key.isidentifier() else show(key)


def _did_you_mean(word: str, known: list[str]) -> str:
    near = suggest(word, known)
    return f"; did you mean {near}?" if near else f"; known are {', '.join(known)}"
