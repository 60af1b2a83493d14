"""The [[rule]] sections of the configuration: who has which right to which streams, in order."""

from __future__ import annotations

from typing import Any, Final

from tailrace.broker.access.rules import ANONYMOUS, EVERYBODY, GROUP_PREFIX, AccessRule, Right
from tailrace.broker.access.users import NAME_RULE, name_valid
from tailrace.supervisor.config_values import WrongValue, show, suggest

RULE_SECTION: Final = "rule"
RULES_MAX: Final = 1_000
"""They are tried in turn, once for each user, right and stream."""
WORDS_MAX: Final = 100
PATTERN_CHARACTERS_MAX: Final = 400
KEYS: Final = ("allow", "deny", "rights", "streams")
EXAMPLE: Final = 'allow = ["ann", "@sensors"]'


def parse_rule(table: dict[str, Any]) -> AccessRule:
    """One section. Raises WrongValue."""
    for key in table:
        if key not in KEYS:
            near = suggest(key, list(KEYS))
            hint = f"did you mean {near}?" if near else f"known are {', '.join(KEYS)}"
            raise WrongValue(f"{show(key)}: no such key; {hint}")
    if ("allow" in table) == ("deny" in table):
        raise WrongValue(f"write who it is for either as {EXAMPLE} or as deny = ...")
    word = "allow" if "allow" in table else "deny"
    who = _words(word, table[word])
    for each in who:
        if each not in (EVERYBODY, ANONYMOUS) and not name_valid(each.removeprefix(GROUP_PREFIX)):
            known = f"a user, {GROUP_PREFIX}GROUP, {EVERYBODY} (everybody who has logged in) or {ANONYMOUS}"
            raise WrongValue(f"{word}: {show(each)} is not {known}; a name has {NAME_RULE}")
    if "rights" not in table:
        raise WrongValue('rights is missing; rights = ["publish", "create"] is an example')
    streams = _words("streams", table.get("streams", EVERYBODY))
    return AccessRule(word == "allow", who, frozenset(map(_right, _words("rights", table["rights"]))), streams)


def _words(key: str, value: object) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not 0 < len(words) <= WORDS_MAX or not all(_is_word(each) for each in words):
        raise WrongValue(f"{key}: write a text or a list of 1 to {WORDS_MAX} texts, not {show(value)}")
    return tuple(words)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= PATTERN_CHARACTERS_MAX and value.isprintable()


def _right(word: str) -> Right:
    if word not in tuple(Right):
        raise WrongValue(f"rights: {show(word)} is not one of {', '.join(Right)}")
    return Right(word)
