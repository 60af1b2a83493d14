"""Every bound that a peer can meet, with its own error code; behind none of them a worker ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.networks import in_namespace
from tests.system.node import LineClient, Node, rows, running, wait_for
from tests.system.streams import lives, name_of, names_of, rss_bytes

pytestmark = pytest.mark.system

WORKERS = 2
KIB, MIB = 1 << 10, 1 << 20
MAX_STREAMS = 60
CONFIG = """
[node]
affinity = false
[limits]
max_line_bytes = 4096
max_message_bytes = 1000
max_partial_bytes = 65536
max_envelope_bytes = 65536
max_connections = 40
max_subscriptions = 3
max_streams_connection = 5
max_lag_bytes = 1048576
max_unsent_bytes = 4194304
link_window_bytes = 1048576
chunk_bytes = 65536
[timing]
stall_timeout_s = 3
beat_timeout_s = 120
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("limits") / "data", workers=WORKERS, config=CONFIG) as node:
        before = lives(node)
        yield node
        assert lives(node) == before, "a worker has ended"


@pytest.fixture
def client(node: Node) -> Iterator[LineClient]:
    with node.client() as client:
        yield client
        with contextlib.suppress(OSError):
            client.send("close")


def codes(client: LineClient) -> list[str]:
    """Its answers, each as its first two words."""
    return [" ".join(answer.split(" ")[:2]) for answer in client.answers]


def ask_all(client: LineClient, *lines: str | bytes) -> list[str]:
    """The first two words of each answer to these lines, each of which has one answer."""
    client.answers.clear()
    client.send(*lines)
    client.read_until(lambda: len(client.answers) == len(lines))
    return codes(client)


# --- lines and messages -----------------------------------------------------------------------------------------------


def test_message_and_line_sizes(client: LineClient) -> None:
    x = b"x"
    lines = [b"pub size |" + x * 1_000, b"pub size |" + x * 1_001, b"pub size |" + x * 4_084, b"pub size |" + x * 4_085]
    lines += [b"pub size |" + x * 100_000, b"y" * 100_000, b"sub " + x * 4_000 + b" 0", b"pub size |fits"]
    assert ask_all(client, "ack on", *lines) == [
        "ok ack", "ok pub", "err size", "err size", "err line", "err line", "err line", "err name", "ok pub",
    ]  # fmt: skip


def test_lines_that_have_begun_are_bounded_over_all_connections(node: Node) -> None:
    """The one that exceeds the bound is notified and closed, and gives its memory back at once."""
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(node.client()) for _ in range(36)]
        for client in clients:
            client.send_raw(b"pub partial |" + b"x" * 4_000)  # 36 times this is over the bound of either worker
        wait_for(lambda: select.select([client.sock for client in clients], [], [], 0)[0], "one is refused")
        for client in clients:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.send_raw(b"\r\nping\r\n")
        for client in clients:
            client.read_until(lambda client=client: bool(client.answers))  # type: ignore[misc]
        refused = [client for client in clients if client.answers[0].startswith("err overloaded ")]
        assert 1 <= len(refused) <= 36 - 16
        for client in refused:
            client.read_to_end()
            assert codes(client) == ["err overloaded"]
        assert codes(next(client for client in clients if client not in refused))[:1] == ["err size"]
        wait_for(lambda: node.metric("tailrace_partial_request_bytes") == 0, "nothing is held any more")


# --- connections and subscriptions ------------------------------------------------------------------------------------


def test_connections(node: Node) -> None:
    wait_for(lambda: sum(int(row["connections"]) for row in node.workers()) <= 1, "earlier connections are gone")
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(node.client()) for _ in range(40)]
        for client in clients:
            assert client.ask("ping") == "ok pong"
        with node.client() as late:
            late.send("ping")
            late.read_to_end()
            assert codes(late) == ["err connections"]
        for client in clients[:20]:
            client.close()
        wait_for(lambda: can_connect(node), "there is room again")
        assert clients[-1].ask("ping") == "ok pong"


def can_connect(node: Node) -> bool:
    with node.client() as client:
        client.send("ping", "close")
        client.read_to_end()
        return codes(client) == ["ok pong", "ok close"]


@pytest.mark.parametrize("slot", range(WORKERS))
def test_subscriptions(node: Node, slot: int) -> None:
    """Decided in the order they were asked for, although some streams' owner is asked first."""
    with node.client_of(slot) as client:
        check_subscriptions(client)


def check_subscriptions(client: LineClient) -> None:
    client.send("pub limited0 |", "pub limited1 |", "pub limited2 |", "pub limited3 |")
    subscribe = [f"sub limited{number} new wait" for number in range(4)]
    assert ask_all(client, *subscribe) == ["ok sub", "ok sub", "ok sub", "err subscriptions"]
    assert ask_all(client, "unsub limited1", "sub limited3 new wait", "sub limited1 0 wait") == [
        "ok unsub", "ok sub", "err subscriptions",
    ]  # fmt: skip


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", range(WORKERS))
def test_streams_of_a_connection(node: Node, slot: int) -> None:
    here, there = (names_of(owner, WORKERS, 4, f"made{slot}-") for owner in (slot, 1 - slot))
    with node.client_of(slot) as client:
        assert client.ask("ack on") == "ok ack on"
        for name in (here[0], there[0], here[1], there[1], here[2]):
            assert client.ask(f"pub {name} |x") == f"ok pub {name} 0"
        lines = [
            f"pub {here[3]} |",
            f"pub {there[3]} |",
            f"sub {there[2]} 0",
            f"sub {here[3]} new",
            f"pub {here[0]} |",
        ]
        assert ask_all(client, *lines) == ["err streams"] * 2 + ["err unknown"] * 2 + ["ok pub"]
        assert ask_all(client, f"sub {here[0]} new wait", f"sub {there[0]} new wait") == ["ok sub", "ok sub"]
    with node.client() as other:
        assert ask_all(other, "ack on", *(f"pub {name} |" for name in (here[3], there[3]))) == [
            "ok ack", "ok pub", "ok pub",
        ]  # fmt: skip


def test_streams_of_the_node(tmp_path: Path) -> None:
    config = f"[limits]\nmax_streams = {MAX_STREAMS}"
    with running(tmp_path / "data", workers=WORKERS, config=config) as node, node.client() as client:
        client.send("ack on", *(f"pub many{number} |x" for number in range(MAX_STREAMS + 40)))
        client.send("pub more |x", "master it")
        client.read_until(lambda: len(client.answers) == MAX_STREAMS + 43)
        answers = codes(client)[1:]
        made = len([answer for answer in answers if answer.startswith("ok ")])
        assert MAX_STREAMS <= made < MAX_STREAMS + WORKERS, "each worker may pass the bound by the one it is making"
        assert answers.count("err nodestreams") == MAX_STREAMS + 42 - made
        assert ask_all(client, "pub many0 |old streams go on") == ["ok pub"]
        assert len(rows(client.ask_table("streams"))) == made


def test_without_auto_master_only_an_administrator_makes_streams(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=WORKERS, config="[node]\nauto_master = false") as node:
        for slot in range(WORKERS):
            name = name_of(slot, WORKERS, "asked-for")
            with node.client() as client:
                lines = [f"pub {name} |x", f"sub {name} 0", f"master {name}", "ack on", f"pub {name} |x"]
                assert ask_all(client, *lines, f"sub {name} 0") == [
                    "err disabled", "err unknown", "ok master", "ok ack", "ok pub", "ok sub",
                ]  # fmt: skip


# --- readers and owners that do not keep up ---------------------------------------------------------------------------


def publish(node: Node, name: str, count: int, nbytes: int = 900) -> None:
    with node.client() as client:
        client.send(*(b"pub %s |%d %s" % (name.encode(), number, b"x" * nbytes) for number in range(count)), "ping")
        client.read_until(lambda: bool(client.answers))
        assert client.answers == ["ok pong"]


def dropped(node: Node, reason: str) -> float:
    return labelled(node, f'tailrace_closed_connections_total{{reason="{reason}"')


def labelled(node: Node, sample: str) -> float:
    lines = node.get("/metrics")[1].splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(sample))


@pytest.mark.parametrize("slot", range(WORKERS))
def test_a_reader_too_far_behind_is_told_and_dropped(node: Node, slot: int) -> None:
    name = name_of(0, WORKERS, f"slow{slot}-")
    with node.client_of(slot) as reader:
        assert reader.ask(f"sub {name} 0 wait") == f"ok sub {name} 0"
        publish(node, name, 20_000)
        wait_for(lambda: refused(node, "slow") > slot, "the reader is seen to be slow")
        reader.read_to_end()
        assert codes(reader) == ["ok sub", "err slow"]
        count = len(reader.messages)
        assert count < 20_000
        assert [message.seq for message in reader.messages] == list(range(count))
        assert f"at seq {count}" in reader.answers[-1] or count > 0


def refused(node: Node, code: str) -> float:
    return labelled(node, f'tailrace_refused_commands_total{{code="{code}"')


def test_a_peer_that_takes_nothing_is_dropped(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=1, config="[timing]\nstall_timeout_s = 0.5") as node:
        publish(node, "stalled", 20_000)
        with node.client() as reader:
            reader.send("sub stalled 0 wait")
            wait_for(lambda: dropped(node, "stalled") == 1, "the reader is dropped")
            with contextlib.suppress(ConnectionResetError):
                reader.read_to_end()
            assert len(reader.messages) < 20_000


def test_answers_that_nobody_reads_are_bounded(node: Node) -> None:
    """A peer that asks for much and reads nothing is not read on, and costs what fits its buffers."""
    pids = node.worker_pids()
    before_bytes = rss_bytes(pids)
    with contextlib.ExitStack() as held:
        for _ in range(10):
            client = held.enter_context(node.client())
            client.sock.settimeout(0.3)
            with contextlib.suppress(TimeoutError, ConnectionError):
                while True:
                    client.send_raw(b"help\r\n" * 10_000)
        with node.client() as other:
            assert other.ask("ping") == "ok pong"
        grown_bytes = rss_bytes(pids) - before_bytes
        assert grown_bytes < 48 * MIB, "twice the bound of unsent answers of each worker, and what a turn may add"


def test_publishes_wait_for_an_owner_that_stands_still(node: Node) -> None:
    """The links are bounded: publishers are not read on, and nothing is lost when the owner comes back."""
    name = name_of(1, WORKERS, "waiting")
    pids = node.worker_pids()
    count = 40_000  # twice what the links and both sockets hold
    payload = b"x" * 900
    with node.client_of(0) as client:
        before_bytes = rss_bytes(pids)
        client.send("ack on")
        os.kill(pids[1], signal.SIGSTOP)
        try:
            client.sock.settimeout(1)
            line = b"pub %s |%s\r\n" % (name.encode(), payload)
            sent = send_until_full(client, line * count)
            assert sent < count * len(line), "the publisher is not read on"
            grown_bytes = rss_bytes(pids) - before_bytes
            assert grown_bytes < 16 * MIB
        finally:
            os.kill(pids[1], signal.SIGCONT)
        whole = sent // len(line)
        client.read_until(lambda: len(client.answers) > whole)
        assert client.answers == ["ok ack on", *(f"ok pub {name} {seq}" for seq in range(whole))]


def send_until_full(client: LineClient, data: bytes) -> int:
    """Bytes that were sent before the broker took no more for as long as the socket's time-out."""
    sent = 0
    view = memoryview(data)
    with contextlib.suppress(TimeoutError):
        while sent < len(view):
            sent += client.sock.send(view[sent : sent + 65_536])
    return sent


@pytest.mark.thorough
def test_what_is_asked_of_an_owner_beyond_what_a_link_may_hold_is_refused(node: Node) -> None:
    """Calls are bounded too: many for an owner that stands still get `overloaded`, each in its place."""
    name = name_of(1, WORKERS, "overloading")
    pids = node.worker_pids()
    count = 4_000
    with contextlib.ExitStack() as held:
        clients = [held.enter_context(node.client_of(0)) for _ in range(8)]
        os.kill(pids[1], signal.SIGSTOP)
        try:
            for client in clients:
                client.send(*[f"master {name}"] * count, "ping")
            wait_for(lambda: node.metric("tailrace_link_queue_bytes") > 4 * MIB, "the link holds all it may")
        finally:
            os.kill(pids[1], signal.SIGCONT)
        answers = []
        for client in clients:
            client.read_until(lambda client=client: len(client.answers) == count + 1)  # type: ignore[misc]
            assert client.answers[-1] == "ok pong"
            answers += codes(client)[:-1]
        assert set(answers) == {"ok master", "err overloaded"}


# --- from other machines ----------------------------------------------------------------------------------------------

ADMIN_COMMANDS = (
    "master x", "unmaster x", "slave 127.0.0.1 5050 x 0", "unslave x", "trim x #0", "streams", "stat x", "workers",
    "conns", "groups", "pull", "sessions", "forget x", "shutdown NODE",
)  # fmt: skip
# In a network namespace of its own, loopback gets a second address that is not of 127.0.0.0/8.
ELSEWHERE = """
import json, pathlib, subprocess, sys
sys.path.insert(0, {root!r})
from tests.system.node import LineClient, running
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", "192.0.2.1/32", "dev", "lo"], check=True)
with running(pathlib.Path({data!r}), "--host", {host!r}, "--allow-anonymous", workers=2) as node:
    answers = {{}}
    for host in {peers!r}:
        with LineClient(node.port, host) as client:
            client.send(*{commands!r}, "pub y |y", "ping")
            client.read_until(lambda: "ok pong" in client.answers)
            answers[host] = client.answers[:]
            answers[host + " help"] = client.ask_table("help")
    print(json.dumps(answers))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(("host", "peers"), [("0.0.0.0", ["192.0.2.1"]), ("::", ["192.0.2.1", "::1"])])
def test_administration_is_denied_to_other_machines(tmp_path: Path, host: str, peers: list[str]) -> None:
    root = str(Path(__file__).parents[2])
    data = str(tmp_path / "data")
    everybody = ["127.0.0.1", *peers]
    script = ELSEWHERE.format(root=root, data=data, host=host, peers=everybody, commands=ADMIN_COMMANDS[:-1])
    done = in_namespace(script)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert [answer.split(" ")[1] for answer in answers["192.0.2.1"]] == ["denied"] * (len(ADMIN_COMMANDS) - 1) + [
        "pong"
    ]
    assert not any(line.startswith("shutdown") for line in answers["192.0.2.1 help"])
    for peer in {"127.0.0.1", *peers} - {"192.0.2.1"}:
        assert "err denied" not in " ".join(answers[peer]), "loopback, IPv6's and a mapped one too"
        assert any(line.startswith("shutdown") for line in answers[f"{peer} help"])
