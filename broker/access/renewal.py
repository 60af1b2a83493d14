"""What a new configuration changes in the rights, for the workers that are there: a reload replaces them one by one,
and until then they go by it too, however long that takes.

It goes from the supervisor to processes that it has forked, in a file in memory, so its form is that of the objects
themselves.
"""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tailrace.broker.access.rules import AccessRule
from tailrace.broker.access.users import User

if TYPE_CHECKING:
    from tailrace.broker.process.settings import Settings


class PolicyTerms(NamedTuple):
    """The settings that a policy goes by, besides its users."""

    rules: tuple[AccessRule, ...] = ()
    token: str = ""
    replication_token: str = ""
    peers: tuple[str, ...] = ()
    allow_anonymous: bool = False
    trusts_loopback: bool = True


NO_TERMS: Final = PolicyTerms()


class PolicyChange(NamedTuple):
    """`has_users`: whether there is a file of users. `changed`: users that are new, or different; `removed`: names."""

    terms: PolicyTerms
    has_users: bool
    changed: tuple[User, ...]
    removed: tuple[str, ...]


def terms_of(settings: Settings) -> PolicyTerms:
    return PolicyTerms(
        tuple(settings.rules),
        settings.token,
        settings.replication_token,
        tuple(settings.replication_peers),
        settings.allow_anonymous,
        settings.admin == "loopback",
    )


def change_between(before: Settings, after: Settings) -> PolicyChange | None:
    """None if nothing has changed."""
    terms, users = terms_of(after), {user.name: user for user in after.users or ()}
    former = {user.name: user for user in before.users or ()}
    changed = tuple([user for name, user in users.items() if former.get(name) != user])
    removed = tuple([name for name in former if name not in users])
    if terms == terms_of(before) and (before.users is None) == (after.users is None) and not (changed or removed):
        return None
    return PolicyChange(terms, after.users is not None, changed, removed)


def change_file(change: PolicyChange) -> int:
    """A descriptor of a file in memory with the change. Raises OSError."""
    fd = os.memfd_create("rights")
    with open(fd, "wb", closefd=False) as file:
        file.write(pickle.dumps(change))
    return fd


def read_change(fd: int) -> PolicyChange:
    """What `change_file` has made; the descriptor is closed."""
    with open(fd, "rb") as file:
        change: Any = pickle.loads(os.pread(fd, os.fstat(file.fileno()).st_size, 0))
    assert isinstance(change, PolicyChange)
    return change
