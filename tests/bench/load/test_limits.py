from __future__ import annotations

import pytest

from bench.load.limits import Deadline, LoadTimeout


def test_a_deadline_waits_no_longer_than_it_lasts() -> None:
    deadline = Deadline(0.05)
    assert 0 < deadline.left_s(10) <= 0.05
    assert deadline.left_s(0.001) <= 0.001
    while deadline.left_s(1):
        pass
    with pytest.raises(LoadTimeout, match=r"doing it: not finished after 0\.05 s"):
        deadline.check("doing it")
