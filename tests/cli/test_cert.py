"""`tailrace cert`: `serve` and a client accept its output."""

from __future__ import annotations

import json
import shutil
import ssl
from pathlib import Path

import pytest

from tailrace.broker.process.settings import Settings
from tailrace.broker.process.tls_contexts import load_contexts
from tailrace.cli.main import run
from tailrace.protocol.tls import TLSBuffers, TLSEngine

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not installed")


def test_a_node_and_its_clients_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tls"
    assert run(["cert", "--self-signed", "--host", "broker.example", "--host", "::1", str(folder)]) == 0
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    assert capsys.readouterr().out == f'[tls]\ncertificate = "{certificate}"\nkey = "{key}"\n'
    assert key.stat().st_mode & 0o777 == 0o600
    server = load_contexts(Settings(tls_certificate=str(certificate), tls_key=str(key))).server
    assert server is not None
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(certificate)
    for host in ("broker.example", "::1"):
        ours = TLSEngine(server, TLSBuffers.make(), server_side=True)
        theirs = TLSEngine(client, TLSBuffers.make(), server_hostname=host)
        theirs.handshake(b"")
        ours.handshake(theirs.take())
        assert theirs.handshake(ours.take())


def test_the_places_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cert", "--self-signed", "--json", str(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"certificate": f"{tmp_path}/certificate.pem", "key": f"{tmp_path}/key.pem"}


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key.pem").write_text("mine")
    assert run(["cert", "--self-signed", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err and (tmp_path / "key.pem").read_text() == "mine"


def test_what_is_no_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cert", "--self-signed", "--host", "a,DNS:b", str(tmp_path)]) == 2
    assert "neither a host name nor an address" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_it_has_to_be_asked_for(tmp_path: Path) -> None:
    assert run(["cert", str(tmp_path)]) == 2
