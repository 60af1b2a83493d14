"""Nodes with users: their files, written as `tailrace user` writes them."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path

from tailrace.broker.access.users import User
from tailrace.protocol.scram import ITERATIONS_MIN, make_verifier
from tailrace.supervisor.user_file import editing, hash_token
from tests.system.node import LineClient, Node, wait_for

PASSWORD = "correct horse"
ALL_RIGHTS = '["publish", "subscribe", "consume", "create", "admin", "node"]'
EVERYTHING = f'[[rule]]\nallow = "*"\nrights = {ALL_RIGHTS}\n'


def token_of(name: str) -> str:
    return f"token-of-{name}"


def with_users(folder: Path, *names: str, rules: str = EVERYTHING) -> str:
    """The sections of a node's configuration. Each user has PASSWORD and the token `token_of(name)`."""
    folder.mkdir(exist_ok=True)
    add_users(folder, names)
    return f'[access]\nusers_file = "{folder / "users.toml"}"\n{rules}'


def add_users(folder: Path, names: Iterable[str]) -> None:
    verifier = make_verifier(PASSWORD, ITERATIONS_MIN)
    with editing(folder / "users.toml") as users:
        for name in names:
            users[name] = User(name, scram=verifier, token_hashes=(hash_token(token_of(name)),))


def remove_user(folder: Path, name: str) -> None:
    with editing(folder / "users.toml") as users:
        del users[name]


def logged_in(node: Node, name: str) -> LineClient:
    client = node.client()
    assert client.ask(f"auth {name} {token_of(name)}").startswith("ok auth"), client.answers
    return client


def reload(node: Node) -> None:
    """SIGHUP, and wait until all workers are new ones."""
    before = node.log().count("all workers are replaced")
    node.signal(signal.SIGHUP)
    wait_for(lambda: node.log().count("all workers are replaced") > before, "all workers are replaced")
