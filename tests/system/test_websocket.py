"""MQTT over WebSocket at a real node: paho-mqtt, and MQTT.js in a real browser."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from bench.ports import free_port
from tailrace.shard.leaves import interpreted_wanted
from tests.certificates import Authority
from tests.protocol.mqtt.wire import V4, V5
from tests.system.browser import browsing, serving
from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.test_mqtt import PahoClient
from tests.system.test_rolling import replace_all
from tests.thorough import only_thorough
from tests.tidy import tree

pytestmark = pytest.mark.system

LIBRARY = tree.ROOT / "build/npm/node_modules/mqtt/dist/mqtt.min.js"
PAGE = """<script src="data:text/javascript;base64,LIBRARY"></script><script>
const client = mqtt.connect("ws://127.0.0.1:BROKER/mqtt", {protocolVersion: 5, reconnectPeriod: 0});
client.on("connect", () => client.subscribe("asked", {qos: 1}, () => client.publish("ready", navigator.userAgent)));
client.on("message", (topic, payload) => client.publish("answered", payload, {qos: 1}));
</script>"""
ROUNDS = 200
PAGE_ROUNDS = 100  # MQTT.js publishes without regard to the Receive Maximum, which is this


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("websocket") / "data", workers=2) as node:
        yield node


@pytest.mark.parametrize("version", [*only_thorough(V4), V5])
def test_paho_over_websocket(node: Node, version: int) -> None:
    with (
        PahoClient(node.port, version, transport="websockets") as reader,
        PahoClient(node.port, version, transport="websockets") as writer,
        PahoClient(node.port, version) as plain,
    ):
        name = f"paho-{version}"
        assert reader.subscribe((name, 2)) == plain.subscribe((name, 2)) == [2]
        payloads = [b"%d" % number * (1 + 997 * (number % 50)) for number in range(ROUNDS)]
        for number, payload in enumerate(payloads):
            (writer, plain)[number % 2].publish(name, payload, number % 3)
        for client in (reader, plain):
            assert sorted(each.payload for each in client.messages(ROUNDS)) == sorted(payloads)
        with tailrace.connect(f"127.0.0.1:{node.port}") as python:
            messages = python.subscribe(name, end=tailrace.Seq(ROUNDS))
            assert sorted(message.payload for message in messages) == sorted(payloads)


def test_under_tls_and_over_a_reload(tmp_path: Path) -> None:
    """A worker that is replaced ends the connection, and paho connects again."""
    authority = Authority(tmp_path / "ca")
    with running(tmp_path / "node", config=authority.issue("server", "DNS:localhost").toml()) as node:
        context = ssl.create_default_context(cafile=authority.certificate)
        with PahoClient(node.port, V5, tls=context, transport="websockets") as client:
            client.subscribe(("s", 2))
            client.publish("s", bytes(300_000), 2)
            assert [len(each.payload) for each in client.messages(1)] == [300_000]
            replace_all(node)
            assert client.ended.get(timeout=20) == "Server shutting down"
            client.connected.get(timeout=20)
            client.publish("s", b"after", 2)


@pytest.mark.thorough
def test_a_page_of_another_origin_is_refused_and_one_that_is_allowed_speaks(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None or not LIBRARY.exists():
        pytest.skip("needs chromium (Debian) and MQTT.js (make build/npm)")
    if interpreted_wanted():
        pytest.skip("nothing here depends on which build is loaded; the other run has it")
    allowed, other = free_port(), free_port()
    config = f"[listen]\nwebsocket_origins = {json.dumps([f'http://127.0.0.1:{allowed}'])}\n"
    with running(tmp_path / "node", config=config) as node, tailrace.connect(f"127.0.0.1:{node.port}") as client:
        library = base64.b64encode(LIBRARY.read_bytes()).decode()
        page = PAGE.replace("BROKER", str(node.port)).replace("LIBRARY", library)
        stranger = page.replace("ready", "stolen") + f'<iframe src="http://127.0.0.1:{allowed}/"></iframe>'
        visited = f"http://127.0.0.1:{other}/"
        with serving(stranger, other), serving(page, allowed), browsing(browser, visited, tmp_path):
            wait_for(lambda: node.metric("tailrace_refused_commands_total") >= 1, "the stranger's page is refused")
            wait_for(lambda: client.streams("ready"), "the page has subscribed")
            for number in range(PAGE_ROUNDS):
                client.publish("asked", b"%d" % number)
            wait_for(lambda: client.streams("answered"), "the first answer")
            with client.subscribe("answered") as answers:
                found = [answers.receive(PATIENCE_S) for _ in range(PAGE_ROUNDS)]
            assert [int(each.payload) for each in found if each] == list(range(PAGE_ROUNDS))
            assert not client.streams("stolen")
