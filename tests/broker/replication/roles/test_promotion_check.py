"""Which node is ahead: the rule, tried on many failovers; and who is asked before a promotion, and for how long."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.broker.replication.roles import promotion_check as scout_module
from tailrace.broker.replication.roles.promotion_check import Findings, PromotionChecks, named_by
from tailrace.broker.replication.upstream.decide import FollowDecision, LocalCopy, UpstreamCopy, after_followed
from tailrace.broker.streams.owner import Refused
from tailrace.protocol.errors import Code
from tailrace.protocol.replication import CopyEnd, NodeLink, Told
from tailrace.shard.epochs import EpochStart, History, begin_epoch, epoch_at, last_epoch
from tests.broker.world import World, world
from tests.thorough import examples

S = b"s"


def told(node: str, *ends: CopyEnd) -> Told:
    return Told(1, node, "", (), 0, 0, 0, ends)


def test_the_node_with_the_most_is_named() -> None:
    findings = Findings()
    mine = (CopyEnd("s", "slave", 2, 2, 10), CopyEnd("$cursor/s", "slave", 2, 2, 5))
    findings.compare(mine, told("old", CopyEnd("s", "master", 1, 1, 900)), "a:1")
    assert findings.refusal("s", 0) is None, "a term that nobody else has the messages of"
    findings.compare(mine, told("b", CopyEnd("s", "slave", 4, 2, 11)), "b:1")
    findings.compare(mine, told("c", CopyEnd("s", "slave", 2, 2, 12), CopyEnd("$cursor/s", "slave", 2, 2, 5)), "c:1")
    findings.compare(mine, told("d", CopyEnd("s", "slave", 2, 2, 11)), "d:1")
    refused = findings.refusal("s", 0)
    assert refused is not None and refused.code is Code.BEHIND
    expected = "node c at c:1 has more of s: last_epoch 2, next_seq 12; here: last_epoch 2, next_seq 10"
    assert refused.text.startswith(expected)
    assert findings.known == {"s": 4, "$cursor/s": 2}


def test_the_cursors_of_a_stream_count_too() -> None:
    findings = Findings()
    findings.compare((CopyEnd("s", "slave", 1, 1, 5),), told("b", CopyEnd("$cursor/s", "slave", 1, 1, 1)), "b:1")
    refused = findings.refusal("s", 0)
    assert refused is not None and "has more of $cursor/s" in refused.text


@pytest.mark.parametrize(
    ("end", "epoch", "may_begin"),
    [
        (CopyEnd("s", "slave", 5, 1, 1), 5, True),  # fenced for it
        (CopyEnd("s", "slave", 6, 1, 1), 5, False),
        (CopyEnd("s", "master", 5, 1, 1), 5, False),
        (CopyEnd("s", "master", 4, 1, 1), 5, True),
        (CopyEnd("s", "master", 9, 1, 1), 0, True),  # the next one of all
    ],
)
def test_a_term_that_is_given_is_above_those_of_other_nodes(end: CopyEnd, epoch: int, may_begin: bool) -> None:
    findings = Findings()
    findings.compare((CopyEnd("s", "slave", 1, 1, 1),), told("b", end), "b:1")
    assert (findings.refusal("s", epoch) is None) is may_begin


def test_a_rival_of_the_same_term_is_named_with_its_master() -> None:
    findings = Findings()
    mine = CopyEnd("s", "slave", 12, 11, 1_036, "n2")
    findings.compare((mine,), told("c", CopyEnd("s", "slave", 12, 11, 569, "n4")), "c:1")
    expected = "last_epoch 11 of master n4, next_seq 569; here: last_epoch 11 of master n2, next_seq 1036"
    assert expected in str(findings.refusal("s", 0))


def test_where_the_nodes_are_that_others_name() -> None:
    addresses = ["10.0.0.1:5050", "127.0.0.1:6060", "", ":5050", "[::1]:7070", "broker:8080"]
    links = [NodeLink("up", "", address, "up", 1, 0, 0, 0) for address in addresses]
    near = [("10.0.0.1", 5050), ("127.0.0.1", 6060), ("::1", 7070), ("broker", 8080)]
    assert named_by(links, "") == named_by(links, "127.0.0.1") == near
    far = [("10.0.0.1", 5050), ("10.0.0.9", 6060), ("10.0.0.9", 7070), ("broker", 8080)]
    assert named_by(links, "10.0.0.9") == far


# --- the rule, on a model of three nodes ------------------------------------------------------------------------------


class Copy:
    """A node's copy: (epoch, message) for each seq, its history, and the latest term that it has learned of."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self.history: History = (EpochStart(1, 0, "0"),)
        self.known = 1
        self.is_master = False
        self.upstream = 0

    @property
    def end(self) -> CopyEnd:
        return CopyEnd(
            "s", "slave", self.known, epoch_at(self.history, len(self.log)) if self.log else 0, len(self.log)
        )


class Cluster:
    """One node more than the master must hold a message before it is acknowledged as replicated."""

    def __init__(self) -> None:
        self.nodes = [Copy(), Copy(), Copy()]
        self.nodes[0].is_master = True
        self.numbers = itertools.count()
        self.acknowledged: set[int] = set()

    def publish(self, node: int) -> None:
        copy = self.nodes[node]
        if copy.is_master:
            copy.log.append((copy.known, next(self.numbers)))

    def copy(self, node: int, count: int) -> None:
        """A slave takes up to `count` messages from its upstream, and reports the messages it holds."""
        slave, upstream = self.nodes[node], self.nodes[self.nodes[node].upstream]
        if slave.is_master or slave is upstream:
            return
        for _ in range(2):
            step = after_followed(self._mine(slave), self._theirs(slave, upstream))
            if step.do is FollowDecision.SET_ASIDE:
                del slave.log[step.seq :]
        if step.do is not FollowDecision.GO_ON:
            return
        slave.history, slave.known = upstream.history, max(slave.known, upstream.known)
        slave.log += upstream.log[len(slave.log) :][:count]
        if upstream.is_master and len(slave.log) >= upstream.history[-1].first_seq:
            self.acknowledged.update(number for _epoch, number in slave.log)

    def _mine(self, slave: Copy) -> LocalCopy:
        last_epoch = slave.log[-1][0] if slave.log else 0
        return LocalCopy(slave.history, 0, len(slave.log), last_epoch, slave.known)

    def _theirs(self, slave: Copy, upstream: Copy) -> UpstreamCopy:
        end = len(slave.log)
        if end > len(upstream.log):
            state = "behind"
        else:
            state = "following" if not end or upstream.log[end - 1] == slave.log[-1] else "parted"
        return UpstreamCopy(state, end, 0, len(upstream.log), upstream.history)

    def fail_over(self, unreachable: int) -> None:
        """Fence the two that can be reached, promote the one that the rule names, and let the other follow it."""
        reached = [node for node in range(3) if node != unreachable]
        fence = max(self.nodes[node].known for node in reached) + 1
        for node in reached:
            self.nodes[node].known, self.nodes[node].is_master = fence, False
        first, second = reached
        findings = Findings()
        findings.compare((self.nodes[first].end,), told(str(second), self.nodes[second].end), "")
        best, other = (second, first) if findings.refusal("s", 0) else (first, second)
        heir = self.nodes[best]
        heir.known, heir.is_master = fence + 1, True
        heir.history = begin_epoch(heir.history, heir.known, len(heir.log), str(best))
        self.nodes[other].upstream = best
        held = {number for _epoch, number in heir.log}
        assert self.acknowledged <= held, f"lost: {self.acknowledged - held}"


steps = st.tuples(st.sampled_from(("publish", "copy", "copy", "fail_over")), st.integers(0, 5))


@settings(max_examples=examples(150))
@given(st.lists(steps, min_size=8, max_size=40))
def test_no_failover_loses_what_was_acknowledged_as_replicated(done: list[tuple[str, int]]) -> None:
    """Publishes go to any master, also to one that was replaced out of its sight; slaves copy from any node they can
    reach.
    """
    cluster = Cluster()
    for verb, choice in done:
        masters = [number for number, node in enumerate(cluster.nodes) if node.is_master]
        slaves = [number for number, node in enumerate(cluster.nodes) if not node.is_master]
        if verb == "publish":
            cluster.publish(masters[choice % len(masters)])
        elif verb == "copy":
            cluster.copy(slaves[choice % len(slaves)], 1 + choice)
        else:
            cluster.fail_over((masters * 2 + slaves)[choice % (2 * len(masters) + len(slaves))])
    for node in cluster.nodes:
        epochs = [epoch for epoch, _number in node.log]
        assert epochs == sorted(epochs) and last_epoch(node.history) >= node.end.last_epoch


# --- who is asked -----------------------------------------------------------------------------------------------------


def check(node: World, *streams: bytes) -> list[Findings | Refused]:
    """The findings on one stream, or on several as `promote` of a pattern checks them."""
    found: list[Findings | Refused] = []
    stream, more = (streams[0], ()) if len(streams) == 1 else (None, streams)
    node.workers[0].scouts.check(stream, more, found.append)
    return found


def slaved(node: World, port: int, *names: bytes) -> None:
    peer = node.connect()
    for name in names or (S,):
        assert node.ask(peer, f"slave 127.0.0.1 {port} {name.decode()} 0")[0].startswith("ok slave")


def test_a_stream_that_nobody_else_has_needs_no_answer(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        node.fill("s", [b"x"])
        assert check(node, S) == check(node, b"unknown") == check(node, S, b"t") == [Findings()]
        assert not node.workers[0].scouts


def test_a_node_that_refuses_counts_as_gone(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        slaved(node, 1)
        found = check(node, S)
        while not found:
            node.settle(0)
        assert found == [Findings()]


def test_a_node_that_does_not_answer_counts_as_gone_after_a_while(tmp_path: Path) -> None:
    with world(tmp_path) as node, socket.create_server(("127.0.0.1", 0)) as silent:
        slaved(node, silent.getsockname()[1])
        found, scouts = check(node, S), node.workers[0].scouts
        node.settle()
        scouts.tick(node.workers[0].services.now_s)
        assert not found and len(scouts) == 1
        scouts.tick(node.workers[0].services.now_s + scout_module.FIND_S)
        assert found == [Findings()] and not scouts


def test_the_checks_of_a_worker_are_bounded_and_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scout_module, "SCOUTS_MAX", 1)
    with world(tmp_path) as node, socket.create_server(("127.0.0.1", 0)) as silent:
        slaved(node, silent.getsockname()[1])
        first = check(node, S)
        (refused,) = check(node, S)
        assert isinstance(refused, Refused) and refused.code is Code.OVERLOADED
        scouts: PromotionChecks = node.workers[0].scouts
        scouts.stop()
        (stopped,) = first
        assert isinstance(stopped, Refused) and stopped.code is Code.UNAVAILABLE


def test_many_streams_are_compared_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scout_module, "ASKED_STREAMS_MAX", 2)
    names = [b"s%d" % number for number in range(5)]
    with world(tmp_path / "a") as upper, world(tmp_path / "b", workers=2) as lower:
        for name in names:
            upper.fill(name.decode(), [b"x"] * 3)
        slaved(lower, upper.listeners[0].getsockname()[1], *names)
        found = check(lower, *names)
        while not found:
            upper.settle(0)
            lower.settle()
        (findings,) = found
        assert isinstance(findings, Findings)
        ahead = {name.encode(): each.theirs for name, each in findings.ahead.items()}
        behind = [name for name in names if _next_seq(lower, name) < 3]
        assert sorted(ahead) == sorted(ahead.keys() | behind)
        assert all(end.next_seq == 3 for end in ahead.values()) and set(findings.known) == {n.decode() for n in names}


def _next_seq(node: World, name: bytes) -> int:
    return node.workers[node.owner_of(name.decode())].owner.stream(name).log.next_seq
