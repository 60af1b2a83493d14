from __future__ import annotations

from pathlib import Path

from bench.peers.base import Site
from bench.peers.plain import ANSWER_BYTES, BareSendfile, Plain
from bench.peers.tailrace import Tailrace


def test_plain_publishes_are_as_long_as_ours() -> None:
    plain = Plain(100)
    assert len(plain.publish("b.000000", bytes(100))) == len(Tailrace().publish("b.000000", bytes(100)))
    assert plain.answers_bytes([], 3) == 3 * ANSWER_BYTES


def test_the_file_of_bare_sendfile_has_its_size(tmp_path: Path) -> None:
    BareSendfile(2_500_000).command(Site(tmp_path, 1, 2))
    assert (tmp_path / "file").stat().st_size == 2_500_000
