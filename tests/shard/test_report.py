from __future__ import annotations

from pathlib import Path

from tailrace.shard.report import FileFault, MendReport, StreamReport


def test_a_report_with_faults_is_not_ok() -> None:
    fault = FileFault(Path("/data/shard-00/25.content"), 4_100, "the frame's checksum does not fit")
    report = StreamReport(0, "25", faults=(fault,))
    assert StreamReport(0, "25", notes=("a note",)).ok
    assert not report.ok
    assert str(fault) == "/data/shard-00/25.content at byte 4100: the frame's checksum does not fit"
    assert MendReport(0, "25", report).error == ""
