from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.process.settings import DEFAULT_POLICY
from tailrace.broker.streams.open_stream import OpenStream
from tailrace.shard.log import StreamLog
from tests.broker.owning import BOOT, batch


@pytest.mark.parametrize("change", ["syncing", "busy", "waiting"])
def test_a_stream_is_idle_while_nothing_of_it_is_under_way(tmp_path: Path, change: str) -> None:
    log = StreamLog.open(tmp_path, "s", create=True, boot_id=BOOT)
    stream = OpenStream(b"s", log, 1, DEFAULT_POLICY)
    before = stream.idle
    setattr(stream, change, [(batch(b"s", b"x"), 0)] if change == "waiting" else True)
    assert (before, stream.idle) == (True, False)
    log.close()
