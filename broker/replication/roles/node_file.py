"""DATA/replication.json: the commands about many streams at once, and whether other nodes have copies.

A node without the file has no rules and never had a slave. The file is replaced whole and is on the disk before a
command is answered. The worker of slot 0 alone writes it; each worker reads it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tailrace.broker.replication.roles.rules import RULES_MAX, Rule
from tailrace.protocol.address import join_address, split_address
from tailrace.shard.errors import DirectoryError
from tailrace.shard.files import Among, replace_file
from tailrace.shard.meta import PLACE_KINDS, Upstream
from tailrace.shard.names import name_bytes_valid

NODE_FILE: Final = "replication.json"
FILE_BYTES_MAX: Final = 4 << 20
FORMAT_VERSION: Final = 1
FOLLOWERS_MAX: Final = 64
"""Followers that a node remembers; beyond it the first are forgotten."""


@dataclass(frozen=True, slots=True)
class NodeFile:
    """`rules` are those of commands. `followed`: some node has followed a stream of this one, now or before.
    `configured`: the patterns of the configuration's rules, also of such as are gone. `followers`: where the nodes
    listen that have followed, the latest last.
    """

    rules: tuple[Rule, ...] = ()
    followed: bool = False
    configured: tuple[bytes, ...] = ()
    followers: tuple[tuple[str, int], ...] = ()

    def with_follower(self, host: str, port: int) -> NodeFile:
        """With one more follower. The file is as it was if it is known already."""
        if (host, port) in self.followers:
            return self
        return replace(self, followers=(*self.followers, (host, port))[-FOLLOWERS_MAX:])


def read_node_file(directory: Path) -> NodeFile:
    """Read the data directory's file; empty without a file. Raises DirectoryError if it is damaged."""
    try:
        with open(directory / NODE_FILE, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return NodeFile()
    except OSError as error:
        raise DirectoryError(directory, f"{NODE_FILE} cannot be read: {error.strerror}") from error
    try:
        return _parse(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "put it back from a backup, or move it away and give the commands with * again"
        raise DirectoryError(directory, f"{NODE_FILE} is damaged: {error!r}; {hint}") from error


def write_node_file(directory: Path, content: NodeFile, among: Among | None = None) -> None:
    """Put it on the disk, or let it go there `among` others. Raises OSError."""
    rules = [
        {"streams": rule.pattern.decode()} if rule.upstream is None else _render(rule, rule.upstream)
        for rule in content.rules
    ]
    patterns = [pattern.decode() for pattern in content.configured]
    fields = {"format": FORMAT_VERSION, "followed": content.followed, "rules": rules, "configured": patterns}
    if content.followers:
        fields["followers"] = [join_address(*follower) for follower in content.followers]
    data = json.dumps(fields, indent=1).encode() + b"\n"
    if among is None:
        replace_file(directory / NODE_FILE, data)
    else:
        among.replace(directory / NODE_FILE, data)


def note_configured(directory: Path, kept: NodeFile, patterns: Sequence[bytes]) -> None:
    """Write down that the configuration has these, too. Raises DirectoryError."""
    known = (*kept.configured, *(pattern for pattern in patterns if pattern not in kept.configured))
    try:
        write_node_file(directory, replace(kept, configured=known[-RULES_MAX:]))
    except OSError as error:
        raise DirectoryError(directory, f"{NODE_FILE} cannot be written: {error.strerror}") from error


def _render(rule: Rule, upstream: Upstream) -> dict[str, Any]:
    address = join_address(upstream.host, upstream.port)
    fields = {"streams": rule.pattern.decode(), "upstream": address, "from": [upstream.kind, upstream.value]}
    return {**fields, "on_demand": True} if rule.on_demand else fields


def _parse(data: bytes) -> NodeFile:
    """Raises ValueError, KeyError, TypeError, AttributeError."""
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
    fields: dict[str, Any] = json.loads(data)
    if fields["format"] != FORMAT_VERSION:
        raise ValueError(f"it has format {fields['format']!r}; this program reads format {FORMAT_VERSION}")
    followed, rows = fields["followed"], fields["rules"]
    if not isinstance(followed, bool) or not isinstance(rows, list) or len(rows) > RULES_MAX:
        raise ValueError(f"followed = {followed!r} and {type(rows).__name__} of rules, at most {RULES_MAX}")
    patterns = fields.get("configured", [])
    if not isinstance(patterns, list) or len(patterns) > RULES_MAX:
        raise ValueError(f"configured = {type(patterns).__name__}, not at most {RULES_MAX} patterns")
    followers = fields.get("followers", [])
    if not isinstance(followers, list) or len(followers) > FOLLOWERS_MAX:
        raise ValueError(f"followers = {type(followers).__name__}, not at most {FOLLOWERS_MAX} addresses")
    return NodeFile(
        (*map(_parse_rule, rows),),
        followed,
        (*map(_parse_pattern, patterns),),
        (*map(split_address, followers),),
    )


def _parse_pattern(text: str) -> bytes:
    pattern = text.encode()
    if not name_bytes_valid(pattern.removesuffix(b"*") or b"*"):
        raise ValueError(f"the pattern {text!r} is for no stream")
    return pattern


def _parse_rule(row: dict[str, Any]) -> Rule:
    pattern: bytes = row["streams"].encode()
    if pattern != b"*" and not name_bytes_valid(pattern.removesuffix(b"*")):
        raise ValueError(f"the rule of {row['streams']!r} is for no stream")
    if "upstream" not in row:
        return Rule(pattern, None)
    kind, value = row["from"]
    if kind not in PLACE_KINDS or type(value) is not int or value < 0:
        raise ValueError(f"the rule of {row['streams']!r} begins at {row['from']!r}")
    upstream = Upstream(*split_address(row["upstream"]), kind, value)
    return Rule(pattern, upstream, on_demand=row.get("on_demand") is True)
