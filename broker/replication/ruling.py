"""Commands for many streams at once: the rule is written down once, by the worker of slot 0, then every worker does it.

The three functions are verbs of `broker.owner_calls`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from broker.owner import Owner, Refused
from broker.protocol.errors import Code
from broker.replication import roles
from broker.replication.node_file import NodeFile, read_node_file, write_node_file
from broker.replication.rules import Rule, TooManyRules, covers
from shard.errors import DirectoryError
from shard.meta import Role, Upstream

log = logging.getLogger(__name__)

Args = list[Any]

PAUSE_STREAMS = 256  # between two signs of life: each of them may be opened for this


def rule(owner: Owner, args: Args) -> None:
    """[pattern, host ("" for none), port, kind, value]. What streams of this pattern do from now on is on the disk."""
    pattern, host, *rest = args
    upstream = Upstream(host, *rest) if host else None
    kept = _read(owner)
    try:
        wanted = replace(owner.rules, commands=kept.rules).with_rule(Rule(pattern, upstream))
        _write(owner, replace(kept, rules=wanted.commands))
    except TooManyRules as error:
        raise Refused(Code.OVERLOADED, str(error)) from error


def followed(owner: Owner, _args: Args) -> None:
    """[]. Some node follows a stream of this one: what a master does after the machine went down depends on it."""
    kept = _read(owner)
    if not kept.followed:
        _write(owner, replace(kept, followed=True))


def rules(owner: Owner, args: Args) -> int:
    """[verb, pattern, host, port, kind, value] -> streams of this worker that it changed. Reads the rules anew.

    Before a rule is taken back its streams have their roles written down one by one, and before one is obeyed it is on
    the disk: so `slave` asks for `rule` and then for this, `promote` and `unslave` for this, `rule`, and this.
    """
    verb, pattern, *upstream = args
    changed = 0
    with owner.many_changes():
        for number, name in enumerate([name for name in owner.names if covers(pattern, name)]):
            changed += _DO[verb](owner, name, upstream)
            if number % PAUSE_STREAMS == 0:
                owner.on_pause()
    try:
        owner.read_rules()
    except DirectoryError as error:
        raise Refused(Code.UNAVAILABLE, str(error)) from error
    owner.on_rules()
    return changed


def _slave(owner: Owner, name: bytes, upstream: list[Any]) -> bool:
    roles.slave(owner, [name, *upstream])
    return True


def _unslave(owner: Owner, name: bytes, _upstream: list[Any]) -> bool:
    if owner.role(name) is not Role.SLAVE:
        return False
    roles.unslave(owner, [name])
    return True


def _promote(owner: Owner, name: bytes, _upstream: list[Any]) -> bool:
    if owner.role(name) is not Role.SLAVE:
        return False
    roles.promote(owner, [name])
    return True


_DO: Final[Mapping[str, Callable[[Owner, bytes, list[Any]], bool]]] = {
    "slave": _slave,
    "unslave": _unslave,
    "promote": _promote,
}


def _read(owner: Owner) -> NodeFile:
    try:
        return read_node_file(owner.directory.path)
    except DirectoryError as error:
        raise Refused(Code.UNAVAILABLE, str(error)) from error


def _write(owner: Owner, content: NodeFile) -> None:
    try:
        write_node_file(owner.directory.path, content)
    except OSError as error:
        raise Refused(Code.FULL, f"the rule could not be written down: {error.strerror}") from error
