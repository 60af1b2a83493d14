"""The state of producers is rebuilt from the log: with a checkpoint, without, after a cut, from a copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.shard import producer_file
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog
from tailrace.shard.numbering import read_numbering, write_numbering
from tailrace.shard.producer_file import producers_path, read, rebuild, save
from tailrace.shard.producers import NumberVerdict, ProducerRun, Producers
from tailrace.shard.walk import FrameRun
from tests.shard.helpers import LATER_BOOT, NAME, append, batch, open_log
from tests.thorough import examples

DAY = 86_400_000_000
mark_run = load("tailrace.shard.run_cy").mark_run


def publish(log: StreamLog, producer_id: bytes, number: int, messages: int, at: int = 1_000) -> ProducerRun:
    frames = mark_run(batch([b"x"] * messages), write_numbering(b"", producer_id, number))
    return ProducerRun(number, messages, log.append(frames, messages, at, 1))


def again(log: StreamLog, directory: Path, *, now_us: int = 2_000, expiry_us: int = DAY) -> Producers:
    return rebuild(producers_path(directory, NAME), log, expiry_us, now_us, lambda: None)


def rows(producers: Producers) -> list[list[object]]:
    return list(producers.rows())


def test_from_the_log_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    publish(log, b"a", 0, 3)
    append(log, b"plain")
    publish(log, b"b", 0, 1)
    publish(log, b"a", 3, 2)
    assert rows(again(log, tmp_path)) == [[b"b", 1, 1_000, [0, 1, 4]], [b"a", 5, 1_000, [0, 3, 0, 3, 2, 5]]]
    log.close()


def test_a_run_that_was_cut_short_ends_where_it_was_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"plain")
    publish(log, b"a", 0, 5)
    log.set_aside(4)
    append(log, b"plain", b"plain")  # by others, who have no numbers
    judged = again(log, tmp_path).judge(b"a", 0, 5, 0)
    assert (judged.kind, judged.seq, judged.expected) == (NumberVerdict.REST, 1, 3)
    log.close()


def test_with_a_checkpoint_only_what_came_later_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    publish(log, b"a", 0, 3)
    save(producers_path(tmp_path, NAME), log, again(log, tmp_path))
    publish(log, b"a", 3, 1)
    walked: list[int] = []
    walk = StreamLog.walk

    def noted(self: StreamLog, seq: int) -> Iterator[FrameRun]:
        walked.append(seq)
        return walk(self, seq)

    monkeypatch.setattr(StreamLog, "walk", noted)
    assert rows(again(log, tmp_path)) == [[b"a", 4, 1_000, [0, 4, 0]]]
    assert walked == [3]
    log.close()


def test_a_checkpoint_of_other_messages_counts_for_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    publish(log, b"a", 0, 3)
    save(producers_path(tmp_path, NAME), log, again(log, tmp_path))
    log.set_aside(1)
    assert rows(again(log, tmp_path)) == [[b"a", 1, 1_000, [0, 1, 0]]]
    append(log, b"other", b"messages")
    assert rows(again(log, tmp_path)) == [[b"a", 1, 1_000, [0, 1, 0]]]
    log.close()


@pytest.mark.parametrize("damage", [b"", b"x", b"TRprod\x001\0\0\0\0\x90", b"TRmeta\x001"])
def test_a_checkpoint_that_is_not_whole_counts_for_nothing(tmp_path: Path, damage: bytes) -> None:
    log = open_log(tmp_path)
    publish(log, b"a", 0, 3)
    path = producers_path(tmp_path, NAME)
    save(path, log, again(log, tmp_path))
    whole = path.read_bytes()
    assert read(path) is not None
    path.write_bytes(damage + whole[len(damage) :] if damage else b"")
    assert read(path) is None
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert read(path) is None
    assert rows(again(log, tmp_path)) == [[b"a", 3, 1_000, [0, 3, 0]]]
    log.close()


def test_an_empty_stream_has_no_checkpoint(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    path = producers_path(tmp_path, NAME)
    save(path, log, Producers(DAY))
    assert read(path) is None
    assert not rows(again(log, tmp_path))
    publish(log, b"a", 0, 1)
    save(path, log, again(log, tmp_path))
    log.trim(1)
    assert not rows(again(log, tmp_path))  # its message is gone: no evidence that it is this stream's
    log.close()


def test_who_is_idle_for_too_long_is_not_looked_for(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    publish(log, b"a", 0, 3, at=1_000)
    publish(log, b"b", 0, 1, at=5_000)
    assert rows(again(log, tmp_path, now_us=5_500, expiry_us=1_000)) == [[b"b", 1, 5_000, [0, 1, 3]]]
    log.close()


def test_no_more_is_read_than_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    publish(log, b"a", 0, 3)
    save(producers_path(tmp_path, NAME), log, again(log, tmp_path))
    append(log, *[b"x" * 100] * 30)
    publish(log, b"b", 0, 1)
    assert [row[0] for row in rows(again(log, tmp_path))] == [b"a", b"b"]
    monkeypatch.setattr(producer_file, "SCAN_BYTES_MAX", 1_000)
    assert [row[0] for row in rows(again(log, tmp_path))] == [b"b"]
    log.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from([b"a", b"b", b"c"]), st.integers(1, 4)),
        st.tuples(st.just("repeat"), st.sampled_from([b"a", b"b", b"c"]), st.integers(1, 4)),
        st.tuples(st.sampled_from(["plain", "save", "reopen", "cut", "copy"]), st.just(b""), st.integers(1, 4)),
    ),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_every_message_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bytes, int]]
) -> None:
    """An owner that decides, appends new messages, dies, is replaced by a copy, against a count of the logged
    messages."""
    directory = tmp_path_factory.mktemp("owner")
    path = producers_path(directory, NAME)
    log = open_log(directory)
    producers = again(log, directory)
    sent: dict[bytes, list[int]] = {b"a": [], b"b": [], b"c": []}  # the lengths of the publishes
    for what, name, size in steps:
        if what in ("publish", "repeat"):
            sizes = sent[name]
            if what == "publish":
                sizes.append(size)
            for back in range(min(size, len(sizes)), 0, -1):  # a client sends the last ones once more, in order
                number, count = sum(sizes[:-back]), sizes[-back]
                _judge_and_append(log, producers, name, number, count)
        elif what == "plain":
            append(log, *[b"plain"] * size)
        elif what == "save":
            save(path, log, producers)
        else:
            if what == "cut" and log.next_seq:
                log.set_aside(max(log.next_seq - size, log.first_seq))
            elif what == "copy":
                log, directory = _copied(log, tmp_path_factory.mktemp("copy"))
                path = producers_path(directory, NAME)
            else:
                log.abandon()
                log = open_log(directory)
            known = {row[0]: row[1] for row in producers.rows()}
            producers = again(log, directory)
            if what != "cut":
                assert {row[0]: row[1] for row in producers.rows()} == known
            for each, sizes in sent.items():  # its client sends the missing messages, from the first one on
                for index, count in enumerate(sizes):
                    _judge_and_append(log, producers, each, sum(sizes[:index]), count)
    assert _numbers(log) == {name: list(range(sum(sizes))) for name, sizes in sent.items() if sizes}
    log.close()


def _judge_and_append(log: StreamLog, producers: Producers, name: bytes, number: int, count: int) -> None:
    judged = producers.judge(name, number, count, 0)
    if judged.kind is NumberVerdict.REST:
        number, count = judged.expected, number + count - judged.expected
    elif judged.kind is not NumberVerdict.NEW:
        assert judged.kind is NumberVerdict.REPEAT
        return
    producers.note(name, publish(log, name, number, count), 1_000)


def _copied(log: StreamLog, directory: Path) -> tuple[StreamLog, Path]:
    """A slave that has taken all of it, frame by frame in pieces of its own."""
    copy = open_log(directory, boot=LATER_BOOT)
    for run in log.walk(log.first_seq) if log.next_seq else ():
        copy.take(bytes(run.frames))
    log.close()
    return copy, directory


def _numbers(log: StreamLog) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for run in log.walk(log.first_seq) if log.next_seq else ():
        for _, _, messages, metadata in load("tailrace.shard.run_cy").find_flagged(run.frames, 0, len(run.frames)):
            name, number = read_numbering(metadata)
            found.setdefault(name, []).extend(range(number, number + messages))
    return found


def test_frames_with_a_flag_that_say_no_producer_are_passed_over(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    frames = bytearray(pack_frame(b"x", flags=1, metadata=b"\x80"))
    log.append(frames, 1, 5, 1)
    assert not rows(again(log, tmp_path))
    assert not os.path.exists(producers_path(tmp_path, NAME))
    log.close()
