"""SCRAM-SHA-256: the example of RFC 7677, both ends against each other, and refusals."""

from __future__ import annotations

import pytest

from tailrace.protocol.scram import (
    ITERATIONS_MIN,
    MESSAGE_MAX_BYTES,
    PASSWORD_CHARACTERS_MAX,
    ScramClient,
    ScramError,
    ScramServer,
    ScramVerifier,
    derive_keys,
    make_verifier,
    parse_verifier,
    password_matches,
)

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
FIRST = f"n,,n=user,r={NONCE}".encode()
CHALLENGE = f"r={NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
ANSWER = f"c=biws,r={NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SALT = bytes.fromhex("5b6d99689d12358eeca04b141236fa81")


def verifier(password: str = "pencil") -> ScramVerifier:
    keys = derive_keys(password, SALT, 4096)
    return ScramVerifier(4096, SALT, keys.stored_key, keys.server_key)


def test_the_example_of_the_standard() -> None:
    client = ScramClient("user", "pencil", nonce=NONCE)
    assert client.first() == FIRST and client.answer(CHALLENGE) == ANSWER
    client.check(FINAL)
    server = ScramServer(FIRST, nonce=SERVER_NONCE)
    assert server.user == "user" and server.challenge(verifier()) == CHALLENGE
    assert server.finish(verifier(), ANSWER) == FINAL


@pytest.mark.parametrize("name", ["ann", "a=b,c", "é"])
def test_both_ends(name: str) -> None:
    known = make_verifier("pass wörd", ITERATIONS_MIN)
    client = ScramClient(name, "pass wörd")
    server = ScramServer(client.first())
    answer = client.answer(server.challenge(known))
    client.check(server.finish(known, answer))
    assert server.user == name


def test_a_wrong_password_is_refused_and_a_false_broker_noticed() -> None:
    client = ScramClient("ann", "wrong")
    server = ScramServer(client.first())
    answer = client.answer(server.challenge(verifier()))
    with pytest.raises(ScramError, match="proof is wrong"):
        server.finish(verifier(), answer)
    with pytest.raises(ScramError, match="has not proven"):
        client.check(FINAL)


@pytest.mark.parametrize(
    "first",
    [b"", b"\xff", b"p=tls-unique,,n=a,r=b", b"n,a=other,n=a,r=b", b"n,,r=b", b"n,,m=x,n=a,r=b", b"n,,n=a" * 999],
)
def test_first_messages_that_are_refused(first: bytes) -> None:
    with pytest.raises(ScramError):
        ScramServer(first)


@pytest.mark.parametrize("rest", [b"n=a=2,r=x", b"n=a=2d,r=x", b"n==,r=x", b"n=,r=x", b"n=a,r=", "n=a,r=é".encode()])
def test_names_and_nonces_that_the_standard_does_not_allow(rest: bytes) -> None:
    """5.1 of RFC 5802: what does not decode must fail."""
    with pytest.raises(ScramError, match="user name"):
        ScramServer(b"n,," + rest)


@pytest.mark.parametrize(
    "answer",
    [b"", b"c=biws", b"c=biws,r=x,p=AA==", ANSWER.replace(b"biws", b"eSws"), ANSWER[:-8], ANSWER + b"=", b"\xff"],
)
def test_answers_that_are_refused(answer: bytes) -> None:
    server = ScramServer(FIRST, nonce=SERVER_NONCE)
    server.challenge(verifier())
    with pytest.raises(ScramError):
        server.finish(verifier(), answer)


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        CHALLENGE.replace(b"4096", b"1"),
        CHALLENGE.replace(b"4096", b"9" * 9),
        CHALLENGE.replace(b"r=rO", b"r=xx"),
        f"r={NONCE},s=W22Z,i=4096".encode(),
        CHALLENGE.replace(b"W22Z", b"!!!!"),
        b"x" * (MESSAGE_MAX_BYTES + 1),
    ],
)
def test_challenges_that_a_client_refuses(challenge: bytes) -> None:
    with pytest.raises(ScramError):
        ScramClient("user", "pencil", nonce=NONCE).answer(challenge)


def test_verifiers_are_written_and_read() -> None:
    known = make_verifier("pencil", ITERATIONS_MIN)
    assert parse_verifier(str(known)) == known
    assert password_matches(known, "pencil") and not password_matches(known, "Pencil")
    for text in ("", "x", "MD5$1:a$b:c", str(known).replace("4096", "12"), str(known)[:-4]):
        with pytest.raises(ScramError):
            parse_verifier(text)


def test_a_password_that_is_expensive_to_normalize_is_not_looked_at() -> None:
    """Sorting combining characters takes the square of their number, and nothing else runs meanwhile."""
    password = "a" + "\u0301" * 200 + "\u0323" * 200
    assert password_matches(make_verifier(password, ITERATIONS_MIN), password)
    longer = "a" * PASSWORD_CHARACTERS_MAX + "b"
    assert not password_matches(make_verifier(longer, ITERATIONS_MIN), longer)
