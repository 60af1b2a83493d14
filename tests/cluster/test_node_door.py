"""The commands of an agent to its node, and how it understands the answers: a node that answers from a list."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tailrace.cluster import decide as d
from tailrace.cluster.node_door import NodeAway, NodeDoor, NodeSocket
from tailrace.cluster.view import BrokerReport, BrokerRole

FIELD = "ok field value"
NO_LEASE = (FIELD, "state over", "epoch 3", "until_ms 0", "promised_ms 0", "since_ms 2500", "isr ", ".")
HELD = (FIELD, "state held", "epoch 3", "until_ms 9000", "promised_ms 0", "since_ms 2500", "isr a,b", ".")
PROMISED = (FIELD, "state over", "epoch 3", "until_ms 0", "promised_ms 7500", "since_ms 2500", "isr ", ".")
STREAMS = ("ok stream role epoch", "orders slave 3", ".")
BASE = {"lease *": NO_LEASE, "isr *": ("ok node lag_s streams settled", "."), "streams": STREAMS}
ADDRESSES = {"a": "10.0.0.1:5050"}


def linked(state: str) -> dict[str, tuple[str, ...]]:
    return {"stat orders": (FIELD, "next_seq 7", f"link {state}", ".")}


@contextlib.contextmanager
def answering(path: Path, answers: Mapping[str, tuple[str, ...]]) -> Iterator[list[str]]:
    """A node for one connection after another; the commands that it has got. Others are answered by ok and the verb."""
    got: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
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
        return door.report(100.0, ("a", "b"))


def test_a_node_that_has_a_lease_is_a_leader_for_an_agent_that_was_started_again(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with answering(path, BASE | {"lease *": HELD} | linked("none")):
        report = report_of(path)
    assert (report.role, report.term, report.isr) == (BrokerRole.LEADER, 3, frozenset("ab"))


@pytest.mark.parametrize("field", ["since_ms", "promised_ms"])
def test_a_node_of_an_earlier_version_is_not_worked_with(tmp_path: Path, field: str) -> None:
    """It may have forgotten promises when it started, and does not say when that was."""
    lease = tuple(line for line in PROMISED if not line.startswith(field))
    path = tmp_path / "admin.sock"
    with (
        answering(path, BASE | {"lease *": lease}),
        pytest.raises(NodeAway, match=f"earlier version, without '{field}'"),
    ):
        report_of(path)


def test_a_node_without_a_lease_is_fenced_until_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with contextlib.ExitStack() as stack, answering(path, BASE | linked("up")) as got:
        door = stack.enter_context(contextlib.closing(NodeDoor(path)))
        assert door.report(100.0, ()).role is BrokerRole.FENCED
        assert door.obey(d.FollowLeader("a", 4), ADDRESSES, 100.0)
        assert got[-2:] == ["lease * 4 0", "slave 10.0.0.1 5050 * 0"]
        assert door.report(100.0, ()).role is BrokerRole.FOLLOWER
        assert not door.obey(d.FollowLeader("unknown", 4), ADDRESSES, 100.0)


def test_a_promise_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with answering(path, BASE | {"lease *": PROMISED} | linked("up")), contextlib.closing(NodeDoor(path)) as door:
        assert door.report(100.0, ()).promised_s == 7.5
        assert door.since_s == 2.5, "an agent that was started again knows whether its node forgot promises"


def test_a_replica_that_lacks_messages_for_long_is_not_in_step_but_after_a_promotion(tmp_path: Path) -> None:
    """Those that live follow by then."""
    path = tmp_path / "admin.sock"
    table = ("ok node lag_s streams settled", "b 9.0 1 1", "c 0.1 1 1", ".")
    answers = BASE | {"isr *": table} | linked("none")
    with answering(path, answers), contextlib.closing(NodeDoor(path)) as door:
        door.obey(d.SetIsr(frozenset("abc")), ADDRESSES, 100.0)
        door.obey(d.TakeLead(4), ADDRESSES, 100.0)
        assert door.report(101.0, ()).in_step == frozenset("abc")
        assert door.report(101.6, ()).in_step == frozenset("c")


@pytest.mark.parametrize("was_up", [False, True])
def test_a_link_that_was_never_up_is_given_time(tmp_path: Path, was_up: bool) -> None:
    """Else all followers would suspect a new leader before they have reached it."""
    path = tmp_path / "admin.sock"
    answers = BASE | linked("up" if was_up else "down")
    with answering(path, answers), contextlib.closing(NodeDoor(path)) as door:
        door.obey(d.FollowLeader("a", 4), ADDRESSES, 100.0)
        assert door.report(100.5, ()).silent_s == (0.0 if was_up else 0.5)
        answers |= linked("down")
        assert door.report(101.0, ()).silent_s == (math.inf if was_up else 1.0)


def test_promises_of_others(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    table = ("ok address node promised", "b:1 b 1", "c:1 - 0", ".")
    answers = {"promises * 3 4000 b:1,c:1": table, "promises * 4 4000 b:1": ("err overloaded many",)}
    with contextlib.ExitStack() as stack, answering(path, answers):
        node = stack.enter_context(contextlib.closing(NodeSocket(path)))
        assert node.promises(3, 4.0, ["b:1", "c:1"]) == {"b"}
        assert node.promises(4, 4.0, ["b:1"]) == set()


def test_a_node_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(NodeAway):
        NodeDoor(tmp_path / "admin.sock").report(100.0, ())


def test_a_stream_in_memory_is_not_what_is_looked_at(tmp_path: Path) -> None:
    """No node copies it: by it no follower would have contact, and none would ever be in step."""
    path = tmp_path / "admin.sock"
    streams = ("ok stream role epoch", "live master 3", "orders master 3", ".")
    live = {"stat live": (FIELD, "next_seq 9", "durability memory", ".")}
    orders = {"stat orders": (FIELD, "next_seq 7", "durability async", "slave:c node=c,lag_messages=1", ".")}
    answers = BASE | {"lease *": HELD, "streams": streams} | live | orders
    with answering(path, answers) as got, contextlib.closing(NodeDoor(path)) as door:
        assert [door.report(100.0, ()).in_step for _ in range(2)] == [frozenset("c")] * 2
    assert got.count("streams") == 1
