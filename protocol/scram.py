"""SCRAM-SHA-256 (RFC 5802, RFC 7677), both ends: a password is proven without being sent. Bytes in, bytes out.

The client computes the expensive part. Without channel binding: what protects the connection is TLS.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import secrets
import unicodedata
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

MECHANISM: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 32_768
"""Of new passwords."""
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 1_000_000
SALT_BYTES: Final = 16
MESSAGE_MAX_BYTES: Final = 1_024
PASSWORD_CHARACTERS_MAX: Final = 512
"""Of a password that is itself sent. Normalizing takes up to the square of its length, and nothing else runs then."""
_GS2: Final = "n,,"
_BINDING: Final = b64encode(_GS2.encode()).decode()
_NAME: Final = re.compile("(?:[^=]|=2C|=3D)+")
_NONCE: Final = re.compile("[!-~]+")  # commas end it


class ScramError(ValueError):
    """A message that does not follow the exchange, or a proof that is wrong."""


class ScramKeys(NamedTuple):
    """What both proofs are made with, for one password, salt and number of iterations."""

    client_key: bytes
    server_key: bytes

    @property
    def stored_key(self) -> bytes:
        return hashlib.sha256(self.client_key).digest()


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """What a node keeps of a password: it does not suffice to log in."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        """As PostgreSQL writes it."""
        salt, stored, server = (b64encode(each).decode() for each in (self.salt, self.stored_key, self.server_key))
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"


def make_verifier(password: str, iterations: int = ITERATIONS) -> ScramVerifier:
    """With a new salt. Takes about 10 ms."""
    salt = secrets.token_bytes(SALT_BYTES)
    keys = derive_keys(password, salt, iterations)
    return ScramVerifier(iterations, salt, keys.stored_key, keys.server_key)


def parse_verifier(text: str) -> ScramVerifier:
    """Raises ScramError."""
    try:
        mechanism, place, keys = text.split("$")
        iterations, salt = place.split(":")
        stored, server = (b64decode(each, validate=True) for each in keys.split(":"))
        made = ScramVerifier(int(iterations), b64decode(salt, validate=True), stored, server)
    except (ValueError, binascii.Error):
        raise ScramError(f"write {MECHANISM}$ITERATIONS:SALT$STORED:SERVER, as tailrace user passwd does") from None
    if mechanism != MECHANISM or len(stored) != 32 or len(server) != 32 or not made.salt:
        raise ScramError(f"is no verifier of {MECHANISM}")
    _check_iterations(made.iterations)
    return made


def derive_keys(password: str, salt: bytes, iterations: int) -> ScramKeys:
    """The expensive step; the interpreter is free meanwhile."""
    prepared = unicodedata.normalize("NFKC", password).encode()
    salted = hashlib.pbkdf2_hmac("sha256", prepared, salt, iterations)
    return ScramKeys(_hmac(salted, b"Client Key"), _hmac(salted, b"Server Key"))


def password_matches(verifier: ScramVerifier, password: str) -> bool:
    """For doors where the password itself is sent. Takes as long as `derive_keys`. False if it is too long."""
    if len(password) > PASSWORD_CHARACTERS_MAX:
        return False
    keys = derive_keys(password, verifier.salt, verifier.iterations)
    return hmac.compare_digest(keys.stored_key, verifier.stored_key)


class ScramClient:
    """One login. `first`, `answer`, `check` in this order."""

    def __init__(
        self,
        user: str,
        password: str,
        derive: Callable[[str, bytes, int], ScramKeys] = derive_keys,
        nonce: str | None = None,
    ) -> None:
        """`derive`: for callers that keep the keys of an earlier login."""
        self._password = password
        self._derive = derive
        self._nonce = nonce or secrets.token_urlsafe(18)
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return (_GS2 + self._bare).encode()

    def answer(self, challenge: bytes) -> bytes:
        """What proves the password. Raises ScramError."""
        text = _text(challenge)
        fields = _fields(text, "rsi")
        salt, iterations = _decoded(fields["s"]), fields["i"]
        if not fields["r"].startswith(self._nonce) or len(fields["r"]) == len(self._nonce):
            raise ScramError("the broker's nonce does not continue this client's")
        if not iterations.isdigit() or len(iterations) > 9:
            raise ScramError("the broker gave no number of iterations")
        _check_iterations(int(iterations))
        keys = self._derive(self._password, salt, int(iterations))
        bare = f"c={_BINDING},r={fields['r']}"
        message = f"{self._bare},{text},{bare}".encode()
        proof = _xor(keys.client_key, _hmac(keys.stored_key, message))
        self._signature = _hmac(keys.server_key, message)
        return f"{bare},p={b64encode(proof).decode()}".encode()

    def check(self, final: bytes) -> None:
        """The broker knows the password too. Raises ScramError if it has not shown that."""
        shown = _decoded(_fields(_text(final), "v")["v"])
        if not self._signature or not hmac.compare_digest(shown, self._signature):
            raise ScramError("the broker has not proven that it knows this user")


class ScramServer:
    """One login at the broker's end. Cheap: three HMACs."""

    def __init__(self, first: bytes, nonce: str | None = None) -> None:
        """`first`: the client's first message. Raises ScramError."""
        text = _text(first)
        binding, _, rest = text.partition(",")
        authorized, _, self._bare = rest.partition(",")
        if binding not in ("n", "y") or authorized:
            raise ScramError("channel binding and other users' names are not supported")
        self._gs2 = f"{binding},,"
        fields = _fields(self._bare, "nr")
        if not _NAME.fullmatch(fields["n"]) or not _NONCE.fullmatch(fields["r"]):
            raise ScramError("a user name with an = that stands for nothing, or a nonce that is empty or not printable")
        self.user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        self._nonce = fields["r"] + (nonce or secrets.token_urlsafe(18))
        self._challenge = ""

    def challenge(self, verifier: ScramVerifier) -> bytes:
        salt = b64encode(verifier.salt).decode()
        self._challenge = f"r={self._nonce},s={salt},i={verifier.iterations}"
        return self._challenge.encode()

    def finish(self, verifier: ScramVerifier, answer: bytes) -> bytes:
        """The broker's own proof. Raises ScramError if the client's is wrong."""
        text = _text(answer)
        bare, _, _proof = text.rpartition(",p=")
        fields = _fields(text, "crp")
        if fields["r"] != self._nonce or fields["c"] != b64encode(self._gs2.encode()).decode():
            raise ScramError("this answer is not to the challenge that was sent")
        message = f"{self._bare},{self._challenge},{bare}".encode()
        proof = _decoded(fields["p"])
        if len(proof) != 32:
            raise ScramError("a proof has 32 bytes")
        client_key = _xor(proof, _hmac(verifier.stored_key, message))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key):
            raise ScramError("the proof is wrong")
        return b"v=" + b64encode(_hmac(verifier.server_key, message))


def _check_iterations(iterations: int) -> None:
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ScramError(f"{iterations} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed")


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes([a ^ b for a, b in zip(left, right, strict=True)])


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_MAX_BYTES:
        raise ScramError(f"a message of {len(message)} bytes; at most {MESSAGE_MAX_BYTES} are allowed")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message that is not UTF-8") from None


def _fields(text: str, keys: str) -> dict[str, str]:
    """The attributes with these names, which come first and in this order; extensions behind them are passed over."""
    parts = text.split(",")
    found = dict(part.split("=", 1) for part in parts if part[1:2] == "=")
    if "m" in found or any(key not in found for key in keys) or [part[:1] for part in parts[:1]] != [keys[0]]:
        raise ScramError(f"a message without its attributes {', '.join(keys)}")
    return found


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ScramError("an attribute that is not base64") from None
