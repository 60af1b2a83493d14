"""The login in a client's HELLO, and whether it believes the broker."""

from __future__ import annotations

import pytest

from tailrace.core.login import Login
from tailrace.core.options import ClientOptions
from tailrace.errors import BrokerFault, InvalidArgument
from tailrace.protocol import messages as m
from tailrace.protocol.scram import ITERATIONS_MIN, ScramServer, make_verifier

HELLO = m.Hello(1, (), "c", "t")


def test_without_a_user_nothing_changes() -> None:
    login = Login(ClientOptions(token="t"))
    assert login.hello(HELLO, ClientOptions(token="t")) is HELLO
    login.check(None)
    with pytest.raises(BrokerFault, match="no login with a password"):
        login.answer(b"r=")


def test_a_users_token_is_shown() -> None:
    options = ClientOptions(token="t", user="ann")
    hello = Login(options).hello(HELLO, options)
    assert (hello.mechanism, hello.user, hello.login, hello.token) == ("bearer", "ann", b"t", None)


def test_a_password_is_proven_and_the_broker_proves_that_it_knows_it() -> None:
    verifier = make_verifier("correct horse", ITERATIONS_MIN)
    options = ClientOptions(user="ann", password="correct horse")
    login = Login(options)
    hello = login.hello(HELLO, options)
    assert hello.mechanism == "SCRAM-SHA-256" and b"correct" not in (hello.login or b"")
    server = ScramServer(hello.login or b"")
    proof = server.finish(verifier, login.answer(server.challenge(verifier)).data)
    login.check(proof)
    for false in (None, b"", proof[:-4] + b"AAA="):
        with pytest.raises(BrokerFault, match="the login failed"):
            login.check(false)
    with pytest.raises(BrokerFault, match="the login failed"):
        login.answer(b"r=x,s=AA==,i=1")


def test_a_password_needs_a_user_and_is_not_shown() -> None:
    for wrong in ({"password": "x"}, {"password": "x", "user": "a", "token": "t"}):
        with pytest.raises(InvalidArgument, match="a password goes with a user"):
            ClientOptions(**wrong)  # type: ignore[arg-type]
    assert "secret" not in repr(ClientOptions(user="a", password="secret"))
