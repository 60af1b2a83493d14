"""A publish to several streams without the right to one of them: the others have it, and the error names that one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tailrace
from tests.system.node import running
from tests.system.users import token_of, with_users

pytestmark = pytest.mark.system

RULES = """
[[rule]]
deny = "ann"
rights = ["publish"]
streams = "secret*"

[[rule]]
allow = "ann"
rights = ["publish", "subscribe", "create"]
"""


def outcomes(error: tailrace.PartlyPublished) -> list[str]:
    return ["taken" if isinstance(each, tailrace.Receipt) else f"{each.code} {each.stream}" for each in error.outcomes]


def test_names_that_are_allowed_take_the_message(tmp_path: Path) -> None:
    async def publish(address: str) -> None:
        async with tailrace.connect_async(address, user="ann", token=token_of("ann")) as client:
            with pytest.raises(tailrace.PartlyPublished) as caught:
                await client.publish_to(["secret", "a"], b"asyncio")
            assert outcomes(caught.value) == ["denied secret", "taken"]

    config = with_users(tmp_path / "users", "ann", rules=RULES)
    with running(tmp_path / "data", workers=2, config=config) as node:
        address = f"127.0.0.1:{node.port}"
        with tailrace.connect(address, user="ann", token=token_of("ann")) as client:
            for payload in (b"first", b"second"):
                with pytest.raises(tailrace.PartlyPublished, match="1 of 3 streams failed: secret: denied") as caught:
                    client.publish_to(["a", "secret", "b"], payload)
                assert outcomes(caught.value) == ["taken", "denied secret", "taken"]
            with pytest.raises(tailrace.Denied):
                client.publish_to(["secret", "secret-2"], b"none")
            assert [receipt.stream for receipt in client.publish_to(["a", "b"], b"third")] == ["a", "b"]
            asyncio.run(publish(address))
            for stream, last in (("a", [b"third", b"asyncio"]), ("b", [b"third"])):
                found = [message.payload for message in client.subscribe(stream, end=tailrace.NOW)]
                assert found == [b"first", b"second", *last]
