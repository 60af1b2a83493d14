"""`tailrace cert`: a certificate that signs itself, to try TLS with."""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
from pathlib import Path

import click

from tailrace.cli.ending import OK, USAGE, CommandError
from tailrace.cli.options import json_option
from tailrace.cli.tables import show_json
from tailrace.cli.values import FilePath

DAYS = 365
MAKE_TIMEOUT_S = 60
CERTIFICATE_FILE, KEY_FILE = "certificate.pem", "key.pem"

EPILOG = f"""\b
Examples:
  tailrace cert --self-signed tls
  tailrace cert --self-signed --host broker.example.org --host 10.0.0.1 /etc/tailrace/tls

Writes {CERTIFICATE_FILE} and {KEY_FILE}, which only its owner can read, into FOLDER. Clients that are to believe the
certificate get it as --ca. It is valid for {DAYS} days and for both ends of a connection. For use in earnest take one
from a CA, whose clients need no change when it is renewed.

Needs the command openssl. Exit codes: 0 done, 1 openssl failed, 2 wrong arguments.
"""


@click.command("cert", epilog=EPILOG)
@click.option("--self-signed", is_flag=True, required=True, help="Sign the certificate with its own key.")
@click.option("--host", "hosts", multiple=True, help="A name or address of the broker. [default: localhost, loopback]")
@json_option
@click.argument("folder", type=FilePath(file_okay=False))
def command(self_signed: bool, hosts: tuple[str, ...], folder: Path, as_json: bool) -> int:
    """Make a certificate and its key in FOLDER, to try TLS with."""
    names = ",".join(map(alternative_name, hosts or ("localhost", "127.0.0.1", "::1")))
    certificate, key = folder / CERTIFICATE_FILE, folder / KEY_FILE
    for path in (certificate, key):
        if path.exists():
            raise CommandError(f"{path} is there already; nothing was changed", USAGE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        make(certificate, key, hosts[0] if hosts else "localhost", names)
    except OSError as error:
        raise CommandError(f"{folder}: {error.strerror}") from None
    if as_json:
        show_json([{"certificate": str(certificate.absolute()), "key": str(key.absolute())}])
        return OK
    click.echo(f'[tls]\ncertificate = "{certificate.absolute()}"\nkey = "{key.absolute()}"')
    return OK


def alternative_name(host: str) -> str:
    """As openssl takes it. Raises CommandError."""
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        pass
    if not host or not host.isascii() or not all(each.isalnum() or each in "-.*" for each in host):
        raise CommandError(f"{host!r} is neither a host name nor an address", USAGE)
    return f"DNS:{host}"


def make(certificate: Path, key: Path, host: str, names: str) -> None:
    """Raises CommandError if openssl cannot."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise CommandError("this needs the command openssl, which is not installed here")
    arguments = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256"]
    arguments += ["-days", str(DAYS), "-subj", f"/CN={host[:64]}", "-keyout", str(key), "-out", str(certificate)]
    extensions = (f"subjectAltName={names}", "extendedKeyUsage=serverAuth,clientAuth")
    arguments += [part for each in extensions for part in ("-addext", each)]
    os.close(
        os.open(key, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    )  # openssl keeps the mode of a file that is there
    made = subprocess.run([openssl, *arguments], capture_output=True, text=True, timeout=MAKE_TIMEOUT_S, check=False)
    if made.returncode:
        key.unlink()
        lines = made.stderr.strip().splitlines()
        raise CommandError(f"openssl failed: {lines[-1] if lines else f'exit code {made.returncode}'}")
