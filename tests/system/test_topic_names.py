"""Names that are topics, by the rule of the first level and by the configuration: published and read by name and by
filters, with rights to some of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import NEW, NOW, Seq
from tailrace.protocol.consuming import CONSUMER_FILTER_BYTES_MAX
from tests.cli.process import tailrace as run_tailrace
from tests.protocol.mqtt.wire import V5
from tests.system.mqtt_socket import MqttSocket
from tests.system.node import LineClient, Message, Node, running
from tests.system.streams import lives
from tests.system.users import logged_in, reload, with_users

pytestmark = pytest.mark.system

WORKERS = 2
RULES = """
[[topics]]
filter = "spread/#"
stream = "spread-{hash:8}"
"""
STREAMS = """
[[topics]]
filter = "#"
stream = "{topic}"
"""
STAY = "[node]\naffinity = false\n"
USERS = """
[[rule]]
allow = "sensor"
rights = ["publish", "create"]
streams = "halls/*"

[[rule]]
allow = "reader"
rights = ["subscribe"]
streams = "halls/*"

[[rule]]
deny = "guest"
rights = ["subscribe", "consume"]
streams = "halls/secret*"

[[rule]]
allow = ["guest", "boss"]
rights = ["publish", "subscribe", "consume", "create", "admin"]
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("names") / "data", workers=WORKERS, config=STAY + RULES) as node:
        yield node
        assert lives(node)[1] == ["0"] * WORKERS, "a worker has ended by itself"


@pytest.fixture
def lines(node: Node) -> Iterator[LineClient]:
    with node.client() as client:
        yield client


def published(client: LineClient, *lines: str) -> list[str]:
    assert client.ask("ack on") == "ok ack on"
    before = len(client.answers)
    client.send(*lines)
    return client.read_answers(before + len(lines))[before:]


def read_messages(client: LineClient, count: int) -> list[Message]:
    """The next messages."""
    found, client.messages = client.read_messages(count), []
    return found


def test_a_name_with_levels_is_a_topic_of_the_stream_of_its_first_level(node: Node, lines: LineClient) -> None:
    answers = published(lines, "pub first/7/temp |a", "pub first/8/temp |b", "pub first |c", "pub first/7/temp |d")
    assert answers == [f"ok pub first {seq}" for seq in range(4)], "in the order of the connection"
    assert lines.ask("sub first/7/temp 0") == "ok sub first/7/temp 0 stream=first"
    found = read_messages(lines, 2)
    assert [(each.stream, each.seq, each.payload, each.topic) for each in found] == [
        ("first", 0, b"a", "first/7/temp"),
        ("first", 3, b"d", "first/7/temp"),
    ]
    assert lines.ask("sub first/7/temp 0").startswith("err subscribed")
    assert lines.ask("unsub first/7/temp") == "ok unsub first/7/temp"
    with node.client() as other:
        assert other.ask("sub first/+/temp #1") == "ok sub first/+/temp 1 stream=first"
        assert other.ask("sub first 0") == "ok sub first 0"
        assert sorted(each.seq for each in read_messages(other, 6)) == [0, 1, 1, 2, 3, 3]
        assert published(lines, "pub first/9/temp |e") == ["ok pub first 4"]
        assert [each.payload for each in read_messages(other, 2)] == [b"e", b"e"]
    with node.client() as other:
        assert other.ask("sub first/# new wait") == "ok sub first/# 5 stream=first"
        assert other.ask("sub nothing/7 new").startswith("err unknown")
        assert other.ask("sub later/7 new wait") == "ok sub later/7 0 stream=later"
        published(lines, "pub later/8 |no", "pub later/7 |yes")
        assert [each.payload for each in read_messages(other, 1)] == [b"yes"]


def test_without_answers_and_in_many_reads_each_stream_keeps_the_order(node: Node, lines: LineClient) -> None:
    count = 20_000
    lines.send(*[f"pub order/{number % 7} |{number}" for number in range(count)])
    assert lines.ask("ping") == "ok pong"
    assert lines.ask("sub order 0") == "ok sub order 0"
    found = read_messages(lines, count)
    assert [(int(each.payload), each.topic) for each in found] == [(n, f"order/{n % 7}") for n in range(count)]


def test_names_that_are_not_topics(lines: LineClient) -> None:
    assert published(lines, "pub plain |x") == ["ok pub plain 0"]
    assert published(lines, "pub /plain |x", "pub plain/ |x") == ["ok pub topics 0", "ok pub plain 1"]
    assert published(lines, "pub plain/a+b |x")[0].startswith("err name plain/a+b")
    assert published(lines, "pub plain topic other/7 |x") == ["ok pub plain 2"]
    refused = published(lines, "pub plain/7 topic other/7 |x", "pub plain/8 |x")
    assert refused[0].startswith("err topic plain/7: the message has another topic") and refused[1] == "ok pub plain 3"


def test_names_of_topics_in_python_and_in_the_command(node: Node, lines: LineClient) -> None:
    address = f"127.0.0.1:{node.port}"
    with tailrace.connect(address) as client:
        receipt = client.publish("python/7/temp", b"0", headers={"a": "b"}, key="k")
        assert (receipt.seq, receipt.stream) == (0, "python/7/temp")
        client.publish_many("python/8/temp", [b"1", b"2"])
        with client.batcher("python/7/temp") as batch:
            batch.add(b"3")
            batch.add(b"4", topic="python/7/temp")
        client.publish_to(["python/7/temp", "other/7"], b"5")
        with pytest.raises(tailrace.BrokerError, match="another topic"):
            client.publish("python/7/temp", b"x", topic="python/9")
        done = run_tailrace("pub", "python/9/temp", "6", "-s", address)
        assert done.returncode == 0, done.stderr
        found = list(client.subscribe("python/+/temp", end=NOW))
        numbers = [7, 8, 8, 7, 7, 7, 9]
        assert [(each.payload, each.topic) for each in found] == [
            (b"%d" % place, f"python/{number}/temp") for place, number in enumerate(numbers)
        ]
        assert {each.stream for each in found} == {"python"} and found[0].headers == {"a": "b", "key": "k"}
        live = client.subscribe("python/7/temp", NEW)
        client.publish("python/8/temp", b"no")
        client.publish("python/7/temp", b"live")
        assert next(live).payload == b"live"
        assert [each.seq for each in client.subscribe("python/7/temp", Seq(4), end=NOW)] == [4, 5, 8]
        assert [each.payload for each in client.subscribe("py*", topics="+/9/temp", end=NOW)] == [b"6"]
        anywhere = client.subscribe("+/9/temp", end=NOW)
        assert [each.payload for each in anywhere if each.stream == "python"] == [b"6"]
    done = run_tailrace("tail", "python/#", "-n", "100", "--no-follow", "-s", address)
    shown = [line.rpartition(b"\t")[2] for line in done.stdout.splitlines()]
    assert shown == [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"no", b"live"], done.stderr

    async def read() -> list[bytes]:
        async with tailrace.connect_async(address) as aio:
            await aio.publish("python/10", b"async")
            return [each.payload async for each in aio.subscribe("python/10", end=NOW)]

    assert asyncio.run(read()) == [b"async"]
    assert lines.ask("sub python/9/# 0") == "ok sub python/9/# 0 stream=python"
    assert [each.payload for each in read_messages(lines, 1)] == [b"6"]


def test_a_filter_over_several_streams(node: Node, lines: LineClient) -> None:
    published(lines, *[f"pub spread/{number} |{number}" for number in range(32)], "pub wide/3 |w", "pub wide |x")
    with node.client() as other:
        count = other.ask("sub spread/# 0").removeprefix("ok sub spread/# ")
        assert 2 <= int(count) <= 9, "the streams of the rule, and perhaps the one of names without a stream"
        assert sorted(int(each.payload) for each in read_messages(other, 32)) == list(range(32))
        assert other.ask("unsub spread/#") == "ok unsub spread/#"
        assert other.ask("sub +/wide 0").startswith("ok sub +/wide ")
        published(lines, "pub made-before/wide |w")
        assert [(each.stream, each.topic) for each in read_messages(other, 1)] == [("made-before", "made-before/wide")]
        published(lines, "pub made-later/wide |first", "pub made-later/4 |no", "pub made-later/wide |second")
        found = read_messages(other, 2)
        assert [(each.payload, each.seq) for each in found] == [(b"first", 0), (b"second", 2)]


def test_rights_to_topics(tmp_path: Path) -> None:
    config = with_users(tmp_path / "users", "sensor", "reader", "guest", "boss", rules=USERS) + RULES
    with running(tmp_path / "data", workers=1, config=config) as node:
        with logged_in(node, "sensor") as sensor:
            assert published(sensor, "pub halls/7 |x") == ["ok pub halls 0"], "makes the stream of the topic"
            denied = published(sensor, "pub halls |x", "pub halls topic halls/7 |x", "pub other/7 |x")
            assert [each.split(":")[0] for each in denied] == [
                "err denied halls",
                "err denied halls",
                "err denied other/7",
            ]
            assert sensor.ask("sub halls/7 0").startswith("err denied")
        with logged_in(node, "boss") as boss:
            answers = published(boss, "pub halls |whole", "pub halls/secret/1 |s", "pub halls/8 |y")
            assert answers == [f"ok pub halls {seq}" for seq in (1, 2, 3)]
            published(boss, "pub private topic halls/9 |hidden")
        with logged_in(node, "reader") as reader:
            for refused in ("sub halls 0", "sub # 0", "sub halls 0 topics #", "sub private 0 topics halls/9"):
                answer = reader.ask(refused)
                assert answer.startswith("err denied") or answer == "ok sub # 0", refused
            assert reader.ask("sub halls/8 0") == "ok sub halls/8 0 stream=halls"
            assert [each.payload for each in read_messages(reader, 1)] == [b"y"]
            assert reader.ask("sub halls/# 0") == "ok sub halls/# 0 stream=halls"
            assert [each.payload for each in read_messages(reader, 3)] == [b"x", b"s", b"y"], "without the stream's own"
            assert reader.ask("get halls c 0").startswith("err denied")
        with logged_in(node, "guest") as guest:
            for refused in ("sub halls 0", "sub halls/# 0", "sub halls/secret/1 0", "consume halls c 0"):
                assert guest.ask(refused).startswith("err denied"), refused
            assert guest.ask("sub halls/7 0") == "ok sub halls/7 0 stream=halls"
            assert guest.ask("sub private 0") == "ok sub private 0"


def test_after_a_reload_other_rules_hold_and_nothing_has_moved(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=1, config=STAY + STREAMS) as node:
        with node.client() as lines:
            assert published(lines, "pub moved/7 |old") == ["ok pub moved/7 0"]
        path = tmp_path / "data.toml"
        path.write_text(path.read_text().replace(STREAMS, RULES))
        reload(node)
        with node.client() as lines:
            assert published(lines, "pub moved/7 |new") == ["ok pub moved 0"]
            assert lines.ask("sub moved/7 0") == "ok sub moved/7 0 stream=moved"
            assert [each.payload for each in read_messages(lines, 1)] == [b"new"]
            assert lines.ask("unsub moved/7") == "ok unsub moved/7"
            assert lines.ask("sub moved/7 0 topics #") == "ok sub moved/7 0"
            assert [each.payload for each in read_messages(lines, 1)] == [b"old"]


def test_names_that_were_streams_before_names_had_topics_stay_streams(tmp_path: Path) -> None:
    """Over the upgrade and later starts, with all names below their first level, at each door."""
    with running(tmp_path / "data", workers=1, config=STAY + STREAMS) as node, node.client() as lines:
        assert published(lines, "pub orders/eu |old", "pub plain |x") == ["ok pub orders/eu 0", "ok pub plain 0"]
    made = tmp_path / "data" / "node.json"
    found = json.loads(made.read_text())
    assert found.pop("own_levels") == []
    made.write_text(json.dumps(found))  # as an earlier version has left it
    for start in range(2):
        with running(tmp_path / "data", workers=WORKERS, config=STAY) as node:
            with node.client() as lines, MqttSocket(node.port, V5) as mqtt:
                wanted = [f"ok pub {each}" for each in (f"orders/eu {1 + 2 * start}", f"orders/new {start}")]
                assert published(lines, "pub orders/eu |a", "pub orders/new |b") == wanted
                mqtt.subscribe(("orders/eu", 1))
                assert mqtt.publish("orders/eu", b"m") == 0
                assert lines.ask("sub orders/+ 0") == "ok sub orders/+ 2"
                assert published(lines, "pub sensors/7 |t") == [f"ok pub sensors {start}"]
            with tailrace.connect(f"127.0.0.1:{node.port}") as client:
                payloads = [each.payload for each in client.subscribe("orders/eu", end=NOW)]
                assert payloads == [b"old"] + [b"a", b"m"] * (1 + start)


@pytest.mark.parametrize(
    ("name", "word", "stream"),
    [
        ("odd hall/7|8", "odd%20hall/7%7C8", "topics"),  # its first level can be no stream's name
        ("odd/100% of\n7", "odd/100%25%20of%0A7", "odd"),
        ("long/" + "x" * 1_019, "long/" + "x" * 1_019, "long"),
    ],
    ids=["blank", "percent", "long"],
)
def test_a_name_that_no_stream_has_is_one_topic_at_every_door(
    node: Node, lines: LineClient, name: str, word: str, stream: str
) -> None:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client, MqttSocket(node.port, V5) as mqtt:
        assert mqtt.publish(name, b"mqtt") == 0
        (answer,) = published(lines, f"pub {word} |lines")
        assert answer.startswith(f"ok pub {stream} ")
        client.publish(name, b"python")
        done = run_tailrace("pub", name, "command", "-s", f"127.0.0.1:{node.port}")
        assert done.returncode == 0, done.stderr
        expected = [b"mqtt", b"lines", b"python", b"command"]
        assert [each.payload for each in client.subscribe(name, end=NOW)] == expected
        assert {each.topic for each in client.subscribe(name, end=NOW)} == {name}
        assert lines.ask(f"sub {word} 0") == f"ok sub {word} 0 stream={stream}"
        wanted = [(stream, each, word) for each in expected]
        assert [(each.stream, each.payload, each.topic) for each in read_messages(lines, 4)] == wanted
        assert lines.ask(f"sub {word} 0").startswith("err subscribed ")
        assert lines.ask(f"unsub {word}") == f"ok unsub {word}"
        mqtt.subscribe((f"$replay/0/{name}", 1))
        assert [each.payload for each in mqtt.messages(4)] == expected
        if len(name) > CONSUMER_FILTER_BYTES_MAX:
            assert lines.ask(f"consume {word} group 0").startswith("err topic ")
            return
        with client.consumer(name, "group") as consumer:
            got = [consumer.receive(timeout_s=20) for _ in expected]
            assert [each.payload for each in got if each is not None] == expected
        assert lines.ask(f"reset {word} group 0").startswith(f"ok reset {stream} group ")
        assert lines.ask(f"pub {word}/$dead |x").startswith("err reserved ")


def test_a_percent_sign_in_the_name_of_a_stream_means_itself(lines: LineClient) -> None:
    assert published(lines, "pub 100%25 |x", "pub 100% |y") == ["ok pub 100%25 0", "ok pub 100% 0"]
    assert lines.ask("pub full/100% |x").startswith("err topic ")


def test_the_command_reads_topics_and_filters_of_several_streams(node: Node) -> None:
    """Each line begins with its topic, or with the stream that was asked for."""
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        for name, payload in (("shop/eu/7", b"a"), ("shop/us/8", b"b"), ("shop", b"c"), ("depot/eu/7", b"d")):
            client.publish(name, payload)
        client.publish("spread/x/1", b"e")
        client.publish("spread/x/2", b"f")

    def tail(*words: str) -> list[str]:
        done = run_tailrace("tail", *words, "--no-follow", "-s", f"127.0.0.1:{node.port}")
        assert (done.returncode, done.stderr) == (0, b""), done
        return sorted(done.stdout.decode().splitlines())

    assert tail("shop/eu/7") == ["a"]
    assert tail("shop/+/7") == ["shop/eu/7\ta"]
    assert tail("shop/#") == ["shop\tc", "shop/eu/7\ta", "shop/us/8\tb"]
    assert tail("+/eu/7") == ["depot/eu/7\td", "shop/eu/7\ta"], "in all streams"
    assert tail("spread/x/+") == ["spread/x/1\te", "spread/x/2\tf"], "in those of a section"
    assert tail("shop/eu/7", "depot") == ["depot\td", "shop/eu/7\ta"]
    assert tail("shop", "depot") == ["depot\td", "shop\ta", "shop\tb", "shop\tc"]
    assert tail("shop", "--topics", "+/us/#") == ["shop/us/8\tb"]


def test_a_filter_of_any_stream_goes_on_with_streams_made_later(node: Node) -> None:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        client.publish("before/level/x", b"0")
        found = client.subscribe("+/level/x", NEW)
        client.publish_many("later-one/level/x", [b"1", b"2"])
        client.publish("before/level/x", b"3")
        got = [found.receive(30) for _ in range(3)]
        assert {(each.topic, each.payload) for each in got if each} == {
            ("later-one/level/x", b"1"),
            ("later-one/level/x", b"2"),
            ("before/level/x", b"3"),
        }
        with pytest.raises(tailrace.Unsupported, match="name them by a pattern, and give the filter as topics"):
            client.subscribe("spread/#")

    async def play() -> list[str]:
        async with tailrace.connect_async(f"127.0.0.1:{node.port}") as other:
            return sorted([each.topic async for each in other.subscribe("+/level/x", end=NOW)])

    assert asyncio.run(play()) == ["before/level/x"] * 2 + ["later-one/level/x"] * 2


def test_a_command_for_a_stream_names_that_of_a_topic(node: Node, lines: LineClient) -> None:
    """And does nothing: the dead letters of a stream are of other topics too."""
    topic, address = "office/eu/7", f"127.0.0.1:{node.port}"
    text = "no such stream here; 'office/eu/7' is a topic of the stream 'office': give that name"
    with tailrace.connect(address) as client:
        client.publish(topic, b"poison")
        with client.consumer("office", "strict", deliveries_max=1) as consumer:
            message = consumer.receive(30)
            assert message is not None
            message.nack("no")
            client.subscribe("office/$dead", wait=True).receive(30)
        for call in (client.delete_stream, client.redrive, client.purge, lambda name: list(client.dead_letters(name))):
            with pytest.raises(tailrace.UnknownStream, match="no such stream here; 'office/eu/7' is a topic"):
                call(topic)
        assert len(list(client.dead_letters("office"))) == 1
        for command in ("delete", "master", "unmaster", "promote", "stat"):
            assert lines.ask(f"{command} {topic}") == f"err unknown {text}", command
        assert [each.name for each in client.streams("office")] == ["office"]
    for words in (("delete", topic, "--yes"), ("dead", topic), ("dead", topic, "--purge", "--all"), ("stat", topic)):
        done = run_tailrace(*words, "-s", address)
        assert done.returncode == 1 and b"office/eu/7 is a topic of the stream office" in done.stderr.replace(b"'", b"")


def test_a_pattern_without_streams_says_so(node: Node, lines: LineClient) -> None:
    published(lines, "pub house/eu/7 |a")
    address = ("-s", f"127.0.0.1:{node.port}")
    done = run_tailrace("tail", "house/*", "--no-follow", *address)
    text = b"tailrace: no streams of house/*; a filter of topics is written house/#\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", text)
    assert run_tailrace("tail", "absent.*", "--no-follow", *address).stderr == b"tailrace: no streams of absent.*\n"
    listed = run_tailrace("streams", "house/eu", *address)
    text = b"tailrace: no streams of house/eu; house/eu is a topic of the stream house, unless the node places it\n"
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, b"", text)
