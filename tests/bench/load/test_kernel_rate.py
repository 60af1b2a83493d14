"""The kernel's rate is measured on each kind of data."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `rollup` (pip install -e '.[bench,rollup]')")

from bench.load.kernel_rate import main


def test_a_rate_for_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--messages", "20000", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "one stream, evenly",
        "one stream, realistic",
        "streams of 10,000, realistic",
    ]
