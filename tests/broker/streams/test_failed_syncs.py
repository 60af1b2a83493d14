from __future__ import annotations

from tailrace.broker.streams.failed_syncs import LOOKS_A_TICK, RETRIES_A_TICK, RETRY_MAX_S, RETRY_MIN_S, FailedSyncs


def test_a_stream_that_was_found_is_tried_at_once_and_takes_nothing_meanwhile() -> None:
    failed = FailedSyncs()
    assert failed.begin(b"s", 5.0) and failed.refusal(b"s", True, 5.0) == ""
    failed.found(b"s")
    assert failed.due(5.0) == [b"s"]
    assert failed.refusal(b"s", True, 5.0) == "", "a publish waits for the try that comes"
    assert failed.begin(b"s", 5.0)
    assert failed.due(5.0) == []
    assert "being written again" in failed.refusal(b"s", False, 5.0)
    failed.mended(b"s")
    assert len(failed) == 0 and failed.refusal(b"s", True, 5.0) == ""


def test_each_try_that_fails_doubles_the_time_to_the_next() -> None:
    failed, now_s, delays = FailedSyncs(), 100.0, []
    failed.failed(b"s", now_s)
    for _ in range(7):
        began_s = now_s
        while not failed.due(now_s):
            assert not failed.begin(b"s", now_s)
            assert "tried again soon" in failed.refusal(b"s", True, now_s)
            assert failed.refusal(b"s", False, now_s) == "", "others need no sync"
            now_s += 0.5
        assert failed.begin(b"s", now_s)
        failed.found(b"s")
        failed.failed(b"s", now_s)
        delays.append(now_s - began_s)
    assert delays[:3] == [RETRY_MIN_S, 2 * RETRY_MIN_S, 4 * RETRY_MIN_S] and delays[-1] == RETRY_MAX_S


def test_many_are_tried_a_few_at_a_time_and_all_have_their_turn() -> None:
    failed = FailedSyncs()
    names = [b"%d" % number for number in range(2 * LOOKS_A_TICK)]
    for name in names:
        failed.found(name)
    tried: set[bytes] = set()
    for _ in range(2 * LOOKS_A_TICK // RETRIES_A_TICK):
        due = failed.due(0.0)
        assert len(due) == RETRIES_A_TICK
        tried.update(due)
    assert tried == set(names)


def test_it_is_known_whether_any_is_being_written() -> None:
    failed = FailedSyncs()
    failed.found(b"s")
    failed.found(b"t")
    before = failed.writes
    assert failed.begin(b"t", 0.0)
    assert (before, failed.writes) == (False, True)
    failed.failed(b"t", 0.0)
    assert [failed.writes] == [False]
