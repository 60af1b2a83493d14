"""Damaged files and a full disk: one stream refuses, or one publish; the others, the readers and the workers go on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.shard.directory import open_data_dir
from tailrace.shard.frame import INDEX_ENTRY_BYTES
from tailrace.shard.header import CONTENT_END_OFFSET, HEADER_PAGE_BYTES, INDEX_NEXT_SEQ, NAME_OFFSET, tagged
from tailrace.shard.stream_files import stream_paths
from tests.system.mounts import CannotMount, mounted
from tests.system.node import LineClient, Message, Node, rows, running, wait_for
from tests.system.streams import lives, names_of

pytestmark = pytest.mark.system

MESSAGES = 50
FRAME_BYTES = 32 + 100
TAIL_BYTES = 256 << 10  # of a stream's end is checked when it is opened; what lies before, when it is read


def payload(number: int) -> bytes:
    return b"%0100d" % number


def publish(node: Node, stream: str, count: int = MESSAGES) -> None:
    with node.client() as client:
        client.send("ack on", *(b"pub %s |%s" % (stream.encode(), payload(number)) for number in range(count)))
        assert client.read_answers(count + 1)[-1] == f"ok pub {stream} {count - 1}"


def files(node: Node, stream: str) -> tuple[Path, Path]:
    """The content and the index of a stream."""
    directory = open_data_dir(node.data)
    paths = stream_paths(directory.shard_path(directory.shard_of(stream)), stream)
    return Path(paths.content_file), Path(paths.index_file)


# --- damage -----------------------------------------------------------------------------------------------------------


def flip(file: Path, place: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        byte = opened.read(1)
        opened.seek(place)
        opened.write(bytes([byte[0] ^ 0x10]))


def zero_header(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(bytes(HEADER_PAGE_BYTES))


def end_of(file: Path) -> int:
    return file.stat().st_size


# The damage to a stream of MESSAGES messages, by the stream's name.
DAMAGE: dict[str, Callable[[Path, Path], None]] = {
    "content-magic": lambda content, _index: flip(content, 3),
    "content-name": lambda content, _index: flip(content, NAME_OFFSET),
    "content-first-frame": lambda content, _index: flip(content, HEADER_PAGE_BYTES + 60),
    "content-length": lambda content, _index: flip(content, HEADER_PAGE_BYTES + 10 * FRAME_BYTES),
    "content-seq": lambda content, _index: flip(content, HEADER_PAGE_BYTES + 10 * FRAME_BYTES + 9),
    "content-last-byte": lambda content, _index: flip(content, end_of(content) - 1),
    "content-header-gone": lambda content, _index: zero_header(content),
    "content-cut-in-frame": lambda content, _index: os.truncate(content, end_of(content) - 7),
    "content-cut-in-header": lambda content, _index: os.truncate(content, 1_000),
    "content-empty": lambda content, _index: os.truncate(content, 0),
    "content-missing": lambda content, _index: content.unlink(),
    "index-magic": lambda _content, index: flip(index, 3),
    "index-next-seq": lambda _content, index: flip(index, 8 * INDEX_NEXT_SEQ + 1),
    "index-first-entry": lambda _content, index: flip(index, HEADER_PAGE_BYTES + 9),
    "index-last-entry": lambda _content, index: flip(index, end_of(index) - INDEX_ENTRY_BYTES + 8),
    "index-cut": lambda _content, index: os.truncate(index, end_of(index) - 5),
}
# What a loss of power may leave of a stream that was made moments before: no damage.
LEFT: dict[str, Callable[[Path, Path], None]] = {
    "left-index-header-gone": lambda _content, index: zero_header(index),
    "left-index-cut-in-header": lambda _content, index: os.truncate(index, 1_000),
    "left-index-empty": lambda _content, index: os.truncate(index, 0),
    "left-index-missing": lambda _content, index: index.unlink(),
}


def unmake(content: Path, index: Path) -> None:
    """Its owner was killed between the two renames of its making."""
    index.unlink()
    os.truncate(content, HEADER_PAGE_BYTES)
    with content.open("r+b") as file:
        file.seek(8 * CONTENT_END_OFFSET)
        file.write(tagged(HEADER_PAGE_BYTES).to_bytes(8, "little"))


def empty_content(content: Path, index: Path) -> None:
    os.truncate(content, 0)
    index.unlink()


def empty_both(content: Path, index: Path) -> None:
    os.truncate(content, 0)
    os.truncate(index, 0)


UNBORN: dict[str, Callable[[Path, Path], None]] = {
    "unborn-without-index": unmake,
    "unborn-empty": empty_content,
    "unborn-both-empty": empty_both,
}
SOUND = ["sound", *names_of(0, 2, 3, "s"), *names_of(1, 2, 3, "s")]


def check(data: Path, *flags: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tailrace.cli.main", "check", str(data), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def read_all(node: Node, stream: str, count: int = MESSAGES) -> tuple[list[bytes], list[str]]:
    """The payloads from the beginning until there are `count` or an error; the answers to `sub`."""
    with node.client() as client:
        client.send(f"sub {stream} 0 wait")
        client.read_until(lambda: len(client.messages) >= count or any(a.startswith("err ") for a in client.answers))
        assert [message.seq for message in client.messages] == list(range(len(client.messages)))
        return [message.payload for message in client.messages], client.answers


def read_up_to(node: Node, stream: str, last: bytes) -> list[Message]:
    """The messages from the beginning to the first with this payload."""
    with node.client() as client:
        client.send(f"sub {stream} 0 wait")
        client.read_until(lambda: any(message.payload == last for message in client.messages))
        return client.messages


def assert_refused(answer: str) -> None:
    assert answer.startswith("err damaged "), answer


def test_damaged_streams_refuse_alone_and_are_mended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data) as node:
        for stream in (*DAMAGE, *SOUND):
            publish(node, stream)
    for stream, damage in DAMAGE.items():
        damage(*files(node, stream))

    code, found = check(data)
    assert code == 1
    assert {line.split(":")[0] for line in found.splitlines() if "DAMAGED" in line} == set(DAMAGE), found

    with running(data) as node, node.client() as client:
        before = lives(node)
        client.ask("ack on")
        for stream in DAMAGE:
            assert_refused(client.ask(f"pub {stream} |more"))
            read, answers = read_all(node, stream)
            assert read == [payload(number) for number in range(len(read))]
            assert len(read) < MESSAGES or stream.startswith("index-")
            assert len(read) == MESSAGES or any(answer.startswith("err damaged ") for answer in answers), answers
            assert client.ask_table(f"stat {stream}")[-1].startswith("err damaged ")
        for stream in SOUND:
            assert read_all(node, stream)[0] == [payload(number) for number in range(MESSAGES)]
            assert client.ask(f"pub {stream} |more") == f"ok pub {stream} {MESSAGES}"
        assert {row["stream"] for row in rows(client.ask_table("streams"))} == {*DAMAGE, *SOUND}
        assert lives(node) == before
        assert check(data, "--repair")[0] == 3, "the node still runs"
        node.wait_ready()

    assert check(data, "--repair")[0] == 0
    code, found = check(data)
    assert (code, "DAMAGED" in found) == (0, False), found
    with running(data) as node, node.client() as client:
        client.ask("ack on")
        for stream in (*DAMAGE, *SOUND):
            seq = client.ask(f"pub {stream} |after").split()[3]
            messages = read_up_to(node, stream, b"after")
            assert messages[-1].seq == int(seq)
            kept = [message.payload for message in messages if message.payload not in (b"more", b"after")]
            assert kept == [payload(number) for number in range(len(kept))]
            if stream.startswith("index-") or stream in SOUND:
                assert len(kept) == MESSAGES, f"{stream}: the index is derived, nothing may be lost"


@pytest.mark.thorough
def test_a_stream_whose_making_was_interrupted_can_be_used(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data) as node:
        for stream in (*LEFT, *UNBORN):
            publish(node, stream)
    for stream, change in (LEFT | UNBORN).items():
        change(*files(node, stream))
    code, found = check(data)
    assert (code, "DAMAGED" in found) == (0, False), found
    with running(data) as node, node.client() as client:
        for stream in LEFT:
            assert read_all(node, stream)[0] == [payload(number) for number in range(MESSAGES)]
        client.ask("ack on")
        for stream in (*LEFT, *UNBORN):
            assert client.ask(f"pub {stream} |more") == f"ok pub {stream} {MESSAGES if stream in LEFT else 0}"
    code, found = check(data)
    assert (code, "DAMAGED" in found) == (0, False), found


def test_damage_far_from_the_end_shows_when_a_reader_gets_there(tmp_path: Path) -> None:
    """Opening costs the same however long a stream is, so it cannot see this."""
    count = 3 * TAIL_BYTES // FRAME_BYTES
    with running(tmp_path / "data") as node:
        publish(node, "long", count)
    content, _index = files(node, "long")
    flip(content, HEADER_PAGE_BYTES + 100 * FRAME_BYTES + 50)
    with running(tmp_path / "data") as node, node.client() as client:
        client.ask("ack on")
        assert client.ask("pub long |more") == f"ok pub long {count}"
        read, answers = read_all(node, "long", count)
        assert read == [payload(number) for number in range(100)]
        assert answers[-1].startswith("err damaged long: ") and "100" in answers[-1]
        with node.client() as reader:
            reader.send("sub long #101 wait")
            assert reader.read_messages(count - 100)[0].payload == payload(101)


def test_damage_under_a_running_node(tmp_path: Path) -> None:
    """The owner has these streams open. Readers of a damaged stream meet it; the others are served."""
    hurt = ("content-first-frame", "content-length", "content-cut-in-frame", "content-cut-in-header", "index-cut")
    with running(tmp_path / "data") as node:
        for stream in (*hurt, *SOUND):
            publish(node, stream)
        before = lives(node)
        for stream in hurt:
            DAMAGE[stream](*files(node, stream))
        for stream in hurt:
            read, answers = read_all(node, stream)
            assert read == [payload(number) for number in range(len(read))]
            assert len(read) < MESSAGES and any(answer.startswith("err damaged ") for answer in answers), answers
        for stream in SOUND:
            assert read_all(node, stream)[0] == [payload(number) for number in range(MESSAGES)]
        assert lives(node) == before


def publish_answer(node: Node, stream: str) -> str:
    """What a publish is answered; the error of the connection when its worker ended meanwhile."""
    try:
        with node.client() as client:
            client.ask("ack on")
            return client.ask(f"pub {stream} |more")
    except OSError as error:
        return str(error)


def test_a_file_emptied_under_a_running_node(tmp_path: Path) -> None:
    """The one harm that costs more than its stream: a worker that looks into the page that is gone is killed by the
    kernel. It is back at once, and makes the index anew when it opens the stream.
    """
    with running(tmp_path / "data", "--no-affinity") as node:
        for stream in ("hurt", *SOUND):
            publish(node, stream)
        with node.client_of(0) as one, node.client_of(1) as other:
            for reader in (one, other):
                reader.send("sub hurt 0 wait")
                reader.read_messages(MESSAGES)
                reader.ask("unsub hurt")
            os.truncate(files(node, "hurt")[1], 0)
            for reader in (one, other):
                with contextlib.suppress(OSError):  # its worker may be the one that is killed
                    assert reader.ask("sub hurt 0 wait").startswith(("err damaged ", "err unavailable ", "ok sub "))
        wait_for(lambda: publish_answer(node, "hurt").startswith("ok pub "), "the stream takes messages again")
        node.wait_ready(2.0)
        for stream in SOUND:
            assert read_all(node, stream)[0] == [payload(number) for number in range(MESSAGES)]
        before = lives(node)
        for slot in (0, 1):
            with node.client_of(slot) as client:
                client.send("sub hurt 0 wait")
                assert [m.payload for m in client.read_messages(MESSAGES + 1)][:MESSAGES] == list(
                    map(payload, range(MESSAGES))
                )
        assert lives(node) == before, "it happens once"


def test_a_damaged_entry_ends_a_command_and_no_worker(tmp_path: Path) -> None:
    with running(tmp_path / "data") as node, node.client() as client:
        publish(node, "hurt")
        before = lives(node)
        os.truncate(files(node, "hurt")[1], HEADER_PAGE_BYTES)
        assert_refused(client.ask_table("stat hurt")[0])
        assert_refused(client.ask("trim hurt #10"))
        assert lives(node) == before


# --- a full disk ------------------------------------------------------------------------------------------------------

DISK_BYTES = 24 << 20
BALLAST_BYTES = 8 << 20
BIG = b"x" * 20_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system with a file in it, `ballast`, that can be taken away."""
    try:
        with mounted(tmp_path / "disk", f"size={DISK_BYTES}") as path:
            (path / "ballast").write_bytes(bytes(BALLAST_BYTES))
            yield path
    except CannotMount as reason:
        pytest.skip(str(reason))


def disk_node(disk: Path) -> Node:
    """Its data on the small disk, its log elsewhere; trimmed space comes back soon."""
    node = Node(disk / "data", "--trim-grace-s", "2")
    node.log_path = disk.parent / "node.log"
    return node


def publish_until_full(client: LineClient, streams: list[str]) -> dict[str, int]:
    """Publish to all streams in turn until each refuses; gives how many messages each took."""
    taken = dict.fromkeys(streams, 0)
    full: set[str] = set()
    for _ in range(DISK_BYTES // len(BIG)):
        for stream in streams:
            answer = client.ask(b"pub %s |%06d%s" % (stream.encode(), taken[stream], BIG))
            if answer.startswith("err full "):
                assert "/" not in answer, "an answer has no path of the node"
                full.add(stream)
            else:
                assert answer == f"ok pub {stream} {taken[stream]}"
                taken[stream] += 1
        if len(full) == len(streams):
            return taken
    raise AssertionError("the disk is larger than it should be")


def wait_until_taken(client: LineClient, stream: str, seq: int) -> None:
    taken = f"ok pub {stream} {seq}"
    wait_for(lambda: client.ask(f"pub {stream} |room") == taken, f"{stream} takes messages again")


def test_a_full_disk_stops_publishers_only_and_only_while_it_is_full(disk: Path) -> None:
    streams = [*names_of(0, 2, 2, "d"), *names_of(1, 2, 2, "d")]
    with contextlib.ExitStack() as stack:
        node = disk_node(disk).start()
        stack.callback(node.kill)
        client, quiet, reader = (stack.enter_context(node.client()) for _ in range(3))
        client.ask("ack on")
        for stream in streams:
            reader.send(f"sub {stream} 0 wait")
        before = lives(node)
        taken = publish_until_full(client, streams)
        assert sum(taken.values()) * len(BIG) > (DISK_BYTES - BALLAST_BYTES) // 2

        # A publisher without acknowledgements receives failures all the same; a new stream has no room either.
        quiet.send(*(b"pub %s |%s" % (stream.encode(), BIG) for stream in (*streams, "new-one")))
        assert all(answer.startswith("err full ") for answer in quiet.read_answers(len(streams) + 1))
        # Readers get all there is, those that come now too.
        reader.read_messages(sum(taken.values()))
        for stream in streams:
            assert len(read_all(node, stream, taken[stream])[0]) == taken[stream]
        assert client.ask("ping") == "ok pong"

        (disk / "ballast").unlink()
        for stream in (*streams, "new-one"):
            seq = taken.get(stream, 0)
            wait_until_taken(client, stream, seq)
        reader.read_messages(sum(taken.values()) + len(streams))
        assert lives(node) == before
        assert node.stop() == 0 and "Traceback" not in node.log(), node.log()

        again = disk_node(disk).start()
        stack.callback(again.kill)
        for stream in streams:
            read = read_all(again, stream, taken[stream] + 1)[0]
            assert [text[:6] for text in read] == [*(b"%06d" % number for number in range(taken[stream])), b"room"]
        assert again.stop() == 0


def test_a_trim_makes_room_on_a_full_disk(disk: Path) -> None:
    with contextlib.ExitStack() as stack:
        node = disk_node(disk).start()
        stack.callback(node.kill)
        client = stack.enter_context(node.client())
        client.ask("ack on")
        taken = publish_until_full(client, ["old"])["old"]
        assert client.ask(f"trim old #{taken - 10}") == f"ok trim old {taken - 10} {taken - 10}"
        wait_for(lambda: client.ask("pub other |room").startswith("ok "), "the trimmed space is there")
        assert node.stop() == 0 and "Traceback" not in node.log(), node.log()


def test_a_node_stops_and_starts_on_a_full_disk(disk: Path) -> None:
    with contextlib.ExitStack() as stack:
        node = disk_node(disk).start()
        stack.callback(node.kill)
        with node.client() as client:
            client.ask("ack on")
            taken = publish_until_full(client, ["full"])["full"]
        with (disk / "rest").open("wb", buffering=0) as rest, contextlib.suppress(OSError):
            while rest.write(bytes(4_096)):
                pass
        node.kill()
        node.start()
        assert len(read_all(node, "full", taken)[0]) == taken
        with node.client() as client:
            client.ask("ack on")
            assert client.ask(b"pub full |" + BIG).startswith("err full ")
        assert node.stop() == 0 and "Traceback" not in node.log(), node.log()
