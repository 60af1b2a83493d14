"""TLS contexts of clients."""

from __future__ import annotations

import os
import ssl
from functools import cache

from tailrace.core.address import Address
from tailrace.errors import InvalidArgument
from tailrace.protocol.tls import harden

TLSOption = ssl.SSLContext | bool | None


def tls_context(
    ca: str | os.PathLike[str] | None = None,
    *,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    check_hostname: bool = True,
) -> ssl.SSLContext:
    """A context for `connect(..., tls=...)`; the files are PEM.

    ca: the CAs of the brokers' certificates, instead of those of the system; certificate, key: those of this client
    (the key may be in the same file); check_hostname: whether the certificate has to be one of the host in the address.
    Raises InvalidArgument if a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    harden(context)
    context.check_hostname = check_hostname
    try:
        if ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
        elif key is not None:
            raise InvalidArgument("a key goes with its certificate")
    except OSError as error:
        files = ", ".join(str(each) for each in (ca, certificate, key) if each is not None)
        raise InvalidArgument(f"{files}: {error.strerror or error}") from None
    return context


@cache
def default_context() -> ssl.SSLContext:
    """With the system's CAs; made once, which takes milliseconds."""
    return tls_context()


def context_for(address: Address, tls: TLSOption) -> ssl.SSLContext | None:
    """The context for a connection to this address; None for a plain one."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    return default_context() if tls or address.tls else None
