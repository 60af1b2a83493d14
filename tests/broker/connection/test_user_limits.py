"""The bounds of a user, over all its connections, whichever address they come from and however they log in; what
belongs to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User, UserLimits
from tailrace.broker.connection import login as login_module
from tailrace.protocol import messages as m
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.numbering import write_numbering
from tailrace.supervisor.user_file import hash_token
from tests.broker.binary import BinaryPeer
from tests.broker.connection.doors import ANN, DOORS, PLAIN, TOKEN
from tests.broker.world import Peer, World, world

mark_run = load("tailrace.shard.run_cy").mark_run
ALL = AccessRule(True, ("*",), frozenset(Right), ("*",))
EVERYBODY = replace(ALL, who=("*", "anonymous"))
BOB = User("bob", token_hashes=(hash_token(TOKEN),))


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_module, "FAILED_S", 0.0)


def bounded(**limits: int) -> tuple[User, ...]:
    return replace(ANN, limits=UserLimits(**limits)), BOB


def as_user(node: World, name: str) -> Peer:
    peer = node.connect()
    assert node.ask(peer, f"auth {name} {TOKEN}") == [f"ok auth {name}"]
    return peer


@pytest.mark.parametrize("door", [door for door, row in DOORS.items() if row.security == PLAIN and not row.datagrams])
def test_connections_of_a_user(tmp_path: Path, door: str) -> None:
    with world(tmp_path, users=bounded(max_connections=2), rules=(ALL,)) as node:
        first, second, third = (node.connect(local=DOORS[door].local) for _ in range(3))
        assert [DOORS[door].log_in(node, peer, "right") for peer in (first, second)] == ["ok", "ok"]
        assert DOORS[door].log_in(node, third, "right") == "connections"
        node.settle()
        assert third.ended
        assert node.workers[0].metrics.login_failures.counts == {"limit": 1}
        as_user(node, "bob")
        first.close()
        node.settle()
        assert DOORS[door].log_in(node, node.connect(local=DOORS[door].local), "right") == "ok"


def test_logging_in_again_takes_no_second_place(tmp_path: Path) -> None:
    with world(tmp_path, users=bounded(max_connections=1), rules=(ALL,)) as node:
        peer = as_user(node, "ann")
        assert node.ask(peer, f"auth ann {TOKEN}") == ["ok auth ann"]
        assert node.ask(peer, f"auth bob {TOKEN}") == ["ok auth bob"]
        as_user(node, "ann")
        assert node.workers[0].services.accounts.connections_by_user() == {"ann": 1, "bob": 1}


def test_streams_of_a_user(tmp_path: Path) -> None:
    with world(tmp_path, users=bounded(max_streams=2), rules=(ALL,)) as node:
        for name in "ab":
            assert node.ask(as_user(node, "ann"), f"pub {name} |x", "ping") == ["ok pong"]
        refused, pong = node.ask(as_user(node, "ann"), "pub c |x", "ping")
        assert refused.startswith("err streams") and "user ann has made 2 streams in an hour" in refused
        assert node.ask(as_user(node, "bob"), "pub c |x", "ping") == [pong]


def test_handles_of_a_user(tmp_path: Path) -> None:
    def opened(user: str, count: int) -> Peer:
        peer = node.connect()
        peer.send_raw(m.pack(m.Hello(1, (), "test", mechanism=m.BEARER, user=user, login=TOKEN.encode())))
        for number in range(count):
            peer.send_raw(m.pack(m.Open(number, b"s%d" % number)))
        node.settle()
        return peer

    with world(tmp_path, users=bounded(max_handles=5), rules=(ALL,)) as node:
        first, second = opened("ann", 3), opened("ann", 3)
        assert b"limit of one user" not in first.received
        assert second.received.count(b"user ann has 5 handles here, the limit of one user") == 1
        assert b"limit of" not in opened("bob", 6).received
        first.close()
        node.settle()
        assert b"limit of" not in opened("ann", 3).received


def test_bytes_of_a_user_beyond_its_rate_are_read_later(tmp_path: Path) -> None:
    with world(tmp_path, users=bounded(bytes_in_per_s=4_096), rules=(ALL,)) as node:
        greedy, bob = as_user(node, "ann"), as_user(node, "bob")
        greedy.send_raw(b"pub s |" + b"x" * 16_000 + b"\r\n")
        node.settle()
        assert node.ask(greedy, "ping") == [], "it is not read"
        assert node.ask(bob, "pub s |" + "x" * 15_000, "ping") == ["ok pong"], "another user at the same address is"
        assert node.workers[0].metrics.throttled == 1


def test_consumers_that_a_user_creates(tmp_path: Path) -> None:
    """Those that are there already count nothing, nor does what fails."""
    with world(tmp_path, users=bounded(max_consumers=2), rules=(ALL,)) as node:
        ann, bob = as_user(node, "ann"), as_user(node, "bob")
        node.ask(bob, "pub s |x")
        again = ["consume s one 0"] * 3
        assert [line[:6] for line in node.ask(ann, "consume none c 0", *again)] == ["err un", *["ok con"] * 3]
        found = node.ask(ann, "consume s two 0", "consume s three 0", "get s one")
        assert [line.split()[0] for line in found] == ["ok", "err", "msg", "ok"]
        assert found[1] == "err overloaded user ann has made 2 consumers in an hour, the limit of one user"
        assert node.ask(bob, "consume s three 0") == ["ok consume s three 0"]


def test_consumers_that_an_address_creates(tmp_path: Path) -> None:
    with world(tmp_path, max_address_consumers=1) as node:
        peer = node.connect()
        found = node.ask(peer, "pub s |x", "consume s one 0", "consume s two 0")
        assert [line.split()[:2] for line in found] == [["ok", "consume"], ["err", "overloaded"]]


# --- producers --------------------------------------------------------------------------------------------------------


class Producer:
    """A logged-in connection that numbers its publishes to the stream s. `prefix`: what WELCOME gave."""

    def __init__(self, node: World, user: str) -> None:
        self.client = BinaryPeer(node, hello=False)
        features = (m.PRODUCERS_FEATURE,)
        hello = m.Hello(1, features, "test", mechanism=m.BEARER, user=user, login=TOKEN.encode())
        (welcome,) = self.client.ask(hello if user else m.Hello(1, features, "test"))
        assert isinstance(welcome, m.Welcome)
        self.prefix = welcome.producer_prefix or b""
        self.client.ask(m.Open(1, b"s"))

    def publish(self, producer_id: bytes, number: int) -> str | int:
        """The code of the error, or the seq."""
        frames = mark_run(pack_frame(b"payload"), write_numbering(b"", producer_id, number))
        self.client.peer.send_raw(m.pack_publish(1, m.Ack.APPENDED, [1], frames) + frames)
        self.client.node.settle()
        (answer,) = self.client.take()
        return answer.code if isinstance(answer, m.Failed) else answer.results[0][0]  # type: ignore[union-attr]


def test_a_producer_belongs_to_its_user(tmp_path: Path) -> None:
    """Also for who sees its id and knows its next number, on any worker, and after the first one's connection."""
    with world(tmp_path, workers=2, users=(ANN, BOB), rules=(EVERYBODY,), allow_anonymous=True) as node:
        ann, again, bob, nobody = (Producer(node, name) for name in ("ann", "ann", "bob", ""))
        assert len({ann.prefix, bob.prefix, nobody.prefix, b""}) == 4 and ann.prefix == again.prefix
        mine = ann.prefix + b"1"
        assert [ann.publish(mine, 0), bob.publish(mine, 1), nobody.publish(mine, 1)] == [0, "producer", "producer"]
        assert [again.publish(mine, 1), bob.publish(bob.prefix, 0)] == [1, 2]
        assert ann.publish(b"any other", 0) == "producer"
        bob.client.publish(1, b"unnumbered, after which it is read together with others")
        node.settle()
        bob.client.take()
        assert bob.publish(mine, 2) == "producer" and again.publish(mine, 2) == 4


def test_without_users_any_producer_id_will_do(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        producer = Producer(node, "")
        assert producer.prefix == b"" and producer.publish(b"any", 0) == 0
