"""The certificates of a node, read from their files into OpenSSL's contexts.

The supervisor reads them, at the start and on SIGHUP, and its workers inherit them. So a worker that is started later
does not depend on what the files hold by then, and a bad new certificate changes nothing.
"""

from __future__ import annotations

import ssl
import stat
from dataclasses import dataclass
from typing import Final

from tailrace.broker.process.settings import ClientCertificates, Settings
from tailrace.protocol.tls import harden
from tailrace.shard.files import read_small

OTHERS = stat.S_IRWXO | stat.S_IWGRP  # a group may read a key: that is how a service gets one that root owns

PEM_BYTES_MAX: Final = 16 << 20
"""A system's bundle of CAs has a few hundred kilobytes."""
_VERIFY = {
    ClientCertificates.NONE: ssl.CERT_NONE,
    ClientCertificates.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientCertificates.REQUIRED: ssl.CERT_REQUIRED,
}


class CertificateError(Exception):
    """A certificate, its key or a CA cannot be used; the text names it, and why."""


@dataclass(frozen=True, slots=True)
class TLSContexts:
    """server: None if the node has no certificate; upstream: None if it dials other nodes without TLS."""

    server: ssl.SSLContext | None = None
    upstream: ssl.SSLContext | None = None


def load_contexts(settings: Settings) -> TLSContexts:
    """Raises CertificateError."""
    server = _server(settings) if settings.tls_certificate else None
    return TLSContexts(server, _upstream(settings) if settings.tls_upstream else None)


def _server(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    harden(context)
    context.num_tickets = 0  # sessions are not resumed: a ticket would outlive the verified certificate
    context.options |= ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
    _load_pair(context, settings.tls_certificate, settings.tls_key)
    if settings.tls_client_ca:
        _load_ca(context, settings.tls_client_ca)
    context.verify_mode = _VERIFY[settings.tls_client_certificates]
    return context


def _upstream(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    harden(context)
    if settings.tls_upstream_ca:
        _load_ca(context, settings.tls_upstream_ca)
    else:
        context.load_default_certs()
    if settings.tls_certificate:
        _load_pair(context, settings.tls_certificate, settings.tls_key)
    return context


def _load_pair(context: ssl.SSLContext, certificate: str, key: str) -> None:
    _check_readable(certificate)
    if _check_readable(key) & OTHERS:
        raise CertificateError(f"{key}: others can read this key; run: chmod 0600 {key}")
    try:
        # Without a callback, OpenSSL would ask the terminal for the password of an encrypted key.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        raise CertificateError(f"{certificate} and {key} are no certificate and its key: {reason}") from None
    except (OSError, ValueError) as error:
        raise CertificateError(f"{certificate}, {key}: {error}") from None


def _load_ca(context: ssl.SSLContext, path: str) -> None:
    _check_readable(path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        reason = (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
        raise CertificateError(f"{path} holds no CA certificates: {reason}") from None


def _check_readable(path: str) -> int:
    """The file's mode. OpenSSL would wait at a FIFO for ever, and so would the supervisor, which reads the file."""
    try:
        return read_small(path, PEM_BYTES_MAX).mode
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read: {error.strerror}") from None
