from __future__ import annotations

from pathlib import Path

from tailrace.shard.header import CONTENT_FIRST_OFFSET
from tailrace.shard.holes import unpunched_seq
from tailrace.shard.stream_files import stream_paths
from tests.shard.helpers import NAME, append, flip, open_log


def test_trimmed_space_is_seen_until_it_is_given_back(tmp_path: Path) -> None:
    paths = stream_paths(tmp_path, NAME)
    assert unpunched_seq(paths) is None
    log = open_log(tmp_path)
    assert unpunched_seq(paths) is None
    append(log, *[b"x" * 1_000] * 100)
    assert unpunched_seq(paths) is None
    log.trim(3)
    assert unpunched_seq(paths) is None, "there is no whole page to give back"
    log.trim(90)
    assert unpunched_seq(paths) == 90
    log.close()
    log = open_log(tmp_path)
    assert unpunched_seq(paths) == 90
    assert log.punch(90) > 0
    assert unpunched_seq(paths) is None
    log.close()
    flip(paths.content_file, 8 * CONTENT_FIRST_OFFSET)
    assert unpunched_seq(paths) is None, "what is damaged says nothing"
