"""Terms and times that other nodes name are believed within bounds, wherever they come in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.streams.owner import AHEAD_MAX_US, Owner, Refused
from tailrace.shard.epochs import EPOCH_FIRST_MAX, EPOCH_LEAP_MAX, EPOCH_MAX, EpochStart
from tailrace.shard.errors import FramesTooNew
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.meta import Role, StreamMeta, Upstream
from tests.broker.owning import make_owner, publish, release_all

S = b"s"
UP = Upstream("10.0.0.1", 5050, "seq", 0)
NowHears = Callable[[Owner, int], object]


def learn(owner: Owner, epoch: int) -> object:
    stream_roles.learn(owner, owner.stream(S), (EpochStart(epoch, 0, "up"),))
    return None


DOORS: dict[str, tuple[Role, NowHears]] = {
    "FOLLOW": (Role.MASTER, lambda owner, epoch: stream_roles.record_term(owner, S, epoch, "~")),
    "CLAIM": (
        Role.MASTER,
        lambda owner, epoch: stream_roles.claimed(owner, [S, [[epoch, 0, "~"]], "10.0.0.2", 5050, False]),
    ),
    "FENCE": (Role.MASTER, lambda owner, epoch: stream_roles.fence(owner, [S, epoch])),
    "CLAIMED": (Role.MASTER, lambda owner, epoch: stream_roles.give_in(owner, S, epoch, "~", UP)),
    "CLAIMED, of a slave": (Role.SLAVE, lambda owner, epoch: stream_roles.give_in(owner, S, epoch, "~", UP)),
    "FOLLOWED": (Role.SLAVE, learn),
}


def stream_in_term(path: Path, role: Role, epoch: int, *, messages: bool = True) -> Owner:
    owner = make_owner(path)
    owner.create(S)
    if messages:
        assert not publish(owner, S).refusals
    history = (EpochStart(1, 0, "one"), EpochStart(epoch, 1, "one")) if epoch > 1 else (EpochStart(1, 0, "one"),)
    owner.roles.set_meta(StreamMeta("s", role, epoch, UP if role is Role.SLAVE else None, history))
    return owner


@pytest.mark.few(3)
@pytest.mark.parametrize("door", DOORS)
@settings(max_examples=15, deadline=None)
@given(known=st.integers(1, EPOCH_FIRST_MAX), ahead=st.integers(-3, 3) | st.integers(1, EPOCH_MAX))
def test_a_term_leaps_by_no_more_than_the_bound(door: str, known: int, ahead: int) -> None:
    """Near the bound, and anywhere."""
    role, hears = DOORS[door]
    epoch = known + EPOCH_LEAP_MAX + ahead if abs(ahead) <= 3 else min(known + ahead, EPOCH_MAX)
    with TemporaryDirectory() as folder:
        owner = stream_in_term(Path(folder), role, known)
        before = owner.roles.meta(S)
        if epoch > known + EPOCH_LEAP_MAX:
            with pytest.raises(Refused, match="cannot be"):
                hears(owner, epoch)
            assert owner.roles.meta(S) == before
        else:
            hears(owner, epoch)
        assert owner.roles.epoch(S) <= known + EPOCH_LEAP_MAX
        release_all()


@pytest.mark.parametrize("epoch", [5_000, EPOCH_FIRST_MAX, EPOCH_FIRST_MAX + 1, EPOCH_MAX])
def test_a_new_copy_may_begin_in_any_term_that_leaves_some_for_others(tmp_path: Path, epoch: int) -> None:
    owner = stream_in_term(tmp_path, Role.SLAVE, 1, messages=False)
    if epoch <= EPOCH_FIRST_MAX:
        learn(owner, epoch)
        assert owner.roles.epoch(S) == epoch
    else:
        with pytest.raises(Refused, match="no stream has had so many"):
            learn(owner, epoch)
    release_all()


@pytest.mark.parametrize("beyond", [0, 1, 1 << 60])
def test_frames_of_a_master_are_not_of_a_far_future(tmp_path: Path, beyond: int) -> None:
    owner = stream_in_term(tmp_path, Role.SLAVE, 2)
    latest_us, latest_epoch = owner.clock_us() + AHEAD_MAX_US, 2 + EPOCH_LEAP_MAX
    for timestamp_us, epoch in ((latest_us + beyond, 2), (latest_us, min(latest_epoch + beyond, EPOCH_MAX))):
        next_seq = owner.stream(S).log.next_seq
        frame = bytearray(pack_frame(b"x"))
        load("tailrace.shard.frame_cy").stamp(frame, next_seq, timestamp_us, epoch, 0)
        if beyond:
            with pytest.raises(FramesTooNew, match=r"cannot be|further ahead of this machine's clock"):
                owner.take_frames(S, [memoryview(frame)], 0.0)
            assert owner.stream(S).log.next_seq == next_seq
        else:
            owner.take_frames(S, [memoryview(frame)], 0.0)
    release_all()
