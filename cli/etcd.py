"""Options for the etcd of a cluster: its members, TLS and a login, the same for every command that speaks to it."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from tailrace.cli.credentials import secret_in
from tailrace.cli.ending import USAGE, CommandError
from tailrace.cli.values import FILLED
from tailrace.cluster.etcd import Etcd, EtcdLogin
from tailrace.protocol.address import split_address

F = TypeVar("F", bound=Callable[..., Any])

_META: Final = "tailrace.etcd"
OPTIONS: Final = {
    "etcd": ("HOST:PORT,...", "Members of etcd, with commas between.", "TAILRACE_ETCD"),
    "etcd-ca": ("FILE", "CAs of etcd's certificates, PEM; implies TLS.", "TAILRACE_ETCD_CA"),
    "etcd-cert": ("FILE", "Certificate to show to etcd, PEM; implies TLS.", "TAILRACE_ETCD_CERT"),
    "etcd-key": ("FILE", "Its private key, if it is not in the same file.", "TAILRACE_ETCD_KEY"),
    "etcd-user": ("NAME", "User of etcd.", "TAILRACE_ETCD_USER"),
    "etcd-password-file": ("FILE", "File with that user's password.", "TAILRACE_ETCD_PASSWORD_FILE"),
}


def etcd_options(function: F) -> F:
    """--etcd and those that begin with it, which `make_etcd` finds."""
    for name, (metavar, text, variable) in reversed(OPTIONS.items()):
        function = click.option(
            f"--{name}",
            expose_value=False,
            callback=_keep,
            required=name == "etcd",
            type=FILLED,
            metavar=metavar,
            envvar=variable,
            help=f"{text} [env: {variable}]" if name != "etcd" else text,
        )(function)
    return function


def _keep(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    ctx.meta[f"{_META}.{parameter.name}"] = value


def _given(name: str) -> str | None:
    value: str | None = click.get_current_context().meta.get(f"{_META}.{name}")
    return value


def make_etcd(timeout_s: float) -> Etcd:
    """A connection of the command that runs. Raises CommandError."""
    endpoints = (_given("etcd") or "").split(",")
    try:
        for each in endpoints:
            split_address(each)
    except ValueError as error:
        raise CommandError(f"--etcd: {error}", USAGE) from None
    return Etcd(endpoints, timeout_s, _tls(), _login())


def _tls() -> ssl.SSLContext | None:
    ca, cert, key = _given("etcd_ca"), _given("etcd_cert"), _given("etcd_key")
    if key and not cert:
        raise CommandError("--etcd-key goes with --etcd-cert", USAGE)
    if not ca and not cert:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except OSError as error:
        raise CommandError(f"the certificates for etcd cannot be used: {error}", USAGE) from None
    return context


def _login() -> EtcdLogin | None:
    user, path = _given("etcd_user"), _given("etcd_password_file")
    if not user and not path:
        return None
    if not user or not path:
        raise CommandError("--etcd-user and --etcd-password-file go together", USAGE)
    return EtcdLogin(user, secret_in(path))
