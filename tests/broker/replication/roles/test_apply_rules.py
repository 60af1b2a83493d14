"""Commands for many streams at once, as one owner does them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.process.settings import SlaveRule
from tailrace.broker.process.work import WorkQueue
from tailrace.broker.replication.roles.apply_rules import AT_ONCE_MAX, RuleOutcome, obey, together
from tailrace.broker.replication.roles.node_file import NODE_FILE, NodeFile, read_node_file, write_node_file
from tailrace.broker.replication.roles.rules import RULES_MAX, Rule
from tailrace.broker.replication.roles.stream_roles import history_of
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.broker.streams.owner_calls import call
from tailrace.protocol.errors import Code
from tailrace.shard.epochs import EpochStart
from tailrace.shard.meta import Role, Upstream, read_meta
from tailrace.shard.stream_files import stream_paths
from tests.broker.owning import around, make_owner, publish

UP: list[Any] = ["10.0.0.1", 5_050, "time", 0]
NONE: list[Any] = ["", 0, "time", 0]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = make_owner(tmp_path)
    yield owner
    owner.release()


def say(owner: Owner, verb: str, pattern: bytes, upstream: list[Any] = NONE) -> RuleOutcome:
    """As `broker.connection.commands` does it with one worker."""
    if upstream is NONE:
        before = RuleOutcome(*call(owner, "rules", [verb, pattern, *upstream]))
    else:
        before = RuleOutcome(0)
    call(owner, "rule", [pattern, *upstream])
    return together((before, call(owner, "rules", [verb, pattern, *upstream])))


def roles(owner: Owner) -> dict[str, tuple[str, int]]:
    return {
        name.decode(): (owner.roles.role(name).value, owner.roles.epoch(name)) for name in sorted(owner.catalog.names)
    }


def test_streams_that_are_here_and_those_to_come(owner: Owner) -> None:
    publish(owner, b"log.a")
    publish(owner, b"other")
    assert say(owner, "slave", b"log.*", UP) == RuleOutcome(1)
    owner.create(b"log.b")
    assert roles(owner) == {"log.a": ("slave", 1), "log.b": ("slave", 1), "other": ("master", 1)}
    assert owner.roles.meta(b"log.b").upstream == Upstream(*UP)
    assert say(owner, "promote", b"*") == RuleOutcome(2)
    owner.create(b"log.c")
    assert roles(owner) == {
        "log.a": ("master", 2), "log.b": ("master", 2), "log.c": ("master", 1), "other": ("master", 1),
    }  # fmt: skip


def test_unslave_leaves_nobody_a_master(owner: Owner) -> None:
    say(owner, "slave", b"*", UP)
    owner.create(b"made-later")
    assert say(owner, "unslave", b"*") == RuleOutcome(1)
    assert roles(owner) == {"made-later": ("disabled", 1)}
    assert read_node_file(owner.catalog.directory.path) == NodeFile()


def test_a_command_outlives_the_owner(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    say(owner, "slave", b"*", UP)
    say(owner, "unslave", b"own.*")
    owner.create(b"s")
    owner.create(b"own.s")
    owner.release()
    again = make_owner(tmp_path)
    assert roles(again) == {"own.s": ("master", 1), "s": ("slave", 1)}
    again.release()


def test_a_command_counts_before_the_configuration(tmp_path: Path) -> None:
    owner = make_owner(tmp_path, slaves=(SlaveRule("*", ("10.0.0.9:1",)),))
    owner.create(b"s")
    assert owner.roles.meta(b"s").upstream == Upstream("10.0.0.9", 1)
    assert say(owner, "promote", b"*") == RuleOutcome(1)
    owner.create(b"t")
    assert roles(owner) == {"s": ("master", 2), "t": ("master", 1)}
    assert read_node_file(owner.catalog.directory.path).rules == (Rule(b"*", None),)
    owner.release()


@pytest.mark.parametrize(("verb", "role"), [("unslave", "disabled"), ("promote", "master")])
def test_a_damaged_stream_keeps_no_other_from_it(tmp_path: Path, verb: str, role: str) -> None:
    """The answer names it; and it does not become a master when the rule that made it a slave is gone."""
    owner = make_owner(tmp_path)
    say(owner, "slave", b"*", UP)
    for name in (b"a", b"bad", b"c"):
        owner.create(name)
    owner.close_logs()
    Path(stream_paths(owner.catalog.shard_path(b"bad"), "bad").index_file).write_bytes(b"x" * 9_000)
    outcome = say(owner, verb, b"*")
    assert outcome[:3] == (2, 1, Code.DAMAGED) and outcome.text.startswith("bad: ")
    assert [role for role, _ in roles(owner).values()] == [role, "disabled", role]
    assert not read_node_file(owner.catalog.directory.path).rules
    owner.release()
    again = make_owner(tmp_path)
    assert again.roles.role(b"bad") is Role.DISABLED
    again.release()


def test_a_stream_whose_end_is_being_set_aside_is_told_of(owner: Owner) -> None:
    publish(owner, b"a")
    publish(owner, b"busy")
    owner.stream(b"busy").busy = True
    outcome = say(owner, "slave", b"*", UP)
    assert outcome[:3] == (1, 1, Code.UNAVAILABLE) and outcome.text.startswith("busy: ")
    owner.stream(b"busy").busy = False
    assert say(owner, "slave", b"*", UP) == RuleOutcome(2)


def test_being_followed_is_written_down_once(owner: Owner) -> None:
    call(owner, "rule", [b"x*", *UP])
    call(owner, "followed", [])
    kept = read_node_file(owner.catalog.directory.path)
    assert kept.followed and len(kept.rules) == 1
    before = (owner.catalog.directory.path / NODE_FILE).stat()
    call(owner, "followed", [])
    after = (owner.catalog.directory.path / NODE_FILE).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_file_that_is_damaged_or_cannot_be_written_refuses(owner: Owner) -> None:
    write_node_file(owner.catalog.directory.path, NodeFile((), True))
    (owner.catalog.directory.path / f"{NODE_FILE}.new").mkdir()
    with pytest.raises(Refused, match="could not be written down") as caught:
        call(owner, "rule", [b"x*", *UP])
    assert caught.value.code is Code.FULL
    (owner.catalog.directory.path / NODE_FILE).write_text("{")
    for verb, args in (("rule", [b"x*", *UP]), ("rules", ["slave", b"x*", *UP]), ("followed", [])):
        with pytest.raises(Refused, match="is damaged") as caught:
            call(owner, verb, args)
        assert caught.value.code is Code.UNAVAILABLE


def test_outcomes_together() -> None:
    assert together([]) == RuleOutcome(0)
    assert together([[1, 0, "", ""], [2, 1, "damaged", "a"], [3, 2, "full", "b"]]) == RuleOutcome(6, 3, "damaged", "a")


def test_a_section_that_is_gone_makes_no_master_of_what_followed_by_it(tmp_path: Path) -> None:
    """Nobody promoted it: it follows nobody and takes no messages until a command decides its role."""
    names = (b"a", b"b", b"c", b"d")
    owner = make_owner(tmp_path, slaves=(SlaveRule("d", ()), SlaveRule("*", ("10.0.0.1:5050",))))
    for name in names:
        owner.create(name, by_command=True)
    assert [owner.roles.role(name) for name in names] == [Role.SLAVE, Role.SLAVE, Role.SLAVE, Role.MASTER]
    owner.release()

    owner = make_owner(tmp_path)
    assert [owner.roles.role(name) for name in names] == [Role.DISABLED] * 4
    assert publish(owner, b"a").refusals[0][0] is Code.DISABLED
    assert call(owner, "promote", [b"a"]) == 2, "a term of its own"
    assert say(owner, "unslave", b"b*").changed == 1
    assert say(owner, "promote", b"c*").changed == 1
    assert say(owner, "promote", b"*").changed == 1
    assert not read_node_file(owner.catalog.directory.path).configured
    owner.release()

    owner = make_owner(tmp_path)
    assert [owner.roles.role(name) for name in names] == [Role.MASTER, Role.DISABLED, Role.MASTER, Role.MASTER]
    assert [owner.roles.epoch(name) for name in names] == [2, 1, 2, 2]
    owner.release()


# --- step by step -----------------------------------------------------------------------------------------------------


def test_a_rule_is_on_the_disk_before_it_is_obeyed(owner: Owner) -> None:
    publish(owner, b"s")
    call(owner, "rule", [b"*", *UP])
    assert read_node_file(owner.catalog.directory.path).rules == (Rule(b"*", Upstream(*UP)),)
    assert roles(owner) == {"s": ("master", 1)} and not owner.roles.rules.commands


@pytest.mark.parametrize(("verb", "role", "epoch"), [("promote", Role.MASTER, 2), ("unslave", Role.DISABLED, 1)])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_whenever_the_worker_dies_nobody_is_master_of_the_term_it_followed_in(
    tmp_path: Path, verb: str, role: Role, epoch: int, steps: int
) -> None:
    """Each stream's role is written down before the rule that made it a slave goes."""
    owner = make_owner(tmp_path)
    say(owner, "slave", b"*", UP)
    owner.create(b"by-rule")
    for command, args in (("rules", [verb, b"*", *NONE]), ("rule", [b"*", *NONE]), ("rules", [verb, b"*", *NONE]))[
        :steps
    ]:
        call(owner, command, args)
    assert read_meta(owner.catalog.shard_path(b"by-rule"), "by-rule").role is role
    owner.release()
    again = make_owner(tmp_path)
    assert (again.roles.role(b"by-rule"), again.roles.epoch(b"by-rule")) == (role, epoch)
    assert bool(again.roles.rules.commands) is (steps == 1)
    again.release()


def test_what_is_made_between_the_two_rounds_is_seen_to_in_the_second(owner: Owner) -> None:
    say(owner, "slave", b"*", UP)
    call(owner, "rules", ["promote", b"*", *NONE])
    owner.create(b"meanwhile")
    call(owner, "rule", [b"*", *NONE])
    assert owner.roles.role(b"meanwhile") is Role.SLAVE, "this worker obeys the rule still"
    assert RuleOutcome(*call(owner, "rules", ["promote", b"*", *NONE])) == RuleOutcome(1)
    assert roles(owner) == {"meanwhile": ("master", 2)}


def test_streams_that_slaves_make_during_the_command_follow_too(owner: Owner) -> None:
    """The slaves of a node that was set up anew come back, with their terms, during the command that makes it follow
    another.
    """
    publish(owner, b"s")
    work, outcomes = WorkQueue(lambda: 0.0), list[Any]()
    call(owner, "rule", [b"*", *UP])
    obey(owner, work, ["slave", b"*", *UP], outcomes.append)
    call(owner, "follow", [b"meanwhile", 3, "their-master"])
    assert owner.roles.meta(b"meanwhile").upstream is None, "it gives in to the later term, and knows no master"
    while work.turns:
        work.begin_turn()
        work.run()
    assert outcomes == [[2, 0, "", ""]]
    assert owner.roles.meta(b"meanwhile").upstream == owner.roles.meta(b"s").upstream == Upstream(*UP)


@pytest.mark.parametrize("count", [1, AT_ONCE_MAX + 1])
def test_a_stream_that_is_made_here_during_the_command_has_its_term_written_down(owner: Owner, count: int) -> None:
    """Its messages are of this node's term. Otherwise the upstream's empty stream is taken for one that is behind."""
    publish(owner, b"s")
    work, outcomes = WorkQueue(lambda: 0.0), list[Any]()
    call(owner, "rule", [b"*", *UP])
    obey(owner, work, ["slave", b"*", *UP], outcomes.append)
    made = [b"made-%d" % number for number in range(count)]
    for name in made:
        publish(owner, name)
    while work.turns:
        work.begin_turn()
        work.run()
    assert outcomes == [[1 + count, 0, "", ""]]
    for name in (b"s", *made):
        assert owner.roles.meta(name).upstream == Upstream(*UP)
        assert history_of(owner, owner.stream(name)) == (EpochStart(1, 0, owner.catalog.directory.node_id),)


def test_a_command_ends_while_others_make_streams_without_end(owner: Owner) -> None:
    publish(owner, b"s")
    work, outcomes, number = WorkQueue(lambda: 0.0), list[Any](), 0
    call(owner, "rule", [b"*", *UP])
    obey(owner, work, ["slave", b"*", *UP], outcomes.append)
    while not outcomes:
        for _ in range(AT_ONCE_MAX + 1):
            publish(owner, b"made-%d" % number)
            number += 1
        work.begin_turn()
        work.run()
    assert set(roles(owner).values()) == {("slave", 1)}


def test_the_brokers_own_streams_are_not_meant(owner: Owner) -> None:
    owner.create(b"$own", by_command=True)
    publish(owner, b"s")
    assert say(owner, "slave", b"*", UP) == RuleOutcome(1)
    assert say(owner, "promote", b"*") == RuleOutcome(1)
    assert roles(owner) == {"$own": ("master", 1), "s": ("master", 2)}


def test_who_listens_hears_of_the_rules_when_they_have_been_read(owner: Owner) -> None:
    heard: list[tuple[Rule, ...]] = []
    around(owner).on_rules = lambda: heard.append(owner.roles.rules.commands)
    publish(owner, b"s")
    say(owner, "slave", b"*", UP)
    assert heard == [(Rule(b"*", Upstream(*UP)),)]


def test_rules_have_a_bound(owner: Owner) -> None:
    write_node_file(
        owner.catalog.directory.path, NodeFile(tuple(Rule(b"p%d.*" % n, Upstream(*UP)) for n in range(RULES_MAX)))
    )
    with pytest.raises(Refused) as caught:
        call(owner, "rule", [b"one-more*", *UP])
    assert caught.value.code is Code.OVERLOADED
