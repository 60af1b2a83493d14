"""etcd with TLS and users, as a real member answers."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.ports import free_port
from tailrace.cli import main
from tailrace.cli.ending import NO_CONNECTION, REFUSED, USAGE
from tailrace.cluster.etcd import TRANSACTIONS_A_REQUEST, Etcd, EtcdAway, EtcdLogin, Put, Transaction
from tests.certificates import Authority
from tests.system.node import wait_for

LOGIN = EtcdLogin("root", "a secret")
TIMEOUT_S = 10.0


class TlsEtcd:
    """A member of etcd that wants TLS and, from `want_login` on, a login."""

    def __init__(self, folder: Path, authority: Authority, program: str) -> None:
        pair = authority.issue("etcd")
        self.authority = authority
        self.address = f"127.0.0.1:{free_port()}"
        self._clients: list[Etcd] = []
        self.context = ssl.create_default_context(cafile=authority.certificate)
        command = [program, "--data-dir", str(folder / "etcd"), "--listen-peer-urls", f"http://127.0.0.1:{free_port()}"]
        command += ["--listen-client-urls", f"https://{self.address}", "--cert-file", str(pair.certificate)]
        command += ["--advertise-client-urls", f"https://{self.address}", "--key-file", str(pair.key)]
        with (folder / "etcd.log").open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)

    def client(self, login: EtcdLogin | None = None) -> Etcd:
        self._clients.append(Etcd([self.address], TIMEOUT_S, self.context, login))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.process.kill()
        self.process.wait()

    def answers(self) -> bool:
        try:
            self.client().read("/")
        except EtcdAway:
            return False
        return True

    def want_login(self) -> None:
        etcd = self.client()
        etcd._call("auth/user/add", {"name": LOGIN.user, "password": LOGIN.password})
        etcd._call("auth/role/add", {"name": "root"})
        etcd._call("auth/user/grant", {"user": LOGIN.user, "role": "root"})
        etcd._call("auth/enable", {})


@pytest.fixture
def tls_etcd(tmp_path: Path) -> Iterator[TlsEtcd]:
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("needs etcd (etcd-server)")
    etcd = TlsEtcd(tmp_path, Authority(tmp_path / "ca"), program)
    try:
        wait_for(etcd.answers, "etcd answers")
        yield etcd
    finally:
        etcd.close()


def test_tls_and_a_login(tls_etcd: TlsEtcd, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EtcdAway):
        Etcd([tls_etcd.address], TIMEOUT_S).read("/")
    with pytest.raises(EtcdAway, match="certificate"):
        Etcd([tls_etcd.address], TIMEOUT_S, ssl.create_default_context()).read("/")
    tls_etcd.want_login()
    with pytest.raises(EtcdAway, match="status 400"):
        tls_etcd.client().read("/")
    with pytest.raises(EtcdAway, match="the login as root fails"):
        tls_etcd.client(EtcdLogin("root", "another")).read("/")
    etcd = tls_etcd.client(LOGIN)
    assert etcd.write([], [Put("/a", b"1")])
    etcd._token = "ended.1"
    assert [each.value for each in etcd.read("/a")] == [b"1"], "it has logged in again"
    changes = [Transaction([("/a", 0)], [Put("/a", b"2")]), Transaction([("/b", 0)], [Put("/b", b"3")], ["/a"])]
    many = [Transaction([(f"/c/{number}", 0)], [Put(f"/c/{number}", b"")]) for number in range(TRANSACTIONS_A_REQUEST)]
    assert etcd.write_all([*changes, *many]) == [False, True, *[True] * len(many)]
    assert [each.key for each in etcd.read("/")][:2] == ["/b", "/c/0"]
    check_command(tls_etcd, tmp_path / "password", capsys)


def check_command(tls_etcd: TlsEtcd, password: Path, capsys: pytest.CaptureFixture[str]) -> None:
    password.write_text(LOGIN.password)
    ca = str(tls_etcd.authority.certificate)
    words = ["cluster", "status", "--cluster", "none", "--etcd", tls_etcd.address]
    login = ["--etcd-user", LOGIN.user, "--etcd-password-file", str(password)]
    assert main.run([*words, "--etcd-ca", ca, *login]) == REFUSED
    assert "no cluster of this name" in capsys.readouterr().err
    assert main.run([*words, *login]) == NO_CONNECTION
    assert main.run([*words, "--etcd-ca", str(password)]) == USAGE
    assert main.run([*words, "--etcd-user", LOGIN.user]) == USAGE
    assert main.run([*words, "--etcd-key", str(password)]) == USAGE, "a key alone makes no TLS"
