"""The commands of an agent to its node, and how it understands the answers: a node that answers from a list."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tailrace.broker.replication.roles.rules import covers
from tailrace.cluster import decide as d
from tailrace.cluster.node_door import NodeAway, NodeDoor, NodeSocket, PromiseWish
from tailrace.cluster.view import BrokerReport, BrokerRole, GroupState, GroupView
from tailrace.protocol.names import StreamGroup
from tailrace.shard.unix_socket import bind_unix

FIELD = "ok field value"
HEAD = "ok group state epoch until_ms promised_ms since_ms isr"
NO_LEASE = (HEAD, "* over 3 0 0 2500 ", ".")
HELD = (HEAD, "* held 3 9000 0 2500 a,b", ".")
PROMISED = (HEAD, "* over 3 0 7500 2500 ", ".")
STREAMS = ("ok stream role epoch", "orders slave 3", ".")
ISR = "ok node lag_s streams settled group"
BASE = {"groups": NO_LEASE, "isr *": (ISR, "."), "streams": STREAMS}
VIEWS = {0: GroupView(GroupState(3, ("a", "b"), ("a", "b")), live=frozenset("ab"))}
ADDRESSES = {"a": "10.0.0.1:5050"}


def linked(state: str) -> dict[str, tuple[str, ...]]:
    return {"stat orders": (FIELD, "next_seq 7", f"link {state}", ".")}


@contextlib.contextmanager
def answering(path: Path, answers: Mapping[str, tuple[str, ...]]) -> Iterator[list[str]]:
    """A node for some connections; the commands that it has got. Others are answered by ok and the verb."""
    got: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        bind_unix(listener, path)
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    threading.Thread(target=answer, args=[sock], daemon=True).start()

        def answer(sock: socket.socket) -> None:
            with sock, sock.makefile("rwb") as file:
                for raw in file:
                    line = raw.decode().strip()
                    got.append(line)
                    lines = answers.get(line, (f"ok {line.split()[0]}",))
                    file.write("".join(f"{each}\r\n" for each in lines).encode())
                    file.flush()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield got
        listener.shutdown(socket.SHUT_RDWR)


def report_of(path: Path) -> BrokerReport:
    with contextlib.closing(NodeDoor(path)) as door:
        return door.report(100.0, VIEWS)[0]


def test_a_node_whose_data_lies_deep_is_asked_too(tmp_path: Path) -> None:
    """A socket's address has at most 107 bytes."""
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    with answering(folder / "admin.sock", BASE | linked("none")):
        assert report_of(folder / "admin.sock").role is BrokerRole.FENCED


def change_role(door: NodeDoor, action: d.BrokerAction, now_s: float) -> None:
    """As the agent does."""
    actions = [(0, action)]
    door.roles_changed(actions, door.change_roles(actions, ADDRESSES), now_s)


def test_a_node_that_has_a_lease_is_a_leader_for_an_agent_that_was_started_again(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with answering(path, BASE | {"groups": HELD} | linked("none")):
        report = report_of(path)
    assert (report.role, report.term, report.isr) == (BrokerRole.LEADER, 3, frozenset("ab"))


def test_a_node_of_an_earlier_version_is_not_worked_with(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    answers = BASE | {"groups": ("err usage no command",)}
    with answering(path, answers), pytest.raises(NodeAway, match="earlier version"):
        report_of(path)


def test_a_node_without_a_lease_is_fenced_until_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with contextlib.ExitStack() as stack, answering(path, BASE | linked("up")) as got:
        door = stack.enter_context(contextlib.closing(NodeDoor(path)))
        assert door.report(100.0, VIEWS)[0].role is BrokerRole.FENCED
        change_role(door, d.FollowLeader("a", 4), 100.0)
        assert got[-2:] == ["lease * 4 0", "slave 10.0.0.1 5050 * 0"]
        assert door.report(100.0, VIEWS)[0].role is BrokerRole.FOLLOWER


def test_an_observer_follows_as_a_replica_does(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with answering(path, BASE | linked("down")) as got, contextlib.closing(NodeDoor(path)) as door:
        door.report(100.0, VIEWS)
        change_role(door, d.Observe("a", 4), 100.0)
        assert got[-2:] == ["lease * 4 0", "slave 10.0.0.1 5050 * 0"]
        report = door.report(200.0, VIEWS)[0]
        assert (report.role, report.term, report.upstream) == (BrokerRole.OBSERVER, 4, "a")
        assert not report.silent_s, "nobody is elected by what it says"


def test_an_observer_that_copies_on_demand_reports_that_it_lacks_messages(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    lacking = {"isr *": (ISR, "a 0.000 2 0 *", ".")}
    with answering(path, BASE | linked("up") | lacking) as got, contextlib.closing(NodeDoor(path, "a")) as door:
        door.report(100.0, VIEWS)
        change_role(door, d.Observe("a", 4, on_demand=True), 100.0)
        assert got[-2:] == ["lease * 4 0", "slave 10.0.0.1 5050 * 0 on-demand"]
        assert door.report(200.0, VIEWS)[0].is_partial
    path = tmp_path / "other.sock"
    with answering(path, BASE | linked("up")), contextlib.closing(NodeDoor(path, "a")) as door:
        assert not door.report(100.0, VIEWS)[0].is_partial


def test_a_promise_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with answering(path, BASE | {"groups": PROMISED} | linked("up")), contextlib.closing(NodeDoor(path)) as door:
        assert door.report(100.0, VIEWS)[0].promised_s == 7.5
        assert door.since_s == 2.5, "an agent that was started again knows whether its node forgot promises"


def test_a_replica_that_lacks_messages_for_long_is_not_in_step_but_after_a_promotion(tmp_path: Path) -> None:
    """Those that live follow by then."""
    path = tmp_path / "admin.sock"
    answers = BASE | {"isr *": (ISR, "b 9.0 1 1 *", "c 0.1 1 1 *", ".")} | linked("none")
    with answering(path, answers), contextlib.closing(NodeDoor(path)) as door:
        door.report(99.0, VIEWS)
        assert door.obey([(0, d.SetIsr(frozenset("abc")))], 100.0) == [True]
        change_role(door, d.TakeLead(4), 100.0)
        assert door.report(101.0, VIEWS)[0].in_step == frozenset("abc")
        assert door.report(101.6, VIEWS)[0].in_step == frozenset("c")


@pytest.mark.parametrize("was_up", [False, True])
def test_a_link_that_was_never_up_is_given_time(tmp_path: Path, was_up: bool) -> None:
    """Else all followers would suspect a new leader before they have reached it."""
    path = tmp_path / "admin.sock"
    answers = BASE | linked("up" if was_up else "down")
    with answering(path, answers), contextlib.closing(NodeDoor(path)) as door:
        door.report(99.0, VIEWS)
        change_role(door, d.FollowLeader("a", 4), 100.0)
        assert door.report(100.5, VIEWS)[0].silent_s == (0.0 if was_up else 0.5)
        answers |= linked("down")
        assert door.report(101.0, VIEWS)[0].silent_s == (math.inf if was_up else 1.0)


def test_promises_of_others(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    table = ("ok address node promised", "b:1 b 1", "c:1 - 0", ".")
    answers = {"promises *%0/2 3 4000 b:1,c:1": table, "promises *%1/2 4 4000 b:1": ("err overloaded many",)}
    wishes = [PromiseWish(0, 3, ("b:1", "c:1")), PromiseWish(1, 4, ("b:1",))]
    with answering(path, answers), contextlib.closing(NodeSocket(path)) as node:
        assert node.promises(wishes, 4.0, 2) == [{"b"}, set()]


TWO = dict.fromkeys(range(2), VIEWS[0])


def test_each_group_has_its_own_role(tmp_path: Path) -> None:
    """`orders` is of group 0 of 2. A group without streams knows of its leader by the stream of another group."""
    path = tmp_path / "admin.sock"
    rows = (HEAD, "*%0/2 over 3 0 0 2500 ", "*%1/2 held 5 9000 7500 2500 a,b", ".")
    answers = BASE | {"groups": rows, "isr *": (ISR, "b 0.1 1 1 *%1/2", ".")} | linked("up")
    with answering(path, answers) as got, contextlib.closing(NodeDoor(path)) as door:
        reports = door.report(100.0, TWO)
        assert [report.role for report in reports.values()] == [BrokerRole.FENCED, BrokerRole.LEADER]
        assert [report.promised_s for report in reports.values()] == [0.0, 7.5]
        assert [report.settled for report in reports.values()] == [frozenset(), frozenset("b")]
        assert door.obey([(1, d.SetLease(5, 109.0)), (0, d.StepDown())], 100.0) == [True, True]
        assert got[-2:] == ["lease *%1/2 5 109000", "lease *%0/2 1 0"]
        actions = [(group, d.FollowLeader("b", 6)) for group in range(2)]
        door.roles_changed(actions, door.change_roles(actions, {"b": "h:1"}), 100.0)
        assert got[-4:] == ["lease *%0/2 6 0", "lease *%1/2 6 0", "slave h 1 *%0/2 0", "slave h 1 *%1/2 0"]
        assert [report.silent_s for report in door.report(100.5, TWO).values()] == [0.0, 0.0]
        answers |= linked("down")
        assert [report.silent_s for report in door.report(101.0, TWO).values()] == [math.inf, math.inf]


def test_the_stream_that_is_looked_at_is_one_of_the_group(tmp_path: Path) -> None:
    """As the node says which streams a group has: by one of another group a replica would be taken for one in step."""
    path = tmp_path / "admin.sock"
    names = [f"s{number}" for number in range(40)]
    streams = ("ok stream role epoch", *(f"{name} slave 3" for name in names), ".")
    rows = (HEAD, *(f"*%{group}/5 over 3 0 0 2500 " for group in range(5)), ".")
    stats = {f"stat {name}": (FIELD, "next_seq 7", "link up", ".") for name in names}
    answers = BASE | {"groups": rows, "streams": streams} | stats
    with answering(path, answers), contextlib.closing(NodeDoor(path)) as door:
        door.report(100.0, dict.fromkeys(range(5), VIEWS[0]))
        for group, found in door.groups.items():
            assert covers(str(StreamGroup(group, 5)).encode(), found.stream.encode())


def test_what_a_node_refuses_is_not_done(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    answers = BASE | linked("up") | {"lease * 4 0": ("err usage later",), "isr * a": ("err usage groups",)}
    with answering(path, answers), contextlib.closing(NodeDoor(path)) as door:
        door.report(100.0, VIEWS)
        assert door.obey([(0, d.SetIsr(frozenset("a")))], 100.0) == [False]
        assert door.change_roles([(0, d.FollowLeader("a", 4))], ADDRESSES) == [False]


def test_a_node_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(NodeAway):
        NodeDoor(tmp_path / "admin.sock").report(100.0, VIEWS)


def test_a_stream_in_memory_is_not_what_is_looked_at(tmp_path: Path) -> None:
    """No node copies it: by it no follower would have contact, and none would ever be in step."""
    path = tmp_path / "admin.sock"
    streams = ("ok stream role epoch", "live master 3", "orders master 3", ".")
    live = {"stat live": (FIELD, "next_seq 9", "durability memory", ".")}
    orders = {"stat orders": (FIELD, "next_seq 7", "durability async", "slave:c node=c,lag_messages=1", ".")}
    answers = BASE | {"groups": HELD, "streams": streams} | live | orders
    with answering(path, answers) as got, contextlib.closing(NodeDoor(path)) as door:
        assert [door.report(100.0, VIEWS)[0].in_step for _ in range(2)] == [frozenset("c")] * 2
    assert got.count("streams") == 1
