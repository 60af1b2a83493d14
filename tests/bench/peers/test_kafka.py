from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c
import pytest

from bench.peers import kafka
from bench.peers.base import Site, Unavailable
from bench.peers.kafka import Kafka, KafkaCluster, KafkaPuller

NAME = "b.000000"
BATCH_AT = 40 + len(NAME)  # in a request to publish
FETCHED = struct.pack(">iiih", 0, 0, 1, len(NAME)) + NAME.encode() + struct.pack(">iihqqi", 1, 0, 0, 9, 9, 0)


def batch_of(request: bytes) -> bytes:
    return request[BATCH_AT:]


def fetched(*batches: bytes, last: int = 1 << 30) -> bytes:
    """An answer to a fetch; the last batch is cut after `last` bytes."""
    offset, content = 0, []
    for batch in batches:
        content.append(struct.pack(">q", offset) + batch[8:])
        offset += struct.unpack_from(">i", batch, 57)[0]
    content[-1] = content[-1][:last]
    records = b"".join(content)
    body = FETCHED + struct.pack(">i", len(records)) + records
    return struct.pack(">i", len(body)) + body


def test_a_batch_is_as_the_format_says() -> None:
    request = Kafka().publish_many(NAME, b"@hello", 3)
    assert struct.unpack_from(">ihh", request) == (len(request) - 4, 0, 3)
    batch = batch_of(request)
    offset, length, _epoch, magic, crc = struct.unpack_from(">qiibI", batch)
    assert (offset, length, magic) == (0, len(batch) - 12, 2)
    assert crc == google_crc32c.value(batch[21:])
    assert struct.unpack_from(">hi", batch, 21) == (0, 2) and struct.unpack_from(">i", batch, 57) == (3,)
    # Lengths and numbers are zigzag: 12 bytes; attributes, time 0, offset 1; no key; 6 bytes of payload; no headers.
    assert batch.endswith(b"\x18\x00\x00\x04\x01\x0c@hello\x00") and b"\x18\x00\x00\x02\x01\x0c@hello\x00" in batch


def test_long_payloads_have_longer_lengths() -> None:
    record = b"\xd6\x01\x00\x00\x00\x01\xc8\x01" + b"x" * 100 + b"\0"
    assert batch_of(Kafka().publish(NAME, b"x" * 100)).endswith(record)


def test_a_changed_payload_gets_its_checksum() -> None:
    request = Kafka().publish(NAME, b"@hello")
    sealed = Kafka().sealed(request.replace(b"hello", b"world"))
    assert len(sealed) == len(request) and b"world" in sealed
    assert struct.unpack_from(">I", batch_of(sealed), 17) == (google_crc32c.value(batch_of(sealed)[21:]),)
    assert Kafka().sealed(request) == request


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_the_puller_asks_again_from_the_end_of_the_whole_batches(piece: int) -> None:
    puller, batches = KafkaPuller(NAME), [batch_of(Kafka().publish_many(NAME, b"@hello", count)) for count in (2, 3, 4)]
    assert struct.unpack_from(">q", puller.open(), len(puller.open()) - 12) == (0,)
    for cut, messages in ((30, 5), (80, 5), (1 << 30, 9)):
        answer = fetched(*batches, last=cut)
        requests = [puller.feed(answer[start : start + piece]) for start in range(0, len(answer), piece)]
        assert requests[:-1] == [b""] * (len(requests) - 1)
        assert struct.unpack_from(">q", requests[-1], len(requests[-1]) - 12) == (messages,)
        assert puller.messages == messages


def test_it_is_not_there_without_its_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kafka, "JARS", tmp_path)
    monkeypatch.setattr(kafka, "find_program", lambda name: f"/usr/bin/{name}")
    with pytest.raises(Unavailable, match="make bench"):
        Kafka().version()
    (tmp_path / "kafka-server-4.1.0.jar").touch()
    assert Kafka().version() == "Kafka 4.1.0, KRaft"
    assert "kafka.Kafka" in Kafka().command(Site(tmp_path, 1, 2))[-1]


def test_three_nodes_know_each_other(tmp_path: Path) -> None:
    try:
        KafkaCluster().command(Site(tmp_path, 1000, 1001, (1002, 1003, 1004, 1005, 1006, 1007)))
    except Unavailable as error:
        pytest.skip(str(error))
    texts = [(tmp_path / f"n{node}" / "server.properties").read_text() for node in (1, 2, 3)]
    for node, text in enumerate(texts, 1):
        assert f"node.id={node}\n" in text and f"log.dirs={tmp_path}/n{node}/data" in text
        assert "voters=1@127.0.0.1:1001,2@127.0.0.1:1003,3@127.0.0.1:1005\n" in text
        assert f"PLAINTEXT://127.0.0.1:{998 + 2 * node}," in text


def test_a_topic_of_a_cluster_lies_on_all_nodes_and_a_publish_waits_for_all() -> None:
    create, led, _ready = KafkaCluster().publisher(0, [NAME])
    three = struct.pack(">iiii", 3, 1, 2, 3)
    assert struct.pack(">ihii", -1, -1, 1, 0) + three in create.send
    assert led.until.endswith(struct.pack(">hii", 0, 0, 1) + three + three), "the first leads, all are in sync"
    head = struct.pack(">hh", -1, -1)  # no transaction, acks=all
    assert KafkaCluster().publish(NAME, b"@")[14:18] == head
    assert Kafka().publish(NAME, b"@")[14:18] == struct.pack(">hh", -1, 1)
