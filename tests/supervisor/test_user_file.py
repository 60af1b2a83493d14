"""The file of users: its syntax, who may open it, how it is edited."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.access.users import User, UserLimits
from tailrace.protocol.scram import ITERATIONS_MIN, make_verifier
from tailrace.supervisor.user_file import UserFileError, editing, hash_token, read_users, user_fault

SCRAM = make_verifier("pencil", ITERATIONS_MIN)
ANN = User(
    "ann",
    frozenset({"ops", "dev"}),
    SCRAM,
    (hash_token("token"),),
    ("CN=ann", 'O="é\\'),
    ("10.0.0.2:5050",),
    UserLimits(max_connections=3),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    with editing(path) as users:
        users["ann"] = ANN
        users["bob"] = User("bob")
    assert read_users(path) == (ANN, User("bob")) and path.stat().st_mode & 0o777 == 0o600
    with editing(path) as users:
        del users["ann"]
    assert read_users(path) == (User("bob"),)
    assert [each.name for each in tmp_path.iterdir()] == ["users.toml"]


def test_an_error_in_the_block_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    with editing(path) as users:
        users["ann"] = ANN
    with pytest.raises(KeyError), editing(path) as users:
        users.clear()
        raise KeyError
    assert read_users(path) == (ANN,)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_may_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "users.toml"
    path.write_text("")
    path.chmod(mode)
    with pytest.raises(UserFileError, match="chmod 600"):
        read_users(path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x", "Expected"),
        ("[limits]", "has limits; only"),
        ("user = 1", "only \\[\\[user\\]\\]"),
        ("[[user]]", "the name of a user"),
        ('[[user]]\nname = "anonymous"', "anonymous is taken"),
        ('[[user]]\nname = "a"\ngroup = "x"', "no such key: 'group'"),
        ('[[user]]\nname = "a"\ngroups = "x"', "groups: write a list"),
        ('[[user]]\nname = "a"\ngroups = ["@x"]', "the name of a group"),
        ('[[user]]\nname = "a"\nscram = "pencil"', "SCRAM-SHA-256"),
        ('[[user]]\nname = "a"\nscram = 7', "a"),
        ('[[user]]\nname = "a"\ntokens = ["pencil"]', "hexadecimal"),
        ('[[user]]\nname = "a"\naddresses = ["here"]', "HOST:PORT|port"),
        ('[[user]]\nname = "a"\nmax_handles = -1', "whole number"),
        ('[[user]]\nname = "a"\n[[user]]\nname = "a"', "two users with the name a"),
        (f"x = {'[' * 5_000}{']' * 5_000}", "nested far too deep"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "users.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UserFileError, match=fault):
        read_users(path)


BAD_USERS = [
    *(User("n", addresses=(each,)) for each in ("10.0.0.2", "h:0", "h:99999", ":5", "::1:5", "é:5", "")),
    *(User("n", certificates=(each,)) for each in ("", "x" * 5_000, "a\nb", "a\tb", "a\x7fb", "a\u2028b", "a\udcffb")),
]


@pytest.mark.parametrize("user", BAD_USERS, ids=repr)
def test_nothing_is_written_that_could_not_be_read(tmp_path: Path, user: User) -> None:
    path = tmp_path / "users.toml"
    with editing(path) as users:
        users["ann"] = ANN
    with pytest.raises(UserFileError, match="not changed"), editing(path) as users:
        users["n"] = user
    assert read_users(path) == (ANN,)
    assert user_fault(user) and not user_fault(ANN)


def test_a_link_to_itself_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.symlink_to(path)
    with pytest.raises((UserFileError, OSError)), editing(path) as users:
        users["ann"] = ANN


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserFileError, match="cannot be read"):
        read_users(tmp_path / "none")
