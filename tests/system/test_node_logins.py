"""Nodes that log in to nodes, over real processes: who may follow, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace.broker.access.users import User
from tailrace.supervisor.user_file import editing
from tests.certificates import Authority
from tests.system.node import LineClient, Node, rows, running, wait_for
from tests.system.users import EVERYTHING, PASSWORD, logged_in, reload, remove_user, with_users

pytestmark = pytest.mark.system

RULES = """
[[rule]]
deny = "east"
rights = ["node"]
streams = "private/*"

[[rule]]
allow = "east"
rights = ["node"]

[[rule]]
allow = "ann"
rights = ["publish", "subscribe", "create", "admin"]
"""
LOWER = """
[replication]
user = "east"
password_file = "{password}"

[[slave]]
streams = "*"
upstream = "127.0.0.1:{port}"
"""


def stat(node: Node, stream: str) -> dict[str, str]:
    with node.client() as client:
        return {row["field"]: row["value"] for row in rows(client.ask_table(f"stat {stream}"))}


def test_a_node_follows_with_its_password_until_its_user_is_removed(tmp_path: Path) -> None:
    folder, password = tmp_path / "upper-users", tmp_path / "password"
    config = with_users(folder, "east", "ann", rules=RULES)
    password.touch(mode=0o600)
    password.write_text("a wrong one\n")
    with running(tmp_path / "upper", workers=1, config=config) as upper:
        lower_config = LOWER.format(password=password, port=upper.port)
        with logged_in(upper, "ann") as ann, running(tmp_path / "lower", workers=1, config=lower_config) as lower:
            ann.send("pub s |one", "pub private/s |no")
            wait_for(lambda: "it said denied: the login failed" in lower.log(), "the reason is in the log")
            wait_for(lambda: lower.metric("tailrace_upstream_denied_total") > 0, "it is counted below")
            wait_for(lambda: 'reason="secret"' in upper.get("/metrics")[1], "and above")
            assert "user=east" in upper.log()

            password.write_text(PASSWORD + "\n")
            reload(lower)
            with lower.client() as reader:
                assert reader.ask("sub s 0 wait").startswith("ok sub")
                assert [each.payload for each in reader.read_messages(1)] == [b"one"]
                ann.send("pub s |two")
                reader.send("ack on", "pub s |three")
                reader.read_messages(3)
                reader.read_until(lambda: reader.answers[-1].startswith("ok pub s "))  # forwarded to the master
                assert sorted(each.payload for each in reader.messages) == [b"one", b"three", b"two"]
                for node, user in ((lower, None), (upper, "ann")):
                    with tailrace.connect(f"127.0.0.1:{node.port}", user=user, password=user and PASSWORD) as client:
                        assert client.publish("s", b"numbered").seq in (3, 4), "with an id that the upper node takes"
                with lower.client() as other:
                    assert "private" not in " ".join(other.ask_table("streams")), "it has no right to that one"
                    assert other.ask("promote s").startswith("ok promote s"), "it could ask the other node first"
            wait_for(lambda: "role=slave" in state_of(ann, "s"), "its claim was taken")

            remove_user(folder, "east")
            reload(upper)
            wait_for(lambda: lower.metric("tailrace_upstream_links_up") == 0, "the link has ended")
            wait_for(lambda: lower.log().count("it said denied: the login failed") > 1, "and says why")
            for node in (upper, lower):
                assert PASSWORD not in node.log() and "a wrong one" not in node.log()


def state_of(client: LineClient, stream: str) -> str:
    client.answers.clear()
    return " ".join(f"{row['field']}={row['value']}" for row in rows(client.ask_table(f"stat {stream}")))


def test_a_node_follows_with_its_certificate(tmp_path: Path) -> None:
    """The user of its certificate needs no password, and one without the right follows nothing."""
    authority, folder = Authority(tmp_path / "ca"), tmp_path / "upper-users"
    upper_pair, lower_pair = authority.issue("upper"), authority.issue("west", names="DNS:west.example")
    rules = EVERYTHING.replace('"*"', '"ann"') + '[[rule]]\nallow = "west"\nrights = ["node"]\nstreams = "open.*"\n'
    config = with_users(folder, "ann", rules=rules) + upper_pair.toml()
    config += f'client_ca = "{authority.certificate}"\nclient_certificates = "optional"\n'
    with editing(folder / "users.toml") as users:
        users["west"] = User("west", certificates=("west.example",))
    with running(tmp_path / "upper", workers=1, config=config) as upper:
        lower_config = f'[[slave]]\nstreams = "*"\nupstream = "localhost:{upper.port}"\n{lower_pair.toml()}'
        lower_config += f'upstream = true\nupstream_ca = "{authority.certificate}"\n'
        with logged_in(upper, "ann") as ann, running(tmp_path / "lower", workers=1, config=lower_config) as lower:
            ann.send("pub open.s |one", "pub shut.s |no")
            with lower.client() as reader:
                wait_for(lambda: "open.s" in " ".join(reader.ask_table("streams")), "it has learned of the stream")
                assert reader.ask("sub open.s 0").startswith("ok sub")
                assert [each.payload for each in reader.read_messages(1)] == [b"one"]
                assert "shut.s" not in " ".join(reader.ask_table("streams"))
            assert "user=west uid=- proof=certificate" in upper.log()
