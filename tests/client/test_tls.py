"""The contexts of clients, and which connection has one."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

import tailrace
from tailrace.core.address import Address, parse_address
from tailrace.tls import context_for, default_context
from tests.certificates import Authority


def test_a_context_verifies_the_host_unless_told_otherwise(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    shown = authority.issue("reader")
    context = tailrace.tls_context(authority.certificate, certificate=shown.certificate, key=shown.key)
    assert context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert not tailrace.tls_context(authority.certificate, check_hostname=False).check_hostname


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(tailrace.InvalidArgument, match=r"none\.pem: No such file"):
        tailrace.tls_context(tmp_path / "none.pem")
    with pytest.raises(tailrace.InvalidArgument, match="a key goes with its certificate"):
        tailrace.tls_context(key=tmp_path / "key.pem")


def test_which_connections_are_under_tls() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain, secret = parse_address("tail://a:1"), parse_address("tails://[::1]:1")
    assert plain == Address("a", 1) and secret == Address("::1", 1, True) and str(secret) == "tails://[::1]:1"
    assert context_for(plain, None) is None and context_for(plain, False) is None
    assert context_for(secret, None) is context_for(plain, True) is default_context()
    assert context_for(plain, context) is context_for(secret, context) is context


def test_what_is_no_context_is_refused() -> None:
    with pytest.raises(tailrace.InvalidArgument, match="tls is 'yes'"):
        tailrace.connect("127.0.0.1:1", tls="yes")  # type: ignore[arg-type]
