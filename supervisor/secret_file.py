"""A file that holds one secret, such as the password as which a node logs in to others."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from tailrace.shard.files import read_small

SECRET_MAX_BYTES: Final = 1_024
OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP
"""What others may not. The group may read, so that a service gets a file that root owns."""


class SecretFileError(ValueError):
    """The file cannot be used; the text names it and says why."""


def read_secret(path: Path) -> str:
    """The secret, without the end of its line. Raises SecretFileError."""
    try:
        mode, content = read_small(path, SECRET_MAX_BYTES + 2)
    except OSError as error:
        raise SecretFileError(f"{path}: cannot be read: {error.strerror}") from error
    if mode & OTHERS:
        raise SecretFileError(f"{path}: others can read this secret; run: chmod o=,g-w {path}")
    try:
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SecretFileError(f"{path}: is not UTF-8") from None
    if not secret or not secret.isprintable() or len(secret.encode()) > SECRET_MAX_BYTES:
        raise SecretFileError(f"{path}: must hold one line of 1 to {SECRET_MAX_BYTES} bytes")
    return secret
