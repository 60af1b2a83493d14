"""What slaves do wrong, on a real master: a slave that claims the impossible is refused or cut off, with the reason; no
log is harmed, memory stays, and others are served.

The slave that misbehaves is played by the test (`tests.system.scripted`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgpack
import pytest

from tailrace.broker.consumers.state.decide_get import MEMBERS_MAX
from tailrace.protocol.envelope import pack_envelope
from tailrace.protocol.messages import Failed, Op, Pong, Unsubscribe, pack
from tailrace.protocol.places import From
from tailrace.protocol.replication import (
    Ask,
    Call,
    Claim,
    Claimed,
    Follow,
    Followed,
    Held,
    Names,
    Returned,
    Watch,
    pack_held,
)
from tailrace.shard.directory import open_data_dir
from tailrace.shard.epochs import EpochStart
from tailrace.shard.reader import StreamReader
from tests.system.node import Node, running
from tests.system.scripted import EVIL, Slave, followed, id_of, messages_of, serves_others, streams_of
from tests.system.streams import lives, rss_bytes
from tests.system.tree_check import Logged, assert_sound, read_log
from tests.thorough import only_thorough

pytestmark = pytest.mark.system

WORKERS = 2
MIB = 1 << 20
ROUNDS = 20
BEFORE = 5  # messages of the stream
S = "watched"


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("hostile") / "master", workers=WORKERS) as node:
        yield node
        assert_sound({"master": node.data})


@pytest.fixture
def original(master: Node) -> Iterator[Original]:
    """After each test the master is unharmed: the same workers, the same messages, and it takes more."""
    before = lives(master)
    original = Original(master)
    yield original
    assert original.messages() == original.before
    original.publish()
    serves_others(master, WORKERS)
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
# A row of HELD, and the line about it in the log. `Original.next_seq` messages were sent.
WRONG_ROWS: dict[str, tuple[Rows, str]] = {
    "more than was sent": (lambda o: (1, EVIL, o.next_seq + 1, 0), "those before {next_seq} were sent"),
    "all there will ever be": (lambda _: (1, EVIL, (1 << 63) - 1, 0), "those before {next_seq} were sent"),
    "more on the disk than held": (lambda o: (1, EVIL, 2, o.next_seq), "had those before {next_seq} on its disk"),
    "of the master itself": (lambda o: (1, id_of(o.master), o.next_seq, 0), "which is this node, follows it"),
}


@pytest.mark.parametrize("what", WRONG_ROWS)
def test_who_holds_what_cannot_be_is_cut_off(original: Original, what: str) -> None:
    """Before anybody counts it."""
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
    """A FOLLOW with any fields."""
    body = {"id": 9, "stream": S, "next_seq": 0, "term": 0, "term_master": "", "from": ["seq", 0]}
    left = {key: value for key, value in {**body, **fields}.items() if value is not None}
    return pack_envelope(Op.FOLLOW, msgpack.packb(left))


def call_body(**fields: object) -> bytes:
    """A CALL with any fields."""
    body = {"id": 9, "stream": S, "verb": "get", "args": b"\x90"}
    left = {key: value for key, value in {**body, **fields}.items() if value is not None}
    return pack_envelope(Op.CALL, msgpack.packb(left))


# The request, and code, op and id of the error; the connection lives on.
REFUSED_REQUESTS: dict[str, tuple[bytes, tuple[str, int, int]]] = {
    "FOLLOW of an id in use": (follow_body(id=1), ("usage", Op.FOLLOW, 1)),
    "FOLLOW of no name": (follow_body(stream="a b"), ("name", Op.FOLLOW, 9)),
    "FOLLOW of the broker's own": (follow_body(stream="$x"), ("reserved", Op.FOLLOW, 9)),
    "FOLLOW of what goes with the broker's own": (follow_body(stream="$cursor/$x"), ("reserved", Op.FOLLOW, 9)),
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
    "CLAIM of a companion": (
        pack(Claim(9, f"{S}2/$dead".encode(), (EpochStart(7, 0, EVIL),))),
        ("usage", Op.CLAIM, 9),
    ),
    "CALL of no name": (call_body(stream="a b"), ("name", Op.CALL, 9)),
    "CALL of the broker's own": (call_body(stream=f"$cursor/{S}"), ("reserved", Op.CALL, 9)),
    "CALL without a verb": (call_body(verb=None), ("usage", Op.CALL, 9)),
    "CALL with other arguments": (call_body(args=["list"]), ("usage", Op.CALL, 9)),
    "RETURNED": (pack(Returned(1, b"")), ("protocol", Op.RETURNED, 0)),
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


GET: dict[str, object] = {"id": 1, "stream": S, "name": "n", "member": "m", "max_messages": 1, "max_bytes": 1_000}
CONSUME: dict[str, object] = {"id": 1, "stream": S, "name": "n"}
CREATE = {**CONSUME, "do": "create", "from": ["new", 0]}
# Verb and arguments, and the code of the refusal.
REFUSED_CALLS: dict[str, tuple[str, object, str]] = {
    "a verb that is none": ("steal", {}, "unsupported"),
    "what only siblings ask": ("promote", {}, "unsupported"),
    "no map": ("get", [], "usage"),
    "too few": ("get", {"name": "n"}, "usage"),
    "another stream": ("get", {**GET, "stream": "another"}, "usage"),
    "binary for a name": ("get", {**GET, "name": b"n"}, "usage"),
    "a name that is none": ("get", {**GET, "name": "a b"}, "usage"),
    "a member that is none": ("get", {**GET, "member": "a b"}, "usage"),
    "a range that ends before it begins": ("get", {**GET, "finished": [[2, 1, 1]]}, "usage"),
    "a range without an epoch": ("get", {**GET, "finished": [[1, 2]]}, "usage"),
    "a range of no epoch": ("get", {**GET, "finished": [[1, 2, 0]]}, "usage"),
    "a range of four": ("get", {**GET, "finished": [[1, 2, 1, 0]]}, "usage"),
    "a range of texts": ("get", {**GET, "finished": [["1", "2", 1]]}, "usage"),
    "a number below 0": ("get", {**GET, "max_messages": -1}, "usage"),
    "a number beyond all": ("get", {**GET, "max_messages": 1 << 63}, "usage"),
    "more messages than go": ("get", {**GET, "max_messages": 1 << 40}, "usage"),
    "a consumer that is not": ("get", {**GET, "name": "x"}, "consumer"),
    "no deed": ("consume", CONSUME, "usage"),
    "a deed that is none": ("consume", {**CONSUME, "do": "promote"}, "usage"),
    "a member that is none leaves": ("consume", {**CONSUME, "do": "leave", "member": "a b"}, "usage"),
    "who leaves what is not": ("consume", {**CONSUME, "do": "leave", "name": "x", "member": "m"}, "consumer"),
    "a deed of no text": ("consume", {**CONSUME, "do": []}, "usage"),
    "a place that is none": ("consume", {**CREATE, "from": ["end", 0]}, "from"),
    "a place of three": ("consume", {**CREATE, "from": ["seq", 0, 0]}, "from"),
    "a time that is none": ("consume", {**CREATE, "ack_wait_s": float("nan")}, "usage"),
    "the reset of what is not": ("consume", {**CREATE, "do": "reset", "name": "x"}, "consumer"),
}


def test_calls_that_cannot_be_are_refused(original: Original) -> None:
    """All on one connection, which goes on as before; nothing comes of them."""
    before = streams_of(original.master)
    wrong = []
    with Slave(original.master.port) as slave:
        assert slave.ask(Call(0, S.encode(), "consume", msgpack.packb(CREATE)), Returned).value is not None
        for number, (what, (verb, args, code)) in enumerate(REFUSED_CALLS.items()):
            returned = slave.ask(Call(number, S.encode(), verb, msgpack.packb(args)), Returned)
            if (returned.id, returned.value, returned.code) != (number, None, code) or not returned.text:
                wrong.append(f"{what}: {returned}")
        assert not wrong, "\n".join(wrong)
        listed = slave.ask(Call(0, S.encode(), "consume", msgpack.packb({**CONSUME, "do": "list"})), Returned)
        assert [row["name"] for row in msgpack.unpackb(listed.value or b"")["consumers"]] == [b"n"]
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
    """A program that does not name its node, and one that has the master's own id."""
    with Slave(original.master.port, id_of(original.master) if node == "" else node) as slave:
        error = slave.ask(Follow(1, S.encode(), 0, 0, "", None, From("seq", 0)), Failed)
        assert (error.code, error.fatal) == (code, False)


def test_a_claim_of_an_earlier_term_is_not_accepted(original: Original) -> None:
    with Slave(original.master.port) as slave:
        claimed = slave.ask(Claim(1, S.encode(), (EpochStart(1, 0, EVIL),)), Claimed)
        assert (claimed.role, claimed.master, claimed.accepted) == ("master", id_of(original.master), False)


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


# --- floods ---------------------------------------------------------------------------------------------------------


def follows(start: int) -> bytes:
    return b"".join(
        pack(Follow(number, S.encode(), 0, 0, "", None, From("new", 0))) for number in range(start, start + 500)
    )


FLOODS: dict[str, Callable[[int], bytes]] = {
    "FOLLOW of the same": follows,
    "WATCH": lambda start: b"".join(pack(Watch(number, b"nothing")) for number in range(start, start + 500)),
    "ASK": lambda start: b"".join(pack(Ask(number)) for number in range(start, start + 100)),
    "CLAIM": lambda start: b"".join(
        pack(Claim(number, S.encode(), (EpochStart(1, 0, EVIL),))) for number in range(start, start + 500)
    ),
    "CALL": lambda start: b"".join(
        pack(Call(number, S.encode(), "get", msgpack.packb({**GET, "name": f"n{number}"})))
        for number in range(start, start + 500)
    ),
    "CALL that waits": lambda start: b"".join(
        pack(
            Call(
                number,
                S.encode(),
                "get",
                msgpack.packb({**GET, "name": "w", "member": f"m{number}", "wait_ms": 60_000}),
            )
        )
        for number in range(start, start + 500)
    ),
    "HELD by ever new nodes": lambda start: b"".join(
        pack_held([(1, f"node{number}", 0, 0) for number in range(start, start + 1_000)])
    ),
}


# How many answers a round has: a PING may overtake those that another worker gives, and rounds would pile up.
ANSWERS = {"FOLLOW of the same": 500, "ASK": 100, "CLAIM": 500, "CALL": 500, "CALL that waits": 500}
LONG = {"FOLLOW of the same", "CALL"}
WAITING = {"CALL that waits": MEMBERS_MAX}  # of all of them: these have none while the test lasts
# The refusals of calls of a flood, if they are refused: refused earlier, before being parsed, they would hold nothing.
CALLS_REFUSED = {"CALL": {"consumer"}, "CALL that waits": {"overloaded"}}


def take_answers(slave: Slave, count: int) -> list[object]:
    """At least `count` answers, without the PONG among them."""
    slave.read_until(lambda: len(slave.answers) > count)
    answers: list[object] = [each for each in slave.answers if not isinstance(each, Pong)]
    slave.answers.clear()
    return answers


@pytest.mark.few(2)
@pytest.mark.parametrize("what", [only_thorough(each)[0] if each in LONG else each for each in FLOODS])
def test_slaves_that_flood(original: Original, what: str) -> None:
    """For each request that can be repeated without end: memory stays, and others are served meanwhile."""
    pids, held_bytes = original.master.worker_pids(), []
    with Slave(original.master.port) as slave:
        slave.follow(1, S)
        if what == "CALL that waits":
            create = msgpack.packb({**CREATE, "name": "w"})
            assert slave.ask(Call(1, S.encode(), "consume", create), Returned).value is not None
        slave.answers.clear()
        owed = -WAITING.get(what, 0)
        for number in range(ROUNDS):
            slave.send_raw(FLOODS[what](2 + number * 1_000))
            slave.settle()
            owed += ANSWERS.get(what, 0)
            answers = take_answers(slave, owed)
            owed -= len(answers)
            refused = {each.code for each in answers if isinstance(each, Returned)}
            assert refused <= CALLS_REFUSED.get(what, set())
            if number in (ROUNDS // 2, ROUNDS - 1):
                serves_others(original.master, WORKERS)
                held_bytes.append(rss_bytes(pids))
    assert held_bytes[1] - held_bytes[0] < 2 * MIB, held_bytes
