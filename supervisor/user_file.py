"""The file of users: read whole and checked, and written as a whole by `tailrace user`.

Only its owner may open it, since it holds what passwords can be searched with.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from tailrace.broker.access.users import NAME_RULE, NO_LIMITS, User, UserLimits, name_valid
from tailrace.protocol.address import split_address
from tailrace.protocol.scram import ScramError, parse_verifier
from tailrace.shard.files import read_small

FILE_MAX_BYTES: Final = 16 << 20
USERS_MAX: Final = 10_000
OTHERS_MODE: Final = 0o077
MODE: Final = 0o600
TOKEN_PREFIX: Final = "sha256:"
TEXT_CHARACTERS_MAX: Final = 1_000
COUNT_MAX: Final = (1 << 50) - 1
"""Of a limit."""
_OPENING = "# The users of a tailrace node. `tailrace user` writes this file anew: comments are lost then.\n"
_LIMITS = tuple([each.name for each in fields(UserLimits)])
_LISTS = ("groups", "tokens", "certificates", "addresses")
_KEYS = ("name", "scram", *_LISTS, *_LIMITS)


class UserFileError(ValueError):
    """The file cannot be used; the text says where and why."""


def hash_token(token: str) -> bytes:
    """What is kept of a bearer token. Tokens are long and random, so that a quick hash suffices."""
    return hashlib.sha256(token.encode()).digest()


def read_users(path: Path) -> tuple[User, ...]:
    """Raises UserFileError; of a file that is not there too."""
    try:
        mode, content = read_small(path, FILE_MAX_BYTES)
    except OSError as error:
        raise UserFileError(f"{path}: cannot be read: {error.strerror}") from error
    if mode & OTHERS_MODE:
        raise UserFileError(f"{path}: others than its owner may open it; chmod 600 {path}")
    try:
        return _parse_text(content.decode())
    except ValueError as error:  # not UTF-8, not TOML, or a fault that _parse found
        raise UserFileError(f"{path}: {error}") from error


def user_fault(user: User) -> str:
    """Why the file cannot have this user, for a sentence; "" if it can."""
    try:
        _parse_text(_render_user(user))
    except ValueError as error:
        return str(error)
    return ""


@contextmanager
def editing(path: Path) -> Iterator[dict[str, User]]:
    """The users by name, to be changed in the block; written when it ends without an error. A missing file has none.

    Raises UserFileError, OSError. Nothing is written that `read_users` would refuse.
    """
    path = Path(os.path.realpath(path))  # `Path.resolve` has an error of its own for links in a circle
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        users = {user.name: user for user in read_users(path)} if path.exists() else {}
        yield users
        text = render(users)
        try:
            _parse_text(text)
        except ValueError as error:
            raise UserFileError(f"{path}: not changed: {error}") from error
        _write(path, text, folder)
    finally:
        os.close(folder)


def render(users: Mapping[str, User]) -> str:
    """The text of the file."""
    return _OPENING + "".join(map(_render_user, users.values()))


def _parse_text(text: str) -> tuple[User, ...]:
    """Raises ValueError."""
    try:
        return _parse(tomllib.loads(text))
    except RecursionError:
        raise ValueError("is not usable TOML: arrays or tables nested far too deep") from None


def _parse(tables: dict[str, Any]) -> tuple[User, ...]:
    """Raises ValueError."""
    unknown = sorted(tables.keys() - {"user"})
    rows = tables.get("user", [])
    if unknown or not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
        raise ValueError(f"has {unknown[0] if unknown else 'user'}; only [[user]] sections are known")
    if len(rows) > USERS_MAX:
        raise ValueError(f"has {len(rows):,} users; at most {USERS_MAX:,} are allowed")
    users: dict[str, User] = {}
    for number, row in enumerate(rows, start=1):
        user = _parse_user(row, f"[[user]] {number}")
        if user.name in users:
            raise ValueError(f"has two users with the name {user.name}")
        users[user.name] = user
    return tuple(users.values())


def _parse_user(row: dict[str, Any], where: str) -> User:
    for key in row:
        if key not in _KEYS:
            raise ValueError(f"{where}: no such key: {ascii(key)[:40]}; known are {', '.join(_KEYS)}")
    name = row.get("name")
    if not isinstance(name, str) or not name_valid(name):
        raise ValueError(f"{where}: the name of a user has {NAME_RULE}; anonymous is taken")
    where = f"{where} ({name})"
    lists = {key: _texts(row, key, where) for key in _LISTS}
    for group in lists["groups"]:
        if not name_valid(group):
            raise ValueError(f"{where}: groups: the name of a group has {NAME_RULE}")
    try:
        scram = parse_verifier(row["scram"]) if "scram" in row else None
        for address in lists["addresses"]:
            _require_address(address)
        tokens = tuple([_parse_token(each) for each in lists["tokens"]])
    except (ScramError, ValueError, AttributeError) as error:
        raise ValueError(f"{where}: {error}") from None
    limits = UserLimits(**{key: _count(row, key, where) for key in _LIMITS if key in row})
    groups = frozenset(lists["groups"])
    return User(name, groups, scram, tokens, lists["certificates"], lists["addresses"], limits)


def _texts(row: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = row.get(key, [])
    if not isinstance(value, list) or not all(_is_text(each) for each in value):
        raise ValueError(f'{where}: {key}: write a list of texts, such as ["a", "b"]')
    return tuple(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= TEXT_CHARACTERS_MAX and value.isprintable()


def _require_address(text: str) -> None:
    """Raises ValueError."""
    try:
        split_address(text)
    except ValueError as error:
        raise ValueError(f"addresses: {text!r}: {error}") from None


def _parse_token(text: str) -> bytes:
    hashed = bytes.fromhex(text.removeprefix(TOKEN_PREFIX))
    if not text.startswith(TOKEN_PREFIX) or len(hashed) != 32:
        raise ValueError(f"tokens: write {TOKEN_PREFIX} and 64 hexadecimal digits, as tailrace user add --token does")
    return hashed


def _count(row: dict[str, Any], key: str, where: str) -> int:
    value = row[key]
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise ValueError(f"{where}: {key}: write a whole number; 0: no bound")
    return value


def _render_user(user: User) -> str:
    values: dict[str, Any] = {
        "name": user.name,
        "groups": sorted(user.groups),
        "scram": str(user.scram) if user.scram else "",
        "tokens": [TOKEN_PREFIX + each.hex() for each in user.token_hashes],
        "certificates": list(user.certificates),
        "addresses": list(user.addresses),
    }
    if user.limits != NO_LIMITS:
        values |= {key: getattr(user.limits, key) for key in _LIMITS}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items() if value]
    return "\n[[user]]\n" + "\n".join(lines) + "\n"


def _write(path: Path, text: str, folder: int) -> None:
    """Replace the file by one that is on the disk, with the owner that it had."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    with os.fdopen(fd, "wb") as file:
        if path.exists():
            known = path.stat()
            os.fchown(fd, known.st_uid, known.st_gid)
        file.write(text.encode())
        file.flush()
        os.fsync(fd)
    fresh.replace(path)
    os.fsync(folder)
