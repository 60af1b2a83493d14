"""`tailrace dump` over real streams, their tails that were set aside and cut off."""

from __future__ import annotations

import base64
import json
import os
import pty
from pathlib import Path

import msgpack
import pytest

from tailrace.cli import main
from tailrace.cli.ending import NO_DIRECTORY, OK, REFUSED, USAGE
from tailrace.shard.directory import DataDirectory, make_data_dir
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.lock import DirectoryLock
from tailrace.shard.log import StreamLog
from tailrace.shard.mend import repair
from tailrace.shard.names import file_stem
from tests.cli.process import start, tailrace

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
PAYLOADS = [b"message %d" % i for i in range(10)]  # at 1, 2, ... seconds
FRAME = 41
Captured = pytest.CaptureFixture[bytes]


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    directory = make_data_dir(tmp_path / "data", 4)
    log = open_log(directory)
    for i, payload in enumerate(PAYLOADS):
        log.append(bytearray(pack_frame(payload)), 1, 1_000_000 * (i + 1), 1 + i // 5)
    log.close()
    return directory


def open_log(directory: DataDirectory, name: str = "orders", boot_id: str = BOOT_ID) -> StreamLog:
    return StreamLog.open(directory.stream_directory(name), name, create=True, boot_id=boot_id)


def beside(directory: DataDirectory, suffix: str, name: str = "orders") -> Path:
    return directory.stream_directory(name) / (file_stem(name) + suffix)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def dumped(capfdbinary: Captured, *arguments: object, code: int = OK) -> tuple[bytes, str]:
    """Returns standard output and error."""
    assert main.run(["dump", *map(str, arguments)]) == code
    out, err = capfdbinary.readouterr()
    return out, err.decode()


def test_each_payload_is_a_line(data: DataDirectory, capfdbinary: Captured) -> None:
    assert dumped(capfdbinary, data.path, "orders") == (b"\n".join([*PAYLOADS, b""]), "")


@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        (("--from", "#3"), 3, 10),
        (("--to", "#3"), 0, 3),
        (("--from", "#3", "--to", "#7"), 3, 7),
        (("--from", "4000000", "--to", "7000000"), 3, 6),
        (("--from", "1970-01-01T00:00:04+00:00", "--to", "#5"), 3, 5),
        (("--from", "0"), 0, 10),
        (("--to", "1h ago"), 0, 10),
        (("--from", "1h ago"), 10, 10),
    ],
)
def test_a_range(data: DataDirectory, capfdbinary: Captured, options: tuple[str, ...], first: int, end: int) -> None:
    expected = b"".join(payload + b"\n" for payload in PAYLOADS[first:end])
    assert dumped(capfdbinary, data.path, "orders", *options) == (expected, "")


def test_json_tells_all_there_is(tmp_path: Path, capfdbinary: Captured) -> None:
    directory = make_data_dir(tmp_path / "data", 4)
    log = open_log(directory, "größe")
    headers = msgpack.packb({"h": {"text": "é", "bytes": b"\xff"}, "k": 7})
    odd = msgpack.packb({"h": {"when": msgpack.Timestamp(5)}})
    frames = pack_frame("naïve\n".encode()) + pack_frame(b"\xff\xfe", metadata=headers)
    frames += pack_frame(b"", metadata=b"\x81\xc1", flags=3) + pack_frame(b"x", metadata=odd)
    log.append(bytearray(frames), 4, 1_700_000_000_000_001, 9)
    log.close()
    out, err = dumped(capfdbinary, directory.path, "größe", "--format", "json")
    assert err == ""
    first, second, third, fourth = map(json.loads, out.decode().splitlines())
    time = {"timestamp_us": 1_700_000_000_000_001, "time": "2023-11-14T22:13:20.000001Z"}
    common = {"stream": "größe", **time, "epoch": 9}
    assert first == {**common, "seq": 0, "payload": "naïve\n"}
    assert second == {
        **common,
        "seq": 1,
        "headers": {"text": "é", "bytes": base64.b64encode(b"\xff").decode()},
        "metadata_base64": base64.b64encode(headers).decode(),
        "payload_base64": base64.b64encode(b"\xff\xfe").decode(),
    }
    assert third == {**common, "seq": 2, "flags": 3, "metadata_base64": "gcE=", "payload": ""}
    assert "seconds=5" in fourth["headers"]["when"]


def test_frames_are_the_very_bytes(data: DataDirectory, capfdbinary: Captured) -> None:
    out, _ = dumped(capfdbinary, data.path, "orders", "--format", "frames", "--from", "#2")
    assert out == beside(data, ".content").read_bytes()[4_096 + 2 * FRAME :]
    assert [row[5] for row in load("tailrace.shard.frame_cy").parse(out, 0, len(out), True)] == PAYLOADS[2:]


def test_payloads_with_line_feeds_are_told_of(data: DataDirectory, capfdbinary: Captured) -> None:
    log = open_log(data)
    log.append(bytearray(pack_frame(b"two\nlines")), 1, 1, 2)
    log.close()
    out, err = dumped(capfdbinary, data.path, "orders", "--from", "#9")
    assert out == b"message 9\ntwo\nlines\n"
    assert err == "tailrace: 1 payloads have line feeds in them; --format json keeps messages apart\n"


def test_what_was_set_aside(data: DataDirectory, capfdbinary: Captured) -> None:
    log = open_log(data)
    log.set_aside(8)
    log.set_aside(4)
    log.close()
    assert dumped(capfdbinary, data.path, "orders")[0] == b"\n".join([*PAYLOADS[:4], b""])
    whole = b"\n".join([*PAYLOADS[8:], *PAYLOADS[4:8], b""])
    assert dumped(capfdbinary, data.path, "orders", "--diverged") == (whole, "")
    assert dumped(capfdbinary, beside(data, ".diverged")) == (whole, "")
    second = b"\n".join([*PAYLOADS[5:8], b""])
    assert dumped(capfdbinary, data.path, "orders", "--diverged", "--part", "2", "--from", "#5") == (second, "")
    out, _ = dumped(capfdbinary, beside(data, ".diverged"), "--part", "1", "--format", "json")
    assert [(row["stream"], row["seq"], row["epoch"]) for row in map(json.loads, out.splitlines())] == [
        ("orders", 8, 2),
        ("orders", 9, 2),
    ]
    _, err = dumped(capfdbinary, data.path, "orders", "--diverged", "--part", "3", code=REFUSED)
    assert err == "tailrace: part 3 has no messages; parts with messages: 1, 2\n"


def test_damage_ends_it_unless_it_is_to_be_skipped(data: DataDirectory, capfdbinary: Captured) -> None:
    file = beside(data, ".content")
    overwrite(file, 4_096 + 3 * FRAME + 35, b"?")
    out, err = dumped(capfdbinary, data.path, "orders", code=REFUSED)
    assert out == b"\n".join([*PAYLOADS[:3], b""])
    damage = (
        f"stream 'orders': message 3: the frame's checksum does not fit ({file} at byte {4_096 + 3 * FRAME}, 41 bytes)"
    )
    assert err == f"tailrace: {damage}; --skip-damaged continues after it\n"
    out, err = dumped(capfdbinary, data.path, "orders", "--skip-damaged", code=REFUSED)
    assert out == b"\n".join([*PAYLOADS[:3], *PAYLOADS[4:], b""])
    assert err == f"tailrace: {damage}\n"
    assert dumped(capfdbinary, data.path, "orders", "--from", "#4")[0] == b"\n".join([*PAYLOADS[4:], b""])


def test_what_repair_cut_off(data: DataDirectory, capfdbinary: Captured) -> None:
    overwrite(beside(data, ".content"), 4_096 + 3 * FRAME + 35, b"?")
    repair(data.stream_directory("orders"), "orders")
    out, err = dumped(capfdbinary, data.path, "orders", "--torn", "--skip-damaged", code=REFUSED)
    assert out == b"\n".join([*PAYLOADS[4:], b""])
    assert err.startswith("tailrace: cut 1 of 'orders': message 3: the frame's checksum does not fit (")


def test_a_long_name(tmp_path: Path, capfdbinary: Captured) -> None:
    directory, name = make_data_dir(tmp_path / "data", 4), "ü" * 100
    log = open_log(directory, name)
    log.append(bytearray(pack_frame(b"one") + pack_frame(b"two")), 2, 1, 1)
    log.set_aside(1)
    log.close()
    assert dumped(capfdbinary, directory.path, name)[0] == b"one\n"
    assert dumped(capfdbinary, directory.path, name, "--diverged")[0] == b"two\n"
    assert dumped(capfdbinary, beside(directory, ".diverged", name))[0] == b"two\n"


def test_beside_a_broker_and_before_one_was_there_after_a_crash(data: DataDirectory, capfdbinary: Captured) -> None:
    with DirectoryLock(data.path):
        assert dumped(capfdbinary, data.path, "orders")[1] == ""
    log = open_log(data, "crashed", "another boot")
    log.append(bytearray(pack_frame(b"one")), 1, 1, 1)
    log.sync()
    log.append(bytearray(pack_frame(b"two")), 1, 1, 1)
    log.abandon()
    out, err = dumped(capfdbinary, data.path, "crashed")
    assert out == b"one\n"
    assert err.startswith("tailrace: the machine was down since a broker ran: only messages that were synced")


def test_what_is_not_there(data: DataDirectory, tmp_path: Path, capfdbinary: Captured) -> None:
    for arguments, code, told in (
        ((data.path, "nobody"), REFUSED, "no stream 'nobody' in "),
        ((data.path, "orders", "--diverged"), REFUSED, "orders.diverged: No such file or directory"),
        ((data.path, "orders", "--torn"), REFUSED, "orders.torn: No such file or directory"),
        ((tmp_path, "orders"), NO_DIRECTORY, "is not a tailrace data directory"),
        ((tmp_path / "x.diverged",), REFUSED, "x.diverged: No such file or directory"),
        ((data.path,), USAGE, "STREAM is missing"),
        (
            (beside(data, ".content"),),
            USAGE,
            "orders.content is not a .diverged or .torn file; for a stream, give DATA STREAM",
        ),
        ((data.path, "a b"), USAGE, "the stream name 'a b' has ' ' in it"),
        ((data.path, "orders", "--diverged", "--torn"), USAGE, "one at a time"),
        ((data.path, "orders", "--from", "new"), USAGE, "'new' is neither #SEQ nor a time"),
        ((data.path, "orders", "--to", "soon"), USAGE, "is not a position"),
    ):
        out, err = dumped(capfdbinary, *arguments, code=code)
        assert out == b""
        assert told in err
        assert err.count("\n") == 1


def test_files_that_are_damaged_beyond_reading(data: DataDirectory, capfdbinary: Captured) -> None:
    log = open_log(data)
    log.set_aside(8)
    log.close()
    overwrite(beside(data, ".diverged"), 3, b"?")
    overwrite(beside(data, ".indx"), 3, b"?")
    for arguments in (("--diverged",), ()):
        _, err = dumped(capfdbinary, data.path, "orders", *arguments, code=REFUSED)
        assert "is damaged: " in err
        assert err.endswith("; `tailrace check` shows details\n")


def test_a_bar_on_a_terminal_and_frames_not(data: DataDirectory) -> None:
    main_fd, terminal_fd = pty.openpty()
    process = start("dump", str(data.path), "orders", stderr=terminal_fd)
    os.close(terminal_fd)
    out, _ = process.communicate(timeout=120)
    shown = os.read(main_fd, 1 << 16)
    os.close(main_fd)
    assert out == b"\n".join([*PAYLOADS, b""])
    assert b"stream 'orders'" in shown
    main_fd, terminal_fd = pty.openpty()
    process = start("dump", str(data.path), "orders", "--format", "frames", stdout=terminal_fd)
    os.close(terminal_fd)
    _, err = process.communicate(timeout=120)
    os.close(main_fd)
    assert process.returncode == USAGE
    assert b"frames are binary" in err


def test_a_reader_that_goes_away(data: DataDirectory) -> None:
    log = open_log(data)
    log.append(bytearray(pack_frame(b"x" * 1_000_000)), 1, 1, 2)
    log.close()
    with start("dump", str(data.path), "orders") as process:
        assert process.stdout is not None
        assert process.stdout.read(10) == PAYLOADS[0] + b"\n"
        process.stdout.close()
        assert process.wait(120) == OK


def test_many_messages_through_a_pipe(data: DataDirectory) -> None:
    log = open_log(data, "many")
    for _ in range(5):
        log.append(bytearray(pack_frame(b"y" * 100) * 10_000), 10_000, 1, 1)
    log.close()
    done = tailrace("dump", str(data.path), "many")
    assert (done.returncode, done.stdout, done.stderr) == (OK, (b"y" * 100 + b"\n") * 50_000, b"")
