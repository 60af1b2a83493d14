"""The [[rule]] sections, and the users beside them, as the configuration reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.access.rules import AccessRule, Right
from tailrace.broker.access.users import User
from tailrace.supervisor import config as config_module
from tailrace.supervisor.config import ConfigError, load
from tailrace.supervisor.config_rules import parse_rule
from tailrace.supervisor.config_values import WrongValue
from tailrace.supervisor.user_file import editing


def test_a_rule() -> None:
    made = parse_rule({"allow": ["ann", "@ops"], "rights": ["publish", "create"], "streams": "in/{user}/*"})
    assert made == AccessRule(True, ("ann", "@ops"), frozenset({Right.PUBLISH, Right.CREATE}), ("in/{user}/*",))
    assert parse_rule({"deny": "*", "rights": "admin"}) == AccessRule(False, ("*",), frozenset({Right.ADMIN}), ("*",))


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({}, "write who it is for"),
        ({"allow": "a", "deny": "b", "rights": "node"}, "either as"),
        ({"alow": "a"}, "did you mean allow"),
        ({"allow": "a"}, "rights is missing"),
        ({"allow": [], "rights": "node"}, "allow: write a text or a list"),
        ({"allow": "a b", "rights": "node"}, "a b.* is not a user"),
        ({"allow": "@*", "rights": "node"}, "is not a user"),
        ({"allow": "a", "rights": "read"}, "read.* is not one of publish"),
        ({"allow": "a", "rights": "node", "streams": 7}, "streams: write a text"),
    ],
)
def test_faults_are_named(table: dict[str, Any], fault: str) -> None:
    with pytest.raises(WrongValue, match=fault):
        parse_rule(table)


def test_rules_and_users_are_part_of_the_configuration(tmp_path: Path) -> None:
    users, config = tmp_path / "users.toml", tmp_path / "node.toml"
    with editing(users) as known:
        known["ann"] = User("ann")
    config.write_text(f'[access]\nusers_file = "{users}"\n[[rule]]\nallow = "ann"\nrights = ["publish"]\n')
    settings = load(config)
    assert settings.users == (User("ann"),) and settings.rules[0].who == ("ann",)
    users.chmod(0o644)
    config.write_text(config.read_text() + '[[rule]]\nallow = "ann"\n')
    with pytest.raises(ConfigError) as failed:
        load(config)
    assert f"{users}: others than its owner" in str(failed.value)
    assert f"{config}:6: [[rule]] rights is missing" in str(failed.value)


def test_without_a_file_there_are_no_users_and_one_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    assert load().users is None
    with pytest.raises(ConfigError, match="cannot be read"):
        load(None, {"users_file": str(tmp_path / "none")})


def test_a_link_to_a_file_of_users_that_is_not_there_does_not_open_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one into a volume that is not mounted yet."""
    users = tmp_path / "users.toml"
    monkeypatch.setattr(config_module, "USERS_FILE", users)
    assert load().users is None
    users.symlink_to(tmp_path / "volume" / "users.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load()
