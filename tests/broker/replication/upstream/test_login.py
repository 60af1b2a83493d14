"""The node's own logins at other nodes: against SCRAM's other end, and over a connection with a scripted upstream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.process.settings import Settings
from tailrace.broker.replication.upstream.connection import UpstreamPhase
from tailrace.broker.replication.upstream.login import ChallengeAnswer, NodeLogin, NodeLoginFailed, NodeLogins
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.messages import pack
from tailrace.protocol.scram import ITERATIONS_MIN, ScramError, ScramServer, make_verifier
from tests.broker.replication.scripted import UP, Near
from tests.protocol.plain_codec import PlainCodec

USER = Settings(replication_user="east", replication_password="pässword")
VERIFIER = make_verifier("pässword", ITERATIONS_MIN)
HELLO = m.Hello(m.VERSION, (r.FEATURE,), "t", "clients' token", "node", ":5050", "nodes' token")


def at_once(job: ChallengeAnswer, token: Any) -> None:
    job.sync()
    token.done()


def unexpected(value: bytes | str) -> None:
    raise AssertionError(value)


def asks(login: NodeLogin) -> tuple[m.Hello, ScramServer]:
    hello = login.greet(HELLO)
    assert hello.login is not None
    return hello, ScramServer(hello.login)


def proof_of(login: NodeLogin, challenge: bytes) -> bytes:
    said: list[bytes] = []
    login.answer(challenge, said.append, unexpected)
    sent = pack(HELLO) + said[0]
    _hello, prove = PlainCodec(1 << 20, 1 << 20).feed(sent, len(sent))
    assert isinstance(prove, m.Prove)
    return prove.data


def test_both_ends_prove_that_they_know_the_password() -> None:
    login = NodeLogins(USER, at_once).begin()
    hello, server = asks(login)
    assert (hello.user, hello.token, hello.peer_token) == ("east", None, None), "no secret goes out in clear"
    assert "pässword" not in repr(hello) and "pässword" not in repr(USER)
    final = server.finish(VERIFIER, proof_of(login, server.challenge(VERIFIER)))
    login.check(final)
    with pytest.raises(NodeLoginFailed, match="has not proven that it knows this user"):
        login.check(b"v=" + b"A" * 43 + b"=")


def test_a_wrong_password_is_no_proof() -> None:
    login = NodeLogins(Settings(replication_user="east", replication_password="other"), at_once).begin()
    _hello, server = asks(login)
    with pytest.raises(ScramError, match="proof is wrong"):
        server.finish(VERIFIER, proof_of(login, server.challenge(VERIFIER)))


def test_without_a_user_the_hello_stays_as_it_is() -> None:
    login = NodeLogins(Settings(), at_once).begin()
    assert login.greet(HELLO) is HELLO
    login.check(None)
    with pytest.raises(NodeLoginFailed, match="no login is under way"):
        login.answer(b"", unexpected, unexpected)


def test_a_node_that_asks_for_no_proof_does_not_pass_for_one_that_knows_the_password() -> None:
    login = NodeLogins(USER, at_once).begin()
    login.greet(HELLO)
    with pytest.raises(NodeLoginFailed, match="it asked for no proof"):
        login.check(None)


@pytest.mark.parametrize("challenge", [b"", b"\xff", b"r=x,s=c2FsdA==,i=4096", b"r=\0,s=,i=0", b"a" * 2_000])
def test_a_challenge_that_is_none_ends_the_login(challenge: bytes) -> None:
    login = NodeLogins(USER, at_once).begin()
    login.greet(HELLO)
    failed: list[str] = []
    login.answer(challenge, unexpected, failed.append)
    assert failed[0].startswith("the login failed: ")
    with pytest.raises(NodeLoginFailed):
        login.answer(challenge, unexpected, unexpected)


# --- over a connection ------------------------------------------------------------------------------------------------


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Near]:
    near = Near(tmp_path / "data", replication_user="east", replication_password="pässword")
    yield near
    near.close()


def challenge(near: Near) -> ScramServer:
    near.greet()
    (hello,) = PlainCodec(1 << 20, 1 << 20).feed(near.far.hello, len(near.far.hello))
    assert isinstance(hello, m.Hello) and hello.login is not None
    server = ScramServer(hello.login)
    near.far.say(m.Challenge(server.challenge(VERIFIER)))
    near.until(lambda: near.jobs)
    return server


def welcome(proof: bytes | None) -> m.Welcome:
    return m.Welcome(1, (r.FEATURE,), "test", UP, 0, {}, proof)


def test_a_link_is_up_after_its_login(near: Near) -> None:
    server = challenge(near)
    near.do_jobs()
    near.until(lambda: near.far.heard)
    (prove,) = near.far.take()
    near.far.say(welcome(server.finish(VERIFIER, prove.data)))
    near.until(lambda: near.at(UpstreamPhase.UP))


def test_an_upstream_that_does_not_know_the_password_is_left(near: Near) -> None:
    near.greet()
    near.far.say(welcome(None))
    near.until(lambda: near.at(UpstreamPhase.DOWN))
    assert "it asked for no proof" in near.uplink.why


def test_the_key_of_a_connection_that_has_ended_goes_nowhere(near: Near) -> None:
    challenge(near)
    near.uplink.fail("enough")
    near.greet()
    near.do_jobs()
    near.turn()
    assert near.at(UpstreamPhase.GREETING) and not near.far.heard


def test_a_refused_login_is_counted_and_logged(near: Near, caplog: pytest.LogCaptureFixture) -> None:
    near.greet()
    near.far.say(m.Failed("denied", "the login failed: no such user, or not with this secret", True))
    near.until(lambda: near.at(UpstreamPhase.DOWN))
    assert near.owner.metrics.upstream_denied == 1
    (line,) = [each for each in caplog.messages if "is not followed now" in each]
    assert "it said denied: the login failed" in line and "pässword" not in caplog.text


def test_a_challenge_after_the_welcome_ends_the_connection(tmp_path: Path) -> None:
    near = Near(tmp_path / "plain")
    try:
        near.up()
        near.far.say(m.Challenge(b"r=x,s=c2FsdA==,i=4096"))
        near.until(lambda: near.at(UpstreamPhase.DOWN))
        assert "no login is under way" in near.uplink.why
    finally:
        near.close()
