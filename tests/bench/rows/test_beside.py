from __future__ import annotations

from pathlib import Path

import pytest

from bench.contest import measure
from bench.load.limits import LoadError
from bench.peers.plain import Plain
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.base import Measurement
from bench.rows.beside import BesideRollupRow
from tailrace.shard.leaves import build, interpreted_wanted
from tests.bench.rows.conftest import TINY, MeasureRow


def test_only_who_has_files_takes_part(measure_row: MeasureRow) -> None:
    with pytest.raises(LoadError, match="no files"):
        measure_row(BesideRollupRow(), Plain(100))


@pytest.mark.slow
@pytest.mark.system
def test_both_are_measured_by_turns(tmp_path: Path) -> None:
    """How much slower it is may be anything here: even less than nothing."""
    peer = TailraceBinary(acked=True, interpreted=interpreted_wanted())
    measured: Measurement = measure(BesideRollupRow(), peer, TINY, tmp_path, build())
    assert measured.value < 100 and measured.extras["alone_per_s"] > 0 and measured.extras["beside_per_s"] > 0
