"""DATA/replication.json: the rules written are read again, and damage is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.replication.roles.node_file import (
    FILE_BYTES_MAX,
    FOLLOWERS_MAX,
    NODE_FILE,
    NodeFile,
    read_node_file,
    write_node_file,
)
from tailrace.broker.replication.roles.rules import RULES_MAX, Rule
from tailrace.shard.errors import DirectoryError
from tailrace.shard.meta import Upstream

RULE = {"streams": "log.*", "upstream": "h:1", "from": ["time", 0]}


def test_a_node_without_the_file_has_no_rules(tmp_path: Path) -> None:
    assert read_node_file(tmp_path) == NodeFile((), False)


@pytest.mark.parametrize(
    "content",
    [
        NodeFile(),
        NodeFile((), True),
        NodeFile(
            (
                Rule("é.*".encode(), Upstream("::1", 5_050, "new", 0)),
                Rule(b"log.a*", None),
                Rule(b"log.*", Upstream("broker", 1, "seq", 2**62)),
                Rule(b"*%3/16", Upstream("10.0.0.2", 5_050), on_demand=True),
                Rule(b"*", Upstream("10.0.0.1", 5_050)),
            ),
            True,
        ),
    ],
    ids=["nothing", "followed", "rules"],
)
def test_what_is_written_is_read_again(content: NodeFile, tmp_path: Path) -> None:
    write_node_file(tmp_path, NodeFile((Rule(b"old*", None),), True))
    write_node_file(tmp_path, content)
    assert read_node_file(tmp_path) == content
    assert [path.name for path in tmp_path.iterdir()] == [NODE_FILE]


def test_the_largest_file_is_read_again(tmp_path: Path) -> None:
    upstream = Upstream("h" * 255, 65_535, "time", 2**63 - 1)
    rules = tuple(Rule(b"%03d" % number + "€".encode() * 65 + b"*", upstream) for number in range(RULES_MAX))
    write_node_file(tmp_path, NodeFile(rules))
    assert (tmp_path / NODE_FILE).stat().st_size < FILE_BYTES_MAX
    assert read_node_file(tmp_path).rules == rules


def file_with(**changes: Any) -> bytes:
    return json.dumps({"format": 1, "followed": False, "rules": [], **changes}).encode()


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "damaged: JSONDecodeError"),
        (b"[]", "damaged: TypeError"),
        (b"\xff", "damaged: UnicodeDecodeError"),
        (b"{}", "damaged: KeyError"),
        (b" " * (FILE_BYTES_MAX + 1), "more than 4194304 bytes"),
        (file_with(format=2), "format 2; this program reads format 1"),
        (file_with(followed=1), "followed = 1"),
        (file_with(rules={}), "dict of rules"),
        (file_with(rules=[RULE] * (RULES_MAX + 1)), "at most 1000"),
        (file_with(rules=[5]), "damaged: TypeError"),
        (file_with(rules=[{"streams": 5}]), "damaged: AttributeError"),
        (file_with(rules=[{"streams": ""}]), "'' is for no stream"),
        (file_with(rules=[{"streams": "a b*"}]), "'a b\\*' is for no stream"),
        (file_with(rules=[{**RULE, "upstream": "h"}]), "write HOST:PORT"),
        (file_with(rules=[{**RULE, "upstream": None}]), "damaged: TypeError"),
        (file_with(rules=[{**RULE, "from": ["old", 0]}]), "begins at"),
        (file_with(rules=[{**RULE, "from": ["time", True]}]), "begins at"),
        (file_with(rules=[{**RULE, "from": ["seq", -1]}]), "begins at"),
        (file_with(rules=[{**RULE, "from": 5}]), "damaged: TypeError"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_damage_is_told_with_what_to_do(data: bytes, cause: str, tmp_path: Path) -> None:
    (tmp_path / NODE_FILE).write_bytes(data)
    with pytest.raises(DirectoryError, match=cause) as caught:
        read_node_file(tmp_path)
    assert NODE_FILE in str(caught.value) and "put it back from a backup" in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / NODE_FILE).mkdir()
    with pytest.raises(DirectoryError, match="cannot be read: Is a directory"):
        read_node_file(tmp_path)


def test_the_example_of_the_formats_page(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "file-format.md").read_text()
    example = page.split("## replication.json")[1].split("```json\n")[1].split("```")[0]
    (tmp_path / NODE_FILE).write_text(example)
    upstream = Upstream("10.0.0.1", 5_050)
    rules = (Rule(b"local.*", None), Rule(b"*", upstream))
    assert read_node_file(tmp_path) == NodeFile(rules, True, (b"log.*",), (("10.0.0.2", 5050),))


def test_followers_are_remembered_once_each_and_the_first_forgotten(tmp_path: Path) -> None:
    kept = NodeFile()
    for number in (*range(FOLLOWERS_MAX + 1), 5):
        kept = kept.with_follower("10.0.0.1", number + 1)
    assert kept.followers == tuple(("10.0.0.1", number + 1) for number in range(1, FOLLOWERS_MAX + 1))
    write_node_file(tmp_path, kept)
    assert read_node_file(tmp_path) == kept


@pytest.mark.parametrize("followers", [3, ["nowhere"], [":5050"], ["h:1"] * (FOLLOWERS_MAX + 1)])
def test_what_are_no_followers(tmp_path: Path, followers: object) -> None:
    (tmp_path / NODE_FILE).write_bytes(file_with(followers=followers))
    with pytest.raises(DirectoryError, match="is damaged"):
        read_node_file(tmp_path)
