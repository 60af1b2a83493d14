"""Reading certificates: each fault is named, and nothing weak is offered."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from tailrace.broker.process.settings import ClientCertificates, Settings
from tailrace.broker.process.tls_contexts import CertificateError, load_contexts
from tests.certificates import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def settings(pair: Pair, **others: object) -> Settings:
    return Settings(tls_certificate=str(pair.certificate), tls_key=str(pair.key), **others)  # type: ignore[arg-type]


def test_without_a_certificate_there_is_no_tls() -> None:
    found = load_contexts(Settings())
    assert found.server is None and found.upstream is None


def test_what_a_server_offers(authority: Authority) -> None:
    found = load_contexts(
        settings(
            authority.issue("server"),
            tls_client_ca=str(authority.certificate),
            tls_client_certificates=ClientCertificates.REQUIRED,
        )
    ).server
    assert found is not None and found.minimum_version is ssl.TLSVersion.TLSv1_2
    assert found.options & ssl.OP_NO_RENEGOTIATION and found.options & ssl.OP_NO_COMPRESSION
    assert found.verify_mode is ssl.CERT_REQUIRED and found.num_tickets == 0
    assert all(each["aead"] for each in found.get_ciphers())


def test_other_nodes_are_verified(authority: Authority) -> None:
    found = load_contexts(Settings(tls_upstream=True, tls_upstream_ca=str(authority.certificate))).upstream
    assert found is not None and found.check_hostname and found.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(("mode", "right"), [(0o600, True), (0o640, True), (0o644, False), (0o660, False)])
def test_a_key_that_others_can_read_is_refused(authority: Authority, mode: int, right: bool) -> None:
    pair = authority.issue("server")
    os.chmod(pair.key, mode)
    if right:
        assert load_contexts(settings(pair)).server is not None
    else:
        with pytest.raises(CertificateError, match="others can read this key; run: chmod 0600"):
            load_contexts(settings(pair))


def test_what_is_no_certificate_is_named(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue("server"), authority.issue("other")
    empty = tmp_path / "empty"
    empty.write_text("")
    empty.chmod(0o600)
    with pytest.raises(CertificateError, match="cannot be read: No such file"):
        load_contexts(settings(Pair(tmp_path / "none", pair.key)))
    with pytest.raises(CertificateError, match="no certificate and its key: key values mismatch"):
        load_contexts(settings(Pair(pair.certificate, other.key)))
    with pytest.raises(CertificateError, match=r"empty and .* are no certificate and its key"):
        load_contexts(settings(Pair(empty, pair.key)))
    with pytest.raises(CertificateError, match="empty holds no CA certificates"):
        load_contexts(settings(pair, tls_client_ca=str(empty)))
