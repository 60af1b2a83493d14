"""The contestants whose connections are under TLS, with one cipher for all; and ours with users and rules."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib

from bench.load.tls import client_context
from bench.peers.base import Contestant, Site, Unavailable
from bench.peers.jetstream import JetStream
from bench.peers.nats import Nats
from bench.peers.plain import BareSendfile
from bench.peers.tailrace_binary import TailraceBinary
from tailrace.protocol.messages import BEARER, VERSION, Hello, pack

_TOKEN = "bench-token-of-no-secret"
_USERS = f'[[user]]\nname = "bench"\ntokens = ["sha256:{hashlib.sha256(_TOKEN.encode()).hexdigest()}"]\n'
# As a site might have them: the rule that allows comes behind others.
_RULES = """
[[rule]]
deny = "*"
rights = ["admin"]
[[rule]]
allow = "@ops"
rights = ["publish", "create"]
streams = "b.*"
[[rule]]
allow = "bench"
rights = ["publish", "subscribe", "create"]
streams = "b.*"
"""


def _make_certificate(site: Site) -> str:
    """The [tls] section of a certificate for the site. Raises Unavailable."""
    command = [sys.executable, "-m", "tailrace.cli.main", "cert", "--self-signed", str(site.directory / "tls")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"no certificate: {done.stderr}")
    return done.stdout


def _certificate_files(site: Site) -> tuple[str, str]:
    """The paths of a certificate and its key. Raises Unavailable."""
    section = tomllib.loads(_make_certificate(site))["tls"]
    return section["certificate"], section["key"]


class TailraceTLS(TailraceBinary):
    def __init__(self, *, acked: bool = False, interpreted: bool = False, workers: int = 2) -> None:
        super().__init__(acked=acked, interpreted=interpreted, workers=workers)
        self.name = "tailrace-tls-acks" if acked else "tailrace-tls"
        self.title = "tailrace binary, TLS, acks" if acked else "tailrace binary, TLS"
        self.kinds = frozenset({"ingest"} if acked else {"replay", "connections"})
        self.tls = client_context()

    def command(self, site: Site) -> list[str]:
        self.config = _make_certificate(site)
        return super().command(site)


class TailraceTLSUndecrypted(TailraceTLS):
    """Measures the broker where a reader that decrypts would be the slower side."""

    undecrypted = True

    def __init__(self, *, interpreted: bool = False, workers: int = 2) -> None:
        super().__init__(interpreted=interpreted, workers=workers)
        self.name, self.title = "tailrace-tls-undecrypted", "tailrace binary, TLS, not decrypted"
        self.kinds = frozenset({"replay"})


class TailraceRights(TailraceBinary):
    """Publishes as a user; a rule allows it."""

    hello = pack(Hello(VERSION, (), "bench", mechanism=BEARER, user="bench", login=_TOKEN.encode()))

    def __init__(self, *, interpreted: bool = False, workers: int = 2) -> None:
        super().__init__(acked=True, interpreted=interpreted, workers=workers)
        self.name, self.title, self.kinds = (
            "tailrace-rights-acks",
            "tailrace binary, rights, acks",
            frozenset({"ingest", "turns"}),
        )

    def command(self, site: Site) -> list[str]:
        path = site.directory / "users.toml"
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
            file.write(_USERS)
        self.config = f'[access]\nusers_file = "{path}"\n{_RULES}'
        return super().command(site)


class BareTLS(BareSendfile):
    """Not a broker: the least program that sends under TLS a file of as many bytes as tailrace's log has in the replay.

    Its reader does not decrypt. It shows which part of the cipher's rate one thread can reach on this machine.
    """

    undecrypted = True

    def __init__(self, file_bytes: int) -> None:
        super().__init__(file_bytes)
        self.name, self.title, self.kinds = "bare-tls", "(bare TLS)", frozenset({"replay"})
        self.tls = client_context()

    def command(self, site: Site) -> list[str]:
        program, option, _module, port, path, _processes = super().command(site)
        return [program, option, "bench.load.bare_tls", port, path, *_certificate_files(site)]


class _UnderTLS(Nats):
    """NATS's server under TLS from the first byte on."""

    def __init__(self) -> None:
        self.tls = client_context()

    def configuration(self, site: Site) -> list[str]:
        certificate, key = _certificate_files(site)
        files = f'cert_file: "{certificate}", key_file: "{key}"'
        return [*super().configuration(site), f"tls {{ {files}, handshake_first: true }}"]


class NatsTLS(_UnderTLS):
    name, title, kinds = "nats-tls", "NATS core, TLS", frozenset({"ingest", "connections"})


class JetStreamTLS(_UnderTLS, JetStream):
    name, title, kinds = "jetstream-tls", "JetStream file, TLS, acks", frozenset({"ingest", "replay"})


def secure_peers(*, interpreted: bool, workers: int) -> list[Contestant]:
    return [
        TailraceRights(interpreted=interpreted, workers=workers),
        *(TailraceTLS(acked=acked, interpreted=interpreted, workers=workers) for acked in (False, True)),
        TailraceTLSUndecrypted(interpreted=interpreted, workers=workers),
        NatsTLS(),
        JetStreamTLS(),
    ]
