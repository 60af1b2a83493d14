"""The [[topics]] sections of the configuration: which names are topics, and in which streams they lie, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tailrace.broker.topics.rules import TopicRule, shadowing_filter, template_fault
from tailrace.protocol.topics import filter_fault
from tailrace.supervisor.config_values import WrongValue, show, suggest

TOPICS_SECTION: Final = "topics"
TOPIC_RULES_MAX: Final = 100
"""They are tried in turn, once for each name of the latest ones that a worker has looked up."""
KEYS: Final = ("filter", "stream")
EXAMPLE: Final = 'filter = "sensors/#" and stream = "sensors"'


def parse_topic_rule(earlier: Sequence[TopicRule], table: dict[str, Any]) -> TopicRule:
    """One section, behind the earlier ones. Raises WrongValue."""
    for key in table:
        if key not in KEYS:
            near = suggest(key, list(KEYS))
            hint = f"did you mean {near}?" if near else f"known are {', '.join(KEYS)}"
            raise WrongValue(f"{show(key)}: no such key; {hint}")
    texts = [_text(table, key) for key in KEYS]
    rule = TopicRule(*texts)
    if fault := filter_fault(rule.topics.encode("utf-8", "surrogatepass")):
        raise WrongValue(f"filter: {fault}")
    if rule.topics.startswith("$"):
        raise WrongValue(
            f"filter: {show(rule.topics)} begins with $: such names are the broker's own, and never topics"
        )
    if fault := template_fault(rule):
        raise WrongValue(f"stream: {fault}")
    if shadowing := shadowing_filter(earlier, rule):
        raise WrongValue(f'is never used: an earlier section, "{shadowing}", matches first')
    return rule


def _text(table: dict[str, Any], key: str) -> str:
    value = table.get(key)
    if value is None:
        raise WrongValue(f"{key} is missing; {EXAMPLE} are an example")
    if not isinstance(value, str) or not value:
        raise WrongValue(f"{key}: write a text, not {show(value)}")
    return value
