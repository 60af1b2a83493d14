from __future__ import annotations

import pytest

from bench.peers.base import stream_names
from bench.peers.tailrace import Tailrace


def test_tailrace_lines() -> None:
    peer = Tailrace()
    assert peer.publish("b.000000", b"@hello") == b"pub b.000000 |@hello\r\n"
    lines = [b"msg b.000000 %d 1790000000000000 6 |@hello\r\n" % seq for seq in range(1_234)]
    assert peer.delivered_bytes("b.000000", 1_234, 6) == len(b"".join(lines))
    assert peer.replay_bytes("b.000000", 1_234, 6) == len(b"ok sub b.000000 0\r\n" + b"".join(lines))


@pytest.mark.parametrize("messages", [0, 1, 7, 11, 250])
def test_tailrace_answers_over_several_streams(messages: int) -> None:
    names = [*stream_names(3), "longer-name"]
    answers = [b"ok pub %s %d\r\n" % (names[i % 4].encode(), i // 4) for i in range(messages)]
    assert Tailrace(acked=True).answers_bytes(names, messages) == len(b"".join(answers))


def test_tailrace_runs_the_build_that_is_asked_for() -> None:
    assert Tailrace(interpreted=True).environment() == {"TAILRACE_INTERPRETED": "1"}
    assert Tailrace().environment() == {"TAILRACE_INTERPRETED": "0"}


def test_a_row_may_want_another_number_of_workers() -> None:
    peer = Tailrace(workers=2)
    alone = peer.changed(workers=1)
    assert (peer.workers, alone.workers, alone.name) == (2, 1, peer.name)
    assert "1 workers" in alone.version()
