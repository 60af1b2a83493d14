"""Rules: which one holds for a stream, and which remain when commands come and go."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.process.settings import SlaveRule
from tailrace.broker.replication.roles.rules import RULES_MAX, Rule, Rules, TooManyRules, configured, covers, is_pattern
from tailrace.shard.meta import Upstream

UP, OTHER = Upstream("10.0.0.1", 5_050), Upstream("10.0.0.2", 5_050, "seq", 7)


def upstream(rules: Rules, name: bytes) -> Upstream | None:
    rule = rules.match(name)
    return rule.upstream if rule else None


def test_patterns() -> None:
    assert is_pattern(b"*") and is_pattern(b"log.*") and not is_pattern(b"log.") and not is_pattern(b"*x")
    assert covers(b"*", b"anything") and covers(b"*", b"*") and covers(b"*", b"log.*")
    assert covers(b"log.*", b"log.") and covers(b"log.*", b"log.a*") and not covers(b"log.*", b"lo*")
    assert covers(b"s", b"s") and not covers(b"s", b"s*") and not covers(b"s", b"sx")


def test_groups_of_streams() -> None:
    """The upper 16 bits of the CRC-32 of `a` are 59575, of `b` 29118."""
    assert is_pattern(b"*%7/16") and not is_pattern(b"*%7/") and not is_pattern(b"*%16/16")
    assert covers(b"*%7/16", b"a") and not covers(b"*%7/16", b"b") and covers(b"*%14/16", b"b")
    assert covers(b"*%7/16", b"$cursor/a") and covers(b"*%7/16", b"a/$dead"), "companions go with their stream"
    assert covers(b"*", b"*%7/16") and covers(b"*%7/16", b"*%7/16") and not covers(b"*%7/16", b"*")
    assert not covers(b"*%7/16", b"a*") and not covers(b"a*", b"*%7/16")


def test_each_group_follows_its_own_node() -> None:
    rules = Rules().with_rule(Rule(b"*", UP)).with_rule(Rule(b"*%7/16", OTHER)).with_rule(Rule(b"*%14/16", None))
    assert [upstream(rules, name) for name in (b"a", b"b", b"c")] == [OTHER, None, UP]
    assert rules.with_rule(Rule(b"*", UP)).commands == (Rule(b"*", UP),)


@pytest.mark.parametrize("configured", [(), (Rule(b"x*", UP),)], ids=["of groups alone", "of others too"])
def test_groups_that_are_copied_on_demand(configured: tuple[Rule, ...]) -> None:
    rules = Rules(configured=configured).with_rule(Rule(b"*%7/16", UP, on_demand=True)).with_rule(Rule(b"*%14/16", UP))
    is_on_demand = rules.on_demand_test()
    names = (b"a", b"$cursor/a", b"a/$dead", b"b", b"c", b"$memory")
    assert [is_on_demand(name) for name in names] == [True, True, True, False, False, False]
    assert (rules.has_on_demand, list(rules.groups_on_demand())) == (True, [7])
    standing = rules.with_rule(Rule(b"*%7/16", UP))
    assert (standing.has_on_demand, list(standing.groups_on_demand())) == (False, [])
    assert not standing.on_demand_test()(b"a")
    assert list(Rules().with_rule(Rule(b"*", UP, on_demand=True)).groups_on_demand()) == [0]


def test_no_rules_hold_for_nothing() -> None:
    assert Rules().match(b"s") is None


def test_the_configurations_sections_in_their_order() -> None:
    rules = Rules(
        configured=configured(
            (
                SlaveRule("orders.*", ("10.0.0.2:5050",), "#7"),
                SlaveRule("local.*", ()),
                SlaveRule("*", ("[::1]:1",), "new"),
            )
        )
    )
    assert upstream(rules, b"orders.x") == OTHER
    assert rules.match(b"local.x") == Rule(b"local.*", None)
    assert upstream(rules, b"orders") == Upstream("::1", 1, "new", 0)
    assert rules.match(b"$own") is None


def test_what_a_command_said_counts_before_the_configuration() -> None:
    rules = Rules(configured=(Rule(b"log.a", UP),)).with_rule(Rule(b"*", OTHER))
    assert upstream(rules, b"log.a") == OTHER
    rules = rules.with_rule(Rule(b"*", None))
    assert rules.match(b"log.a") == Rule(b"*", None), "it must hide what the configuration says"


def test_a_new_rule_takes_the_place_of_narrower_ones() -> None:
    rules = Rules().with_rule(Rule(b"log.a*", UP)).with_rule(Rule(b"x*", UP)).with_rule(Rule(b"log.*", OTHER))
    assert rules.commands == (Rule(b"log.*", OTHER), Rule(b"x*", UP))
    assert rules.with_rule(Rule(b"*", UP)).commands == (Rule(b"*", UP),)


def test_a_narrower_rule_stands_before_a_wider_one() -> None:
    rules = Rules().with_rule(Rule(b"*", UP)).with_rule(Rule(b"log.*", None)).with_rule(Rule(b"log.a*", OTHER))
    assert [upstream(rules, name) for name in (b"log.ab", b"log.b", b"b")] == [OTHER, None, UP]
    # A rule with None may be needed although another None covers it, but only if a rule with an upstream lies beneath.
    assert rules.with_rule(Rule(b"log.a*", None)).commands == (Rule(b"log.*", None), Rule(b"*", UP))
    assert rules.with_rule(Rule(b"lo*", None)).commands == (Rule(b"lo*", None), Rule(b"*", UP))


def test_taking_rules_back_leaves_nothing() -> None:
    rules = Rules().with_rule(Rule(b"log.*", UP)).with_rule(Rule(b"x*", UP))
    assert rules.with_rule(Rule(b"*", None)) == Rules()
    assert rules.with_rule(Rule(b"log.*", None)).with_rule(Rule(b"x*", None)) == Rules()
    assert rules.with_rule(Rule(b"unrelated*", None)) == rules
    assert Rules(configured=(Rule(b"log.a", UP),)).with_rule(Rule(b"log.*", None)).commands == (Rule(b"log.*", None),)
    assert not Rules(configured=(Rule(b"log.*", None), Rule(b"*", UP))).with_rule(Rule(b"log.*", None)).commands


def test_the_bound() -> None:
    rules = Rules(tuple(Rule(b"p%d.*" % number, UP) for number in range(RULES_MAX)))
    with pytest.raises(TooManyRules, match="1000 rules"):
        rules.with_rule(Rule(b"x*", UP))
    assert len(rules.with_rule(Rule(b"p1*", UP)).commands) < RULES_MAX


PATTERNS = st.one_of(
    st.text(alphabet="ab", max_size=3).map(lambda text: text.encode() + b"*"),
    st.sampled_from([b"*%0/2", b"*%1/2", b"*%2/3"]),
)
NAMES = [text.encode() for size in range(1, 5) for text in map("".join, itertools.product("ab", repeat=size))]
RULES = st.lists(st.builds(Rule, PATTERNS, st.sampled_from([None, UP, OTHER])), max_size=8)


@given(RULES, RULES)
def test_the_last_word_on_a_stream_holds(said: list[Rule], config: list[Rule]) -> None:
    """Against the plain model: all rules ever set, the latest first, then the configuration."""
    rules = Rules(configured=tuple(config))
    for rule in said:
        rules = rules.with_rule(rule)
    model = Rules((*reversed(said), *config))
    assert [upstream(rules, name) for name in NAMES] == [upstream(model, name) for name in NAMES]
    assert not {rule.pattern for rule in rules.commands} - {rule.pattern for rule in said}


def test_one_of_several_nodes_is_followed() -> None:
    section = SlaveRule("*", ("10.0.0.2:5050", "10.0.0.3:5050", "[::1]:1"))
    rules = Rules(configured=configured((SlaveRule("own", ()), section)))
    first, second, third = ("10.0.0.2", 5050), ("10.0.0.3", 5050), ("::1", 1)
    assert upstream(rules, b"s") == Upstream(*first, "time", 0)
    assert rules.addresses(b"s", upstream(rules, b"s")) == (first, second, third)
    assert rules.addresses(b"s", Upstream(*second)) == (second, first, third), "the one in its role comes first"
    assert rules.addresses(b"s", Upstream("elsewhere", 1)) == (("elsewhere", 1),), "nobody has listed that with others"
    assert rules.addresses(b"s", None) == rules.addresses(b"own", None) == ()
    assert [*rules.listed] == [first, second, third]
    commanded = rules.with_rule(Rule(b"s", UP))
    assert commanded.addresses(b"s", UP) == (UP[:2],), "a command names one node"
