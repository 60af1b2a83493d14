"""`tailrace check` over real streams, whole and damaged."""

from __future__ import annotations

import json
import os
import pty
from pathlib import Path

import pytest

from tailrace.cli import check, main
from tailrace.cli.ending import IN_USE, NO_DIRECTORY, OK, REFUSED
from tailrace.shard.directory import DataDirectory, make_data_dir
from tailrace.shard.frame import pack_frame
from tailrace.shard.lock import DirectoryLock
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Role, StreamMeta, Upstream, read_meta, write_meta
from tests.cli.process import start
from tests.cli.test_standard_files import COMMAND, shell

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
STREAMS = ("orders", "access-log", "é")
MESSAGES = 50


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    directory = make_data_dir(tmp_path / "data", 4)
    for name in STREAMS:
        log = StreamLog.open(directory.stream_directory(name), name, create=True, boot_id=BOOT_ID)
        frames = b"".join(bytes(pack_frame(b"%s %d" % (name.encode(), number))) for number in range(MESSAGES))
        log.append(bytearray(frames), MESSAGES, 1_000_000, 1)
        log.close()
    return directory


def content(data: DataDirectory, name: str) -> Path:
    (path,) = data.stream_directory(name).glob(f"{name}*.content")
    return path


def flip(path: Path, offset: int) -> None:
    """Damage one byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x55]))


def middle(path: Path) -> int:
    return 4_096 + (path.stat().st_size - 4_096) // 2


def test_a_clean_directory(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", str(data.path)]) == OK
    assert capsys.readouterr() == ("3 streams, 150 messages: no damage\n", "")


def test_a_damaged_stream_is_told_with_its_byte(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    file = content(data, "orders")
    flip(file, middle(file))
    assert main.run(["check", str(data.path)]) == REFUSED
    told, summary = capsys.readouterr().out.splitlines()
    assert told.startswith(f"orders: DAMAGED: {file} at byte ")
    assert summary.startswith("3 streams, 14")
    assert summary.endswith(": 1 damaged")


def test_json_is_an_object_a_stream(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    file = content(data, "orders")
    flip(file, middle(file))
    assert main.run(["check", str(data.path), "--json"]) == REFUSED
    out, err = capsys.readouterr()
    shown = {report["stream"]: report for report in map(json.loads, out.splitlines())}
    assert set(shown) == set(STREAMS)
    assert shown["é"]["ok"]
    assert shown["é"]["messages"] == shown["é"]["next_seq"] == MESSAGES
    assert not shown["orders"]["ok"]
    assert shown["orders"]["faults"][0]["file"] == str(file)
    assert err.endswith(": 1 damaged\n")


def test_a_stray_file_is_noted_and_no_fault(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    (data.shard_path(0) / "core").write_bytes(b"")
    assert main.run(["check", str(data.path)]) == OK
    out = capsys.readouterr().out
    assert "core: " in out
    assert "does not belong to a stream" in out
    assert out.endswith("3 streams, 150 messages: no damage\n")


def test_an_index_is_rebuilt_without_loss(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    (index,) = data.stream_directory("orders").glob("orders*.indx")
    flip(index, 4_096 + 24 * 10)
    assert main.run(["check", str(data.path)]) == REFUSED
    assert main.run(["check", str(data.path), "--rebuild-index"]) == OK
    assert "orders: mended, 50 messages\n" in capsys.readouterr().out
    assert main.run(["check", str(data.path)]) == OK
    assert capsys.readouterr().out == "3 streams, 150 messages: no damage\n"


def test_rebuilding_the_index_does_not_cut_a_content(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    file = content(data, "orders")
    flip(file, middle(file))
    before = file.read_bytes()
    assert main.run(["check", str(data.path), "--rebuild-index"]) == REFUSED
    assert "orders: NOT MENDED: " in capsys.readouterr().out
    assert file.read_bytes() == before


def test_repair_cuts_and_keeps(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    file = content(data, "orders")
    flip(file, middle(file))
    assert main.run(["check", str(data.path), "--repair", "--json"]) == OK
    out, err = capsys.readouterr()
    (mended,) = [report for report in map(json.loads, out.splitlines()) if report["stream"] == "orders"]
    assert mended["mended"]
    assert 0 < mended["messages"] < MESSAGES
    assert mended["cut_bytes"] > 0
    assert Path(mended["kept_in"]).stat().st_size >= mended["cut_bytes"]
    assert err.endswith(": no damage, 1 mended\n")
    assert main.run(["check", str(data.path)]) == OK


def test_repair_in_words(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    file = content(data, "orders")
    flip(file, middle(file))
    assert main.run(["check", str(data.path), "--repair"]) == OK
    damaged, mended, _summary = capsys.readouterr().out.splitlines()
    assert damaged.startswith("orders: DAMAGED: ")
    assert "bytes were cut and are kept in " in mended


def test_tails_that_were_set_aside_are_listed_and_no_fault(
    data: DataDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    log = StreamLog.open(data.stream_directory("orders"), "orders", create=False, boot_id=BOOT_ID)
    log.append(bytearray(pack_frame(b"later")), 1, 2_000_000, 3)
    log.set_aside(40)
    log.close()
    assert main.run(["check", str(data.path)]) == OK
    told, summary = capsys.readouterr().out.splitlines()
    file = data.stream_directory("orders") / "orders.diverged"
    assert told.startswith("orders: tail 1: messages 40 to 50, epochs 1 to 3, 447 bytes, set aside 20")
    assert told.endswith(f"Z in {file}")
    assert summary == "3 streams, 140 messages: no damage; 1 tail set aside"
    assert main.run(["check", str(data.path), "--json"]) == OK
    shown = {report["stream"]: report for report in map(json.loads, capsys.readouterr().out.splitlines())}
    assert shown["é"]["diverged"] == []
    (tail,) = shown["orders"]["diverged"]
    assert (tail["tail"], tail["first_seq"], tail["next_seq"], tail["file"]) == (1, 40, 51, str(file))
    assert (tail["first_epoch"], tail["last_epoch"], tail["nbytes"]) == (1, 3, 447)
    flip(file, 256 + 41 + 35)
    assert main.run(["check", str(data.path)]) == REFUSED
    (damaged, *_) = capsys.readouterr().out.splitlines()
    assert damaged == f"orders: DAMAGED: {file} at byte 297: tail 1, message 41: the frame's checksum does not fit"


def test_a_stream_whose_meta_is_damaged_is_disabled_by_repair(
    data: DataDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = data.stream_directory("orders")
    write_meta(directory, StreamMeta("orders", Role.SLAVE, 3, Upstream("master", 5050)))
    flip(directory / "orders.meta", 20)
    assert main.run(["check", str(data.path), "--rebuild-index"]) == REFUSED
    assert main.run(["check", str(data.path), "--repair"]) == OK
    assert "so it is disabled here until it becomes a master or a slave again" in capsys.readouterr().out
    assert read_meta(directory, "orders").role is Role.DISABLED
    assert main.run(["check", str(data.path)]) == OK


def test_a_broker_that_runs(data: DataDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    with DirectoryLock(data.path):
        assert main.run(["check", str(data.path)]) == OK
        assert main.run(["check", str(data.path), "--repair"]) == IN_USE
    told = capsys.readouterr().err
    assert (
        told == f"tailrace: {data.path / 'LOCK'} is locked by process {os.getpid()}; stop the broker before mending\n"
    )


def test_what_is_no_data_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["check", str(tmp_path)]) == NO_DIRECTORY
    assert main.run(["check", str(tmp_path / "missing")]) == NO_DIRECTORY
    for line in capsys.readouterr().err.splitlines():
        assert line.startswith(f"tailrace: {tmp_path}")


def test_a_disk_that_gives_up(
    data: DataDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_directory: DataDirectory) -> list[object]:
        raise OSError(5, "Input/output error", "orders.content")

    monkeypatch.setattr(check, "check_data", broken)
    assert main.run(["check", str(data.path)]) == NO_DIRECTORY
    assert capsys.readouterr().err == "tailrace: orders.content: Input/output error\n"


def test_a_bar_on_a_terminal(data: DataDirectory) -> None:
    main_fd, terminal_fd = pty.openpty()
    process = start("check", str(data.path), stderr=terminal_fd)
    os.close(terminal_fd)
    out, _ = process.communicate(timeout=120)
    shown = os.read(main_fd, 1 << 16)
    os.close(main_fd)
    assert out == b"3 streams, 150 messages: no damage\n"
    assert b"checking" in shown
    assert b"3/3" in shown


@pytest.mark.parametrize("more", ["", "--json"])
def test_an_output_that_is_full_is_not_the_fault_of_the_data(data: DataDirectory, more: str) -> None:
    text = "tailrace: cannot write the output: No space left on device\n"
    assert shell(f"{COMMAND} check {data.path} {more} >/dev/full") == (REFUSED, text)
