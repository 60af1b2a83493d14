from __future__ import annotations

import pytest
from click.testing import CliRunner

from bench.load.starting import FIELDS, describe, main


def test_medians_in_a_line() -> None:
    rows = [dict(zip(FIELDS, (each, 0.1, 0.25), strict=True)) for each in (0.3, 0.5, 0.2)]
    assert (
        describe(rows) == "ready after 0.300 s (0.200 to 0.500), closed after 0.100 s, 0.250 s of a processor for both"
    )


@pytest.mark.thorough
def test_a_broker_is_started_and_stopped() -> None:
    done = CliRunner().invoke(main, ["--rounds", "1"])
    assert done.exit_code == 0, done.output
    assert done.output.count(" s of a processor for both") == 1
