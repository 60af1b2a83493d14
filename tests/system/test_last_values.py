"""Last values over kills of workers and nodes, a trim, and a promotion."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tests.system.node import Node, running, wait_for

pytestmark = pytest.mark.system

CONFIG = """
[[topics]]
filter = "s/#"
stream = "s"

[[stream]]
pattern = "s"
last_values = true

[timing]
upstream_timeout_s = 3
"""
PATIENCE_S = 60.0
KILLS = 12


def tell(node: Node, line: str) -> None:
    with node.client() as client:
        answer = client.ask(line)
    assert answer.startswith("ok "), answer


def last(node: Node) -> dict[str, bytes]:
    """Each topic's payload."""
    with node.client() as client:
        client.send("last s/#")
        client.read_answers(1, PATIENCE_S)
        assert client.answers[-1].startswith("ok last s/# "), client.answers
        return {message.topic: message.payload for message in client.messages}


def wait_until_last(node: Node, wanted: dict[str, bytes]) -> None:
    def is_there() -> bool:
        try:
            return last(node) == wanted
        except (AssertionError, ConnectionError):
            return False  # its worker is not back yet

    wait_for(is_there, "the last values", PATIENCE_S)


def publish(node: Node, messages: list[tuple[str, str]]) -> None:
    """Until all are answered: each is logged."""
    with node.client() as client:
        client.send("ack on", *(f"pub {topic} |{payload}" for topic, payload in messages))
        client.read_answers(1 + len(messages), PATIENCE_S)
        assert all(answer.startswith("ok ") for answer in client.answers), client.answers


@pytest.mark.parametrize("seed", [7])
def test_they_are_those_of_what_was_answered_over_kills_and_trims(tmp_path: Path, seed: int) -> None:
    """Workers and the whole node are killed right behind an answer; what was trimmed before is kept."""
    chance, model = random.Random(seed), dict[str, bytes]()
    with running(tmp_path, config=CONFIG) as node:
        for number in range(KILLS):
            messages = []
            for count in range(chance.randrange(1, 200)):
                topic, payload = f"s/{chance.randrange(40)}", "" if chance.random() < 0.2 else f"{number}.{count}"
                messages.append((topic, payload))
                model.pop(topic, None)
                if payload:
                    model[topic] = payload.encode()
            publish(node, messages)
            if chance.random() < 0.5:
                tell(node, "trim s #1000000")
            if chance.random() < 0.5:
                os.kill(chance.choice(node.worker_pids()), signal.SIGKILL)
                wait_until_last(node, model)
            else:
                node.kill()
                node.start()
            assert last(node) == model


@pytest.mark.thorough
def test_a_slave_has_them_and_keeps_them_when_it_is_promoted(tmp_path: Path) -> None:
    with running(tmp_path / "top", config=CONFIG) as top, running(tmp_path / "bottom", config=CONFIG) as bottom:
        publish(top, [(f"s/{number % 10}", str(number)) for number in range(100)])
        tell(top, "trim s #95")
        tell(bottom, f"slave 127.0.0.1 {top.port} s 0")
        wanted = {f"s/{number}": b"%d" % (90 + number) for number in range(10)}
        wait_until_last(bottom, wanted)
        publish(top, [("s/3", "new"), ("s/4", "")])
        wanted["s/3"] = b"new"
        del wanted["s/4"]
        wait_until_last(bottom, wanted)
        top.kill()
        tell(bottom, "promote s force")
        assert last(bottom) == wanted
        publish(bottom, [("s/5", "later")])
        tell(bottom, "trim s #1000000")
        bottom.kill()
        bottom.start()
        wanted["s/5"] = b"later"
        assert last(bottom) == wanted
        top.start()


def test_by_python_and_the_command(tmp_path: Path) -> None:
    with running(tmp_path, config=CONFIG) as node:
        publish(node, [(f"s/{number % 1_500}", str(number)) for number in range(3_000)])
        wanted = {f"s/{number}": str(1_500 + number).encode() for number in range(1_500)}
        with tailrace.connect(f"127.0.0.1:{node.port}") as client:
            assert {each.topic: each.payload for each in client.last("s/+")} == wanted
            [one] = client.last("s/7")
            assert (one.stream, one.seq, one.payload) == ("s", 1_507, b"1507")

        async def ask() -> list[tailrace.Message]:
            async with await tailrace.connect_async(f"127.0.0.1:{node.port}") as client:
                return await client.last("s/8")

        assert [each.payload for each in asyncio.run(ask())] == [b"1508"]
        command = [sys.executable, "-m", "tailrace.cli.main", "last", "s/9", "--server", f"127.0.0.1:{node.port}"]
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"s/9\t1509\n"
        shown = subprocess.run([*command, "--json"], capture_output=True, check=True).stdout
        assert json.loads(shown)["topic"] == "s/9"


def test_streams_of_the_broker_itself_have_none(tmp_path: Path) -> None:
    with running(tmp_path / "data", config=CONFIG) as node:
        with node.client() as client:
            client.send("pub s/1 |a")
        for name in ("$last/*", "$last/s", "$cursor/#"):
            with node.client() as client:
                assert client.ask(f"last {name}").startswith("err reserved ")
            with tailrace.connect(f"127.0.0.1:{node.port}") as reader, pytest.raises(tailrace.ReservedName):
                list(reader.last(name))
        wait_until_last(node, {"s/1": b"a"})
