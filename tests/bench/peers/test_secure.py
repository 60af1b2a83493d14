"""How the contestants under TLS and with rights are started; `test_servers` runs them."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

from bench.peers.base import Site
from bench.peers.secure import JetStreamTLS, NatsTLS, TailraceRights, TailraceTLS, TailraceTLSUndecrypted
from tailrace.supervisor.user_file import read_users


def test_ours_has_a_certificate(tmp_path: Path) -> None:
    peer = TailraceTLS(acked=True)
    peer.command(Site(tmp_path, 5050, 0))
    assert peer.name == "tailrace-tls-acks" and peer.tls is not None
    assert tomllib.loads((tmp_path / "tailrace.toml").read_text())["tls"]["key"] == str(tmp_path / "tls" / "key.pem")


def test_only_a_replay_is_thrown_away_undecrypted() -> None:
    peer = TailraceTLSUndecrypted()
    assert peer.undecrypted and peer.name == "tailrace-tls-undecrypted" and peer.kinds == {"replay"}
    assert not TailraceTLS().undecrypted


def test_the_last_rule_allows_the_user_of_ours(tmp_path: Path) -> None:
    TailraceRights().command(Site(tmp_path, 5050, 0))
    users = tmp_path / "users.toml"
    assert [user.name for user in read_users(users)] == ["bench"] and not stat.S_IMODE(users.stat().st_mode) & 0o077
    rules = tomllib.loads((tmp_path / "tailrace.toml").read_text())["rule"]
    assert rules[-1]["allow"] == "bench" and "deny" in rules[0]


def test_nats_begins_with_tls(tmp_path: Path) -> None:
    for number, peer in enumerate((NatsTLS(), JetStreamTLS())):
        folder = tmp_path / str(number)
        folder.mkdir()
        lines = peer.configuration(Site(folder, 4222, 0))
        files = f'cert_file: "{folder}/tls/certificate.pem", key_file: "{folder}/tls/key.pem"'
        assert f"tls {{ {files}, handshake_first: true }}" in lines
        assert any(line.startswith("jetstream") for line in lines) == (peer.name == "jetstream-tls")
