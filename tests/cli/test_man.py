"""`tailrace man`: the pages have the texts of --help."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tailrace.cli import main
from tailrace.cli.ending import OK, REFUSED, USAGE
from tailrace.cli.man import page_of


def test_all_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["man", "--install", str(tmp_path / "man1")]) == OK
    names = {file.name for file in (tmp_path / "man1").iterdir()}
    assert {"tailrace.1", *(f"tailrace-{name}.1" for name in main.COMMANDS)} < names
    assert {"tailrace-consumers-create.1", "tailrace-user-add.1"} < names
    assert len(capsys.readouterr().out.splitlines()) == len(names)
    for file in (tmp_path / "man1").iterdir():
        assert ".SH EXAMPLES" in file.read_text()


def test_what_stands_in_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["man", "consumers"]) == OK
    page = capsys.readouterr().out
    assert "tailrace\\-consumers \\- List, make, move and end the durable consumers of a stream\n" in page
    assert ".B reset\nMove the durable consumer GROUP of STREAM to \\-\\-from, earlier or later.\n" in page
    assert ".SH EXAMPLES\n.nf\n  tailrace consumers orders\n" in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_roff_has_nothing_to_complain_about() -> None:
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=page_of(["pub"]).encode(), capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "the\u00a0lines" not in done.stdout.decode()


def test_a_command_of_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["man", "consumers", "create"]) == OK
    page = capsys.readouterr().out
    assert '.TH "TAILRACE-CONSUMERS-CREATE"' in page and "\\-\\-retry\\-max" in page
    assert main.run(["man", "consumers", "tail"]) == USAGE
    assert main.run(["man", "tail", "x"]) == USAGE
    assert "there is no command 'tail x'" in capsys.readouterr().err
    assert main.run(["man", "consumers", "creat"]) == main.run(["man", "tial"]) == USAGE
    err = capsys.readouterr().err
    assert "no command 'consumers creat'; did you mean create, reset?" in err and "'tial'; did you mean tail?" in err


def test_what_cannot_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["man", "nothing"]) == USAGE
    assert main.run(["man", "tail", "--install", str(tmp_path)]) == USAGE
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert main.run(["man", "--install", str(tmp_path / "file" / "below")]) == REFUSED
    assert "there is no command 'nothing'" in capsys.readouterr().err
