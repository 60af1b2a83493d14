"""Certificates for tests, made with the openssl command: CAs, servers, clients, expired ones."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

LOOPBACK = "DNS:localhost,IP:127.0.0.1,IP:::1"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path

    def toml(self) -> str:
        """As [tls] has it."""
        return f'[tls]\ncertificate = "{self.certificate}"\nkey = "{self.key}"\n'


class Authority:
    """A CA in a folder of its own."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("the openssl command is not installed")
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
        ca = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        _openssl("req", "-x509", *_KEY, *_out(self.pair), "-days", "30", "-subj", f"/CN={name}", *ca)

    @property
    def certificate(self) -> Path:
        return self.pair.certificate

    def issue(self, name: str, names: str = LOOPBACK, subject: str = "") -> Pair:
        """A certificate for both ends of a connection."""
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        extensions = ("basicConstraints=critical,CA:FALSE", f"subjectAltName={names}")
        added = [part for each in extensions for part in ("-addext", each)]
        signed = ("-CA", str(self.certificate), "-CAkey", str(self.pair.key))
        _openssl("req", "-x509", *signed, *_KEY, *_out(pair), "-days", "30", "-subj", subject or f"/CN={name}", *added)
        return pair

    def issue_expired(self, name: str) -> Pair:
        pair, request = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key"), self.folder / f"{name}.csr"
        _openssl("req", "-new", *_KEY, "-keyout", str(pair.key), "-out", str(request), "-subj", f"/CN={name}")
        signed = ("-CA", str(self.certificate), "-CAkey", str(self.pair.key))
        _openssl("x509", "-req", "-in", str(request), *signed, "-days", "-1", "-out", str(pair.certificate))
        return pair

    def client_context(self, shown: Pair | None = None) -> ssl.SSLContext:
        """For a client that trusts this CA."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.certificate)
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        return context


def _out(pair: Pair) -> tuple[str, ...]:
    return "-keyout", str(pair.key), "-out", str(pair.certificate)


def _openssl(*arguments: str) -> None:
    """Writes keys as 0600."""
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
