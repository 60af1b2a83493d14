from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from bench.load import spark_server
from bench.load.spark_server import FILES, KINDS, PARQUET, POLARS, Answers, Context, prepare, serve


def make_context() -> Context:
    return Context(None, Path("data"), Path("."), 1, 10)


def failing(_context: Context) -> object:
    raise OSError("the disk\nis gone")


def test_questions_are_answered_with_the_seconds_they_took() -> None:
    asked: list[Context] = []
    answers = Answers({"scan": asked.append, "bad": failing}, make_context)
    assert answers.answer("ready") == "!"
    assert answers.answer("scan").startswith("failed ValueError: 'scan' cannot be asked; first prepare, then scan")
    assert answers.answer("prepare").startswith("done ")
    word, seconds = answers.answer("scan").split()
    assert word == "done"
    assert 0 <= float(seconds) < 10
    assert [context.messages for context in asked] == [10]
    assert answers.answer("bad") == "failed OSError: the disk is gone"
    assert answers.answer("other").startswith("failed ValueError")


def test_both_kinds_answer_the_same_questions() -> None:
    assert set(FILES) <= set(PARQUET)
    assert KINDS == {"files": FILES, "parquet": PARQUET, "polars": POLARS}
    assert "rollup" in POLARS


def test_polars_is_measured_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_server, "_session", lambda: "a session")
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        monkeypatch.chdir(tmp_path / kind)
        assert prepare(kind, 2, 10, 5).session == (None if kind == "polars" else "a session")
        assert (tmp_path / kind / "data" / "node.json").exists()


def test_over_a_connection() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_until_closed, args=(listener,), daemon=True)
    thread.start()
    for _ in range(2):
        with socket.create_connection(listener.getsockname(), 5) as sock, sock.makefile("rw") as stream:
            stream.write("ready\nready\n")
            stream.flush()
            assert [stream.readline(), stream.readline()] == ["!\n", "!\n"]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(60)
    assert not thread.is_alive()


def _until_closed(listener: socket.socket) -> None:
    with pytest.raises(OSError):
        serve(listener, Answers({}, make_context))
