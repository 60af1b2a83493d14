"""Users: their names and credentials."""

from __future__ import annotations

import pytest

from tailrace.broker.access.identity import Proof
from tailrace.broker.access.users import User, name_valid, user_of_certificate
from tailrace.protocol.scram import ScramVerifier

ANN = User("ann", scram=ScramVerifier(4096, b"salt", b"stored-key", b"server-key"), token_hashes=(b"0123456789",))
WEB = User("web", certificates=("CN=web", "web.example.org"))


@pytest.mark.parametrize("name", ["ann", "web-1.example.org", "ann@example.org", "_x", "9"])
def test_names(name: str) -> None:
    assert name_valid(name)


@pytest.mark.parametrize("name", ["", "anonymous", "@ops", "-x", "a b", "a/b", "*", "a" * 65, "é", "a\n"])
def test_what_is_no_name(name: str) -> None:
    assert not name_valid(name)


def test_each_way_to_log_in_has_its_marks() -> None:
    assert ANN.credentials(Proof.SCRAM) == [b"stored-k"]
    assert ANN.credentials(Proof.BEARER) == [b"stored-k", b"01234567"]
    assert ANN.credentials(Proof.CERTIFICATE) == [] == WEB.credentials(Proof.SCRAM)
    assert WEB.credentials(Proof.CERTIFICATE) == [b"CN=web", b"web.example.org"]


def test_no_secret_is_shown() -> None:
    assert "stored" not in repr(ANN) and "0123" not in repr(ANN)


def test_the_user_of_a_certificate() -> None:
    assert user_of_certificate((ANN, WEB), ("CN=other", "web.example.org")) is WEB
    assert user_of_certificate((ANN, WEB), ("CN=other",)) is None
