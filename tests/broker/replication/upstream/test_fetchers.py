"""The copies of one uplink: their requests, and their reaction to each answer, in each state."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.process.settings import Durability
from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.replication.upstream import decide
from tailrace.broker.replication.upstream import fetchers as copies_module
from tailrace.broker.replication.upstream.fetchers import FOLLOWS_AT_ONCE, RETRY_MAX_S, RETRY_S, FetchState
from tailrace.broker.replication.upstream.socket import UpstreamClosed
from tailrace.broker.streams import roles as roles_module
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.messages import Op
from tailrace.protocol.places import From
from tailrace.shard.epochs import EPOCH_MAX, EpochStart, History
from tailrace.shard.errors import StorageFull
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Role, StreamMeta
from tests.broker.owning import policies, publish
from tests.broker.replication.slaving import ONE, UPSTREAM, A, S, Slave, T
from tests.broker.replication.upstream_node import Original
from tests.shard.helpers import append

# --- asking -----------------------------------------------------------------------------------------------------------


def test_an_empty_copy_asks_from_where_it_is_to_begin(slave: Slave) -> None:
    slave.follow()
    assert slave.up() == [r.Follow(1, S, 0, 1, "", None, From("time", 7))]


def test_a_copy_asks_with_its_last_message(slave: Slave) -> None:
    slave.original.append(b"a", b"b", b"c", epoch=3)
    slave.follow()
    slave.log.take(slave.original.frames(0, 3))
    assert slave.up() == [r.Follow(1, S, 3, 3, "", (3, slave.original.log.frame_crc(2)))]


def test_a_copy_whose_messages_are_all_trimmed_asks_from_its_end(slave: Slave) -> None:
    slave.original.append(b"a", b"b")
    slave.follow()
    slave.log.take(slave.original.frames(0, 2))
    slave.log.trim(2)
    assert slave.up() == [r.Follow(1, S, 2, 1, "", None, From("seq", 2))]


def test_a_copy_says_the_latest_term_that_is_known_here(slave: Slave) -> None:
    slave.follow()
    slave.owner.roles.set_meta(StreamMeta("s", Role.SLAVE, 5, UPSTREAM, (EpochStart(5, 0, "me"),)))
    assert slave.up()[0].term_master == "me"
    slave.owner.roles.set_meta(StreamMeta("s", Role.SLAVE, 6, UPSTREAM, (EpochStart(5, 0, "me"),)))
    slave.copies.went_down("lost")
    assert (slave.up()[0].term, slave.copy.state) == (6, FetchState.ASKED)


def test_so_many_are_asked_for_at_once_and_no_more(slave: Slave, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies_module, "FOLLOWS_AT_ONCE", 3)
    assert FOLLOWS_AT_ONCE > 3
    for number in range(8):
        slave.follow(b"s%d" % number)
    asked = slave.up()
    assert [each.id for each in asked] == [1, 2, 3] and slave.tick() == []
    slave.followed(number=1)
    slave.copies.ended(m.Ended(2, 0, "unavailable", "no"), slave.now_s)
    slave.copies.remove(asked[2].stream)
    assert [each.id for each in slave.tick() if isinstance(each, r.Follow)] == [4, 5, 6]
    for number in (4, 5, 6):
        slave.copies.failed(m.Failed("unavailable", "no", False, Op.FOLLOW, number), slave.now_s)
    assert [each.id for each in slave.tick()] == [7, 8]


def test_a_copy_that_is_added_later_asks_too(slave: Slave) -> None:
    assert slave.up() == []
    slave.follow()
    assert [type(each) for each in slave.tick()] == [r.Follow]


def test_a_damaged_stream_waits_and_keeps_no_other_from_following(slave: Slave) -> None:
    for name in (S, T):
        slave.follow(name)
    slave.owner.close_logs()
    next(slave.owner.catalog.directory.path.glob("*/s.indx")).write_bytes(b"x" * 5_000)
    assert [each.stream for each in slave.up()] == [T]
    assert slave.copy.state is FetchState.WAITING and "damaged" in slave.copy.why
    assert slave.owner.catalog.damaged


def test_a_stream_whose_end_is_being_set_aside_waits(slave: Slave) -> None:
    slave.follow()
    slave.owner.stream(S).busy = True
    assert slave.up() == [] and slave.copy.state is FetchState.WAITING
    slave.owner.stream(S).busy = False
    assert [type(each) for each in slave.tick(RETRY_S)] == [r.Follow]


def test_who_cannot_follow_asks_ever_less_often(slave: Slave) -> None:
    slave.follow()
    slave.up()
    pauses = []
    for _ in range(8):
        slave.copies.failed(m.Failed("unavailable", "no", False, Op.FOLLOW, slave.copy.id), slave.now_s)
        pauses.append(slave.copy.retry_s - slave.now_s)
        assert slave.tick(pauses[-1] - 0.01) == [] and len(slave.tick(0.02)) == 1
    assert pauses[0] == pytest.approx(RETRY_S) and pauses[-1] == pytest.approx(RETRY_MAX_S)
    slave.followed()
    slave.copies.ended(m.Ended(slave.copy.id, 0), slave.now_s)
    assert slave.copy.retry_s - slave.now_s == pytest.approx(RETRY_S), "it has followed meanwhile"


# --- each answer in each state ----------------------------------------------------------------------------------------

LATER: History = (EpochStart(1, 0, A), EpochStart(2, 5, A))

# Messages to a copy that has ten messages, and then: the state before -> the state after, and the messages it sends.
Act = Callable[[Slave], None]
SAID: dict[str, Act] = {
    "following": lambda slave: slave.followed("following", 10, number=1),
    "following, trimmed": lambda slave: slave.followed("following", 15, number=1, first_seq=15),
    "following, before": lambda slave: slave.followed("following", 3, number=1),
    "parted": lambda slave: slave.followed("parted", number=1, history=LATER),
    "parted, unaware": lambda slave: slave.followed("parted", number=1, history=()),
    "behind": lambda slave: slave.followed("behind", number=1),
    "news": lambda slave: slave.followed("news", number=1),
    "a circle": lambda slave: slave.followed("following", 10, number=1, path=(A, slave.id)),
    "news of a circle": lambda slave: slave.followed("news", number=1, path=(A, slave.id)),
    "frames": lambda slave: slave.chunk(10, 12, number=1),
    "frames with a gap": lambda slave: slave.chunk(11, 12, number=1),
    "frames again": lambda slave: slave.chunk(9, 12, number=1),
    "ended": lambda slave: slave.copies.ended(m.Ended(1, 10, "unavailable", "why"), slave.now_s),
    "FOLLOW failed": lambda slave: slave.copies.failed(m.Failed("cycle", "why", False, Op.FOLLOW, 1), slave.now_s),
    "trimmed": lambda slave: slave.copies.failed(m.Failed("trimmed", "why", False, Op.SUBSCRIBE, 1), slave.now_s),
    "the uplink is down": lambda slave: slave.copies.went_down("lost"),
    "not wanted any more": lambda slave: slave.copies.remove(S),
}
CLOSES = "closes"
UNSUBSCRIBES = [m.Unsubscribe(1)]
AFTER: dict[tuple[FetchState, str], tuple[FetchState | str, list[Any]]] = {
    (FetchState.ASKED, "following"): (FetchState.FOLLOWING, []),
    (FetchState.ASKED, "following, trimmed"): (FetchState.CUTTING, UNSUBSCRIBES),  # to begin there
    (FetchState.ASKED, "following, before"): (CLOSES, []),
    (FetchState.ASKED, "parted"): (FetchState.CUTTING, []),
    (FetchState.ASKED, "parted, unaware"): (FetchState.WAITING, []),
    (FetchState.ASKED, "behind"): (FetchState.WAITING, []),
    (FetchState.ASKED, "news"): (FetchState.ASKED, []),
    (FetchState.ASKED, "a circle"): (FetchState.WAITING, UNSUBSCRIBES),
    (FetchState.ASKED, "news of a circle"): (FetchState.WAITING, UNSUBSCRIBES),
    (FetchState.ASKED, "frames"): (CLOSES, []),
    (FetchState.ASKED, "frames with a gap"): (CLOSES, []),
    (FetchState.ASKED, "frames again"): (CLOSES, []),
    (FetchState.ASKED, "ended"): (FetchState.WAITING, []),
    (FetchState.ASKED, "FOLLOW failed"): (FetchState.WAITING, []),
    (FetchState.ASKED, "trimmed"): (FetchState.WAITING, UNSUBSCRIBES),
    (FetchState.ASKED, "not wanted any more"): (FetchState.DOWN, UNSUBSCRIBES),
    # The answer has come: later verdicts on the copy are taken for news.
    (FetchState.FOLLOWING, "following"): (FetchState.FOLLOWING, []),
    (FetchState.FOLLOWING, "following, trimmed"): (FetchState.FOLLOWING, []),
    (FetchState.FOLLOWING, "following, before"): (FetchState.FOLLOWING, []),
    (FetchState.FOLLOWING, "parted"): (FetchState.FOLLOWING, []),
    (FetchState.FOLLOWING, "parted, unaware"): (FetchState.FOLLOWING, []),
    (FetchState.FOLLOWING, "behind"): (FetchState.FOLLOWING, []),
    (FetchState.FOLLOWING, "news"): (FetchState.FOLLOWING, []),
    (FetchState.FOLLOWING, "a circle"): (FetchState.WAITING, UNSUBSCRIBES),
    (FetchState.FOLLOWING, "news of a circle"): (FetchState.WAITING, UNSUBSCRIBES),
    (FetchState.FOLLOWING, "frames"): (FetchState.FOLLOWING, []),
    (FetchState.FOLLOWING, "frames with a gap"): (CLOSES, []),
    (FetchState.FOLLOWING, "frames again"): (CLOSES, []),
    (FetchState.FOLLOWING, "ended"): (FetchState.WAITING, []),
    (FetchState.FOLLOWING, "FOLLOW failed"): (FetchState.WAITING, []),
    (FetchState.FOLLOWING, "trimmed"): (FetchState.WAITING, UNSUBSCRIBES),
    (FetchState.FOLLOWING, "not wanted any more"): (FetchState.DOWN, UNSUBSCRIBES),
    # A cut goes on when the uplink fails.
    (FetchState.CUTTING, "the uplink is down"): (FetchState.CUTTING, []),
    (FetchState.CUTTING, "not wanted any more"): (FetchState.DOWN, []),
    **{
        (state, "not wanted any more"): (FetchState.DOWN, [])
        for state in (FetchState.DOWN, FetchState.QUEUED, FetchState.WAITING, FetchState.IDLE)
    },
    **{
        (state, "the uplink is down"): (FetchState.DOWN, [])
        for state in FetchState
        if state not in (FetchState.CUTTING, FetchState.IDLE)
    },
}


# Where the copy ends then, if not at 10.
ENDS_AT = {(FetchState.FOLLOWING, "frames"): 12}


def test_streams_that_are_closed_are_asked_for_when_a_turn_has_time_to_open_them(slave: Slave) -> None:
    for name in (S, T):
        slave.follow(name)
    slave.owner.forget(slave.owner.stream(T))
    steps: list[tuple[bytes, Callable[[], object]]] = []
    slave.copies._later_step = lambda name, step: steps.append((name, step))
    assert [each.stream for each in slave.up()] == [S]
    assert [name for name, _step in steps] == [T] and T not in slave.owner.catalog.open
    steps[0][1]()
    assert [each.stream for each in slave.heard()] == [T]
    slave.copies.remove(T)
    slave.heard()
    steps[0][1]()
    assert slave.heard() == [], "it is not wanted any more"


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("state", list(FetchState))
def test_each_answer_in_each_state(slave: Slave, state: FetchState, said: str) -> None:
    """What AFTER does not name is of a FOLLOW that is over, and changes nothing."""
    after, answer = AFTER.get((state, said), (state, []))
    slave.be(state)
    copy, before_seq = slave.copy, slave.log.next_seq
    never_asked = state in (FetchState.DOWN, FetchState.QUEUED, FetchState.IDLE)
    if after == CLOSES or (never_asked and said.startswith("frames")):
        with pytest.raises(UpstreamClosed):
            SAID[said](slave)
        assert slave.log.next_seq == before_seq, "nothing was taken"
        return
    SAID[said](slave)
    assert (copy.state, slave.heard()) == (after, answer)
    assert bool(copy.id) is (after in (FetchState.ASKED, FetchState.FOLLOWING))
    assert len(slave.set_aside) == (FetchState.CUTTING in (state, after))
    assert slave.log.next_seq == ENDS_AT.get((state, said), before_seq)
    if after is FetchState.WAITING and state is not FetchState.WAITING:
        assert copy.why and [type(each) for each in slave.tick(RETRY_MAX_S)] == [r.Follow]


def test_the_table_names_no_state_or_message_that_there_is_not() -> None:
    assert {said for _state, said in AFTER} <= set(SAID)


# --- frames -----------------------------------------------------------------------------------------------------------


def test_frames_are_appended_as_they_are(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.chunk(10, 11)
    slave.chunk(11, 20)
    assert slave.log.next_seq == 20 and slave.log.frame_crc(19) == slave.original.log.frame_crc(19)
    assert slave.owner.take_grown()[S].next_seq == 20


@pytest.mark.parametrize("place", [0, 3, 8, 20, -1])
def test_a_chunk_with_one_wrong_byte_is_taken_not_even_in_part(slave: Slave, place: int) -> None:
    slave.be(FetchState.FOLLOWING)
    frames = bytearray(slave.original.frames(10, 12))
    frames[place] ^= 0x40
    with pytest.raises(UpstreamClosed):
        slave.copies.chunks(slave.copy.id, [memoryview(frames)], slave.now_s)
    assert slave.log.next_seq == 10


def test_chunks_before_a_wrong_one_are_kept(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    assert slave.copies.place_of(slave.copy.id) == slave.log.end_offset and slave.copies.place_of(2) == 0
    with pytest.raises(UpstreamClosed):
        slave.copies.chunks(slave.copy.id, [slave.original.frames(*each) for each in ((10, 12), (13, 14))], slave.now_s)
    assert slave.log.next_seq == 12


@pytest.mark.parametrize("cut", [1, 40])
def test_half_a_frame_is_none(slave: Slave, cut: int) -> None:
    slave.be(FetchState.FOLLOWING)
    with pytest.raises(UpstreamClosed):
        slave.copies.chunks(slave.copy.id, [slave.original.frames(10, 12)[:-cut]], slave.now_s)
    assert slave.log.next_seq == 10


def test_an_epoch_that_goes_back_is_refused(slave: Slave, tmp_path: Path) -> None:
    slave.be(FetchState.FOLLOWING)
    later = Original(tmp_path / "later")
    later.append(*(b"%d" % number for number in range(11)), epoch=2)
    slave.copies.chunks(slave.copy.id, [later.frames(10, 11)], slave.now_s)
    assert slave.log.last_epoch == 2
    with pytest.raises(UpstreamClosed):
        slave.chunk(11, 12)
    later.log.close()


def test_what_was_under_way_when_a_following_ended_is_passed_over(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.copies.failed(m.Failed("trimmed", "", False, Op.SUBSCRIBE, 1), slave.now_s)
    slave.chunk(15, 17, number=1)
    slave.copies.ended(m.Ended(1, 17), slave.now_s)
    assert slave.log.next_seq == 10 and slave.heard() == [m.Unsubscribe(1)]
    (asked,) = slave.tick(RETRY_MAX_S)
    slave.chunk(15, 17, number=1)
    slave.followed("following", 10, number=1)
    assert asked.id == 2 and slave.copy.state is FetchState.ASKED


@pytest.mark.parametrize("number", [2, 77])
def test_frames_that_nobody_asked_for_close(slave: Slave, number: int) -> None:
    slave.be(FetchState.FOLLOWING)
    with pytest.raises(UpstreamClosed, match="nobody asked for"):
        slave.chunk(10, 11, number=number)


@pytest.mark.parametrize(
    "error",
    [
        StorageFull("s", Path("s.content"), 100),
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_disk_that_takes_no_frames_is_tried_again(
    slave: Slave, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    slave.be(FetchState.FOLLOWING)

    def refuse(*_args: object, **_bounds: object) -> int:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(StreamLog, "take", refuse)
        slave.chunk(10, 11)
    assert (slave.copy.state, slave.heard()) == (FetchState.WAITING, [m.Unsubscribe(1)])
    (asked,) = slave.tick(RETRY_S)
    slave.followed("following", 10)
    slave.chunk(10, 11)
    assert (asked.next_seq, slave.log.next_seq) == (10, 11)


def test_frames_of_a_far_future_stop_their_stream_alone(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    append(slave.original.log, b"made up", at=1 << 60)
    slave.chunk(10, 20)
    slave.chunk(20, 21)
    assert slave.copy.state is FetchState.WAITING and "further ahead of this machine's clock" in slave.copy.why
    assert slave.log.next_seq == 20


@pytest.mark.parametrize("state", [FetchState.ASKED, FetchState.FOLLOWING])
def test_a_term_that_cannot_be_is_not_written_down(slave: Slave, state: FetchState) -> None:
    slave.be(state)
    slave.followed("following", 10, history=(EpochStart(EPOCH_MAX, 0, A),))
    assert slave.copy.state is FetchState.WAITING and "cannot be" in slave.copy.why
    assert slave.owner.roles.epoch(S) == 1


def test_a_stream_that_is_damaged_meanwhile_waits(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.owner.close_logs()
    next(slave.owner.catalog.directory.path.glob("*/s.indx")).write_bytes(b"x" * 5_000)
    slave.chunk(10, 11)
    assert slave.copy.state is FetchState.WAITING and slave.heard() == [m.Unsubscribe(1)]


# --- terms and paths --------------------------------------------------------------------------------------------------


def test_the_upstreams_terms_are_learnt_before_its_frames_come(slave: Slave) -> None:
    slave.be(FetchState.ASKED)
    history = (EpochStart(1, 0, A), EpochStart(4, 10, "node-b"))
    slave.followed("following", 10, history=history)
    assert (slave.owner.roles.meta(S).history, slave.owner.roles.epoch(S)) == (history, 4)
    slave.followed("news", history=(*history, EpochStart(5, 12, A)))
    assert slave.owner.roles.epoch(S) == 5


def test_terms_that_the_disk_does_not_take_end_the_following(slave: Slave, monkeypatch: pytest.MonkeyPatch) -> None:
    slave.be(FetchState.ASKED)

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(roles_module, "write_meta", full)
        slave.followed("following", 10, history=LATER)
    assert (slave.copy.state, slave.heard()) == (FetchState.WAITING, [m.Unsubscribe(1)])
    assert slave.owner.roles.epoch(S) == 1


def test_the_way_to_the_master_is_known_while_there_is_one(slave: Slave) -> None:
    slave.be(FetchState.ASKED)
    slave.followed("following", 10, path=(A, "node-m"))
    assert (slave.copy.path, slave.paths) == ((A, "node-m"), [S])
    slave.followed("news", path=(A, "node-m"))
    assert slave.paths == [S]
    slave.followed("news", path=(A,))
    slave.copies.went_down("lost")
    assert (slave.copy.path, slave.paths) == ((), [S] * 3)


def test_a_circle_says_who_follows_whom(slave: Slave) -> None:
    slave.be(FetchState.ASKED)
    slave.followed("following", 10, path=(A, "node-m", slave.id, "more"))
    assert slave.copy.why.endswith(f"circle: {slave.id} -> {A} -> node-m -> {slave.id}")


# --- a copy that does not fit -----------------------------------------------------------------------------------------


def test_what_the_upstream_does_not_have_is_set_aside_and_asked_for_again(slave: Slave) -> None:
    slave.be(FetchState.CUTTING)
    assert [(stream.name, seq) for stream, seq, _done in slave.set_aside] == [(S, 5)]
    assert slave.tick(RETRY_MAX_S) == [], "not before it is done"
    slave.finish_cut()
    (asked,) = slave.tick()
    assert (asked.id, asked.next_seq, asked.last) == (2, 5, (1, slave.original.log.frame_crc(4)))
    slave.followed("following", 5, history=LATER)
    assert slave.copy.state is FetchState.FOLLOWING and not slave.copy.why


def test_a_cut_that_fails_is_tried_again(slave: Slave) -> None:
    slave.be(FetchState.CUTTING)
    slave.finish_cut("no space")
    assert (slave.copy.state, slave.copy.why) == (FetchState.WAITING, "no space")
    assert [each.next_seq for each in slave.tick(RETRY_MAX_S)] == [10]


@pytest.mark.parametrize("wrong", ["", "no space"])
@pytest.mark.parametrize("meanwhile", ["down", "down and up", "removed", "removed and added"])
def test_a_cut_that_ends_when_all_is_different(slave: Slave, meanwhile: str, wrong: str) -> None:
    slave.be(FetchState.CUTTING)
    old = slave.copy
    match meanwhile:
        case "down":
            slave.copies.went_down("lost")
        case "down and up":
            slave.copies.went_down("lost")
            assert slave.up() == []
        case "removed":
            slave.copies.remove(S)
        case "removed and added":
            slave.copies.remove(S)
            slave.copies.add(S)
            assert slave.tick() == [] and slave.copy.state is FetchState.WAITING, "the stream is busy"
    slave.finish_cut(wrong)
    asked = [] if meanwhile in ("down", "removed") else [10 if wrong else 5]
    assert [each.next_seq for each in slave.tick(RETRY_MAX_S)] == asked
    assert old.state is (FetchState.ASKED if meanwhile == "down and up" else FetchState.DOWN)
    if meanwhile == "down":
        assert [each.next_seq for each in slave.up()] == [10 if wrong else 5]


def test_a_copy_begins_anew_where_the_upstream_keeps_nothing_before(slave: Slave) -> None:
    slave.be(FetchState.ASKED)
    slave.followed("following", 15, first_seq=15)
    assert slave.log.next_seq == 10, "the loop waits for no disk"
    slave.finish_cut()
    assert (slave.log.first_seq, slave.log.next_seq) == (15, 15)
    assert slave.cuts == [(S, 10)], "who has read up to there goes on, over the gap"
    assert [each.start for each in slave.tick()[-1:]] == [From("seq", 15)]
    slave.followed("following", 15, first_seq=15)
    slave.chunk(15, 20)
    assert slave.log.next_seq == 20


def test_an_empty_copy_begins_where_its_upstream_says(slave: Slave) -> None:
    slave.original.append(*(b"%d" % number for number in range(20)))
    slave.follow()
    slave.up()
    slave.followed("following", 12)
    slave.finish_cut()
    slave.tick()
    slave.followed("following", 12)
    slave.chunk(12, 20)
    assert (slave.log.first_seq, slave.log.next_seq, slave.cuts) == (12, 20, [(S, 0)])
    slave.log.trim(20)
    slave.copies.went_down("lost")
    assert slave.up()[0].start == From("seq", 20)
    slave.followed("following", 7)
    slave.finish_cut()
    assert (slave.log.next_seq, slave.cuts[1:]) == (7, [(S, 7)])


@pytest.mark.parametrize("closes", [False, True])
def test_a_copy_that_cannot_begin_anew_is_tried_again(
    slave: Slave, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """Where the log was closed by it, opening it anew is what helps."""
    slave.be(FetchState.ASKED)

    def refuse(log: StreamLog, _seq: int) -> None:
        if closes:
            log.close()
            raise OSError(errno.EIO, "Input/output error")
        raise StorageFull("s", Path("s.content"), 100)

    with monkeypatch.context() as patch:
        patch.setattr(StreamLog, "begin_at", refuse)
        slave.followed("following", 15, first_seq=15)
        slave.finish_cut()
    assert slave.copy.state is FetchState.WAITING and slave.heard() == [m.Unsubscribe(1)]
    assert S not in slave.owner.catalog.open
    (asked,) = slave.tick(RETRY_S)
    slave.followed("following", 15, first_seq=15)
    slave.finish_cut()
    again = slave.tick()[-1]
    slave.followed("following", 15, first_seq=15)
    slave.chunk(15, 20)
    assert (asked.start, again.start) == (From("seq", 10), From("seq", 15)) and slave.log.next_seq == 20


# --- one connection after another -------------------------------------------------------------------------------------


def test_numbers_of_an_earlier_connection_mean_nothing_on_the_next(slave: Slave) -> None:
    """What a copy had asked for there may have the number of another one here."""
    for name in (S, T):
        slave.follow(name)
    slave.up()
    slave.followed(number=1)
    slave.followed(number=2)
    slave.copies.went_down("lost")
    slave.owner.stream(S).busy = True  # so that only T asks, with number 1
    assert [(each.id, each.stream) for each in slave.up()] == [(1, T)]
    slave.copies.remove(S)
    assert slave.heard() == []
    slave.followed(number=1, path=(A, "node-m"))
    assert slave.copies.by_name[T].state is FetchState.FOLLOWING


def test_a_lost_connection_loses_nothing_but_time(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.chunk(10, 14)
    for _ in range(3):
        slave.copies.went_down("lost")
        assert slave.copy.why == "lost"
        (asked,) = slave.up()
        assert (asked.id, asked.next_seq) == (1, slave.log.next_seq)
        slave.followed("following", slave.log.next_seq)
        slave.chunk(slave.log.next_seq, slave.log.next_seq + 2)
    assert slave.log.next_seq == 20


def test_a_stream_that_is_not_wanted_any_more_is_not_asked_for(slave: Slave) -> None:
    slave.be(FetchState.QUEUED)
    slave.copies.remove(S)
    assert slave.tick() == [] and not slave.copies
    slave.copies.remove(S)


# --- what follows from it ---------------------------------------------------------------------------------------------


def test_under_always_what_came_is_to_be_synced_at_once(tmp_path: Path) -> None:
    slave = Slave(tmp_path, streams=policies(Durability.ALWAYS))
    slave.be(FetchState.FOLLOWING)
    slave.chunk(10, 12)
    assert [stream.name for stream in slave.owner.syncs.urgent] == [S] and S in slave.owner.syncs.dirty


def test_a_promoted_copy_takes_publishes_in_a_term_of_its_own(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.copies.remove(S)
    stream_roles.promote(slave.owner, [S])
    assert publish(slave.owner, S).published_at == {0: 10}
    assert slave.log.last_epoch == 2


# --- the fence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [FetchState.ASKED, FetchState.FOLLOWING])
@pytest.mark.parametrize("said", ["following", "news", "parted", "behind"])
def test_what_comes_while_a_promotion_is_being_written_changes_nothing(
    slave: Slave, state: FetchState, said: str
) -> None:
    """The copy is removed when the role is on the disk. Until then its upstream may answer in the term before."""
    slave.be(state)
    stream_roles.promote(slave.owner, [S])
    promoted = slave.owner.roles.meta(S)
    assert promoted.history[-1] == EpochStart(2, 10, slave.id)
    history = (EpochStart(1, 0, A), EpochStart(2, 5, A)) if said == "parted" else ONE
    slave.followed(said, 10, history=history)
    assert slave.owner.roles.meta(S) == promoted
    assert (slave.log.next_seq, slave.set_aside) == (10, [])
    # Should the disk not take the role, the copy is as it was, and asks again.
    slave.owner.roles.set_meta(StreamMeta("s", Role.SLAVE, 1, UPSTREAM, ONE))
    asked = [message for message in slave.tick(RETRY_MAX_S) if isinstance(message, r.Follow)]
    assert (len(asked), slave.copy.state) == (1, FetchState.ASKED)
    slave.followed("following", 10)
    assert slave.copy.state is FetchState.FOLLOWING


def test_what_a_former_upstream_says_while_another_is_being_written_changes_nothing(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    stream_roles.slave(slave.owner, [S, "10.0.0.2", 5050, "time", 0])
    turned = slave.owner.roles.meta(S)
    slave.followed("news", history=(EpochStart(1, 0, A), EpochStart(2, 12, A)))
    assert slave.owner.roles.meta(S) == turned


def test_a_fenced_copy_leaves_an_upstream_of_an_earlier_term(slave: Slave) -> None:
    """It ends the FOLLOW, takes nothing that still comes, reports nothing, and asks with the later term."""
    slave.be(FetchState.FOLLOWING)
    slave.copies.note_held(S)
    stream_roles.fence(slave.owner, [S, 5])
    slave.copies.reconcile_fence(S, slave.now_s)
    (left,) = slave.heard()
    number = left.id
    assert isinstance(left, m.Unsubscribe) and slave.copy.fenced
    slave.chunk(10, 12, number=number)
    assert slave.log.next_seq == 10 and slave.reports() == []
    (asked,) = slave.tick(RETRY_MAX_S)
    assert (asked.next_seq, asked.term) == (10, 5)
    slave.followed("following", 10)
    assert (slave.copy.state, slave.copy.why) == (FetchState.WAITING, decide.fence_text(1, 5))
    slave.chunk(10, 12, number=asked.id)
    assert slave.log.next_seq == 10 and slave.reports() == []
    slave.heard()
    slave.tick(RETRY_MAX_S)
    slave.followed("following", 10, history=(EpochStart(1, 0, A), EpochStart(5, 10, A)))
    assert (slave.copy.state, slave.copy.fenced) == (FetchState.FOLLOWING, False)
    assert [report.rows for report in slave.reports()] == [((slave.copy.id, slave.id, 10, 0),)]


def test_a_fence_of_the_term_that_the_upstream_is_in_changes_nothing(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.followed("news", history=(EpochStart(1, 0, A), EpochStart(5, 10, A)))
    stream_roles.fence(slave.owner, [S, 5])
    slave.copies.reconcile_fence(S, slave.now_s)
    assert slave.copy.state is FetchState.FOLLOWING and slave.heard() == []


def test_the_companions_of_a_fenced_stream_leave_with_it(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    cursor = b"$cursor/s"
    slave.owner.create(cursor, by_command=True)
    slave.copies.add(cursor)
    (asked,) = slave.tick()
    slave.followed("following", 0, number=asked.id)
    assert slave.copies.by_name[cursor].state is FetchState.FOLLOWING
    stream_roles.fence(slave.owner, [S, 5])
    slave.copies.reconcile_fence(S, slave.now_s)
    assert sorted(each.id for each in slave.heard()) == [1, 2]
    assert {copy.state for copy in slave.copies.by_name.values()} == {FetchState.WAITING}
    again = slave.tick(RETRY_MAX_S)
    later = (EpochStart(1, 0, A), EpochStart(5, 10, A))
    numbers = {each.stream: each.id for each in again}
    slave.followed("following", 0, number=numbers[cursor])
    assert slave.copies.by_name[cursor].state is FetchState.WAITING
    slave.followed("following", 10, number=numbers[S], history=later)
    assert slave.copy.state is FetchState.FOLLOWING
    slave.heard()
    (once_more,) = slave.tick(RETRY_MAX_S)
    slave.followed("following", 0, number=once_more.id)
    assert slave.copies.by_name[cursor].state is FetchState.FOLLOWING
