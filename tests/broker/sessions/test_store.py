"""The store of sessions: turns, wills, time, and sessions whose worker is gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tailrace.broker.access.users import User, UserLimits
from tailrace.broker.sessions import store as store_module
from tailrace.broker.sessions.record import STEPWISE_FORMAT, Exactness, HolderProcess, SessionRecord, Will, log_of
from tailrace.broker.sessions.session_log import SessionLog
from tailrace.broker.sessions.store import SessionStore
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tests.broker.owning import make_owner, release_all

HERE = HolderProcess(7, os.getpid())
DEAD = HolderProcess(6, os.getpid())
"""Of an earlier run of the node."""
WILL = [10, b"wills", b"frame"]


class Wills:
    """`got` has the streams of the wills that were published; `users` those of their sessions."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.users: list[str] = []

    def publish(self, user: str, will: Will) -> None:
        assert will.frame == b"frame"
        self.got.append(will.stream)
        self.users.append(user)


class Rig:
    """A store with a clock of its own."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.settings = settings
        self.now_us = 1_000_000
        self.wills = Wills()
        self.ended: list[bytes] = []
        self.begin()

    def begin(self) -> None:
        owner = make_owner(self.path, **self.settings)
        self.store = SessionStore(
            *(owner, HERE, lambda: self.now_us, self.wills.publish, self.ended.append),
            lambda: self.now_us / 1e6,
        )
        self.store.start()

    def kill(self) -> None:
        release_all()
        self.begin()

    def pass_s(self, seconds: float) -> None:
        self.now_us += int(seconds * 1e6)
        for _ in range(20):  # one log a tick is read
            self.store.tick()

    def call(self, verb: Any, *args: Any) -> Any:
        answers: list[Any] = []
        self.store.call(verb, [*args], answers.append)
        return answers[0]

    def open(
        self, client_id: bytes = b"c", *, clean: bool = False, expiry_s: int = 60, will: Any = None, **more: Any
    ) -> Any:
        user, holder, handed = more.get("user", ""), more.get("holder", HERE), more.get("handed")
        return self.call(self.store.open, client_id, clean, expiry_s, user, holder, will, handed)

    def leave(self, turn: int, *, expiry_s: int = 60, has_will: bool = False, state: bytes = b"left") -> Any:
        return self.call(self.store.leave, b"c", turn, expiry_s, has_will, state)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_what_was_stored_is_there_after_a_kill(rig: Rig) -> None:
    turn = rig.open()[0]
    assert rig.call(rig.store.save, b"c", turn, HERE, b"saved") == []
    rig.kill()
    again, is_present, is_exact, state = rig.open()
    assert (is_present, is_exact, state) == (True, False, b"saved") and again > turn
    assert rig.leave(again) == []
    rig.kill()
    assert rig.open()[1:] == [True, True, b"left"]


def test_an_older_connection_stores_nothing(rig: Rig) -> None:
    old, new = rig.open()[0], rig.open()[0]
    for refused in (rig.leave(old), rig.call(rig.store.save, b"c", old, HERE, b"old")):
        assert isinstance(refused, Refused) and refused.code is Code.STALE
    assert rig.leave(new) == []


def test_a_state_that_is_handed_over_counts_if_it_is_of_the_last_connection(rig: Rig) -> None:
    first = rig.open()[0]
    second, *seen = rig.open(handed=[first, b"handed"])
    assert seen == [True, True, b"handed"]
    assert rig.open(handed=[second - 1, b"older"])[1:] == [True, False, b"handed"]


def test_a_session_without_an_expiry_is_not_kept(rig: Rig) -> None:
    turn = rig.open()[0]
    assert rig.open(expiry_s=0)[:2] == [0, True] and rig.open(expiry_s=0)[:2] == [0, False]
    assert isinstance(rig.leave(turn), Refused)


def test_another_user_cannot_have_it_before_it_expires(rig: Rig) -> None:
    rig.leave(rig.open(user="ann")[0])
    refused = rig.open(user="bob")
    assert isinstance(refused, Refused) and refused.code is Code.DENIED
    rig.now_us += 61_000_000
    assert rig.open(user="bob")[1] is False


@pytest.mark.parametrize("kills", [False, True])
def test_the_will_comes_after_its_delay(rig: Rig, kills: bool) -> None:
    rig.leave(rig.open(will=WILL)[0], has_will=True)
    if kills:
        rig.kill()
    rig.pass_s(9)
    assert rig.wills.got == []
    rig.pass_s(2)
    assert rig.wills.got == [b"wills"]
    rig.kill()
    rig.pass_s(20)
    assert rig.wills.got == [b"wills"]


def test_the_will_comes_with_the_end_of_the_session(rig: Rig) -> None:
    rig.leave(rig.open(will=WILL, user="ann")[0], expiry_s=4, has_will=True)
    rig.pass_s(5)
    assert rig.wills.got == [b"wills"]
    rig.leave(rig.open(will=WILL, user="ann")[0], has_will=True)
    rig.open(clean=True, user="ann")
    assert rig.wills.got == [b"wills"] * 2 and rig.wills.users == ["ann"] * 2


def test_no_will_of_one_that_comes_back(rig: Rig) -> None:
    """[MQTT-3.1.3-9]; nor of one that has said goodbye."""
    rig.leave(rig.open(will=WILL)[0], has_will=True)
    turn = rig.open()[0]
    rig.pass_s(30)
    rig.leave(turn)
    rig.pass_s(30)
    rig.leave(rig.open(will=WILL)[0])
    rig.pass_s(30)
    assert rig.wills.got == []


@pytest.mark.parametrize(("delay_s", "wills"), [(0, 1), (10, 0)])
def test_the_will_of_a_connection_whose_worker_was_killed(rig: Rig, delay_s: int, wills: int) -> None:
    rig.open(will=[delay_s, b"wills", b"frame"], holder=DEAD, user="ann")
    rig.open(handed=None, user="ann")
    assert len(rig.wills.got) == wills and rig.wills.users == ["ann"] * wills


def test_a_session_whose_worker_was_killed_expires(rig: Rig) -> None:
    rig.open(will=WILL, holder=DEAD)
    rig.pass_s(1)
    rig.pass_s(store_module.GONE_S + 1)
    assert rig.store._metrics.sessions == 1 and rig.wills.got == []
    rig.pass_s(11)
    assert rig.wills.got == [b"wills"]
    rig.pass_s(60)
    assert rig.store._metrics.sessions == 0
    rig.open(holder=HERE)
    rig.pass_s(1_000)
    assert rig.store._metrics.sessions == 1, "[MQTT-4.1.0-1]"


def test_a_session_is_removed(rig: Rig) -> None:
    turn = rig.open(will=WILL)[0]
    assert rig.call(rig.store.drop, b"c") is True and rig.call(rig.store.drop, b"c") is False
    assert isinstance(rig.leave(turn), Refused) and rig.wills.got == [b"wills"]
    assert rig.open()[1] is False


def test_pages_have_all_in_order(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "LIST_MAX", 3)
    mine = sorted(b"c%d" % n for n in range(20))
    for each in mine:
        rig.open(each, user="ann")
    rig.kill()
    rows, after = list[Any](), b""
    while page := rig.call(rig.store.rows, after):
        assert len(page) <= 3
        rows += page
        after = page[-1][0]
    assert [row[0] for row in rows] == mine and rows[0][1:] == ["ann", True, 0, 60, 0]


def test_a_state_has_a_bound(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "RECORD_BYTES_MAX", 10)
    turn = rig.open()[0]
    assert rig.call(rig.store.save, b"c", turn, HERE, b"before") == []
    refused = rig.call(rig.store.save, b"c", turn, HERE, b"x" * 11)
    assert isinstance(refused, Refused) and refused.code is Code.OVERLOADED
    assert rig.leave(turn, state=b"x" * 11) == [] and rig.open()[3] == b"before"


def test_a_worker_without_shards_answers_nothing(rig: Rig) -> None:
    rig.store._owner.catalog.owning = False
    assert isinstance(rig.open(), Refused)


def test_the_end_of_a_session_with_a_shared_subscription_is_reported(rig: Rig) -> None:
    packed, other = msgpack.packb(b"$share/g/a"), msgpack.packb(b"$share/g/ab")
    state = msgpack.packb([b"$share/g/ab"])
    rig.pass_s(0)
    turn = rig.open()[0]
    rig.leave(turn, state=state)
    for _ in range(2):
        assert rig.store.shares(other) and not rig.store.shares(packed)
        rig.kill()
        assert rig.store.shares(packed), "its logs are not read yet"
        rig.pass_s(0)
    rig.pass_s(100)
    assert rig.ended == [state]
    assert not rig.store.shares(other)


def test_what_other_nodes_are_to_hold_is_not_answered_before(tmp_path: Path) -> None:
    """Once it is, a session with QoS 2 is exact in a later term too: its client has seen nothing else."""
    rig = Rig(tmp_path, mqtt_replicas=1)
    name, answers = log_of(b"c"), list[Any]()
    replicas = rig.store._owner.replicas

    def hold(next_seq: int) -> None:
        replicas.held(0, 1, [(name, replicas.holders(name).line, 1, "node-b", next_seq, 0)])

    rig.store.call_held(rig.store.open, [b"c", False, 60, "", HERE, None, None], answers.append)
    assert answers == []
    hold(1)
    turn = answers.pop()[0]
    stepwise = msgpack.packb([STEPWISE_FORMAT, b""])
    rig.store.call_held(rig.store.save, [b"c", turn, HERE, stepwise], answers.append)
    assert answers == []
    hold(2)
    assert answers.pop() == []
    assert rig.call(rig.store.save, b"c", turn, HERE, stepwise) == [], "nobody waits for this"
    record = rig.store._logs[name].get(b"c")
    assert record is not None and record.exactness is Exactness.EVERYWHERE


def test_a_session_that_other_nodes_do_not_hold_is_not_opened(tmp_path: Path) -> None:
    """It is left at once, so that it expires; a session that ends with its connection waits for nobody."""
    rig = Rig(tmp_path, mqtt_replicas=1)
    answers: list[Any] = []
    rig.store.call_held(rig.store.open, [b"c", False, 60, "", HERE, [0, b"s", b"frame"], None], answers.append)
    rig.store._owner.replicas.refuse(log_of(b"c"), "none")
    assert isinstance(answers[0], Refused) and answers[0].code is Code.UNREPLICATED
    record = rig.store._logs[log_of(b"c")].get(b"c")
    assert record is not None and record.left_us and record.will is None, "its connection was never accepted"
    rig.store.call_held(rig.store.open, [b"d", False, 0, "", HERE, None, None], answers.append)
    assert answers[1][0] == 0


@pytest.mark.parametrize("exactness", Exactness)
def test_exactness_in_a_later_term(tmp_path: Path, exactness: Exactness) -> None:
    rig = Rig(tmp_path)
    found = rig.store._log_for(b"c")
    found.put(b"c", SessionRecord(1, "", 60, HERE, 0, exactness, None, b"state"), 0.0)
    owner = rig.store._owner
    again = SessionLog(owner, found.name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(owner.roles), "open_epoch", lambda _roles, _name: 9)
        again.read()
    record = again.get(b"c")
    assert record is not None
    assert record.exactness is (Exactness.NO if exactness is Exactness.HERE else exactness)


# --- users ------------------------------------------------------------------------------------------------------------

USERS = (User("ann"), User("bob"), User("fleet", limits=UserLimits(max_sessions=7)))


def open_many(rig: Rig, user: str, count: int = 20) -> int:
    """How many sessions this user gets."""
    answers = [rig.open(b"%s-%d" % (user.encode(), number), user=user) for number in range(count)]
    refused = [each for each in answers if isinstance(each, Refused)]
    assert {each.code for each in refused} <= {Code.OVERLOADED}
    return count - len(refused)


def test_one_user_leaves_sessions_for_others(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_sessions=8, users=USERS)
    assert [open_many(rig, "ann"), open_many(rig, "bob"), open_many(rig, "")] == [4, 2, 1]
    assert rig.store._metrics.mqtt_beyond_share.counts == {"sessions": 16 + 18 + 19}
    assert "user ann may" in rig.open(b"more", user="ann").text
    assert "clients without a login may" in rig.open(b"more").text
    rig.kill()
    rig.pass_s(1)
    assert open_many(rig, "bob", 2) == 2, "it has these already"
    assert isinstance(rig.open(b"more", user="bob"), Refused)


def test_a_limit_of_a_user_is_in_the_place_of_the_share(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_sessions=8, users=USERS)
    assert open_many(rig, "fleet") == 7
    assert "user fleet may" in rig.open(b"more", user="fleet").text
    assert open_many(rig, "ann") == 0
    assert store_module.FULL_TEXT in Rig(tmp_path / "small", max_sessions=0, users=USERS).open(user="ann").text


def test_without_users_all_sessions_are_one_holders(tmp_path: Path) -> None:
    assert open_many(Rig(tmp_path, max_sessions=8), "") == 8


def test_the_memory_of_sessions_is_shared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they begin, grow, are handed over, or are left. The stored state counts then."""
    monkeypatch.setattr(store_module, "MEMORY_BYTES_MAX", 10_000)
    rig, large = Rig(tmp_path, users=USERS), b"x" * 5_000
    turn = rig.open(user="ann")[0]
    refused = rig.call(rig.store.save, b"c", turn, HERE, large)
    assert isinstance(refused, Refused) and refused.code is Code.OVERLOADED and "user ann may" in refused.text
    assert rig.call(rig.store.save, b"c", turn, HERE, large[:3_000]) == []
    assert rig.leave(turn, state=large) == []
    again, *seen = rig.open(user="ann")
    assert seen == [True, False, large[:3_000]]
    assert rig.open(user="ann", handed=[again, large])[1:] == [True, False, large[:3_000]]
    for client_id in (b"c", b"new"):
        assert isinstance(rig.open(client_id, user="ann", will=[10, b"wills", large]), Refused)
    assert open_many(rig, "ann") == 3
    assert open_many(rig, "bob") > 3
    assert rig.call(rig.store.save, b"c", rig.open(user="ann")[0], HERE, large[:2_000]) == [], "it may become smaller"


def test_sessions_of_a_removed_user_end(tmp_path: Path) -> None:
    """One who gets that name later begins anew, and client identifiers of the removed user are free."""
    rig = Rig(tmp_path, users=USERS)
    for user in ("ann", "bob"):
        rig.open(user.encode(), user=user, will=WILL)
    rig.settings["users"] = USERS[1:]
    rig.kill()
    assert rig.open(b"bob", user="bob")[1] is True
    assert rig.open(b"ann", user="bob")[1] is False, "nobody has this identifier"
    rig.pass_s(1)
    assert len(rig.call(rig.store.rows, b"")) == 2
    rig.settings["users"] = USERS
    rig.kill()
    assert isinstance(rig.open(b"ann", user="ann"), Refused)
    rig.open(b"other", user="ann")
    rig.settings["users"] = USERS[1:]
    rig.kill()
    rig.pass_s(1)
    assert sorted(row[0] for row in rig.call(rig.store.rows, b"")) == [b"ann", b"bob"]
    rig.settings["users"] = None
    rig.kill()
    rig.pass_s(1)
    assert len(rig.call(rig.store.rows, b"")) == 2, "without users nobody was removed"


def test_a_session_that_a_user_has_taken_since_is_not_ended(tmp_path: Path) -> None:
    """A worker that is about to be replaced does not know a user that was added."""
    rig = Rig(tmp_path, users=USERS)
    rig.open(user="new")
    rig.pass_s(1)
    assert rig.open(user="new")[1] is True
    rig.kill()
    rig.store.rows([b""])
    rig.open(user="new")
    rig.pass_s(1)
    assert rig.open(user="new")[1] is True
