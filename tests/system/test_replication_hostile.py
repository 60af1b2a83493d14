"""What upstreams do wrong, on a real slave: who cannot be believed is cut off, with the reason in the log; no copy is
harmed, memory stays, others are served, and a good node at the same address is followed afterwards.

The upstream that misbehaves is played by the test (`tests.system.scripted`).
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

from tailrace.protocol.envelope import pack_envelope
from tailrace.protocol.messages import (
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
from tailrace.protocol.replication import FEATURE, Call, Follow, Names, Returned, Told, Watch
from tailrace.shard.frame import HEADER
from tailrace.shard.header import VALUE_MAX
from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.scripted import (
    EVIL,
    Gate,
    Upstream,
    chunk,
    followed,
    frames,
    id_of,
    messages_of,
    serves_others,
    streams_of,
)
from tests.system.streams import lives, names_of, rss_bytes
from tests.system.test_binary_faults import seed
from tests.system.tree_check import Logged, assert_sound, read_diverged, read_log

pytestmark = pytest.mark.system

WORKERS = 2
MIB = 1 << 20
MARGIN_BYTES = 6 * MIB
BEFORE = 5  # messages that a slave has of its good master
CONFIG = """
[timing]
upstream_timeout_s = 3
"""
PATIENT = f"""
[timing]
upstream_timeout_s = {PATIENCE_S}
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


@pytest.fixture
def patient_scenes(folder: Path, master: Node) -> Iterator[Scenes]:
    """With a slave that gives nobody up, however long 50 MB take on a loaded machine."""
    with running(folder / "patient", workers=WORKERS, config=PATIENT) as node:
        with played(master, node) as scenes:
            yield scenes
        assert_sound({"patient": node.data})


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
    with played(master, slave) as scenes:
        yield scenes


@contextlib.contextmanager
def played(master: Node, slave: Node) -> Iterator[Scenes]:
    """In the end the same workers serve, and other streams are as good as before."""
    before = lives(slave)
    scenes = Scenes(master, slave)
    yield scenes
    serves_others(slave, WORKERS)
    scenes.close()
    assert lives(slave) == before, "a worker has ended"


def ask(node: Node, line: str) -> str:
    with node.client() as client:
        return client.ask(line)


# --- upstreams that are cut off ---------------------------------------------------------------------------------------


def flipped(content: bytearray, place: int) -> bytearray:
    content[place] ^= 0x01
    return content


def frame_of(length: int, seq: int) -> bytes:
    return HEADER.pack(length, 0, seq, 1, 1, 0, 0)


Said = TypeVar("Said")
Sending = Callable[[Follow], bytes | bytearray]
REFUSED = "refuses these frames: message"
# The input after the answer to FOLLOW, and its line in the log. The slave has messages 0 to 4.
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
    "an opcode that is none": (lambda _: pack_envelope(99, b"x"), "opcode 99 is not a message of brokers"),
    "a request": (lambda f: pack(f), f"opcode {int(Op.FOLLOW)} is not a message of brokers"),
    "a subscription": (lambda f: pack(Subscribed(f.id, 5, 0)), "it sent Subscribed, which nobody asked for"),
    "how the node stands": (
        lambda f: pack(Told(f.id, EVIL, "", (), 0, 0, 0)),
        "it sent Told, which nobody asked for",
    ),
    "names": (lambda f: pack(Names(99, (b"new",))), "it sent Names, which nobody asked for"),
    "an answer to no call": (lambda _: pack(Returned(7, b"\x80")), "it answered call 7, which nobody made"),
    "a call": (lambda _: pack(Call(7, b"s", "get", b"\x90")), f"opcode {int(Op.CALL)} is not a message of brokers"),
    "half an answer": (lambda _: pack_envelope(Op.RETURNED, b"\x81\xa2id\x07"), "RETURNED: the field code is missing"),
    "a second WELCOME": (
        lambda _: pack(Welcome(VERSION, (FEATURE,), "evil/1", EVIL, 0, {})),
        "it sent Welcome, which nobody asked for",
    ),
    "a fatal error": (lambda _: pack(Failed("denied", "not you", fatal=True)), "it said denied: not you"),
    "a map for a number": (lambda f: followed(f.id, 5, first_seq={}), "the field first_seq is a map"),
    "no msgpack": (lambda _: pack_envelope(Op.FOLLOWED, b"\xc1" * 9), "that is not a msgpack map"),
}


def test_who_sends_what_cannot_be_is_cut_off(scenes: Scenes) -> None:
    def play(upstream: Upstream, said: Sending) -> None:
        upstream.send_until_cut(said(upstream.follow()))

    all_cut_off(scenes, "sent", WRONG_CHUNKS, play)


def all_cut_off(
    scenes: Scenes, prefix: str, table: Mapping[str, tuple[Said, str]], play: Callable[[Upstream, Said], None]
) -> None:
    """Plays the table, each row to another connection: it is closed, and the log has the reason and the peer."""
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


# The input for an answer to FOLLOW, and its line in the log. The slave's next message is 5.
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
    "terms that go back": (lambda f: followed(f.id, 5, history=[[3, 0, EVIL], [2, 0, EVIL]]), "invalid history"),
    "seqs that go back": (lambda f: followed(f.id, 5, history=[[3, 9, EVIL], [4, 0, EVIL]]), "invalid history"),
    "epochs beyond all": (lambda f: followed(f.id, 5, history=[[1 << 32, 0, EVIL]]), "invalid history"),
    "terms without end": (
        lambda f: followed(f.id, 5, history=[[1 + n, 0, EVIL] for n in range(1_100)]),
        "that is not a msgpack map",
    ),
    "a path of no nodes": (lambda f: followed(f.id, 5, path=["not a node"]), "is not the id of a node"),
}


def test_who_answers_what_cannot_be_is_cut_off(scenes: Scenes) -> None:
    def play(upstream: Upstream, said: Sending) -> None:
        upstream.welcome()
        upstream.send(said(upstream.next(Follow)))

    all_cut_off(scenes, "answered", WRONG_ANSWERS, play)


# The input for an answer to a call for the list of consumers, and its line in the log.
NO_ANSWER = "bytes that are no answer to Consume"
WRONG_VALUES: dict[str, tuple[Callable[[Call], bytes], str]] = {
    "no msgpack": (lambda call: pack(Returned(call.id, b"\xc1")), NO_ANSWER),
    "what a get gives": (lambda call: value(call, {"runs": [], "stale": [], "trimmed": 0}), NO_ANSWER),
    "a row that is none": (lambda call: value(call, {"consumers": [{"name": b"x"}]}), NO_ANSWER),
    "rows without end": (lambda call: value(call, {"consumers": [{}] * 100_000}), NO_ANSWER),
    "more than there can be": (lambda call: value(call, b"x" * (9 * MIB)), NO_ANSWER),
    "lists in lists": (lambda call: pack(Returned(call.id, b"\x91" * MIB)), NO_ANSWER),
    "of a call that was not made": (lambda call: pack(Returned(call.id + 1, b"\x80")), "which nobody made"),
}


def value(call: Call, content: object) -> bytes:
    return pack(Returned(call.id, msgpack.packb(content)))


def test_who_gives_what_was_not_asked_is_cut_off(scenes: Scenes) -> None:
    """The client receives that the result is unknown."""

    def play(upstream: Upstream, said: Callable[[Call], bytes]) -> None:
        stream = upstream.follow().stream.decode()
        with scenes.slave.client() as client:
            client.send(f"consumers {stream}")
            upstream.send_until_cut(said(upstream.next(Call)))
            assert client.read_answers(1)[0].startswith("err unavailable")

    all_cut_off(scenes, "called", WRONG_VALUES, play)


# The input instead of an answer to HELLO, and its line in the log.
WRONG_BEGINNINGS: dict[str, tuple[Callable[[str], bytes], str]] = {
    "text": (lambda _: b"err unknown command\r\n", "this is not a tailrace broker: it answers in lines of text"),
    "HTTP": (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", "this is not a tailrace broker: it answers in HTTP"),
    "neither": (lambda _: b"\xff" * 8, "what it sent is no binary protocol"),
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
    own = id_of(scenes.slave)

    def play(upstream: Upstream, said: Callable[[str], bytes]) -> None:
        upstream.next(Hello)
        upstream.send(said(own))

    all_cut_off(scenes, "begun", WRONG_BEGINNINGS, play)


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
    """Frames that come all the same are passed over, and the connection serves other streams."""
    (scene,) = scenes.make("circle")
    before, own = scene.copy(), id_of(scene.slave)
    with scene.gate.play() as upstream:
        asked = upstream.follow(path=(EVIL, "other", own, EVIL))
        upstream.send(chunk(asked.id, frames([b"x"], 5)))
        scene.wait_logged(f"the nodes follow each other in a circle: {own} -> {EVIL} -> other -> {own}")
        assert upstream.next(Unsubscribe).id == asked.id
        again = upstream.next(Follow)
        assert (again.next_seq, scene.copy()) == (BEFORE, before)


def test_frames_of_another_stream_are_refused(scenes: Scenes) -> None:
    """Two streams of one connection, one of which is longer: frames of either are not accepted for the other."""
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
    scene.wait_logged(f"stream {second!r} refuses these frames: message {BEFORE + 1}")
    assert scene.copy() == before
    assert ask(scene.slave, f"unslave {second}").startswith("ok")


def test_a_line_that_was_made_up_is_set_aside(scenes: Scenes) -> None:
    """Frames that are right in themselves cannot be distinguished from good ones; once a good upstream is there, they
    can.
    """
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
    """For any answer, and to any request; if the upstream leaves, the publisher learns that the outcome is unknown."""
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
FEWER_BYTES = {"pings": MIB}  # they are so small that as objects they would take ten times as much
LOG_BYTES_MAX = 100_000
ENDED_ID = 1
FLOODS: dict[str, bytes] = {
    "frames of what has ended": chunk(ENDED_ID, frames([b"x" * 100_000], BEFORE)),
    "pings": pack(Ping()) * 10_000,
    "errors": b"".join(pack(Failed("usage", f"{number} " + "x" * 900, op=99)) for number in range(100)),
    "answers to nobody": (
        pack_published(1 << 30, [(0, 1, 0)]) * 500
        + pack(Ended(1 << 30, 0, "unavailable", "x" * 300)) * 100
        + followed(1 << 30, 5, state="news") * 100
    ),
}


@pytest.mark.few(2)
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
            with upstream.pouring(FLOODS[what], FEWER_BYTES.get(what, FLOOD_BYTES)):
                serves_others(scene.slave, WORKERS)
            held_bytes.append(rss_bytes(pids))
    assert held_bytes[1] - held_bytes[0] < MARGIN_BYTES, held_bytes
    assert len(scene.logged()) < LOG_BYTES_MAX, scene.logged()[-2_000:]
    assert scene.copy() == before


@pytest.mark.thorough
def test_a_great_frame_that_never_ends_is_given_back(patient_scenes: Scenes) -> None:
    """The length it may promise is bounded, and the part received goes with the connection."""
    (scene,) = patient_scenes.make("great")
    pids, content = scene.slave.worker_pids(), bytes(60 * MIB)
    head_bytes, rest = len(chunk(0, b"")), content[: 50 * MIB]  # made before the slave waits for it
    scene.gate.shut()
    held_bytes = []
    for _round in range(2):
        with scene.gate.next() as upstream:
            upstream.send(chunk(upstream.follow().id, content)[:head_bytes])
            upstream.send(rest)
            serves_others(scene.slave, WORKERS)
        scene.gate.next().close()  # the slave has seen the end of it
        held_bytes.append(rss_bytes(pids))
    # Another worker may still be about to free memory that it held for the others' messages.
    wait_for(lambda: rss_bytes(pids) - held_bytes[0] < MARGIN_BYTES, f"it is given back: {held_bytes}")


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
            for start in range(0, 640, 64):
                for upstream in upstreams:
                    upstream.say(Names(1, tuple(b"many%d" % number for number in range(start, start + 64))))
            # One worker may have taken all of them before the other made its first.
            wait_for(lambda: len(streams_of(node)) >= 40, "the node has as many as it may")
            assert len(streams_of(node)) <= 40 + WORKERS, "each worker sees what the others have a moment later"
            assert all(name.startswith("many") for name in streams_of(node))
        assert len(node.log()) < LOG_BYTES_MAX
