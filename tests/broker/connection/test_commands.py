"""What each command does; and that commands which wait for another worker keep their order."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.delivery.subscribe import first_seq_of
from tailrace.broker.replication.roles.node_file import NodeFile, read_node_file, write_node_file
from tailrace.broker.replication.roles.rules import RULES_MAX, Rule
from tailrace.protocol import commands as c
from tailrace.protocol.grammar import VERBS
from tailrace.shard.meta import Upstream
from tailrace.shard.names import group_key
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import stream_paths
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4
from tests.shard.helpers import BOOT, append, open_log


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2) as node:
        yield node


def words(lines: list[str]) -> list[str]:
    """The first two words of each answer; messages are left out."""
    return [" ".join(line.split(" ")[:2]) for line in lines if not line.startswith("msg ")]


# --- who may --------------------------------------------------------------------------------------------------------


def test_administration_is_for_this_machine_alone(node: World) -> None:
    lines = {"slave": "slave 127.0.0.1 5050 x 0", "trim": "trim x #0", "fence": "fence x 2"}
    lines |= {"lease": "lease * 2 0", "isr": "isr *", "promises": "promises * 2 100 127.0.0.1:5050"}
    admin = [verb.form.split()[0] for verb in VERBS.values() if verb.admin]
    alone = ("groups", "streams", "grown", "workers", "space", "conns", "pull", "sessions", "shutdown")
    typed = [lines.get(word, word if word in alone else f"{word} x") for word in admin]
    assert len(typed) == len(c.ADMIN) - 1 == 22, "all forms of a command have one row"
    stranger = node.connect(local=False)
    assert words(node.ask(stranger, *typed)) == ["err denied"] * 22
    assert not any(line.startswith("master") for line in node.ask(stranger, "help"))
    assert words(node.ask(stranger, "pub x |y", "sub x 0 wait", "ping")) == ["ok sub", "ok pong"]
    assert node.workers[0].metrics.refused.counts == {"denied": 22}
    assert node.controls[0].receive() is not None, "only that it is ready"


def test_every_command_is_known_to_its_table(node: World) -> None:
    kinds = {kind for kind in vars(c).values() if isinstance(kind, type) and kind.__module__ == c.__name__}
    elsewhere = {c.From, c.Staged, c.Invalid, c.Foreign, c.Reply, c.Close}  # `broker.connection.line` does these itself
    assert set(node.client_of(node.connect()).line.commands._table) == kinds - elsewhere


# --- subscriptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [0, 1])
def test_subscriptions_are_decided_in_order(node: World, where: int) -> None:
    """While the owner is asked, the others wait their turn; none is decided on an outdated state."""
    name = node.name(where)
    peer = node.connect(0)
    peer.send(
        f"sub {name} new wait",
        f"sub {name} 0 wait",
        f"unsub {name}",
        f"unsub {name}",
        f"sub {name} 0 wait",
        f"pub {name} |x",
    )
    node.settle(0)
    if where:
        assert peer.lines == [] and len(node.client_of(peer).subscribing) == 5
    node.settle()
    assert words(peer.lines) == ["ok sub", "err subscribed", "ok unsub", "err unsubscribed", "ok sub"]
    assert peer.messages() == [(name, 0, "x")]
    assert list(node.client_of(peer).cursors) == [name.encode()]
    assert not node.client_of(peer).subscribing


@pytest.mark.parametrize("turn_work_s", [0.0, float("inf")])
@pytest.mark.parametrize("where", [0, 1])
def test_a_subscription_begins_behind_what_was_published_before_it(
    node: World, where: int, turn_work_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And before later publishes, also if this turn has no time for opening streams."""
    monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_S", turn_work_s)
    there = node.name(where)
    peer = node.connect(0)
    peer.send(f"pub {there} |1", f"sub {there} new wait", f"pub {there} |2", f"unsub {there}", f"pub {there} |3")
    peer.send(f"sub {there} new wait", f"pub {there} |4")
    node.settle()
    assert [line for line in peer.lines if line.startswith("ok")] == [
        f"ok sub {there} 1", f"ok unsub {there}", f"ok sub {there} 3",
    ]  # fmt: skip
    assert (there, 3, "4") in peer.messages()


def test_a_refused_subscription_leaves_the_next_one_its_chance(tmp_path: Path) -> None:
    with world(tmp_path, workers=2) as node:
        there = node.name(1)
        peer = node.connect(0)
        lines = node.ask(peer, f"sub {there} 0", f"unsub {there}", f"master {there}", f"sub {there} new")
        assert words(lines) == ["err unknown", "err unsubscribed", "ok master", "ok sub"]


def test_the_limit_of_subscriptions(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, max_subscriptions=2) as node:
        names = [node.name(1, "a"), node.name(0, "b"), node.name(1, "c"), node.name(0, "d")]
        peer = node.connect(0)
        lines = node.ask(peer, *(f"sub {name} 0 wait" for name in names), f"unsub {names[0]}", f"sub {names[2]} 0 wait")
        assert words(lines) == ["ok sub", "ok sub", "err subscriptions", "err subscriptions", "ok unsub", "ok sub"]


def test_one_who_may_make_no_more_may_still_subscribe(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, max_streams_connection=1) as node:
        old = [node.name(0, "old"), node.name(1, "old")]
        for name in old:
            node.fill(name, [b"x"])
        new = [node.name(0, "new"), node.name(1, "new"), node.name(1, "newer")]
        peer = node.connect(0)
        assert words(node.ask(peer, f"pub {new[1]} |x", f"sub {new[1]} 0")) == ["ok sub"]
        lines = node.ask(peer, *(f"sub {name} new" for name in (*new, *old)))
        assert words(lines) == ["err unknown", "err subscribed", "err unknown", "ok sub", "ok sub"]
        assert words(node.ask(peer, f"pub {new[0]} |x")) == ["err streams"]


def test_closing_while_the_owner_is_asked_leaves_nothing_behind(node: World) -> None:
    there = node.name(1)
    told, gone = node.connect(0), node.connect(0)
    told.send(f"sub {there} new wait", "close")
    gone.send(f"sub {there} new wait")
    node.settle(0)
    gone.close()
    node.settle()
    assert words(told.lines) == ["ok sub", "ok close"] and told.ended
    assert node.workers[0].fanout.feeds == {}
    assert node.workers[1].siblings.interest.streams == {}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamReader]:
    """Messages 5 to 9 are kept, two at each of the times 1020, 1030 and one at 1040."""
    path = tmp_path_factory.mktemp("places")
    log = open_log(path)
    for time_us in (1_000, 1_010, 1_020, 1_030):
        append(log, b"x", b"y", at=time_us)
    append(log, b"z", b"z", at=1_040)
    log.trim(5)
    reader = StreamReader.open(path, "stream", boot_id=BOOT)
    yield reader
    reader.close()
    log.close()


@pytest.mark.parametrize(
    ("start", "skip", "expected"),
    [
        (c.From("time", 0), 0, 5),
        (c.From("time", 1_020), 0, 5),
        (c.From("time", 1_021), 0, 6),
        (c.From("time", 1_030), 0, 6),
        (c.From("time", 1_030), 1, 7),
        (c.From("time", 1_030), 9, 8),
        (c.From("time", 1_041), 0, 10),
        (c.From("seq", 0), 0, 5),
        (c.From("seq", 7), 0, 7),
        (c.From("seq", 99), 0, 10),
        (c.FROM_NEW, 0, 8),
    ],
)
def test_where_a_subscription_begins(reader: StreamReader, start: c.From, skip: int, expected: int) -> None:
    assert first_seq_of(reader, c.Subscribe(b"stream", start, skip, wait=True), 8) == expected


# --- administration ---------------------------------------------------------------------------------------------------


def test_tables_gather_from_all_workers(node: World) -> None:
    names = sorted([node.name(0, "a"), node.name(1, "a"), node.name(0, "b")])
    for name in names:
        node.fill(name, [b"x"])
    peer, other = node.connect(0), node.connect(1)
    assert node.ask(peer, "streams")[1:-1] == [f"{name} master 1" for name in names]
    assert len(node.ask(peer, "streams a")) == 4
    assert node.ask(peer, "streams nothing") == ["ok stream role epoch", "."]
    node.ask(other, f"sub {names[0]} 0 wait")
    rows = [line.split() for line in node.ask(peer, "conns")[1:-1]]
    assert [(row[0], row[3]) for row in rows] == [("0", "0"), ("1", "1")]
    rows = [line.split() for line in node.ask(peer, "workers")[1:-1]]
    assert [(row[0], row[2], row[4], row[6]) for row in rows] == [("0", "ready", "1", "2"), ("1", "ready", "1", "1")]


def test_which_streams_have_grown_since_a_mark(node: World) -> None:
    names = [node.name(0, "a"), node.name(1, "a"), node.name(0, "b")]
    for name in names:
        node.fill(name, [b"x"])
    peer = node.connect(0)

    def grown(mark: str = "") -> dict[str, list[str]]:
        head, *rows, end = node.ask(peer, f"grown {mark}".rstrip())
        assert (head, end) == ("ok field value", ".")
        found: dict[str, list[str]] = {}
        for field, value in (row.split(" ", 1) for row in rows):
            found.setdefault(field, []).append(value)
        return found

    first = grown()
    assert (first["streams"], first["known"], "grown" in first) == (["3"], ["0"], False)
    (mark,) = grown(first["mark"][0])["mark"]
    assert grown(mark)["known"] == ["1"]
    assert "grown" not in grown(mark)
    node.fill(names[1], [b"y"])
    node.fill(names[2], [b"y", b"z"])
    assert sorted(grown(mark)["grown"]) == sorted(names[1:])
    node.workers[0].owner.events.on_cut(names[0].encode(), 0)
    found = grown(mark)
    assert sorted(found["grown"]) == sorted(names), "one whose end was cut, too"
    assert "grown" not in grown(found["mark"][0])
    assert words(node.ask(peer, "grown ü", f"grown {'x' * 65}")) == ["err usage", "err usage"]


def test_a_table_with_a_worker_missing_is_an_error(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, unavailable_timeout_s=0.1) as node:
        node.workers[0].siblings.close()
        peer = node.connect(0)
        peer.send("streams", "conns", "ping")
        node.settle(0)
        assert peer.lines == []
        node.workers[0].routes[1].expire(node.workers[0].services.now_s + 1)
        node.settle(0)
        assert words(peer.lines) == ["err unavailable", "err unavailable", "ok pong"]


def test_roles(node: World) -> None:
    peer = node.connect(0)
    for name in (node.name(0), node.name(1)):
        asked = [f"unmaster {name}", f"master {name}", f"master {name}", f"pub {name} |x", f"unmaster {name}"]
        asked += [f"unmaster {name}", f"pub {name} |no", f"stat {name}", f"master {name}"]
        lines = node.ask(peer, *asked)
        assert words(lines[:1]) == ["err unknown"]
        assert lines[1:5] == [f"ok master {name} 1"] * 2 + [f"ok unmaster {name} 1"] * 2
        assert words(lines[5:6]) == ["err disabled"]
        assert "role disabled" in lines and lines[-1] == f"ok master {name} 2"


def test_trim_and_stat(node: World) -> None:
    peer = node.connect(0)
    for name in (node.name(0), node.name(1)):
        node.fill(name, [b"12345678"] * 10)
        assert node.ask(peer, f"trim {name} #4") == [f"ok trim {name} 4 4"]
        assert node.ask(peer, f"trim {name} #2") == [f"ok trim {name} 4 0"]
        stat = dict(line.split() for line in node.ask(peer, f"stat {name}")[1:-1])
        assert (stat["first_seq"], stat["next_seq"], stat["messages"], stat["content_bytes"]) == ("4", "10", "6", "240")
        last_us = int(stat["last_timestamp_us"])
        assert node.ask(peer, f"trim {name} {last_us + 1}") == [f"ok trim {name} 10 6"]


def test_shutdown_asks_the_supervisor(node: World) -> None:
    peer = node.connect(1)
    name = socket.gethostname()
    for wrong in ("shutdown", f"shutdown {name}x"):
        assert node.ask(peer, wrong) == [f"err usage this stops the node {name}; write: shutdown {name}"]
    assert node.ask(peer, f"shutdown {name}") == ["ok shutdown"]
    kinds = []
    while (message := node.controls[1].receive()) is not None:
        kinds.append(message.kind)
    assert kinds == ["ready", "owning", "shutdown"]


# --- replication ------------------------------------------------------------------------------------------------------

NOWHERE = "127.0.0.1 1"  # nobody listens there


def role_of(node: World, name: str) -> tuple[str, str]:
    """(role, epoch) of a stream, as `stat` shows."""
    peer = node.connect(0)
    stat = dict(line.split() for line in node.ask(peer, f"stat {name}")[1:-1])
    peer.close()
    return stat["role"], stat["epoch"]


@pytest.mark.parametrize("where", [0, 1])
def test_one_stream_is_slaved_and_set_free(node: World, where: int) -> None:
    name = node.name(where)
    peer = node.connect(0)
    assert words(node.ask(peer, f"unslave {name}", f"promote {name}")) == ["err unknown"] * 2
    assert node.ask(peer, f"slave {NOWHERE} {name} 0") == [f"ok slave {name} 127.0.0.1:1"]
    assert role_of(node, name) == ("slave", "1")
    assert node.ask(peer, f"slave ::1 1 {name} #7") == [f"ok slave {name} [::1]:1"]
    assert node.ask(peer, f"unslave {name}", f"pub {name} |x")[0] == f"ok unslave {name}"
    assert role_of(node, name) == ("disabled", "1")
    assert node.ask(peer, f"promote {name} force", "ack on", f"pub {name} |x") == [
        f"ok promote {name} 2", "ok ack on", f"ok pub {name} 0",
    ]  # fmt: skip
    assert role_of(node, name) == ("master", "2")


def test_many_streams_at_once(node: World) -> None:
    """Those that are here, whichever worker has them, and those that are made later."""
    logs = [node.name(0, "log."), node.name(1, "log.")]
    other, later = node.name(1, "other"), node.name(1, "log.later")
    for name in (*logs, other):
        node.fill(name, [b"x"])
    peer = node.connect(0)
    assert node.ask(peer, f"slave {NOWHERE} log.* 0") == ["ok slave log.* 127.0.0.1:1 2"]
    assert [role_of(node, name)[0] for name in (*logs, other)] == ["slave", "slave", "master"]
    node.workers[1].owner.create(later.encode())
    assert role_of(node, later) == ("slave", "1")
    assert node.ask(peer, "promote log.* force") == ["ok promote log.* 3"]
    assert [role_of(node, name) for name in (*logs, later, other)] == [("master", "2")] * 3 + [("master", "1")]
    assert node.ask(peer, f"slave {NOWHERE} * 0") == ["ok slave * 127.0.0.1:1 4"]
    assert node.ask(peer, "unslave *") == ["ok unslave * 4"]
    assert [role_of(node, name) for name in (*logs, later, other)] == [("disabled", "2")] * 3 + [("disabled", "1")]
    assert node.ask(peer, "unslave *") == ["ok unslave * 0"]


def test_many_masters_are_ended_at_once(node: World) -> None:
    """Only existing streams: no rule is made for streams created later."""
    logs = [node.name(0, "log."), node.name(1, "log.")]
    other, later, slaved = node.name(1, "other"), node.name(1, "log.later"), node.name(0, "log.slaved")
    for name in (*logs, other, slaved):
        node.fill(name, [b"x"])
    peer = node.connect(0)
    node.ask(peer, f"slave {NOWHERE} {slaved} 0")
    assert node.ask(peer, "unmaster log.*", "unmaster log.*") == ["ok unmaster log.* 2", "ok unmaster log.* 0"]
    assert [role_of(node, name)[0] for name in (*logs, other, slaved)] == ["disabled", "disabled", "master", "slave"]
    node.fill(later, [b"x"])
    assert role_of(node, later) == ("master", "1")
    assert node.ask(peer, "unmaster *") == ["ok unmaster * 2"]


def test_many_streams_are_changed_turn_by_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbours are served meanwhile."""
    monkeypatch.setattr("tailrace.broker.replication.roles.apply_rules.PROGRESS_S", 0.0)
    with world(tmp_path) as node:
        for number in range(50):
            node.fill(f"log.{number}", [b"x"])
        node.fill("here", [b"x"])
        peer, neighbour = node.connect(), node.connect()
        node.ask(neighbour, "ack on")
        node.ask(peer, f"slave {NOWHERE} log.* 0")
        monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_S", 0.0)
        peer.send("promote log.*")
        served = 0
        while not peer.lines and served < 40:
            neighbour.send("pub here |x")
            for _ in range(3):
                node.workers[0].turn()
            peer.read()
            neighbour.read()
            served += 1
            assert len(neighbour.lines) == served
        assert served >= 16, "a stream a turn"
        node.settle()
        assert peer.take()[-1] == "ok promote log.* 50"
        assert role_of(node, "log.49") == ("master", "2")


def test_what_is_said_of_many_streams_outlives_the_node(tmp_path: Path) -> None:
    with world(tmp_path, workers=2) as node:
        assert node.ask(node.connect(1), f"slave {NOWHERE} log.* new") == ["ok slave log.* 127.0.0.1:1 0"]
        kept = read_node_file(node.directory.path)
    assert kept.rules == (Rule(b"log.*", Upstream("127.0.0.1", 1, "new", 0)),)


def test_too_many_rules(node: World) -> None:
    rules = tuple(Rule(b"p%d.*" % number, Upstream("h", 1)) for number in range(RULES_MAX))
    write_node_file(node.directory.path, NodeFile(rules))
    assert words(node.ask(node.connect(0), f"slave {NOWHERE} x* 0", "unslave *")) == ["err overloaded", "ok unslave"]
    assert not read_node_file(node.directory.path).rules


def test_a_rule_with_a_worker_missing_is_an_error(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, unavailable_timeout_s=0.1) as node:
        node.workers[0].siblings.close()
        peer = node.connect(0)
        peer.send("promote * force", "ping")
        node.settle(0)
        node.workers[0].routes[1].expire(node.workers[0].services.now_s + 1)
        node.settle(0)
        assert words(peer.lines) == ["err unavailable", "ok pong"]


def test_a_rule_is_taken_back_for_each_stream_before_it_is_gone(node: World) -> None:
    """A slave that only the rule makes one has its role written down first: else it would be a second master."""
    peer = node.connect(0)
    name = node.name(1, "log.")
    node.ask(peer, f"slave {NOWHERE} log.* 0")
    node.workers[1].owner.create(name.encode())
    blocked = node.directory.path / "replication.json.new"
    blocked.mkdir()
    assert words(node.ask(peer, "unslave *")) == ["err full"]
    assert role_of(node, name) == ("disabled", "1")
    assert read_node_file(node.directory.path).rules
    blocked.rmdir()
    assert node.ask(peer, "unslave *") == ["ok unslave * 0"]


def test_a_stream_that_cannot_be_changed_is_told_of(node: World) -> None:
    peer = node.connect(0)
    bad, good = node.name(1, "bad"), node.name(0, "good")
    node.ask(peer, f"slave {NOWHERE} * 0")
    node.workers[1].owner.create(bad.encode())
    node.workers[0].owner.create(good.encode())
    owner = node.workers[1].owner
    owner.close_logs()
    Path(stream_paths(owner.catalog.shard_path(bad.encode()), bad).index_file).write_bytes(b"x" * 9_000)
    (line,) = node.ask(peer, "promote * force")
    assert line.startswith(f"err damaged not done for 1 of these streams, but for all others; the first was {bad}: ")
    assert role_of(node, good) == ("master", "2")


def test_durable_sessions_are_listed_and_forgotten(node: World) -> None:
    """Identifiers may have blanks and percent signs."""
    for place, client_id in enumerate(("a b", "%", "plain")):
        peer = MqttPeer(node, V4, client_id, place % 2, opened=False)
        peer.ask(wire.connect(V4, client_id, clean=False))
        if client_id == "plain":
            peer.peer.close()
    admin = node.connect()
    rows = [line.split() for line in node.ask(admin, "sessions")[1:-1]]
    assert [row[:3] for row in rows] == [["%25", "-", "1"], ["a%20b", "-", "1"], ["plain", "-", "0"]]
    assert node.ask(admin, "sessions a%20b")[1:-1] == [" ".join(rows[2])]
    assert words(node.ask(admin, "forget a%20b", "forget a%20b", "forget " + "x" * 2_000)) == [
        "ok forget", "err unknown", "err usage",
    ]  # fmt: skip
    assert [line.split()[0] for line in node.ask(admin, "sessions")[1:-1]] == ["%25", "plain"]


# --- in a cluster -----------------------------------------------------------------------------------------------------

FAR_MS = 10**11


def test_a_lease_holds_in_all_workers(node: World) -> None:
    peer = node.connect(0)
    names = [node.name(0), node.name(1)]
    assert words(node.ask(peer, "ack on", "lease * 3 0", *(f"pub {name} |x" for name in names))) == [
        "ok ack", "ok lease", "err unavailable", "err unavailable",
    ]  # fmt: skip
    assert not any(worker.owner.catalog.names for worker in node.workers), "no stream was made"
    answers = node.ask(peer, f"lease * 3 {FAR_MS}", *(f"pub {name} |x" for name in names), "lease * 2 0")
    assert words(answers) == ["ok lease", "ok pub", "ok pub", "err usage"]
    assert role_of(node, names[0]) == ("master", "3"), "a new stream is of the term of the lease"


def test_a_promotion_of_all_streams_begins_one_term_on_each(node: World) -> None:
    peer = node.connect(0)
    names = [node.name(0), node.name(1), node.name(1, "log.")]
    node.ask(peer, "ack on", *(f"pub {name} |x" for name in names), f"slave {NOWHERE} log.* 0")
    assert node.ask(peer, "promote * 7 force") == ["ok promote * 3"]
    assert [role_of(node, name) for name in names] == [("master", "7")] * 3
    assert node.ask(peer, "promote * 7 force") == ["ok promote * 0"]


def test_commands_for_a_group_change_its_streams_alone(node: World) -> None:
    peer = node.connect(0)
    names = [f"s{number}" for number in range(8)]
    groups = [group_key(name.encode()) % 2 for name in names]
    assert {(node.owner_of(name), group) for name, group in zip(names, groups, strict=True)} == {
        (slot, group) for slot in range(2) for group in range(2)
    }, "each worker has streams of each group"
    node.ask(peer, "ack on", *(f"pub {name} |x" for name in names))
    slaved = groups.count(1)
    assert node.ask(peer, f"slave {NOWHERE} *%1/2 0")[0].split()[-1] == str(slaved)
    assert [role_of(node, name)[0] == "slave" for name in names] == [group == 1 for group in groups]
    assert node.ask(peer, "promote *%1/2 7 force") == [f"ok promote *%1/2 {slaved}"]
    assert [role_of(node, name) for name in names] == [("master", "7" if group else "1") for group in groups]


def test_in_sync_replicas_are_listed_with_their_lag(node: World) -> None:
    peer = node.connect(0)
    node.ask(peer, "ack on", f"lease * 3 {FAR_MS}", f"pub {node.name(0)} |x", f"pub {node.name(1)} |x")
    assert node.ask(peer, "isr * me,b") == ["ok isr * me,b"]
    head, row = node.ask(peer, "isr *")[:2]
    assert head == "ok node lag_s streams settled group"
    found = {each.split(" ")[0]: each.split(" ")[2:] for each in (row, node.ask(peer, "isr *")[2])}
    assert found["b"] == ["2", "0", "*"]
