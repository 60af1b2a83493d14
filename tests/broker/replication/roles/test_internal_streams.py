"""Companions of streams: which there are, and what a node is to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.replication.roles.internal_streams import InternalStreams, is_companion, own_part, with_role_of
from tailrace.broker.replication.roles.rules import Rule, Rules
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.broker.streams.owner_calls import call
from tailrace.protocol.errors import Code
from tailrace.shard.epochs import EpochStart, History
from tailrace.shard.meta import Role, StreamMeta, Upstream, meta_path, read_meta
from tests.broker.owning import around, make_owner, publish

S, CURSOR, DEAD, DEAD_CURSOR = b"s", b"$cursor/s", b"s/$dead", b"$cursor/s/$dead"
FAMILY = (S, CURSOR, DEAD, DEAD_CURSOR)
UPSTREAM = Upstream("10.0.0.1", 5050, "time", 7)
FROM_THE_BEGINNING = Upstream("10.0.0.1", 5050, "seq", 0)
HISTORY = (EpochStart(1, 0, "a"), EpochStart(3, 5, "b"))


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    """It has a stream with all its companions, and another one."""
    owner = make_owner(tmp_path)
    for name in (*FAMILY, b"other"):
        owner.create(name)
    return owner


def state(owner: Owner) -> list[tuple[Role, Upstream | None]]:
    return [(owner.roles.meta(name).role, owner.roles.meta(name).upstream) for name in FAMILY[1:]]


def epochs(owner: Owner) -> list[int]:
    return [owner.roles.epoch(name) for name in FAMILY]


def history(owner: Owner, name: bytes) -> History:
    return stream_roles.history_of(owner, owner.stream(name))


def test_which_streams_are_companions() -> None:
    found = InternalStreams()
    found.note((*FAMILY, b"other", b"$own", b"$cursor/", b"other/$dead"))
    assert found.of(S) == (CURSOR, DEAD, DEAD_CURSOR) and found.of(b"other") == (b"other/$dead",)
    assert not (found.of(CURSOR) or found.of(DEAD) or found.of(b"$own"))
    assert [is_companion(name) for name in (*FAMILY, b"other", b"$own", b"$cursor/")] == [False] + [True] * 3 + [
        False
    ] * 3


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (StreamMeta("s"), StreamMeta("c", epoch=3, history=HISTORY)),
        (StreamMeta("s", Role.MASTER, 7, UPSTREAM), StreamMeta("c", epoch=7, history=HISTORY)),
        (StreamMeta("s", Role.DISABLED, 7), StreamMeta("c", Role.DISABLED, 3, None, HISTORY)),
        (StreamMeta("s", Role.SLAVE, 7), StreamMeta("c", Role.SLAVE, 3, None, HISTORY)),
        (StreamMeta("s", Role.SLAVE, 7, UPSTREAM), StreamMeta("c", Role.SLAVE, 3, FROM_THE_BEGINNING, HISTORY)),
    ],
)
def test_a_companion_has_the_role_of_its_stream_and_terms_of_its_own(base: StreamMeta, expected: StreamMeta) -> None:
    own = StreamMeta("c", epoch=3, history=HISTORY)
    assert with_role_of(base, own) == expected
    assert own_part(expected) == StreamMeta("c", epoch=expected.epoch, history=HISTORY)


# --- commands ---------------------------------------------------------------------------------------------------------


def test_a_companion_turns_with_its_stream(owner: Owner) -> None:
    changed: list[bytes] = []
    around(owner).on_role = changed.append
    steps: list[tuple[Any, list[Any], Role, Upstream | None]] = [
        (stream_roles.slave, [S, *UPSTREAM], Role.SLAVE, FROM_THE_BEGINNING),
        (stream_roles.unslave, [S], Role.DISABLED, None),
        (stream_roles.promote, [S], Role.MASTER, None),
        (stream_roles.unmaster, [S], Role.DISABLED, None),
        (stream_roles.slave, [S, *UPSTREAM], Role.SLAVE, FROM_THE_BEGINNING),
        (stream_roles.master, [S], Role.MASTER, None),
    ]
    for command, args, role, upstream in steps:
        changed.clear()
        command(owner, args)
        assert state(owner) == [(role, upstream)] * 3
        assert set(changed) == set(FAMILY), "whoever follows them is told, and what follows for them is done"
        assert [owner.catalog.open[name].epoch > 0 for name in FAMILY] == [role is Role.MASTER] * 4
    assert owner.roles.role(b"other") is Role.MASTER


def test_a_promotion_begins_a_term_of_each(owner: Owner) -> None:
    for name in FAMILY:
        publish(owner, name, b"before")
    stream_roles.slave(owner, [S, *UPSTREAM])
    assert stream_roles.promote(owner, [S]) == 2
    node = owner.catalog.directory.node_id
    for name in FAMILY:
        publish(owner, name, b"behind")
        assert (owner.roles.role(name), history(owner, name)[-1]) == (Role.MASTER, EpochStart(2, 1, node))
        assert (
            owner.stream(name).log.entry(1).epoch == read_meta(owner.catalog.shard_path(name), name.decode()).epoch == 2
        )
    assert owner.roles.meta(S).upstream == UPSTREAM, "it is claimed from there"
    assert state(owner) == [(Role.MASTER, None)] * 3, "and the others with it"


def test_a_companion_of_a_later_term_begins_one_behind_it(owner: Owner) -> None:
    """Like a stream that another node already knows: the two remain distinguishable."""
    stream_roles.slave(owner, [S, *UPSTREAM])
    stream_roles.learn(owner, owner.stream(CURSOR), (EpochStart(1, 0, "a"), EpochStart(6, 0, "b")))
    assert epochs(owner) == [1, 6, 1, 1]
    assert stream_roles.promote(owner, [S]) == 2
    assert epochs(owner) == [2, 7, 2, 2]


def test_a_promotion_counts_where_a_companion_is_damaged(owner: Owner, caplog: pytest.LogCaptureFixture) -> None:
    """Its messages have the term of its stream, whether that could be written down or not."""
    stream_roles.slave(owner, [S, *UPSTREAM])
    owner.forget(owner.stream(CURSOR))
    (owner.catalog.shard_path(CURSOR) / "%24cursor%2Fs.content").write_bytes(b"no header")
    assert stream_roles.promote(owner, [S]) == 2
    assert epochs(owner) == [2, 2, 2, 2] and CURSOR not in owner.roles.metas and DEAD in owner.roles.metas
    assert "'$cursor/s': its term 2 could not be written down" in caplog.text.replace("b'", "'")


def test_a_companion_that_is_made_later_is_of_the_term_of_its_stream(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    owner.create(S)
    stream_roles.slave(owner, [S, *UPSTREAM])
    stream_roles.promote(owner, [S])
    publish(owner, DEAD, b"x")
    assert owner.stream(DEAD).log.entry(0).epoch == 2
    assert history(owner, DEAD)[-1][:2] == (2, 0)
    assert DEAD not in owner.roles.metas, "nothing need be written down for it"


@pytest.mark.parametrize(
    "command",
    [stream_roles.master, stream_roles.promote, stream_roles.unmaster, stream_roles.slave, stream_roles.unslave],
)
@pytest.mark.parametrize("name", [DEAD, b"new/$dead"])
def test_a_companion_is_commanded_by_the_name_of_its_stream(owner: Owner, command: Any, name: bytes) -> None:
    args = [name, *UPSTREAM] if command is stream_roles.slave else [name]
    with pytest.raises(Refused, match=r"goes with (s|new) and has its role; say this of that one") as refused:
        command(owner, args)
    assert refused.value.code is Code.USAGE and b"new/$dead" not in owner.catalog.names


def test_while_the_end_of_a_companion_is_set_aside_nothing_changes(owner: Owner) -> None:
    stream_roles.slave(owner, [S, *UPSTREAM])
    owner.stream(CURSOR).busy = True
    with pytest.raises(Refused, match="is being set aside"):
        stream_roles.promote(owner, [S])
    assert owner.roles.role(S) is owner.roles.role(CURSOR) is Role.SLAVE


def test_a_rule_is_for_streams_and_their_companions(owner: Owner) -> None:
    call(owner, "rule", [b"s*", *UPSTREAM])
    assert call(owner, "rules", ["slave", b"s*", *UPSTREAM])[:2] == [1, 0]
    assert state(owner) == [(Role.SLAVE, FROM_THE_BEGINNING)] * 3
    for name in (b"$cursor/s-new", b"other/$dead"):
        owner.create(name)
    assert (
        owner.roles.meta(b"$cursor/s-new").upstream == FROM_THE_BEGINNING
        and owner.roles.role(b"other/$dead") is Role.MASTER
    )
    assert call(owner, "rules", ["promote", b"*", "", 0, "time", 0])[:2] == [2, 0]
    assert state(owner) == [(Role.MASTER, None)] * 3
    assert epochs(owner) == [2] * 4 and owner.roles.epoch(b"$cursor/s-new") == 2


def test_a_pattern_that_only_a_companion_begins_with_is_for_none(owner: Owner) -> None:
    """orders/* is for orders/eu, and not for the dead letters of orders."""
    owner.roles.rules = Rules((Rule(b"s/*", UPSTREAM),))
    assert owner.roles.role(DEAD) is owner.roles.role(DEAD_CURSOR) is Role.MASTER
    assert call(owner, "rules", ["slave", b"s/*", *UPSTREAM])[:2] == [0, 0]


# --- other nodes ------------------------------------------------------------------------------------------------------


def test_a_claim_of_a_stream_is_one_of_its_companions(owner: Owner) -> None:
    """A claim covers also the internal streams that the claimant does not have."""
    for name in FAMILY:
        publish(owner, name, b"x")
    assert (
        stream_roles.claimed(owner, [S, [[1, 0, owner.catalog.directory.node_id], [2, 1, "b"]], "b", 6060])[0]
        == "slave"
    )
    assert state(owner) == [(Role.SLAVE, Upstream("b", 6060, "seq", 0))] * 3
    for name in (DEAD, b"new/$dead"):
        with pytest.raises(Refused, match="goes with"):
            stream_roles.claimed(owner, [name, [[9, 0, "c"]], "c", 6060])


def test_who_follows_a_companion_of_a_later_term_is_told_one_behind_it(owner: Owner) -> None:
    """It was another master's and has not come here before this node was promoted; who is the master now is settled."""
    publish(owner, CURSOR, b"x")
    stream_roles.record_term(owner, CURSOR, 5, "")
    assert (owner.roles.role(CURSOR), owner.roles.epoch(CURSOR), owner.catalog.open[CURSOR].epoch) == (
        Role.MASTER,
        6,
        6,
    )
    assert history(owner, CURSOR)[-1] == EpochStart(6, 1, owner.catalog.directory.node_id)
    assert owner.roles.epoch(S) == 1 and owner.roles.role(S) is Role.MASTER


def test_whose_the_first_term_was_is_not_guessed_where_there_was_another_master(owner: Owner) -> None:
    """A companion that was copied has no .meta while its stream has one."""
    publish(owner, CURSOR, b"x")
    assert history(owner, CURSOR) == (EpochStart(1, 0, owner.catalog.directory.node_id),)
    stream_roles.slave(owner, [S, *UPSTREAM])
    stream_roles.promote(owner, [S])
    assert history(owner, CURSOR)[0] == EpochStart(1, 0, "")


def test_who_follows_a_companion_that_is_not_here_makes_it(tmp_path: Path) -> None:
    owner = make_owner(tmp_path, auto_master=False)
    owner.create(S, by_command=True)
    assert call(owner, "follow", [CURSOR, 1, ""])[0] == "master" and CURSOR in owner.catalog.names
    with pytest.raises(Refused):
        call(owner, "follow", [b"other", 1, ""])


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_companion_is_not_without_its_stream(tmp_path: Path) -> None:
    owner = make_owner(tmp_path)
    owner.create(DEAD_CURSOR)
    assert sorted(owner.catalog.names) == [DEAD_CURSOR, S]


def test_what_is_written_down_of_a_companion_is_its_terms(owner: Owner, tmp_path: Path) -> None:
    stream_roles.slave(owner, [S, *UPSTREAM])
    stream_roles.learn(owner, owner.stream(CURSOR), HISTORY)
    written = read_meta(owner.catalog.shard_path(CURSOR), CURSOR.decode())
    assert written == StreamMeta(CURSOR.decode(), Role.MASTER, 3, None, HISTORY)
    owner.release()
    again = make_owner(tmp_path)
    assert again.roles.meta(CURSOR) == StreamMeta(CURSOR.decode(), Role.SLAVE, 3, FROM_THE_BEGINNING, HISTORY)
    assert (
        again.catalog.companions.of(S) != () and not meta_path(again.catalog.shard_path(DEAD), DEAD.decode()).exists()
    )
    again.release()


@pytest.mark.parametrize("first", [S, CURSOR])
def test_after_the_machine_went_down_all_begin_one_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    """Whichever is opened first."""
    owner = make_owner(tmp_path)
    for name in FAMILY[:3]:
        publish(owner, name, b"x")
    owner.release()
    monkeypatch.setattr("tests.broker.owning.BOOT", "the next boot")
    again = make_owner(tmp_path)
    again.roles.was_followed = True
    around(again).on_open = lambda stream: stream_roles.begin_after_boot(again, stream)
    again.stream(first)
    for name in FAMILY[:3]:
        publish(again, name, b"y")
        assert again.stream(name).log.entry(1).epoch == again.roles.epoch(name) == 2
        assert history(again, name)[-1] == EpochStart(2, 1, again.catalog.directory.node_id)
    assert not again.roles.reborn
