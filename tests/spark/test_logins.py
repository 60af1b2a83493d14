"""A source and a sink that log in to brokers with users, over real processes and without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tailrace.core.address import Address
from tailrace.errors import Denied
from tailrace.protocol.messages import Ack
from tailrace.shard.frame import pack_frame
from tailrace.spark.broker_connection import NO_LOGIN, BrokerConnection, BrokerLogin
from tailrace.spark.broker_source import BrokerSource
from tailrace.spark.publisher import NumberedPublisher
from tailrace.spark.source import SourceOptions
from tests.system.node import Node, running
from tests.system.users import PASSWORD, logged_in, token_of, with_users

pytestmark = pytest.mark.system
RULES = """
[[rule]]
allow = "ann"
rights = ["publish", "subscribe", "create"]
streams = "mine.*"

[[rule]]
allow = "bob"
rights = ["publish", "subscribe", "create"]
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("logins")
    config = with_users(folder / "users", "ann", "bob", rules=RULES)
    with running(folder / "data", workers=2, config=config) as found, logged_in(found, "bob") as bob:
        assert bob.ask("ack on") == "ok ack on"
        for stream in ("mine.1", "mine.2", "other"):
            assert bob.ask(f"pub {stream} |x") == f"ok pub {stream} 0"
        yield found


@pytest.mark.parametrize("login", [BrokerLogin(None, "ann", PASSWORD), BrokerLogin(token_of("ann"), "ann")])
def test_a_pattern_finds_what_the_user_may_read(node: Node, login: BrokerLogin) -> None:
    source = BrokerSource(SourceOptions(brokers=(Address("127.0.0.1", node.port),), login=login))
    assert [ref.stream for ref in source.streams(["mine.*", "oth*"])] == ["mine.1", "mine.2"]
    scan = source.scan(["*"])
    assert sorted(scan.refs) == sorted(scan.changed) == ["mine.1", "mine.2"], "nothing is known yet: all are looked at"
    with source.view(source.ref("mine.2")) as view:
        assert (view.first_seq, view.next_seq) == (0, 1)
    source.prepare([source.ref(name) for name in ("mine.1", "other", "mine.none")])
    for name, ends in (("mine.1", (0, 1)), ("mine.none", (0, 0))):
        with source.view(source.ref(name)) as view:
            assert (view.first_seq, view.next_seq) == ends
    with pytest.raises(Denied), source.view(source.ref("other")):
        pass
    source.close()


def test_a_scan_finds_which_streams_of_the_user_have_grown(node: Node) -> None:
    login = BrokerLogin(None, "ann", PASSWORD)
    source = BrokerSource(SourceOptions(brokers=(Address("127.0.0.1", node.port),), login=login))
    with closing(source), logged_in(node, "bob") as bob:
        assert bob.ask("ack on") == "ok ack on"
        first = source.scan(["*"])
        assert not source.scan(["*"]).changed
        for stream in ("mine.2", "other"):
            assert bob.ask(f"pub {stream} |y").startswith("ok pub")
        found = source.scan(["*"])
        assert found.refs is first.refs and found.changed == {"mine.2"}, "the other one is not this user's to read"
        assert bob.ask("pub mine.3 |z") == "ok pub mine.3 0"
        found = source.scan(["*"])
        assert (sorted(found.refs), found.changed) == (["mine.1", "mine.2", "mine.3"], {"mine.3"})
        assert not source.scan(["*"]).changed


@pytest.mark.parametrize("login", [NO_LOGIN, BrokerLogin(None, "ann", "wrong"), BrokerLogin("wrong", "ann")])
def test_others_are_denied(node: Node, login: BrokerLogin) -> None:
    with pytest.raises(Denied):
        BrokerConnection([Address("127.0.0.1", node.port)], login)


def test_a_sink_numbers_its_messages_as_its_user(node: Node) -> None:
    login, frame = BrokerLogin(None, "ann", PASSWORD), bytearray(pack_frame(b"row"))
    for _attempt in range(2):
        with NumberedPublisher([Address("127.0.0.1", node.port)], login, b"task", Ack.APPENDED) as publisher:
            publisher.publish("mine.sink", frame, b"", 0)
    with logged_in(node, "bob") as bob:
        assert bob.ask("sub mine.sink new") == "ok sub mine.sink 1", "the second attempt was a repeat"
