"""TLS on the port of a real node: what clients see, bad peers, new certificates."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace.protocol import messages as m
from tests.certificates import Authority, Pair
from tests.system.binary_peer import BinaryPeer
from tests.system.node import PATIENCE_S, LineClient, Node, running, wait_for

pytestmark = pytest.mark.system

BIG_BYTES, BIG_MESSAGES = 60_000, 80


class Site:
    """A node with TLS, which asks for client certificates and takes clients without one."""

    def __init__(self, node: Node, authority: Authority, server: Pair) -> None:
        self.node = node
        self.authority = authority
        self.server = server
        self.context = authority.client_context()

    def socket(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.node.port), PATIENCE_S)
        return (context or self.context).wrap_socket(raw, server_hostname="localhost")

    def lines(self) -> LineClient:
        return LineClient.over(self.socket())

    def address(self) -> str:
        return f"tails://localhost:{self.node.port}"

    def pids(self) -> list[int]:
        return self.node.worker_pids()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder / "ca")
    server = authority.issue("server", "DNS:localhost")
    config = server.toml() + f'client_ca = "{authority.certificate}"\nclient_certificates = "optional"\n'
    with running(folder / "node", workers=2, config=config) as node:
        yield Site(node, authority, server)


@pytest.fixture
def unharmed(site: Site) -> Iterator[Site]:
    """The workers are the same afterwards, and serve plain connections and those under TLS."""
    before = site.pids()
    yield site
    assert site.pids() == before
    with site.lines() as client:
        assert client.ask("ping") == "ok pong"
    assert "Traceback" not in site.node.log()


# --- both protocols ---------------------------------------------------------------------------------------------------


def test_lines_and_plain_connections_share_the_port(site: Site) -> None:
    with site.lines() as secret, site.node.client() as plain:
        assert secret.ask("ack on") == plain.ask("ack on") == "ok ack on"
        assert secret.ask("sub lines 0 wait").startswith("ok sub")
        assert plain.ask("pub lines |hello").startswith("ok pub")
        assert secret.read_messages(1)[0].payload == b"hello"
        assert secret.ask("pub lines |" + "x" * 100_000).startswith("ok pub")
        assert len(secret.read_messages(2)[1].payload) == 100_000


def test_big_messages_live_and_from_the_files(site: Site) -> None:
    payloads = [os.urandom(BIG_BYTES) for _ in range(BIG_MESSAGES)]
    with tailrace.connect(site.address(), tls=site.context) as client:
        live = client.subscribe("big", wait=True)
        for at in range(0, BIG_MESSAGES, 10):
            client.publish_many("big", payloads[at : at + 10])
        late = client.subscribe("big", tailrace.START)
        for found in (live, late):
            assert [message.payload for _, message in zip(payloads, found, strict=False)] == payloads


def test_asyncio(site: Site) -> None:
    async def talk() -> list[bytes]:
        async with tailrace.connect_async(site.address(), tls=site.context) as client:
            await client.publish_many("aio", [b"a" * 50_000, b"b"])
            found = client.subscribe("aio", tailrace.START, end=tailrace.NOW)
            return [message.payload async for message in found]

    assert asyncio.run(talk()) == [b"a" * 50_000, b"b"]


@pytest.mark.parametrize("shell", ["sync", "aio"])
def test_the_certificate_has_to_be_the_brokers(site: Site, shell: str) -> None:
    other = tailrace.tls_context()  # the system's CAs

    def connect(address: str, context: ssl.SSLContext) -> None:
        if shell == "sync":
            tailrace.connect(address, tls=context, timeout_s=PATIENCE_S).close()
        else:
            asyncio.run(_connect_async(address, context))

    with pytest.raises(tailrace.ConnectFailed, match="the certificate is refused: self-signed"):
        connect(site.address(), other)
    with pytest.raises(tailrace.ConnectFailed, match="certificate is refused: IP address mismatch"):
        connect(f"tails://127.0.0.1:{site.node.port}", site.context)
    with pytest.raises(tailrace.ConnectFailed, match="TLS: "):  # a port on which nobody speaks TLS
        connect(f"tails://localhost:{site.node.metrics_port}", site.context)


async def _connect_async(address: str, context: ssl.SSLContext) -> None:
    client = await tailrace.connect_async(address, tls=context, timeout_s=PATIENCE_S)
    await client.close()


def test_a_reader_that_does_not_read_costs_no_memory_and_loses_nothing(site: Site) -> None:
    """What TLS has encrypted for it is bounded, and counted."""
    with tailrace.connect(site.address(), tls=site.context) as client:
        for _ in range(20):
            client.publish_many("slow", [b"s" * 100_000] * 10)
    slow = BinaryPeer.over(site.socket())
    slow.subscribe(1, "slow")
    with site.node.client() as admin:
        me = "{}:{}".format(*slow.sock.getsockname()[:2])

        def unsent() -> int:
            row = next(row.split() for row in admin.ask_table("conns") if me in row)
            return int(row[5])

        assert wait_for(unsent, "something is encrypted for it") < 100_000
        admin.answers.clear()
    slow.read_until(lambda: len(slow.messages.get(1, [])) == 200)
    assert {len(message.payload) for message in slow.messages[1]} == {100_000}
    slow.sock.close()


# --- client certificates ----------------------------------------------------------------------------------------------


def test_client_certificates_are_verified(site: Site, tmp_path: Path) -> None:
    good = site.authority.client_context(site.authority.issue("reader"))
    with site.socket(good) as sock:
        sock.sendall(b"ping\r\n")
        assert sock.recv(100) == b"ok pong\r\n"
    stranger = Authority(tmp_path / "other").issue("reader")
    for shown in (stranger, site.authority.issue_expired("old")):
        context = site.authority.client_context(shown)
        with pytest.raises(ssl.SSLError), site.socket(context) as sock:  # TLS 1.3: the client is done before it knows
            sock.sendall(b"ping\r\n")
            assert sock.recv(100) != b"ok pong\r\n"


# --- versions, ciphers, bad peers -------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not installed")
@pytest.mark.parametrize(
    ("options", "answered"),
    [
        (["-tls1_3"], True),
        (["-tls1_2"], True),
        (["-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"], True),
        (["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA"], False),  # CBC
        (["-tls1_2", "-cipher", "AES128-GCM-SHA256"], False),  # no forward secrecy
        (["-tls1_1", "-cipher", "DEFAULT:@SECLEVEL=0"], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_versions_and_ciphers(unharmed: Site, options: list[str], answered: bool) -> None:
    said = s_client(unharmed, options, b"ping\r\nclose\r\n")
    assert ("ok pong" in said) is answered, said
    assert "Compression: NONE" in said or not answered


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not installed")
@pytest.mark.parametrize(("version", "letter"), [("-tls1_2", b"R\n"), ("-tls1_3", b"K\n")])
def test_renegotiation_is_refused_and_keys_may_be_updated(unharmed: Site, version: str, letter: bytes) -> None:
    """`R` on a line of its own makes s_client ask for renegotiation, `K` for new keys."""
    command = s_client_command(unharmed, [version])
    wanted = b"no renegotiation" if version == "-tls1_2" else b"KEYUPDATE"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        said = bytearray()

        def has_said(text: bytes) -> bool:
            said.extend(process.stdout.read() or b"" if process.stdout is not None else b"")
            return text in said

        for sent, answer in ((b"ping\n", b"ok pong"), (letter, wanted)):
            process.stdin.write(sent)
            process.stdin.flush()
            wait_for(lambda text=answer: has_said(text), f"s_client says {answer!r}")  # type: ignore[misc]
        if version == "-tls1_3":
            del said[:]
            process.stdin.write(b"ping\n")
            process.stdin.flush()
            wait_for(lambda: has_said(b"ok pong"), "it goes on with the new keys")
        process.kill()


def s_client(site: Site, options: list[str], sent: bytes) -> str:
    command = s_client_command(site, [*options, "-ign_eof"])
    return subprocess.run(command, input=sent, capture_output=True, timeout=PATIENCE_S).stdout.decode(errors="replace")


def s_client_command(site: Site, options: list[str]) -> list[str]:
    where = ["-connect", f"localhost:{site.node.port}", "-CAfile", str(site.authority.certificate)]
    return ["openssl", "s_client", *where, "-alpn", "tailrace", *options]


def client_hello(context: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def test_a_byte_at_a_time(unharmed: Site) -> None:
    """Through the handshake and behind it."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    engine = unharmed.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", unharmed.node.port), PATIENCE_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def trickle() -> None:
            for byte in outgoing.read():
                sock.send(bytes((byte,)))

        while True:
            try:
                engine.do_handshake()
                break
            except ssl.SSLWantReadError:
                trickle()
                incoming.write(sock.recv(1 << 16))
        engine.write(b"ping\r\n")
        trickle()
        while True:
            try:
                assert engine.read(100) == b"ok pong\r\n"
                return
            except ssl.SSLWantReadError:
                incoming.write(sock.recv(1 << 16))


def test_garbage_before_and_in_the_middle_of_tls(unharmed: Site) -> None:
    hello = client_hello(unharmed.context)
    dice = random.Random(7)
    for place in (*range(1, 60, 3), *range(60, len(hello), 40)):
        damaged = bytearray(hello)
        damaged[place] ^= 1 + dice.randrange(255)
        with socket.create_connection(("127.0.0.1", unharmed.node.port), PATIENCE_S) as sock:
            sock.sendall(damaged)
            with contextlib.suppress(OSError):  # any answer is allowed, also a reset
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 16):
                    pass
    with unharmed.socket() as sock:
        sock.sendall(b"ping\r\n")
        assert sock.recv(100) == b"ok pong\r\n"
        socket.socket.send(sock, b"\x17\x03\x03\x00\x20" + bytes(32))  # a record with no right MAC
        with pytest.raises(OSError):
            assert not sock.recv(100)
            raise ConnectionResetError


def test_empty_records_and_key_updates_are_bounded(unharmed: Site) -> None:
    """They bring no data, and cost the broker work."""
    with unharmed.socket() as sock:
        assert sock.version() == "TLSv1.3"
        with pytest.raises(OSError):
            for _ in range(4_000):
                sock.send(b"")
            socket.socket.sendall(sock, b"\x14\x03\x03\x00\x01\x01" * 20_000)
            while True:
                assert sock.recv(100)


@pytest.mark.thorough
def test_inputs_mutated_inside_tls_end_no_worker(unharmed: Site) -> None:
    """A few thousand; `python -m tests.system.tls_fuzz PORT CA` does as many as its options demand."""
    from tests.system.tls_fuzz import fuzz

    assert fuzz(unharmed.node.port, unharmed.context, 2_000, seed=11) >= 2_000
    for door in ("mqtt", "websocket"):
        assert fuzz(unharmed.node.port, unharmed.context, 1_500, seed=11, door=door) >= 1_500


# --- the certificate is changed ---------------------------------------------------------------------------------------


def test_a_reload_ends_connections_after_their_answers_and_takes_the_new_certificate(
    site: Site, tmp_path: Path
) -> None:
    def serial() -> str:
        with site.socket() as sock:
            found = sock.getpeercert()
            assert found is not None
            return str(found["serialNumber"])

    node, before = site.node, serial()
    old, other = site.pids(), site.authority.issue("next", "DNS:localhost")
    kept = site.server.certificate.rename(tmp_path / "kept")
    os.mkfifo(site.server.certificate)
    node.signal(signal.SIGHUP)
    wait_for(lambda: "is not a regular file" in node.log(), "nobody waits for what comes out of a FIFO")
    shutil.move(kept, site.server.certificate)
    shutil.copy(other.key, site.server.key)  # the certificate is the old one: they do not fit
    node.signal(signal.SIGHUP)
    wait_for(lambda: node.log().count("the certificates as they were") == 2, "the bad certificate is told")
    assert serial() == before and site.pids() == old, "such a reload replaces no worker"
    shutil.copy(other.certificate, site.server.certificate)
    with site.lines() as client, tailrace.connect(site.address(), tls=site.context) as lasting:
        assert client.ask("ack on") == "ok ack on"
        node.signal(signal.SIGHUP)
        client.send("pub closing |last")
        client.read_to_end()
        assert client.answers[-1].startswith("err closing"), client.answers
        assert client.answers[1].startswith("ok pub closing") or "closing" in client.answers[1]
        wait_for(lambda: replaced(node, old), "the workers are replaced")
        assert lasting.publish("closing", b"after it").seq >= 1
    assert serial() != before


def replaced(node: Node, old: list[int]) -> bool:
    try:
        found = node.worker_pids()
    except (OSError, AssertionError):
        return False
    return len(found) == len(old) and not set(found) & set(old)


# --- between nodes ----------------------------------------------------------------------------------------------------


def test_nodes_follow_each_other_over_tls(site: Site, tmp_path: Path) -> None:
    config = f'[tls]\nupstream = true\nupstream_ca = "{site.authority.certificate}"\n'
    config += f'[[slave]]\nstreams = "copied"\nupstream = "localhost:{site.node.port}"\n'
    payloads = [b"%d" % number * 20_000 for number in range(60)]
    with tailrace.connect(site.address(), tls=site.context) as client:
        client.publish_many("copied", payloads)
    with (
        running(tmp_path / "slave", workers=1, config=config) as slave,
        tailrace.connect(f"localhost:{slave.port}") as below,
    ):
        found = below.subscribe("copied", tailrace.START, wait=True)
        assert [next(found).payload for _ in payloads] == payloads
        assert below.publish("copied", b"up" * 40_000).seq == len(payloads)
        assert next(found).payload == b"up" * 40_000


def test_a_node_with_a_wrong_name_is_not_followed(site: Site, tmp_path: Path) -> None:
    config = f'[tls]\nupstream = true\nupstream_ca = "{site.authority.certificate}"\n'
    config += f'[[slave]]\nstreams = "copied"\nupstream = "127.0.0.1:{site.node.port}"\n'
    with running(tmp_path / "slave", workers=1, config=config) as slave:
        wait_for(lambda: "IP address mismatch" in slave.log(), "the certificate is refused")


# --- connections without TLS ------------------------------------------------------------------------------------------


def test_hello_is_a_message_inside_tls_too(site: Site) -> None:
    peer = BinaryPeer.over(site.socket())
    assert peer.welcome is not None and peer.welcome.version == m.VERSION
    peer.sock.close()
