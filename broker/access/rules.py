"""Rights, and the ordered rules that give them to users and groups. Pure.

The first rule that fits a user, a right and a stream decides; without one the right is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from typing import Final

from tailrace.broker.access.identity import Identity


class Right(StrEnum):
    """`node`: what other nodes do: follow, watch, claim, hold and fence streams, and publish to them for their clients.
    `admin`: the commands of administrators.
    """

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    CONSUME = "consume"
    CREATE = "create"
    ADMIN = "admin"
    NODE = "node"


EVERYBODY: Final = "*"
"""In a rule: every user that has logged in."""
ANONYMOUS: Final = "anonymous"
"""In a rule: connections that have not. No user may have this name."""
GROUP_PREFIX: Final = "@"
USER_FIELD: Final = "{user}"
_SPECIAL = re.compile(r"([*?\[])")


@dataclass(frozen=True, slots=True)
class AccessRule:
    """`who`: names of users, `@GROUP`, `*` or `anonymous`; `streams`: shell patterns, in which `{user}` is the name of
    the user.
    """

    allow: bool
    who: tuple[str, ...]
    rights: frozenset[Right]
    streams: tuple[str, ...]

    def concerns(self, identity: Identity, right: Right) -> bool:
        return right in self.rights and any(_is_one(identity, each) for each in self.who)

    def matches(self, identity: Identity, name: str) -> bool:
        """Whether this stream is one of the rule's, for this user."""
        return any(_compiled(pattern, identity.user).fullmatch(name) for pattern in self.streams)

    def covers(self, identity: Identity, prefix: str) -> bool:
        """Whether all streams that begin so are certainly the rule's."""
        return any(_covers(_with_user(pattern, identity.user), prefix) for pattern in self.streams)

    def may_touch(self, identity: Identity, prefix: str) -> bool:
        """Whether a stream that begins so may be the rule's."""
        stems = (_stem(_with_user(pattern, identity.user)) for pattern in self.streams)
        return any(stem.startswith(prefix) or prefix.startswith(stem) for stem in stems)


def decide(rules: Iterable[AccessRule], identity: Identity, right: Right, name: str) -> bool:
    """The decision of the first rule that fits; False without one."""
    for rule in rules:
        if rule.concerns(identity, right) and rule.matches(identity, name):
            return rule.allow
    return False


def decide_prefix(rules: Iterable[AccessRule], identity: Identity, right: Right, prefix: str) -> bool:
    """Whether the right holds for every stream that begins so. False if the rules do not show it."""
    for rule in rules:
        if rule.concerns(identity, right):
            if rule.allow and rule.covers(identity, prefix):
                return True
            if not rule.allow and rule.may_touch(identity, prefix):
                return False
    return False


def denies_some(rules: Iterable[AccessRule], identity: Identity, right: Right, prefix: str) -> bool:
    """Whether a rule refuses the right for a name that begins so, or may."""
    for rule in rules:
        if rule.concerns(identity, right):
            if rule.allow and rule.covers(identity, prefix):
                return False
            if not rule.allow and rule.may_touch(identity, prefix):
                return True
    return False


def denied_text(identity: Identity, right: Right) -> str:
    """The text of the refusal that a connection without a right gets."""
    if not identity.user:
        return f"the right {right} needs a login"
    return f"the user {identity.user} does not have the right {right} to this stream"


def _is_one(identity: Identity, who: str) -> bool:
    if not identity.user:
        return who == ANONYMOUS
    if who.startswith(GROUP_PREFIX):
        return who.removeprefix(GROUP_PREFIX) in identity.groups
    return who in (EVERYBODY, identity.user)


def _with_user(pattern: str, user: str) -> str:
    """The pattern for one user, whose name stands for itself, with all its characters."""
    return pattern.replace(USER_FIELD, _SPECIAL.sub(r"[\1]", user))


@lru_cache(maxsize=4_096)
def _compiled(pattern: str, user: str) -> re.Pattern[str]:
    return re.compile(translate(_with_user(pattern, user)))


def _stem(pattern: str) -> str:
    """What every match of a shell pattern begins with."""
    found = _SPECIAL.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def _covers(pattern: str, prefix: str) -> bool:
    stem = _stem(pattern)
    return pattern == f"{stem}*" and prefix.startswith(stem)
