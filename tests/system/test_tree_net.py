"""The machines and links that the tests of replication stand on: their promises, tested with plain sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.system.tree_net import CannotBuild, Net, batch, has_netem, network

pytestmark = pytest.mark.system

PORT = 7000
SILENT_S = 0.3  # without an answer, which usually takes a thousandth of that
DELAY_MS = 30


@pytest.fixture(scope="module")
def built() -> Iterator[Net]:
    with network("a", "b", "c") as net, contextlib.ExitStack() as stack:
        for machine in net.machines.values():
            listener = machine.within(lambda: socket.create_server(("0.0.0.0", PORT)))
            echo = threading.Thread(target=echo_all, args=[listener], daemon=True)
            echo.start()
            stack.callback(echo.join, 10.0)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
        yield net


@pytest.fixture
def net(built: Net) -> Iterator[Net]:
    yield built
    for name in built.machines:
        built.restore(name)
        built.clear(name)
    built.heal()


def echo_all(listener: socket.socket) -> None:
    """One connection after the other, until the listener is shut down."""
    with contextlib.suppress(OSError), listener:
        while True:
            sock, _address = listener.accept()
            with sock, contextlib.suppress(OSError):
                sock.settimeout(60.0)
                while data := sock.recv(1 << 16):
                    sock.sendall(data)


def reaches(net: Net, to: str, sender: str = "", patience_s: float = 5.0) -> bool:
    """Whether a byte comes back from a machine, sent by another one or by this process."""
    address = (net.machines[to].address, PORT)

    def ask() -> bool:
        try:
            with socket.create_connection(address, patience_s) as sock:
                sock.sendall(b"x")
                return sock.recv(1) == b"x"
        except TimeoutError:
            return False

    return net.machines[sender].within(ask) if sender else ask()


def test_everybody_reaches_everybody(net: Net) -> None:
    assert all(reaches(net, to, sender) for to in "abc" for sender in ["", *"abc"])


def test_each_machine_has_a_loopback_of_its_own(net: Net) -> None:
    def connect() -> str:
        with socket.create_connection(("127.0.0.1", PORT), 5.0) as sock:
            return str(sock.getpeername()[0])

    assert net.machines["a"].within(connect) == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        connect()


def test_a_process_that_is_started_on_a_machine_is_in_its_network(net: Net) -> None:
    command = ["ip", "-4", "-o", "addr", "show", "eth0"]
    shown = net.machines["b"].within(lambda: subprocess.run(command, capture_output=True, text=True, check=True))
    assert net.machines["b"].address in shown.stdout


def test_a_link_is_cut_and_restored(net: Net) -> None:
    with socket.create_connection((net.machines["a"].address, PORT), 20.0) as before:
        before.sendall(b"1")
        assert before.recv(1) == b"1"
        net.cut("a")
        before.sendall(b"2")
        before.settimeout(SILENT_S)
        with pytest.raises(TimeoutError):
            before.recv(1)
        assert not reaches(net, "a", patience_s=SILENT_S)
        assert not reaches(net, "b", "a", SILENT_S)
        assert reaches(net, "b", "c")
        net.restore("a")
        before.settimeout(60.0)
        assert before.recv(1) == b"2", "the connection lives on"
    assert reaches(net, "a") and reaches(net, "b", "a")


def test_a_partition(net: Net) -> None:
    try:
        net.partition("a", "bc")
    except CannotBuild as error:
        pytest.skip(str(error))
    for to, sender in ("ab", "ac", "ba", "ca"):
        assert not reaches(net, to, sender, SILENT_S)
    assert reaches(net, "b", "c") and all(reaches(net, to) for to in "abc")
    net.partition("c", "b")
    assert reaches(net, "a", "b") and not reaches(net, "b", "c", SILENT_S)
    net.heal()
    assert reaches(net, "b", "c")


def test_one_way(net: Net) -> None:
    """A connection needs both ways, so that none is made."""
    try:
        net.block([("a", "b")])
    except CannotBuild as error:
        pytest.skip(str(error))
    assert not reaches(net, "a", "b", SILENT_S) and not reaches(net, "b", "a", SILENT_S)
    assert reaches(net, "a", "c") and reaches(net, "b", "c")
    net.block([("a", "c"), ("c", "b")])
    assert reaches(net, "a", "b") and not reaches(net, "c", "a", SILENT_S) and not reaches(net, "b", "c", SILENT_S)
    net.heal()
    assert reaches(net, "a", "c")


def test_a_slow_link(net: Net) -> None:
    assert reaches(net, "a")
    net.impair("a", DELAY_MS, 0.0)
    began_s = time.monotonic()
    assert reaches(net, "a")
    # To connect takes one journey there and back, the byte another one.
    assert time.monotonic() - began_s >= 4 * DELAY_MS / 1000, f"by netem: {has_netem()}"
    net.impair("a", 2 * DELAY_MS, 0.0)
    began_s = time.monotonic()
    assert reaches(net, "a", "b")
    assert time.monotonic() - began_s >= 8 * DELAY_MS / 1000, "it is another delay now"


def test_a_link_that_loses_much(net: Net) -> None:
    """Data sent comes through all the same, whole and in order: TCP sends again."""
    net.impair("a", 1, 100.0)
    assert not reaches(net, "a", patience_s=SILENT_S)
    net.impair("a", 1, 5.0)
    sent = os.urandom(300_000)
    with socket.create_connection((net.machines["a"].address, PORT), 30.0) as sock:
        sender = threading.Thread(target=sock.sendall, args=[sent])
        sender.start()
        received = bytearray()
        while len(received) < len(sent):
            received += sock.recv(1 << 16)
        sender.join()
    assert received == sent


def test_a_connection_outlives_the_beginning_and_the_end_of_a_fault(net: Net) -> None:
    with socket.create_connection((net.machines["a"].address, PORT), 20.0) as sock:

        def echoes() -> bool:
            sock.sendall(b"x")
            return sock.recv(1) == b"x"

        changes: list[Callable[[], None]] = [
            lambda: net.impair("a", 5, 0.0),
            lambda: net.clear("a"),
            lambda: net.clear("a"),
        ]
        for change in changes:
            assert echoes()
            change()
        assert echoes()


def links() -> set[str]:
    """The names of all there are, those of other tests among them."""
    told = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0].split("@")[0] for line in told.splitlines()}


def test_everything_is_removed_in_the_end() -> None:
    before = threading.active_count()
    with network("a", "b") as net:
        net.impair("a", 1, 0.0)
        assert net.link in links()
        names = [thread.name for thread in threading.enumerate()]
        assert any(name.startswith("network a") for name in names)
    assert net.link not in links()
    assert threading.active_count() == before


def test_everything_is_removed_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Net] = []
    add = Net._add

    def fail_at_the_second(self: Net, name: str, number: int) -> None:
        seen.append(self)
        if number == 2:
            raise RuntimeError("on purpose")
        add(self, name, number)

    monkeypatch.setattr(Net, "_add", fail_at_the_second)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="on purpose"), network("a", "b"):
        pass
    assert seen[0].link and seen[0].link not in links()
    assert threading.active_count() == before


def test_a_command_that_fails_says_what_and_why() -> None:
    with pytest.raises(CannotBuild, match=r"ip: link set nobody up: .*nobody"):
        batch("ip", "link set nobody up")
