"""A node's life from outside: its start, its refusals, its stop, and its care for its children."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tailrace.shard.header import HEADER_PAGE_BYTES, STATE_CLOSED, parse_index
from tests.system.node import PATIENCE_S, LineClient, Node, rows, running, wait_for
from tests.system.processes import alive, all_workers, metrics_pid, titles, worker_pid, worker_pids
from tests.system.standstill import assert_within
from tests.system.streams import name_of, names_of
from tests.thorough import only_thorough

pytestmark = pytest.mark.system

STARTS_MAX = 5


def index_files(data: Path) -> list[Path]:
    return sorted(data.glob("shard-*/*.indx"))


def assert_marked_clean(data: Path) -> None:
    """Nothing is left for the next start to check: every stream is closed, and on the disk to its end."""
    files = index_files(data)
    assert files
    for file in files:
        _fixed, words = parse_index(file.read_bytes()[:HEADER_PAGE_BYTES])
        assert words.state == STATE_CLOSED, f"{file} is not closed"
        assert words.synced_seq == words.next_seq, f"{file}: {words}"


def payloads(node: Node, stream: str, count: int) -> list[bytes]:
    with node.client() as client:
        client.send(f"sub {stream} 0 wait")
        return [message.payload for message in client.read_messages(count)]


# --- starting ---------------------------------------------------------------------------------------------------------


def test_a_reload_that_is_asked_for_during_the_start_is_done_then(tmp_path: Path) -> None:
    """HUP comes when the node has begun to make its data directory, long before it serves."""
    for attempt in range(STARTS_MAX):
        node = Node(tmp_path / f"data{attempt}", workers=1, config="[timing]\nheartbeat_s = 1\n")
        node.start(wait=False)
        try:
            assert node.process is not None
            pid = node.process.pid
            wait_for(partial(has_begun, node.data), "the node has begun", step_s=0.001)
            os.kill(pid, signal.SIGSTOP)
            is_starting = "started worker" not in node.log()
            node.signal(signal.SIGHUP)
            os.kill(pid, signal.SIGCONT)
            node.wait_ready()
            wait_for(partial(has_replaced, node), "its worker is replaced")
            assert node.get("/readyz")[0] == 200
        finally:
            node.stop()
        if is_starting:
            return
    raise AssertionError(f"HUP came after the start {STARTS_MAX} times")


def has_replaced(node: Node) -> bool:
    return "generation 2" in node.log() or "generation 3" in node.log()


def has_begun(data: Path) -> bool:
    """Whether the node has read its configuration and is at work on its data directory."""
    return data.is_dir() and any(data.iterdir())


# --- stopping ---------------------------------------------------------------------------------------------------------


def stop_by_term(node: Node) -> None:
    node.signal(signal.SIGTERM)


def stop_by_interrupt(node: Node) -> None:
    """As the terminal does for ^C: every process of the group gets it."""
    assert node.process is not None
    os.killpg(node.process.pid, signal.SIGINT)


def stop_by_group_term(node: Node) -> None:
    """As a service manager does that knows no better."""
    assert node.process is not None
    os.killpg(node.process.pid, signal.SIGTERM)


def stop_by_shutdown(node: Node) -> None:
    with node.client() as client:
        assert client.ask(f"shutdown {socket.gethostname()}") == "ok shutdown"


@contextlib.contextmanager
def frozen(node: Node) -> Iterator[None]:
    """The workers stand still for the length of a block."""
    pids = all_workers(node)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "stop", [stop_by_group_term, *only_thorough(stop_by_term, stop_by_interrupt, stop_by_shutdown)]
)
def test_a_stop_answers_what_was_sent_and_leaves_nothing_to_check(tmp_path: Path, stop: Callable[[Node], None]) -> None:
    data = tmp_path / "data"
    count = 3_000
    node = Node(data, workers=3).start()
    clients = [node.client() for _ in range(4)]
    for client in clients:
        client.ask("ack on")
    # Stopped, so that the publishes lie unread when the stop comes; a stop by a command needs the workers awake.
    with frozen(node) if stop is not stop_by_shutdown else contextlib.nullcontext():
        for number, client in enumerate(clients):
            client.send_raw(b"".join(b"pub s%d |%d/%d\r\n" % (i % 7, number, i) for i in range(count)))
        stop(node)
        wait_for(lambda: stop is stop_by_shutdown or "stopping: " in node.log(), "the supervisor knows")
    for client in clients:
        client.read_to_end()
        assert len([answer for answer in client.answers if answer.startswith("ok pub ")]) == count
        assert [answer.split()[1] for answer in client.answers[count + 1 :]] == ["closing"]
        client.close()
    assert node.process is not None and node.process.wait(PATIENCE_S) == 0, node.log()
    assert "Traceback" not in node.log() and "ERROR" not in node.log(), node.log()
    assert_marked_clean(data)
    with running(data, environment={"TAILRACE_BOOT_ID": "another-boot"}) as again, again.client() as client:
        table = {row["stream"] for row in rows(client.ask_table("streams"))}
        assert table == {f"s{i}" for i in range(7)}
        ends = [int(dict(line.split() for line in client.ask_table(f"stat s{i}")[1:-1])["next_seq"]) for i in range(7)]
        assert sum(ends) == count * 4


def test_shutdown_from_telnet(tmp_path: Path) -> None:
    telnet = shutil.which("telnet")
    if telnet is None:
        pytest.skip("there is no telnet here")
    node = Node(tmp_path / "data").start()
    command = [telnet, "127.0.0.1", str(node.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as person:
        assert person.stdin is not None and person.stdout is not None
        person.stdin.write(f"shutdown {socket.gethostname()}\n".encode())
        person.stdin.flush()
        said = person.stdout.read()
        assert node.process is not None and node.process.wait(PATIENCE_S) == 0
    assert b"ok shutdown" in said and b"err closing" in said


def test_a_reader_that_reads_nothing_does_not_hold_a_stop_up(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "--drain-timeout-s", "1").start()
    with node.client() as publisher, node.client() as reader:
        publisher.ask("ack on")
        publisher.send(*(b"pub big |" + b"x" * 100_000 for _ in range(200)))
        publisher.read_answers(201)
        reader.send("sub big 0 wait")
        reader.read_messages(1)
        began_s = time.monotonic()
        assert node.stop() == 0
        assert_within(time.monotonic() - began_s, 4.0)
    assert "Traceback" not in node.log()


def test_a_stop_while_publishers_go_on_has_an_end(tmp_path: Path) -> None:
    node = Node(tmp_path / "data").start()
    with node.client() as client:
        node.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + 15
        with contextlib.suppress(OSError):
            while time.monotonic() < deadline_s:
                client.send_raw(b"pub endless |message\r\n" * 1_000)
    assert node.process is not None and node.process.wait(PATIENCE_S) == 0
    assert "Traceback" not in node.log()


# --- refusing to start ------------------------------------------------------------------------------------------------


def exit_of(node: Node) -> tuple[int, str]:
    node.start(wait=False)
    assert node.process is not None
    return node.process.wait(PATIENCE_S), node.log()


def test_a_second_node_on_the_same_data(tmp_path: Path) -> None:
    with running(tmp_path / "data") as node:
        assert node.process is not None
        second = Node(tmp_path / "data")
        second.log_path = tmp_path / "second.log"
        code, log = exit_of(second)
        assert code == 3
        assert "another node runs on this data directory" in log and str(node.process.pid) in log
        assert "Traceback" not in log
        with node.client() as client:
            assert client.ask("ping") == "ok pong"


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for name, port_of in (("broker", "port"), ("metrics", "metrics_port")):
            node = Node(tmp_path / name)
            setattr(node, port_of, taken.getsockname()[1])
            code, log = exit_of(node)
            assert code == 4
            assert f"port {taken.getsockname()[1]}" in log and "Address already in use" in log
            assert "Traceback" not in log


def test_a_data_directory_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "node.json").write_text('{"format": 99}')
    for path in (file, foreign):
        code, log = exit_of(Node(path))
        assert code == 5, log
        assert str(path) in log and "Traceback" not in log


def test_a_wrong_configuration_names_every_fault(tmp_path: Path) -> None:
    config = "[node]\nworkers = -3\n[limits]\nmax_conections = 5\nmax_streams = 'many'\n[frobnicate]\n"
    code, log = exit_of(Node(tmp_path / "data", config=config))
    assert code == 2
    for word in ("max_conections", "max_streams", "frobnicate"):
        assert word in log
    assert not (tmp_path / "data").exists()


# --- looking after the children ---------------------------------------------------------------------------------------


def test_processes_say_what_they_are(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=3) as node:
        assert node.process is not None
        wait_for(lambda: len(titles(node)) == 4, "all children have their titles")
        assert sorted(titles(node).values()) == ["tailrace: metrics", *(f"tailrace: worker {i}" for i in range(3))]
        assert psutil.Process(node.process.pid).cmdline()[0].startswith("tailrace: supervisor ")


def test_a_worker_that_is_silent_is_dumped_killed_and_replaced(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--beat-timeout-s", "1") as node:
        pid = worker_pid(node, 1)
        node.signal(signal.SIGSTOP)  # the supervisor: a replaced worker is ready again within a moment
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: node.get("/readyz")[0] == 503, "the silent worker shows")
        node.signal(signal.SIGCONT)
        wait_for(lambda: not alive(pid), "the silent worker is gone")
        assert worker_pid(node, 1) != pid
        node.wait_ready()
        log = node.log()
        assert f"worker 1 (pid {pid}) is silent" in log
        assert "Fatal Python error: Aborted" in log and "broker/worker.py" in log, "its stack is not in the log"


def is_gone(node: Node, pid: int) -> bool:
    """Dead, and reaped."""
    return pid not in titles(node)


def test_a_worker_that_keeps_dying_is_started_with_growing_pauses(tmp_path: Path) -> None:
    with running(tmp_path / "data") as node:
        pauses_s = []
        for _ in range(6):
            pid = worker_pid(node, 0)
            os.kill(pid, signal.SIGKILL)
            began_s = time.monotonic()
            wait_for(partial(is_gone, node, pid), "the worker is gone")
            worker_pid(node, 0)
            pauses_s.append(time.monotonic() - began_s)
        assert_within(pauses_s[0], 0.3)
        # A pause is by chance a quarter of its most, 0.8 and 1 s here, to all of it; then the worker starts.
        assert pauses_s[4] > 0.2 and pauses_s[5] > 0.25, pauses_s
        assert_within(pauses_s[4], 1.2)
        assert_within(pauses_s[5], 1.4)
        node.wait_ready()
        with node.client() as client:
            assert [row["restarts"] for row in rows(client.ask_table("workers"))] == ["6", "0"]
        assert node.metric("tailrace_worker_restarts_total") == 6


def test_the_metrics_process_comes_back(tmp_path: Path) -> None:
    with running(tmp_path / "data") as node:
        pid = metrics_pid(node)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not alive(pid) and node.get("/healthz")[0] == 200, "metrics are served again")
        assert metrics_pid(node) != pid
        assert not [state for state in states(node) if state == psutil.STATUS_ZOMBIE]


def states(node: Node) -> list[str]:
    assert node.process is not None
    return [child.status() for child in psutil.Process(node.process.pid).children()]


def test_no_zombies(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=4) as node:
        for pids in worker_pids(node).values():
            os.kill(pids[0], signal.SIGKILL)
        os.kill(metrics_pid(node), signal.SIGKILL)
        wait_for(lambda: len(titles(node)) == 5, "everybody is back")
        node.wait_ready()
        assert psutil.STATUS_ZOMBIE not in states(node)


def test_without_its_supervisor_nobody_stays(tmp_path: Path) -> None:
    data = tmp_path / "data"
    node = Node(data, workers=3).start()
    with node.client() as client:
        client.ask("ack on")
        for number in range(10):
            client.ask(f"pub s{number} |kept")
        pids = [*titles(node)]
        assert node.process is not None and len(pids) == 4
        node.process.kill()
        killed_s = time.monotonic()
        node.process.wait()  # its lock goes with it: on a busy machine later than another node could start
        again = Node(data, workers=2)
        again.log_path = tmp_path / "again.log"
        again.port, again.metrics_port = node.port, node.metrics_port
        again.start(wait=False)
        wait_for(lambda: "serving with 2 workers" in again.log() or again.exited(), "another node serves")
        assert not again.exited(), again.log()
        wait_for(lambda: not any(alive(pid) for pid in pids), "the workers and the metrics process have left")
        assert_within(time.monotonic() - killed_s, 3.0)
    assert [payloads(again, f"s{number}", 1) for number in range(10)] == [[b"kept"]] * 10
    assert again.stop() == 0
    assert "Traceback" not in node.log()


# --- while a worker is down -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def held_down(node: Node, slot: int, witness: LineClient) -> Iterator[None]:
    """A worker is dead and stays so: the supervisor is stopped for the length of the block.

    `witness` is a client of another worker, which knows of the death when the block begins.
    """
    pid = worker_pid(node, slot)
    node.signal(signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    try:
        wait_for(lambda: not alive(pid), "the worker is dead")
        for _ in range(2):  # a turn of the loop each
            assert witness.ask("ping") == "ok pong"
        witness.answers.clear()
        yield
    finally:
        node.signal(signal.SIGCONT)


def test_publishes_wait_for_a_worker_that_is_down(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--no-affinity") as node, node.client_of(0) as client:
        reader, other = node.client_of(0), node.client_of(0)
        names = names_of(1, 2, 5, "t")
        client.ask("ack on")
        for name in names:
            assert client.ask(f"pub {name} |before") == f"ok pub {name} 0"
        reader.send(f"sub {names[0]} 0 wait")
        reader.read_messages(1)
        with held_down(node, 1, client):
            client.send(*(f"pub {name} |while it is down" for name in names), "ping")
            # Others are served meanwhile, and the files can be read.
            mine = name_of(0, 2, "t")
            other.ask("ack on")
            assert other.ask(f"pub {mine} |x") == f"ok pub {mine} 0"
            other.send(f"sub {names[1]} 0 wait")
            assert [message.payload for message in other.read_messages(1)] == [b"before"]
            assert client.answers == []
        assert client.read_answers(len(names) + 1) == [*(f"ok pub {name} 1" for name in names), "ok pong"]
        assert [message.seq for message in reader.read_messages(2)] == [0, 1]
        assert [message.seq for message in other.read_messages(2)] == [0, 1]
        reader.close()
        other.close()


def test_publishes_fail_when_a_worker_stays_down(tmp_path: Path) -> None:
    flags = ("--no-affinity", "--unavailable-timeout-s", "0.5")
    with running(tmp_path / "data", *flags) as node, node.client_of(0) as client:
        name = name_of(1, 2, "t")
        client.ask("ack on")
        client.ask(f"pub {name} |before")
        with held_down(node, 1, client):
            began_s = time.monotonic()
            client.send(*(f"pub {name} |{number}" for number in range(10)))
            client.read_answers(10)
            took_s = time.monotonic() - began_s
            assert took_s > 0.4
            assert_within(took_s, 2.0)
            assert {answer.split(": ", 1)[0] for answer in client.answers} == {f"err unavailable {name}"}
            assert all("nothing of this was logged" in answer for answer in client.answers)
            assert client.ask(f"sub {name} new wait").startswith("err unavailable ")
        wait_for(lambda: client.ask(f"pub {name} |after") == f"ok pub {name} 1", "the worker is back")
        assert payloads(node, name, 2) == [b"before", b"after"]


def test_publishers_wait_when_the_row_for_a_worker_is_full(tmp_path: Path) -> None:
    """Beyond the window their connections are not read, and nothing piles up."""
    window_bytes = 1 << 20
    flags = ("--no-affinity", "--unavailable-timeout-s", "60", "--max-message-bytes", "1 KiB")
    limit = ("--link-window-bytes", str(window_bytes))
    with running(tmp_path / "data", *flags, *limit) as node, node.client_of(0) as client:
        name = name_of(1, 2, "t")
        client.ask("ack on")
        line = b"pub %s |%s\r\n" % (name.encode(), b"x" * 1_000)
        sent = 0
        with held_down(node, 1, client):
            client.sock.setblocking(False)
            silent_since_s = time.monotonic()
            while time.monotonic() - silent_since_s < 0.5:
                with contextlib.suppress(BlockingIOError):
                    sent += client.sock.send((line * 64)[sent % len(line) :])
                    silent_since_s = time.monotonic()
            wait_for(lambda: node.metric("tailrace_link_queue_bytes") > window_bytes // 2, "what is held shows")
            assert node.metric("tailrace_link_queue_bytes") < 3 * window_bytes, "the window and a read bound it"
        client.sock.setblocking(True)
        if sent % len(line):
            client.send_raw(line[sent % len(line) :])
        client.read_answers(-(-sent // len(line)))
        assert {answer.rsplit(" ", 1)[0] for answer in client.answers} == {f"ok pub {name}"}


# --- limits, configuration, service manager ---------------------------------------------------------------------------


def test_the_limit_on_connections_is_the_nodes(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--max-connections", "20", workers=3) as node:
        wait_for(lambda: all(row["connections"] == "0" for row in node.workers()[1:]), "the probes have left")
        clients: list[LineClient] = []
        try:
            for _ in range(20):
                clients.append(node.client())
                assert clients[-1].ask("ping") == "ok pong"
            with contextlib.ExitStack() as stack:
                # Each is closed a second later, since its answer must not be lost: they wait for that side by side.
                for refused in [stack.enter_context(node.client()) for _ in range(10)]:
                    refused.read_to_end()
                    assert [answer.split()[1] for answer in refused.answers] == ["connections"]
            clients.pop().close()

            def room() -> bool:
                with node.client() as client, contextlib.suppress(OSError):
                    return client.ask("ping") == "ok pong"
                return False

            wait_for(room, "a place that was left is taken again")
        finally:
            for client in clients:
                client.close()


def test_a_reload_takes_the_new_configuration_and_keeps_the_old_where_it_is_wrong(tmp_path: Path) -> None:
    with running(tmp_path / "data", config="[limits]\nmax_message_bytes = '1 KiB'\n") as node:
        path = tmp_path / "data.toml"

        def limit_is(size: int) -> bool:
            with node.client() as client:
                client.ask("ack on")
                fits = client.ask(b"pub s |" + b"x" * size).startswith("ok ")
                return fits and client.ask(b"pub s |" + b"x" * (size + 1)).startswith("err size ")

        assert limit_is(1 << 10)
        path.write_text("[limits]\nmax_message_bytes = '2 KiB'\n[listen]\nport = 1\n")
        node.signal(signal.SIGHUP)
        wait_for(lambda: "all workers are replaced" in node.log(), "the reload is done")
        assert limit_is(2 << 10)
        path.write_text("[limits]\nmax_message_bytes = 'some'\n")
        workers = node.worker_pids()
        node.signal(signal.SIGHUP)
        wait_for(lambda: "keeping the configuration as it was" in node.log(), "the second reload is refused")
        assert limit_is(2 << 10) and node.worker_pids() == workers, "no worker is replaced"
        assert "max_message_bytes" in node.log() and node.log().count("all workers are replaced") == 1


class Listener:
    """The service manager's end of sd_notify."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(str(path))
        self.sock.settimeout(PATIENCE_S)
        self.heard: list[dict[str, str]] = []

    def wait_for(self, variable: str) -> dict[str, str]:
        """Drops input before the next message with this variable; returns that."""
        while True:
            said = dict(line.split("=", 1) for line in self.sock.recv(4096).decode().splitlines())
            if variable in said:
                return said


def test_what_the_service_manager_hears(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "2000000"}
    node = Node(tmp_path / "data", environment=environment).start(wait=False)
    assert node.process is not None
    try:
        ready = listener.wait_for("READY")
        assert node.get("/readyz")[0] == 200
        assert (ready["READY"], ready["MAINPID"]) == ("1", str(node.process.pid))
        began_s = time.monotonic()
        for _ in range(4):
            assert listener.wait_for("WATCHDOG") == {"WATCHDOG": "1"}
        assert_within(time.monotonic() - began_s, 2.0)  # half the watchdog's time is the most it may take
        before = worker_pids(node)
        node.signal(signal.SIGHUP)
        reloading = listener.wait_for("RELOADING")
        assert reloading["RELOADING"] == "1" and int(reloading["MONOTONIC_USEC"]) > 0
        listener.wait_for("READY")
        now = worker_pids(node)
        assert not {pid for pids in before.values() for pid in pids} & {pids[-1] for pids in now.values()}
        node.signal(signal.SIGTERM)
        assert listener.wait_for("STOPPING")["STOPPING"] == "1"
        assert node.process.wait(PATIENCE_S) == 0
    except BaseException:
        node.kill()
        raise
    finally:
        listener.sock.close()


def test_a_service_manager_that_reads_nothing_or_goes_holds_nothing_up(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
    with running(tmp_path / "data", environment=environment) as node:
        wait_for(lambda: "cannot tell the service manager" in node.log(), "its queue is full")
        os.kill(worker_pid(node, 0), signal.SIGKILL)
        wait_for(lambda: "SIGKILL" in node.log(), "the supervisor still looks after its children")
        listener.sock.close()
        (tmp_path / "notify").unlink()
        worker_pid(node, 0)
        node.wait_ready()
