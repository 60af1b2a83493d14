"""The doors of a node that nobody has configured: what lies on the disk, who administers, what strangers meet."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.node import PATIENCE_S, Node, running, wait_for

DESCRIPTORS = 400
pytestmark = pytest.mark.system


class NarrowNode(Node):
    """May open no more than DESCRIPTORS at once, in each process."""

    def _begin(self, arguments: list[str], output: int) -> subprocess.Popen[bytes]:
        limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", sys.executable, "-m", "tailrace.cli.main"]
        return subprocess.Popen(
            [*limited, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def test_nothing_on_the_disk_is_open_to_other_users(tmp_path: Path) -> None:
    """Under any umask of the shell that starts it; systemd's was right before."""
    with running(tmp_path / "data") as node:
        with node.client() as client:
            assert client.ask("ack on") == "ok ack on"
            assert client.ask("pub a |x").startswith("ok pub a")
        made = [path for path in (node.data, *node.data.rglob("*")) if not path.is_socket()]
        found = [path for path in made if path.stat().st_mode & 0o027]
        assert not found, found


def test_the_socket_of_administration(tmp_path: Path) -> None:
    """Lines from this machine may be a tunnel's or a proxy's. The socket's mode decides who administers."""
    with running(tmp_path / "data", "--admin", "unix", workers=2) as node:
        path = node.data / "admin.sock"
        assert path.stat().st_mode & 0o777 == 0o660
        with node.client() as client:
            assert client.ask("streams").startswith("err denied ")
            assert client.ask("ping") == "ok pong"
        made = admin(path, "master", "orders")
        assert made.returncode == 0 and made.stdout == "ok master orders 1\n", made
        for _ in range(6):  # by either worker
            assert "\norders master 1\r\n" in asked(path, b"streams\r\n")
        assert f'uid={os.getuid()} proof=socket command="master stream=orders' in node.log()
        node.signal(signal.SIGHUP)
        wait_for(lambda: "replaced" in node.log() or node.metric("tailrace_worker_ready") == 2, "the reload")
        assert "orders" in admin(path, "streams").stdout
        node.kill()
        node.start()
        assert "orders" in admin(path, "streams").stdout, "a killed node's socket is replaced"
        name = socket.gethostname()
        assert admin(path, "shutdown").returncode == 1
        assert not node.exited()
        assert admin(path, "shutdown", name).returncode == 0
        wait_for(node.exited, "it has stopped")
        assert not path.exists()


def asked(path: Path, command: bytes) -> str:
    """What the socket answers, up to the last line."""
    with socket.socket(socket.AF_UNIX) as sock, sock.makefile("rb") as answer:
        sock.settimeout(PATIENCE_S)
        sock.connect(str(path))
        sock.sendall(command)
        text = b""
        while line := answer.readline().removesuffix(b".\r\n"):
            text += line
        return text.decode()


def admin(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tailrace.cli.main", "admin", "--socket", str(path), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_probes_of_other_programs_do_not_stop_a_node(tmp_path: Path) -> None:
    """Redis's clients and its health checks begin so."""
    with running(tmp_path / "data") as node:
        for probe in (
            b"QUIT\r\n",
            b"PING\r\nQUIT\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"SHUTDOWN\r\n",
            b"SHUTDOWN NOSAVE\r\n",
        ):
            with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S) as sock:
                sock.sendall(probe)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 16):
                    pass
            assert not node.exited()
        with node.client() as client:
            assert client.ask("ping") == "ok pong"


@pytest.mark.thorough
def test_publishes_go_on_while_connections_take_all_descriptors(tmp_path: Path) -> None:
    """Each publish to a new stream needs descriptors; connections may not have the last ones."""
    node = NarrowNode(tmp_path / "data", workers=1).start()
    with contextlib.ExitStack() as held:
        held.callback(node.kill)
        publisher = held.enter_context(node.client())
        assert publisher.ask("ack on") == "ok ack on"
        for _ in range(DESCRIPTORS + 50):
            sock = held.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S))
            sock.sendall(b"ping\r\n")
        wait_for(lambda: node.metric("tailrace_refused_commands_total") > 0, "some are refused")
        for number in range(20):
            assert publisher.ask(f"pub s{number} |x") == f"ok pub s{number} 0"
        assert "streams" in admin(node.data / "admin.sock", "help").stdout


@pytest.mark.thorough
def test_somebody_who_uses_many_streams_leaves_descriptors_to_others(tmp_path: Path) -> None:
    """More streams than there are descriptors for: those used least are closed, and newcomers are served."""
    node = NarrowNode(tmp_path / "data", workers=1).start()
    with contextlib.ExitStack() as held:
        held.callback(node.kill)
        client = held.enter_context(node.client())
        client.send("ack on", *[f"pub s{number} |x" for number in range(DESCRIPTORS // 2)])
        answers = client.read_answers(1 + DESCRIPTORS // 2)
        assert not [answer for answer in answers if answer.startswith("err")]
        with node.client() as newcomer:
            assert newcomer.ask("ping") == "ok pong"
