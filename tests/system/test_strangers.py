"""Peers that are not clients administer nothing: a web page in a browser, HTTP and proxies on the broker's port."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.shard.leaves import interpreted_wanted
from tests.system.browser import browsing, serving
from tests.system.node import PATIENCE_S, Node, running, wait_for

pytestmark = pytest.mark.system

SHUTDOWN = f"shutdown {socket.gethostname()}"
BODY = SHUTDOWN.encode() + b"\r\nslave 127.0.0.1 9 * 0\r\npromote *\r\nmaster stolen\r\n"
HEADERS = (
    b"Host: rebound.example:5050\r\nConnection: keep-alive\r\nContent-Length: 60\r\n"
    b"shutdown: x\r\nX-Folded: a\r\n shutdown\r\n"
    b"User-Agent: Mozilla/5.0\r\nContent-Type: text/plain;charset=UTF-8\r\nOrigin: http://127.0.0.1:8000\r\n\r\n"
)
MULTIPART = b'------x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + BODY + b"\r\n------x--\r\n"
UPGRADE = b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: cXVpdA0K\r\n"
HTTP = {
    "a body of text": b"POST / HTTP/1.1\r\n" + HEADERS + BODY,
    "a form": b"POST /shutdown HTTP/1.1\r\n" + HEADERS + MULTIPART,
    "a WebSocket": b"GET /shutdown HTTP/1.1\r\n" + UPGRADE + HEADERS + BODY,
    "a preflight": b"OPTIONS / HTTP/1.1\r\nAccess-Control-Request-Method: QUIT\r\n" + HEADERS + BODY,
    "a method that is a command": b"shutdown /x HTTP/1.1\r\n" + HEADERS + BODY,
    "a request that was cut by a line end": b"GET /\r\nshutdown\r\n HTTP/1.1\r\n" + HEADERS,
    "a path of a megabyte": b"POST /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n" + HEADERS + BODY,
}
OTHERS = {
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + BODY, b"\0\0\0\4"),
    "PROXY v1": (b"PROXY TCP4 192.0.2.1 192.0.2.2 40000 5050\r\n" + BODY, b"err protocol "),
    "PROXY v2": (b"\r\n\r\n\0\r\nQUIT\n!\x11\0\x0c" + bytes(12) + b"\n" + BODY, b"err protocol "),
    "mail": (b"EHLO example.com\r\n" + BODY, b"err command "),
    "TLS": (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n" + BODY, b"\x15\3\3"),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("strangers") / "data") as node:
        yield node


@pytest.fixture(autouse=True)
def unharmed(node: Node) -> Iterator[None]:
    """No command of a stranger was done: the node lives, is nobody's slave, and has no stream."""
    yield
    with node.client() as client:
        assert client.ask("ping") == "ok pong"
        assert client.ask_table("streams") == ["ok stream role epoch", "."]


def answer_to(node: Node, data: bytes, *, pieces: int) -> bytes:
    """All that comes back until the broker closes. `pieces`: bytes a packet."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        with contextlib.suppress(ConnectionError):  # the broker may be gone before everything is sent
            for start in range(0, len(data), pieces):
                sock.sendall(data[start : start + pieces])
            sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while more := sock.recv(1 << 16):
                received += more
        return received


@pytest.mark.parametrize("kind", HTTP)
def test_http_gets_400_and_nothing_of_it_is_done(node: Node, kind: str) -> None:
    for pieces in (1, 1_000) if len(HTTP[kind]) < 10_000 else (1 << 20, 10_000):
        answer = answer_to(node, HTTP[kind], pieces=pieces)
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n"), answer
        assert b"ok" not in answer.split()


@pytest.mark.parametrize("kind", OTHERS)
def test_other_protocols_are_refused_in_their_own_words(node: Node, kind: str) -> None:
    data, beginning = OTHERS[kind]
    for pieces in (1, 1_000):
        answer = answer_to(node, data, pieces=pieces)
        assert answer.startswith(beginning), answer
        assert b"ok" not in answer.split()
        assert kind.split()[-1] in answer.decode("latin-1") or not kind.startswith("PROXY")


def test_after_a_line_that_is_no_command_nothing_is_administered(node: Node) -> None:
    administering = [
        SHUTDOWN,
        "slave 127.0.0.1 9 * 0",
        "unslave *",
        "promote *",
        "master a",
        "unmaster a",
        "trim a #0",
    ]
    with node.client() as client:
        assert client.ask("ping") == "ok pong"
        assert client.ask("nonsense").startswith("err command ")
        for command in [*administering, "streams", "stat a", "workers", "conns"]:
            assert client.ask(command).startswith("err denied "), command
        assert client.ask("ping") == "ok pong"


def test_the_metrics_port_runs_no_commands_either(node: Node) -> None:
    methods = ((b"POST", b"405"), (b"PUT", b"405"), (b"shutdown", b"405"), (b"GET", b"421"), (b"qu it", b"400"))
    for method, status in methods:
        with socket.create_connection(("127.0.0.1", node.metrics_port), timeout=PATIENCE_S) as sock:
            sock.sendall(method + b" /metrics HTTP/1.1\r\n" + HEADERS + BODY)
            assert sock.recv(1 << 16).split()[1] == status


# --- a browser --------------------------------------------------------------------------------------------------------

PAGE = """<!doctype html><body><script>
const broker = "BROKER", body = "\\r\\nSHUTDOWN\\r\\nslave 127.0.0.1 9 * 0\\r\\nmaster stolen\\r\\n";
for (const host of ["127.0.0.1", "localhost", "rebound.example"]) {
  const url = "http://" + host + ":" + broker + "/shutdown";
  fetch(url, {method: "POST", mode: "no-cors", headers: {"Content-Type": "text/plain"}, body}).catch(() => 0);
  fetch(url, {method: "shutdown", body}).catch(() => 0);
  fetch(url, {headers: {shutdown: "x"}}).catch(() => 0);
  navigator.sendBeacon(url, new Blob([body], {type: "text/plain"}));
  try { new WebSocket("ws://" + host + ":" + broker + "/shutdown"); } catch (error) {}
  const image = new Image(); image.src = url + "%0D%0Ashutdown%0D%0A";
  for (const enctype of ["text/plain", "multipart/form-data"]) {
    const frame = document.createElement("iframe"); frame.name = host + enctype; document.body.append(frame);
    const form = document.createElement("form"), field = document.createElement("textarea");
    Object.assign(form, {action: url, method: "POST", enctype, target: frame.name});
    field.name = "x"; field.value = body; form.append(field); document.body.append(form); form.submit();
  }
}
</script>"""
REQUESTS_MIN = 24  # eight for each of three names


def test_a_web_page_administers_nothing(node: Node, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed (Debian: chromium)")
    if interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")

    def refused() -> float:
        lines = [line for line in node.get("/metrics")[1].splitlines() if 'code="protocol"' in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    before = refused()
    page = PAGE.replace("BROKER", str(node.port)).replace("SHUTDOWN", SHUTDOWN)
    with serving(page) as port, browsing(browser, f"http://127.0.0.1:{port}/", tmp_path):
        wait_for(lambda: refused() - before >= REQUESTS_MIN or node.exited(), "the browser has sent all", 60.0, 0.1)
    assert not node.exited()
