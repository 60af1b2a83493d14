"""Files written by the first version of the format, kept as they were: every later version must read them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailrace.shard.catalog import stream_names
from tailrace.shard.check import check_stream
from tailrace.shard.mend import rebuild_index
from tailrace.shard.reader import StreamReader
from tests.shard.helpers import BOOT, LATER_BOOT, Message, append, messages_of, open_log, read_messages

GOLDEN = Path(__file__).parent / "golden"
NAME = "größe/25"
MESSAGES = [
    Message(1, 1_700_000_000_000_000, 1, b""),
    Message(2, 1_700_000_001_000_000, 2, b"three"),
    Message(3, 1_700_000_002_000_000, 2, b"four"),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "shard")
    return tmp_path / "shard"


def test_it_is_read_where_it_lies() -> None:
    assert stream_names(GOLDEN) == [NAME]
    reader = StreamReader.open(GOLDEN, NAME, boot_id=BOOT)
    assert messages_of(reader) == MESSAGES
    reader.close()
    report = check_stream(GOLDEN, NAME, boot_id=BOOT)
    assert report.ok
    assert (report.messages, report.first_seq, report.synced_seq) == (3, 1, 4)


@pytest.mark.parametrize("boot", [BOOT, LATER_BOOT])
def test_it_is_opened_and_goes_on(copy: Path, boot: str) -> None:
    log = open_log(copy, NAME, create=False, boot=boot)
    assert append(log, b"five", at=1_700_000_003_000_000, epoch=3) == 4
    log.close()
    assert read_messages(copy, NAME, boot=boot) == [*MESSAGES, Message(4, 1_700_000_003_000_000, 3, b"five")]


def test_its_index_is_rebuilt_as_it_was(copy: Path) -> None:
    index = copy / "gr%C3%B6%C3%9Fe%2F25.indx"
    # The trimmed message is not in a new index, nor needed there.
    entries = index.read_bytes()[4_096 + 24 :]
    index.unlink()
    rebuild_index(copy, NAME, boot_id=BOOT)
    assert index.read_bytes()[4_096:] == entries
    assert read_messages(copy, NAME) == MESSAGES
