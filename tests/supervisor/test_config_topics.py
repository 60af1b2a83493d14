"""The [[topics]] sections, as the configuration reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.topics.rules import TopicRule
from tailrace.supervisor.config import ConfigError, load
from tailrace.supervisor.config_topics import TOPIC_RULES_MAX, parse_topic_rule
from tailrace.supervisor.config_values import WrongValue


def test_a_rule() -> None:
    rule = TopicRule("sensors/#", "sensors-{hash:16}")
    assert parse_topic_rule([], {"filter": "sensors/#", "stream": "sensors-{hash:16}"}) == rule


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({}, 'filter is missing; filter = "sensors/#" and stream = "sensors" are an example'),
        ({"filter": "#"}, "stream is missing"),
        ({"filter": "#", "streem": "x"}, "did you mean stream"),
        ({"filter": 7, "stream": "x"}, "filter: write a text, not 7"),
        ({"filter": "", "stream": "x"}, "filter: write a text"),
        ({"filter": "a/#/b", "stream": "x"}, "filter: # must be the last level"),
        ({"filter": "$SYS/#", "stream": "x"}, r"filter: .*begins with \$"),
        ({"filter": "a/+", "stream": "{3}"}, r"stream: \{3\} is a level that no topic of a/\+ has"),
        ({"filter": "a/+", "stream": "a b"}, "stream: a b is not the name of a new stream"),
        ({"filter": "old/7", "stream": "x"}, r'is never used: an earlier section, "old/#", matches first'),
    ],
)
def test_faults_are_named(table: dict[str, Any], fault: str) -> None:
    with pytest.raises(WrongValue, match=fault):
        parse_topic_rule([TopicRule("old/#", "old")], table)


def test_rules_of_topics_are_part_of_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text('[[topics]]\nfilter = "a/#"\nstream = "a"\n[[topics]]\nfilter = "#"\nstream = "{1}"\n')
    assert load(config).topics == (TopicRule("a/#", "a"), TopicRule("#", "{1}"))
    config.write_text(config.read_text() + '[[topics]]\nfilter = "b"\nstream = "c"\n')
    with pytest.raises(ConfigError) as failed:
        load(config)
    assert str(failed.value) == f'{config}:7: [[topics]] is never used: an earlier section, "#", matches first'


def test_there_are_not_too_many(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text("".join(f'[[topics]]\nfilter = "{n}/#"\nstream = "s"\n' for n in range(TOPIC_RULES_MAX + 1)))
    with pytest.raises(ConfigError, match=r"101 \[\[topics\]\] sections; at most 100 are allowed"):
        load(config)
    config.write_text("topics = 3\n")
    with pytest.raises(ConfigError, match=r"\[topics\] must be written \[\[topics\]\]"):
        load(config)
