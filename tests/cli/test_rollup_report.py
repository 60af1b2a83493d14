"""What a day of `tailrace rollup` prints."""

from __future__ import annotations

import json
from datetime import date

import pytest

from tailrace.cli.rollup_report import NOTES_SHOWN, find_cause, outcome_fields, print_day, print_outcome

pytest.importorskip("pyarrow", reason="needs the extra `rollup` (pip install -e '.[rollup]')")
Captured = pytest.CaptureFixture[str]

SPARKS = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in\
 stage 1.0 (TID 3) (10.0.0.7 executor 2): org.apache.spark.api.python.PythonException: Traceback \
(most recent call last):
  File "/x/worker.py", line 1, in main
    process()
  File "/x/reading.py", line 2, in read
tailrace.shard.errors.DirectoryError: /data: is not a tailrace data directory: it has no node.json
worker: ten

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
Driver stacktrace:
"""


def test_the_cause_of_a_failure_of_spark() -> None:
    cause = "tailrace.shard.errors.DirectoryError: /data: is not a tailrace data directory: it has no node.json"
    assert find_cause(SPARKS) == f"{cause} (on ten)"
    trace = SPARKS[SPARKS.index("  File") :].replace("worker: ten\n", "")
    assert find_cause("[PYTHON_DATA_SOURCE_ERROR] it failed: \nTraceback (most recent call last):\n" + trace) == cause
    assert find_cause("\n[DIVIDE_BY_ZERO] Division by zero.\n\tat x") == "[DIVIDE_BY_ZERO] Division by zero."
    assert find_cause("") == "failed without a message"


def test_what_is_told(capsys: Captured) -> None:
    from tailrace.spark.rollup.job import Note, Outcome

    outcome = Outcome(5, 2, {"minutes": 3}, ["a", "b"], [Note("c", "damaged", True)] * (NOTES_SHOWN + 1), {"c"}, True)
    print_outcome(outcome, date(2026, 11, 20), None)
    out, err = capsys.readouterr()
    assert err.count("tailrace: c: damaged\n") == NOTES_SHOWN
    assert "and 1 more of that kind" in err
    assert "whose rows are kept: a, b\n" in out
    assert "2026-11-20 no longer has messages" in out
    assert out.endswith("2026-11-20: 5 messages, 2 streams; rows: 3 minutes\n")
    shown = json.loads(json.dumps(outcome_fields(outcome, date(2026, 11, 20), None)))
    assert (shown["kept"], shown["failed"], len(shown["notes"])) == (["a", "b"], ["c"], NOTES_SHOWN + 1)


def test_a_day_that_failed(capsys: Captured) -> None:
    from tailrace.spark.rollup.nightly import NightResult

    failed = NightResult(date(2026, 11, 20), None, None, OSError(28, "No space left on device"))
    print_day(failed, "out", True)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"day": "2026-11-20", "error": "out: No space left on device"}
    assert err == "tailrace: 2026-11-20: out: No space left on device\n"
    print_day(failed, "out", False)
    assert capsys.readouterr().out == ""
