"""What other nodes do wrong, on a real slave and a real master: who cannot be believed is cut off, with the reason in
the log; no log is harmed, memory stays, others are served, and a good node at the same address is followed afterwards.

The node that misbehaves is played by the test (`tests.system.scripted`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import msgpack
import pytest

from broker.protocol.envelope import pack_envelope
from broker.protocol.messages import (
    VERSION,
    Ended,
    Failed,
    Hello,
    Op,
    Ping,
    Publish,
    Subscribed,
    Unsubscribe,
    Welcome,
    pack,
    pack_published,
)
from broker.protocol.places import From
from broker.protocol.replication import (
    FEATURE,
    Ask,
    Claim,
    Claimed,
    Follow,
    Followed,
    Held,
    Names,
    Told,
    Watch,
    pack_held,
)
from shard.directory import open_data_dir
from shard.epochs import EpochStart
from shard.errors import StorageError
from shard.frame import HEADER
from shard.header import VALUE_MAX
from shard.reader import StreamReader
from tests.system.node import Node, rows, running, wait_for
from tests.system.scripted import EVIL, Gate, Slave, Upstream, chunk, frames
from tests.system.streams import lives, name_of, names_of, rss_bytes
from tests.system.test_binary_faults import seed
from tests.system.tree_check import Logged, assert_sound, read_diverged, read_log

pytestmark = pytest.mark.system

WORKERS = 2
MIB = 1 << 20
MARGIN_BYTES = 6 * MIB
SLAVE_ROUNDS = 20
BEFORE = 5  # messages that a slave has of its good master
CONFIG = """
[timing]
upstream_timeout_s = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def master(folder: Path) -> Iterator[Node]:
    with running(folder / "master", workers=WORKERS) as node:
        yield node
        assert_sound({"master": node.data})


@pytest.fixture(scope="module")
def slave(folder: Path) -> Iterator[Node]:
    with running(folder / "slave", workers=WORKERS, config=CONFIG) as node:
        yield node
        assert_sound({"slave": node.data})


class Scene:
    """A stream of the master that the slave follows, by way of a gate."""

    def __init__(self, master: Node, slave: Node, gate: Gate, stream: str) -> None:
        self.master, self.slave, self.gate, self.stream = master, slave, gate, stream
        self._log_start = len(slave.log())
        self.said = 0
        self.publish(BEFORE)
        answer = ask(slave, f"slave 127.0.0.1 {gate.port} {stream} 0")
        assert answer.startswith("ok slave"), answer

    def publish(self, count: int) -> None:
        """To the master."""
        with self.master.client() as client:
            client.send("ack on", *(f"pub {self.stream} |good {self.said + number}" for number in range(count)))
            client.read_answers(count + 1)
        self.said += count

    def copy(self) -> list[Logged]:
        return messages_of(self.slave, self.stream)

    def wait_copied(self) -> None:
        """Until the slave has what the master has, to the byte."""
        original = list(read_log(self.master.data, self.stream))
        assert [message.payload for message in original] == [b"good %d" % number for number in range(self.said)]
        wait_for(lambda: self.copy() == original, "the copy is the original")

    def logged(self) -> str:
        """By the slave, since the beginning."""
        return self.slave.log()[self._log_start :]

    def wait_logged(self, text: str) -> None:
        wait_for(lambda: text in self.logged(), f"the log says {text!r}")

    def recover(self) -> None:
        """A good upstream is there again, with something new."""
        self.gate.open()
        self.publish(1)


class Scenes:
    """Several at once: that an address is dialled again takes its time, which they so have in common."""

    def __init__(self, master: Node, slave: Node) -> None:
        self.slave = slave
        self._master = master
        self._gates = ExitStack()
        self._open: list[Scene] = []

    def make(self, *streams: str) -> list[Scene]:
        made = []
        for stream in streams:
            gate = self._gates.enter_context(Gate(self._master.port))
            made.append(Scene(self._master, self.slave, gate, stream))
        for scene in made:
            scene.wait_copied()
        self._open += made
        return made

    def close(self) -> None:
        """The streams follow a good upstream at the same addresses again, and are as they should be."""
        made, self._open = self._open, []
        for scene in made:
            scene.recover()
        for scene in made:
            scene.wait_copied()
            assert ask(self.slave, f"unslave {scene.stream}").startswith(f"ok unslave {scene.stream}")
        self._gates.close()


@pytest.fixture
def scenes(master: Node, slave: Node) -> Iterator[Scenes]:
    """After each test the same workers serve, and other streams are as good as before."""
    before = lives(slave)
    scenes = Scenes(master, slave)
    yield scenes
    serves_others(slave)
    scenes.close()
    assert lives(slave) == before, "a worker has ended"


def ask(node: Node, line: str) -> str:
    with node.client() as client:
        return client.ask(line)


def messages_of(node: Node, stream: str) -> list[Logged]:
    """None where the stream is not there yet, or just begins anew."""
    with contextlib.suppress(StorageError):
        return list(read_log(node.data, stream))
    return []


def serves_others(node: Node) -> None:
    """Each worker takes and gives what it is itself the master of."""
    for slot in range(WORKERS):
        name = name_of(slot, WORKERS, "others")
        with node.client() as client:
            client.send("ack on", f"sub {name} new", f"pub {name} |x")
            assert client.read_messages(1)[0].payload == b"x"


# --- upstreams that are cut off ---------------------------------------------------------------------------------------


def flipped(content: bytearray, place: int) -> bytearray:
    content[place] ^= 0x01
    return content


def frame_of(length: int, seq: int) -> bytes:
    return HEADER.pack(length, 0, seq, 1, 1, 0, 0)


def followed(number: int, start_seq: int, **fields: object) -> bytes:
    """A FOLLOWED with whatever in it."""
    body = {
        "id": number, "state": "following", "start_seq": start_seq, "first_seq": 0, "next_seq": start_seq,
        "role": "master", "history": [[1, 0, EVIL]], "path": [EVIL],
    }  # fmt: skip
    return pack_envelope(Op.FOLLOWED, msgpack.packb({**body, **fields}))


Said = TypeVar("Said")
Sending = Callable[[Follow], bytes | bytearray]
REFUSED = "takes no such frames: message"
# What comes after the answer to FOLLOW, and what the log says of it. The slave has messages 0 to 4.
WRONG_CHUNKS: dict[str, tuple[Sending, str]] = {
    "a wrong checksum": (lambda f: chunk(f.id, flipped(frames([b"x"], 5), 4)), f"{REFUSED} 5"),
    "a wrong payload": (lambda f: chunk(f.id, flipped(frames([b"x"], 5), -1)), f"{REFUSED} 5"),
    "a right one and a wrong one": (
        lambda f: chunk(f.id, frames([b"x"], 5) + flipped(frames([b"x"], 6), -1)),
        f"{REFUSED} 6",
    ),
    "a gap": (lambda f: chunk(f.id, frames([b"x"], 6)), f"{REFUSED} 5"),
    "a gap within": (lambda f: chunk(f.id, frames([b"x"], 5) + frames([b"x"], 7)), f"{REFUSED} 6"),
    "what is there already": (lambda f: chunk(f.id, frames([b"x"], 4)), f"{REFUSED} 5"),
    "the beginning again": (lambda f: chunk(f.id, frames([b"x"] * 9, 0)), f"{REFUSED} 5"),
    "a seq beyond all": (lambda f: chunk(f.id, frames([b"x"], (1 << 64) - 1)), f"{REFUSED} 5"),
    "a time before the last": (lambda f: chunk(f.id, frames([b"x"], 5, at_us=1)), f"{REFUSED} 5"),
    "epoch 0": (lambda f: chunk(f.id, frames([b"x"], 5, epoch=0)), f"{REFUSED} 5"),
    "half a frame": (lambda f: chunk(f.id, frames([b"x" * 99], 5)[:-50]), f"{REFUSED} 5"),
    "a byte behind": (lambda f: chunk(f.id, frames([b"x"], 5) + b"x"), f"{REFUSED} 6"),
    "a frame of length 0": (lambda f: chunk(f.id, frame_of(0, 5)), f"{REFUSED} 5"),
    "a frame of 4 GiB": (lambda f: chunk(f.id, frame_of((1 << 32) - 1, 5)), f"{REFUSED} 5"),
    "a CHUNK of no frame": (lambda f: chunk(f.id, b""), "CHUNK: a body of 4 bytes"),
    "frames that nobody asked for": (lambda f: chunk(f.id + 1, frames([b"x"], 5)), "which nobody asked for"),
    "a CHUNK of 4 GiB": (lambda _: b"\x08\xff\xff\xff\xff", "envelope 8 with a body of 4294967295 bytes"),
    "a PONG of 4 GiB": (lambda _: b"\x0b\xff\xff\xff\xff", "envelope 11 with a body of 4294967295 bytes"),
    "an opcode that is none": (lambda _: pack_envelope(99, b"x"), "opcode 99 is nothing that a broker sends"),
    "a request": (lambda f: pack(f), f"opcode {int(Op.FOLLOW)} is nothing that a broker sends"),
    "a subscription": (lambda f: pack(Subscribed(f.id, 5, 0)), "it sent Subscribed, which nobody asked for"),
    "how the node stands": (
        lambda f: pack(Told(f.id, EVIL, "", (), 0, 0, 0)),
        "it sent Told, which nobody asked for",
    ),
    "names": (lambda f: pack(Names(1, (b"new",))), "it sent Names, which nobody asked for"),
    "a second WELCOME": (
        lambda _: pack(Welcome(VERSION, (FEATURE,), "evil/1", EVIL, 0, {})),
        "it sent Welcome, which nobody asked for",
    ),
    "a fatal error": (lambda _: pack(Failed("denied", "not you", fatal=True)), "it said denied: not you"),
    "a map for a number": (lambda f: followed(f.id, 5, first_seq={}), "the field first_seq is a map"),
    "no msgpack": (lambda _: pack_envelope(Op.FOLLOWED, b"\xc1" * 9), "that is no msgpack map"),
}


def test_who_sends_what_cannot_be_is_cut_off(scenes: Scenes) -> None:
    def play(upstream: Upstream, said: Sending) -> None:
        upstream.send(said(upstream.follow()))

    all_cut_off(scenes, "sent", WRONG_CHUNKS, play)


def all_cut_off(
    scenes: Scenes, prefix: str, table: Mapping[str, tuple[Said, str]], play: Callable[[Upstream, Said], None]
) -> None:
    """Play what the table says, each to another connection: it is closed, and the log says why and of whom."""
    played = dict(zip(table, scenes.make(*(f"{prefix}{number}" for number in range(len(table)))), strict=True))
    for scene in played.values():
        scene.gate.shut()
    wrong = []
    for what, scene in played.items():
        before = scene.copy()
        said, reason = table[what]
        with scene.gate.next() as upstream:
            play(upstream, said)
            if not upstream.is_cut():
                wrong.append(f"{what}: not cut off")
        end = f"upstream 127.0.0.1:{scene.gate.port} is not followed now: "
        scene.wait_logged(end)
        if not any(end in line and reason in line for line in scene.logged().splitlines()):
            wrong.append(f"{what}: {[line for line in scene.logged().splitlines() if end in line]}")
        if scene.copy() != before:
            wrong.append(f"{what}: the copy is another one now")
    assert not wrong, "\n".join(wrong)


# What comes for an answer to FOLLOW, and what the log says of it. The slave's next message is 5.
WRONG_ANSWERS: dict[str, tuple[Sending, str]] = {
    "frames before it": (lambda f: chunk(f.id, frames([b"x"], 5)), "before it answered FOLLOW"),
    "a start within": (lambda f: followed(f.id, 4), "it starts at 4, where 5 comes next"),
    "a start beyond its end": (lambda f: followed(f.id, 9, next_seq=8, first_seq=9), "it starts at 9"),
    "a start beyond what it lacks": (lambda f: followed(f.id, 9, first_seq=8, next_seq=20), "it starts at 9"),
    "a start beyond all": (
        lambda f: followed(f.id, VALUE_MAX + 1, first_seq=VALUE_MAX + 1),
        f"it starts at {VALUE_MAX + 1}",
    ),
    "a state that is none": (lambda f: followed(f.id, 5, state="well"), "a state that is none of"),
    "terms that go back": (lambda f: followed(f.id, 5, history=[[3, 0, EVIL], [2, 0, EVIL]]), "a history that is none"),
    "seqs that go back": (lambda f: followed(f.id, 5, history=[[3, 9, EVIL], [4, 0, EVIL]]), "a history that is none"),
    "epochs beyond all": (lambda f: followed(f.id, 5, history=[[1 << 32, 0, EVIL]]), "a history that is none"),
    "terms without end": (
        lambda f: followed(f.id, 5, history=[[1 + n, 0, EVIL] for n in range(1_100)]),
        "that is no msgpack map",
    ),
    "a path of no nodes": (lambda f: followed(f.id, 5, path=["not a node"]), "is not the id of a node"),
}


def test_who_answers_what_cannot_be_is_cut_off(scenes: Scenes) -> None:
    def play(upstream: Upstream, said: Sending) -> None:
        upstream.welcome()
        upstream.send(said(upstream.next(Follow)))

    all_cut_off(scenes, "answered", WRONG_ANSWERS, play)


# What comes instead of an answer to HELLO, and what the log says of it.
WRONG_BEGINNINGS: dict[str, tuple[Callable[[str], bytes], str]] = {
    "text": (lambda _: b"err unknown command\r\n", "what it sent is no binary protocol"),
    "HTTP": (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", "what it sent is no binary protocol"),
    "no feature": (lambda _: welcome(EVIL), "it does not replicate: it is another version"),
    "the slave's own id": (lambda own: welcome(own, FEATURE), "it is this very node"),
    "an id that is none": (lambda _: welcome("", FEATURE), "the id of a node"),
    "an answer to a publish": (lambda _: pack_published(1, [(0, 1, 0)]), "it sent Published, which nobody asked for"),
    "frames": (lambda _: chunk(1, frames([b"x"], 5)), "it sent Chunk, which nobody asked for"),
    "an answer to FOLLOW": (lambda _: followed(1, 5), "it sent Followed, which nobody asked for"),
    "a refusal": (lambda _: pack(Failed("denied", "no token", fatal=True)), "it said denied: no token"),
}


def welcome(node: str, *features: str) -> bytes:
    return pack(Welcome(VERSION, features, "evil/1", node, 0, {}))


def test_who_begins_wrong_is_cut_off(scenes: Scenes) -> None:
    own = node_id(scenes.slave)

    def play(upstream: Upstream, said: Callable[[str], bytes]) -> None:
        upstream.next(Hello)
        upstream.send(said(own))

    all_cut_off(scenes, "begun", WRONG_BEGINNINGS, play)


def node_id(node: Node) -> str:
    return open_data_dir(node.data).node_id


def test_random_bytes_are_cut_off(scenes: Scenes) -> None:
    """From any moment on; never is anything of it taken for a message of the stream."""
    chance = random.Random(seed())
    steps = {f"after {step} steps, {number}": (step, "") for number in range(4) for step in range(3)}

    def play(upstream: Upstream, step: int) -> None:
        if step:
            upstream.welcome()
        if step > 1:
            upstream.answer(upstream.next(Follow))
        with contextlib.suppress(OSError):  # cut off within
            upstream.send(chance.randbytes(100_000) + bytes(10_000))

    all_cut_off(scenes, "random", steps, play)


def test_who_says_nothing_is_given_up(scenes: Scenes) -> None:
    """From the beginning, or once frames should come; PINGs ask whether anybody is there."""
    # In this order: while the one is waited for the other's time passes too.
    silent = {"after WELCOME": (1, "it has said nothing for 3 s"), "before it": (0, "it does not answer")}

    def play(upstream: Upstream, step: int) -> None:
        upstream.mute = True
        if step:
            upstream.follow()
            upstream.next(Ping)

    all_cut_off(scenes, "silent", silent, play)


# --- upstreams that are not believed ----------------------------------------------------------------------------------


def test_a_circle_is_not_followed(scenes: Scenes) -> None:
    """What comes of it all the same is passed over, and the connection serves other streams."""
    (scene,) = scenes.make("circle")
    before, own = scene.copy(), node_id(scene.slave)
    with scene.gate.play() as upstream:
        asked = upstream.follow(path=(EVIL, "other", own, EVIL))
        upstream.send(chunk(asked.id, frames([b"x"], 5)))
        scene.wait_logged(f"the nodes follow each other in a circle: {own} -> {EVIL} -> other -> {own}")
        assert upstream.next(Unsubscribe).id == asked.id
        again = upstream.next(Follow)
        assert (again.next_seq, scene.copy()) == (BEFORE, before)


def test_frames_of_another_stream_are_refused(scenes: Scenes) -> None:
    """Two streams of one connection, one of which is longer: frames of either are none of the other."""
    first, second = names_of(0, WORKERS, 2, "swapped")
    (scene,) = scenes.make(first)
    with scene.master.client() as client:
        client.send("ack on", *(f"pub {second} |{number}" for number in range(BEFORE + 1)))
        client.read_answers(BEFORE + 2)
    assert ask(scene.slave, f"slave 127.0.0.1 {scene.gate.port} {second} 0").startswith("ok slave")
    wait_for(
        lambda: len(messages_of(scene.slave, second)) == BEFORE + 1,
        "both follow",
    )
    before = scene.copy()
    with scene.gate.play() as upstream:
        upstream.welcome()
        asked = {}
        for _ in range(2):
            follow = upstream.next(Follow)
            asked[follow.stream.decode()] = follow
            upstream.answer(follow)
        upstream.send(chunk(asked[second].id, frames([b"of the first"], BEFORE)))
        assert upstream.is_cut()
    scene.wait_logged(f"stream {second!r} takes no such frames: message {BEFORE + 1}")
    assert scene.copy() == before
    assert ask(scene.slave, f"unslave {second}").startswith("ok")


def test_a_line_that_was_made_up_is_set_aside(scenes: Scenes) -> None:
    """Frames that are right in themselves cannot be told from good ones; once a good upstream is there, they can."""
    (scene,) = scenes.make("madeup")
    before = scene.copy()
    with scene.gate.play() as upstream:
        asked = upstream.follow()
        upstream.send(chunk(asked.id, frames([b"a lie"], BEFORE)))
        wait_for(lambda: len(scene.copy()) == BEFORE + 1, "it is taken")
        assert scene.copy()[:BEFORE] == before
    scenes.close()
    assert b"a lie" in [message.payload for message in read_diverged(scene.slave.data)["madeup"]]


def test_what_an_upstream_says_of_a_publish_is_one_line(scenes: Scenes) -> None:
    """Whatever it answers, and to whatever request; if it leaves, the publisher hears that nobody knows."""
    (scene,) = scenes.make("upward")
    with scene.gate.play() as upstream, scene.slave.client() as client:
        upstream.follow()
        client.send("ack on", "pub upward |one")
        request = upstream.next(Publish).request
        upstream.send(pack_published(request + 1, [(0, 1, 0)]) + pack_published(request, [(77, 1, 0), (5, 1, 1)]))
        assert client.read_answers(2)[-1] == "ok pub upward 77"
        client.send("pub upward |two")
        request = upstream.next(Publish).request
        forged = "no\r\nok pub upward 78\r\n\x1b[2J" + "x" * 3_000
        upstream.say(Failed("made up", forged, False, Op.PUBLISH, request))
        answer = client.read_answers(3)[-1]
        assert answer.startswith("err unavailable upward: no??ok pub upward 78???[2Jx") and len(answer) < 1_100
        client.send("pub upward |three")
        upstream.next(Publish)
        upstream.close()
        assert client.read_answers(4)[-1].startswith("err unavailable upward: the node that this one follows")
        assert "may or may not be logged" in client.answers[-1]


# --- upstreams that flood ---------------------------------------------------------------------------------------------

FLOOD_BYTES = 3 * MIB
LOG_BYTES_MAX = 100_000
ENDED_ID = 1
FLOODS: dict[str, bytes] = {
    "frames of what has ended": chunk(ENDED_ID, frames([b"x" * 100_000], BEFORE)),
    "pings": pack(Ping()) * 10_000,
    "errors": b"".join(pack(Failed("usage", f"{number} " + "x" * 900, op=99)) for number in range(100)),
    "answers to nobody": pack_published(1 << 30, [(0, 1, 0)]) * 3_000,
    "ends of nothing": pack(Ended(1 << 30, 0, "unavailable", "x" * 300)) * 200,
    "news of nothing": followed(1 << 30, 5, state="news") * 500,
}


@pytest.mark.parametrize("what", FLOODS)
def test_floods(scenes: Scenes, what: str) -> None:
    """Nothing of it is kept, and others are served meanwhile, by the worker that takes it all in, too."""
    (scene,) = scenes.make(what.replace(" ", ""))
    before, pids = scene.copy(), scene.slave.worker_pids()
    with scene.gate.play() as upstream:
        asked = upstream.follow()
        assert asked.id == ENDED_ID
        upstream.say(Ended(asked.id, 0, "unavailable", "not now"))
        held_bytes = []
        for _round in range(2):
            with upstream.pouring(FLOODS[what], FLOOD_BYTES):
                serves_others(scene.slave)
            held_bytes.append(rss_bytes(pids))
    assert held_bytes[1] - held_bytes[0] < MARGIN_BYTES, held_bytes
    assert len(scene.logged()) < LOG_BYTES_MAX, scene.logged()[-2_000:]
    assert scene.copy() == before


def test_a_great_frame_that_never_ends_is_given_back(scenes: Scenes) -> None:
    """What it may promise is bounded, and what came of it goes with the connection."""
    (scene,) = scenes.make("great")
    pids, content = scene.slave.worker_pids(), bytes(60 * MIB)
    scene.gate.shut()
    held_bytes = []
    for _round in range(2):
        with scene.gate.next() as upstream:
            upstream.send(chunk(upstream.follow().id, content)[: 50 * MIB])
            serves_others(scene.slave)
        scene.gate.next().close()  # the slave has seen the end of it
        held_bytes.append(rss_bytes(pids))
    assert held_bytes[-1] - held_bytes[0] < MARGIN_BYTES, held_bytes


def test_streams_without_end_are_made_up_to_the_limit(folder: Path) -> None:
    """Names that were not asked for make nothing; those that were, as many streams as the node may have."""
    config = CONFIG + "[limits]\nmax_streams = 40\n"
    with running(folder / "limited", workers=WORKERS, config=config) as node, Gate(node.port) as gate:
        gate.shut()
        assert ask(node, f"slave 127.0.0.1 {gate.port} many* 0").startswith("ok slave many*")
        upstreams = [gate.next() for _ in range(WORKERS)]
        with ExitStack() as held:
            for upstream in upstreams:
                held.enter_context(upstream)
                upstream.welcome()
                upstream.next(Watch)
                upstream.say(Names(1, tuple(b"other%d" % number for number in range(200))))
            for start in range(0, 2_560, 256):
                for upstream in upstreams:
                    upstream.say(Names(1, tuple(b"many%d" % number for number in range(start, start + 256))))
            for upstream in upstreams:
                upstream.next(Follow)
            wait_for(lambda: len(streams_of(node)) >= 40, "the node has as many as it may")
            assert len(streams_of(node)) <= 40 + WORKERS, "each worker sees what the others have a moment later"
            assert all(name.startswith("many") for name in streams_of(node))
        assert len(node.log()) < LOG_BYTES_MAX


def streams_of(node: Node) -> list[str]:
    with node.client() as client:
        return [row["stream"] for row in rows(client.ask_table("streams"))]


# --- slaves -----------------------------------------------------------------------------------------------------------

S = "watched"


@pytest.fixture
def original(master: Node) -> Iterator[Original]:
    """After each test the master is unharmed: the same workers, the same messages, and it takes more."""
    before = lives(master)
    original = Original(master)
    yield original
    assert original.messages() == original.before
    original.publish()
    serves_others(master)
    assert lives(master) == before, "a worker has ended"


class Original:
    """A stream of the master, in which the test logs nothing."""

    def __init__(self, master: Node) -> None:
        self.master = master
        self._log_start = len(master.log())
        while len(self.messages()) < BEFORE:
            self.publish()
        self.before = self.messages()

    def publish(self) -> None:
        with self.master.client() as client:
            client.send("ack on", f"pub {S} |x")
            assert client.read_answers(2)[-1].startswith(f"ok pub {S} ")

    def messages(self) -> list[Logged]:
        return messages_of(self.master, S)

    @property
    def next_seq(self) -> int:
        return len(self.before)

    def last(self) -> tuple[int, int]:
        """Epoch and checksum of the last message."""
        with StreamReader.open(open_data_dir(self.master.data).stream_directory(S), S) as reader:
            seq = reader.next_seq() - 1
            return reader.entry(seq).epoch, reader.frame_crc(seq)

    def logged(self) -> str:
        return self.master.log()[self._log_start :]


Rows = Callable[[Original], tuple[int, str, int, int]]
# A row of HELD, and what the log says of it. `Original.next_seq` messages were sent.
WRONG_ROWS: dict[str, tuple[Rows, str]] = {
    "more than was sent": (lambda o: (1, EVIL, o.next_seq + 1, 0), "those before {next_seq} were sent"),
    "all there will ever be": (lambda _: (1, EVIL, (1 << 63) - 1, 0), "those before {next_seq} were sent"),
    "more on the disk than held": (lambda o: (1, EVIL, 2, o.next_seq), "had those before {next_seq} on its disk"),
    "of the master itself": (lambda o: (1, node_id(o.master), o.next_seq, 0), "which is this node, follows it"),
}


@pytest.mark.parametrize("what", WRONG_ROWS)
def test_who_holds_what_cannot_be_is_cut_off(original: Original, what: str) -> None:
    """And counts for nothing: a publish that waits for a slave is not acknowledged."""
    row, reason = WRONG_ROWS[what]
    reason = reason.format(next_seq=original.next_seq)
    with Slave(original.master.port) as liar:
        assert liar.follow(1, S).state == "following"
        liar.read_messages(1, original.next_seq)
        liar.say(Held((row(original),)))
        liar.read_to_end()
        (error,) = liar.errors()
        assert (error.code, error.fatal) == ("protocol", True) and reason in error.text
    assert f"closing the connection of node {EVIL}: HELD: {S}: it says that" in original.logged()
    assert reason in original.logged()


def test_rows_of_what_is_not_followed_are_passed_over(original: Original) -> None:
    """They may have been on their way when it ended."""
    with Slave(original.master.port) as slave:
        assert slave.follow(1, S).state == "following"
        slave.say(Held(((2, EVIL, 99, 0), (1 << 31, EVIL, 0, 0)), ((3, EVIL), (1, "untold"))), Unsubscribe(1))
        slave.wait_ended(1)
        slave.say(Held(((1, EVIL, 99, 0),)))
        slave.settle()
        assert not slave.errors()


def follow_body(**fields: object) -> bytes:
    """A FOLLOW with whatever in it."""
    body = {"id": 9, "stream": S, "next_seq": 0, "term": 0, "term_master": "", "from": ["seq", 0]}
    left = {key: value for key, value in {**body, **fields}.items() if value is not None}
    return pack_envelope(Op.FOLLOW, msgpack.packb(left))


# What is said, and code, op and id of the error; the connection lives on.
REFUSED_REQUESTS: dict[str, tuple[bytes, tuple[str, int, int]]] = {
    "FOLLOW of an id in use": (follow_body(id=1), ("usage", Op.FOLLOW, 1)),
    "FOLLOW of no name": (follow_body(stream="a b"), ("name", Op.FOLLOW, 9)),
    "FOLLOW of the broker's own": (follow_body(stream="$x"), ("reserved", Op.FOLLOW, 9)),
    "FOLLOW without a place": (follow_body(**{"from": None}), ("usage", Op.FOLLOW, 9)),
    "FOLLOW with both places": (follow_body(next_seq=1, epoch=1, crc=1), ("usage", Op.FOLLOW, 9)),
    "FOLLOW with half a message": (follow_body(next_seq=1, epoch=1, **{"from": None}), ("usage", Op.FOLLOW, 9)),
    "FOLLOW of a last message at 0": (follow_body(epoch=1, crc=1, **{"from": None}), ("usage", Op.FOLLOW, 9)),
    "FOLLOW with a seq below 0": (follow_body(next_seq=-1), ("usage", Op.FOLLOW, 9)),
    "FOLLOW with a seq beyond all": (follow_body(next_seq=1 << 63), ("usage", Op.FOLLOW, 9)),
    "FOLLOW with a term beyond all": (follow_body(term=1 << 32), ("usage", Op.FOLLOW, 9)),
    "FOLLOW with a term made up": (follow_body(term=(1 << 32) - 1, term_master="~"), ("usage", Op.FOLLOW, 9)),
    "FOLLOW with a master that is none": (follow_body(term_master="a b"), ("usage", Op.FOLLOW, 9)),
    "FOLLOW of nothing": (pack_envelope(Op.FOLLOW), ("usage", Op.FOLLOW, 0)),
    "HELD of nothing": (pack_envelope(Op.HELD), ("usage", Op.HELD, 0)),
    "HELD by nobody": (pack(Held(((1, "", 0, 0),))), ("usage", Op.HELD, 0)),
    "HELD below 0": (pack(Held(((1, EVIL, -1, 0),))), ("usage", Op.HELD, 0)),
    "WATCH of no prefix": (pack(Watch(9, b"a b")), ("name", Op.WATCH, 9)),
    "CLAIM of another's term": (pack(Claim(9, S.encode(), (EpochStart(7, 0, "other"),))), ("usage", Op.CLAIM, 9)),
    "CLAIM of a term made up": (
        pack(Claim(9, S.encode(), (EpochStart((1 << 32) - 1, 0, EVIL),))),
        ("usage", Op.CLAIM, 9),
    ),
    "CLAIM of no term": (pack(Claim(9, S.encode(), ())), ("usage", Op.CLAIM, 9)),
    "CLAIM with terms that go back": (
        pack(Claim(9, S.encode(), (EpochStart(3, 9, EVIL), EpochStart(2, 9, EVIL)))),
        ("usage", Op.CLAIM, 9),
    ),
    "ASK of no name": (pack_envelope(Op.ASK, msgpack.packb({"id": 9, "stream": ""})), ("name", Op.ASK, 9)),
    "FOLLOWED": (followed(1, 0), ("protocol", Op.FOLLOWED, 0)),
    "NAMES": (pack(Names(1, (b"x",))), ("protocol", Op.NAMES, 0)),
}


def test_requests_that_cannot_be_are_refused(original: Original) -> None:
    """All on one connection, which goes on as before; and no stream is made, or changes its master."""
    before = streams_of(original.master)
    with Slave(original.master.port) as slave:
        assert slave.follow(1, S).state == "following"
        wrong = []
        for what, (said, expected) in REFUSED_REQUESTS.items():
            place = len(slave.answers)
            slave.send_raw(said)
            error = slave.next_answer(Failed, place)
            if (error.code, error.op, error.id) != expected or error.fatal or not error.text:
                wrong.append(f"{what}: {error}")
        assert not wrong, "\n".join(wrong)
        slave.settle()
    assert streams_of(original.master) == before


def test_copies_that_cannot_be_get_nothing(original: Original) -> None:
    """Longer than the original, with another last message, or of a term it never had; their ends are their business."""
    end, (epoch, crc) = original.next_seq, original.last()
    with Slave(original.master.port) as slave:

        def state(next_seq: int, last: tuple[int, int]) -> str:
            return slave.ask(Follow(5, S.encode(), next_seq, 1, "", last, None), Followed).state

        assert state(end, (epoch, crc ^ 1)) == "parted"
        assert state(end, (epoch + 1, crc)) == "parted"
        assert state(1, (epoch, crc)) == "parted"
        assert state(end + 1, (epoch, crc)) == "behind"
        assert state((1 << 63) - 1, (epoch, crc)) == "behind"
        assert not slave.messages
        assert state(end, (epoch, crc)) == "following"
        assert slave.follow(6, "watched2", next_seq=(1 << 63) - 1).start_seq == 0


@pytest.mark.parametrize(("node", "code"), [(None, "usage"), ("", "cycle")])
def test_who_may_not_follow(original: Original, node: str | None, code: str) -> None:
    """A program that does not say which node it is, and the master's own other self."""
    with Slave(original.master.port, node_id(original.master) if node == "" else node) as slave:
        error = slave.ask(Follow(1, S.encode(), 0, 0, "", None, From("seq", 0)), Failed)
        assert (error.code, error.fatal) == (code, False)


def test_a_claim_of_an_earlier_term_is_not_accepted(original: Original) -> None:
    with Slave(original.master.port) as slave:
        claimed = slave.ask(Claim(1, S.encode(), (EpochStart(1, 0, EVIL),)), Claimed)
        assert (claimed.role, claimed.master, claimed.accepted) == ("master", node_id(original.master), False)


@pytest.mark.parametrize("by", ["FOLLOW", "CLAIM"])
def test_a_later_term_is_believed_and_can_be_taken_back(master: Node, by: str) -> None:
    """A master gives in to it at once, as it must to a true one; its messages stay, and an operator has it back."""
    stream = f"taken{by}"
    with master.client() as client:
        client.send("ack on", f"pub {stream} |mine")
        client.read_answers(2)
        before = list(read_log(master.data, stream))
        with Slave(master.port) as slave:
            if by == "FOLLOW":
                slave.follow(1, stream, term=7, master=EVIL)
            else:
                assert slave.ask(Claim(1, stream.encode(), (EpochStart(7, 0, EVIL),)), Claimed).accepted
        assert "term" in master.log() and "7" in master.log()
        if by == "FOLLOW":
            client.send(f"pub {stream} |refused")
            assert client.read_answers(3)[-1].startswith("err disabled")
            client.answers.pop()
        assert client.ask(f"promote {stream}") == f"ok promote {stream} 8"
        client.send(f"pub {stream} |mine again")
        assert client.read_answers(4)[-1] == f"ok pub {stream} 1"
    after = list(read_log(master.data, stream))
    assert after[:1] == before and after[1].epoch == 8


# --- slaves that flood ------------------------------------------------------------------------------------------------


def follows(start: int) -> bytes:
    return b"".join(
        pack(Follow(number, S.encode(), 0, 0, "", None, From("new", 0))) for number in range(start, start + 500)
    )


SLAVE_FLOODS: dict[str, Callable[[int], bytes]] = {
    "FOLLOW of the same": follows,
    "WATCH": lambda start: b"".join(pack(Watch(number, b"nothing")) for number in range(start, start + 500)),
    "ASK": lambda start: b"".join(pack(Ask(number)) for number in range(start, start + 100)),
    "CLAIM": lambda start: b"".join(
        pack(Claim(number, S.encode(), (EpochStart(1, 0, EVIL),))) for number in range(start, start + 500)
    ),
    "HELD by ever new nodes": lambda start: b"".join(
        pack_held([(1, f"node{number}", 0, 0) for number in range(start, start + 1_000)])
    ),
}


@pytest.mark.parametrize("what", SLAVE_FLOODS)
def test_slaves_that_flood(original: Original, what: str) -> None:
    """Whatever it is, of which more and more comes: memory stays, and others are served meanwhile."""
    pids, held_bytes = original.master.worker_pids(), []
    with Slave(original.master.port) as slave:
        slave.follow(1, S)
        for number in range(SLAVE_ROUNDS):
            slave.send_raw(SLAVE_FLOODS[what](2 + number * 1_000))
            slave.settle()
            slave.answers.clear()
            if number in (SLAVE_ROUNDS // 2, SLAVE_ROUNDS - 1):
                serves_others(original.master)
                held_bytes.append(rss_bytes(pids))
    assert held_bytes[1] - held_bytes[0] < 2 * MIB, held_bytes
