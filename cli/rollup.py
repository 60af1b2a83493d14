"""`tailrace rollup`: a day's messages into tables and a report, by processes of this machine or by Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tailrace.cli.credentials import credentials, login_options
from tailrace.cli.ending import IN_USE, NO_CONNECTION, NO_DIRECTORY, OK, REFUSED, USAGE, CommandError, complain, require
from tailrace.cli.java_noise import start_quietly
from tailrace.cli.logs import LEVELS, set_up_logging
from tailrace.cli.options import json_option
from tailrace.cli.progress import ProgressBar
from tailrace.cli.rollup_report import print_day, print_period, show_error
from tailrace.cli.values import FILLED, FilePath
from tailrace.errors import TailraceError
from tailrace.shard.directory import find_data_dir
from tailrace.shard.errors import DirectoryError
from tailrace.shard.retention import RetentionPolicy

if TYPE_CHECKING:
    from tailrace.spark.rollup.engine import ChooseEngine, Engine
    from tailrace.spark.rollup.job import Job
    from tailrace.spark.rollup.nightly import Night, NightResult
    from tailrace.spark.rollup.periods import Period
    from tailrace.spark.rollup.store import Store

NEEDED = ("numpy", "pyarrow", "jinja2")
NODES_FILE_BYTES_MAX = 1_000_000
NamedSource = tuple[str, dict[str, str]]
"""The name of a node, and the options of the data source."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_WITHOUT_SLASHES = re.compile(r"((?:s3a?|gs|gcs|hdfs|viewfs|file):)(?!/)", re.IGNORECASE)
"""Of the kinds of `file_systems.SCHEMES`."""
_NODE = re.compile(r"(?:([A-Za-z0-9_.-]+)=)?(.+)", re.DOTALL)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_MEMORY = re.compile(r"[1-9][0-9]{0,9}[kmgtKMGT]", re.ASCII)
FOR_MERGE = frozenset({"data", "out", "merge", "day", "first", "last", "catch_up", "log_level", "as_json"})
FOR_BROKERS = frozenset({"token", "user", "password_file", "token_file"})
"""Parameters that --merge takes, and those that only --brokers takes."""

EPILOG = """\b
Examples:
  tailrace rollup ./data ./rollups
  tailrace rollup ./data ./rollups --day 2026-11-20
  tailrace rollup ./data ./rollups --from 2026-11-01 --to 2026-11-20
  tailrace rollup ./data ./rollups --catch-up
  tailrace rollup ./rollups --merge week --day 2026-11-20
  tailrace rollup ./data ./rollups --config /etc/tailrace/tailrace.toml
  tailrace rollup north=/mnt/north south=/mnt/south ./rollups
  tailrace rollup --nodes fleet.txt ./rollups --catch-up
  tailrace rollup ./data s3://bucket/rollups
  tailrace rollup s3://bucket/data ./rollups
  tailrace rollup ./data ./rollups --engine spark
  tailrace rollup ./data /shared/rollups --master spark://host:7077 --py-files tailrace.zip

Reads what a broker has written, also while it goes on writing. OUT gets tables of minutes, hours and days as Parquet,
and a report of the day as one HTML page; both engines write the same tables. Running it twice for a day is the same as
once; killed at any point, it leaves the day as it was before or as it should be. Of streams that were trimmed since an
earlier run, what that run wrote of them is kept, and so are rows of other nodes.

With --json each day is an object in a line: day, messages, streams, rows of each table, report, the names that the
lines of text have (kept, others, copies), cleared, failed and notes; a day that failed has error. --merge prints
period, first, rows and path.

Exit codes: 0 done, 1 streams could not be read whole (the tables have the others) or a day failed, 2 wrong
arguments, 3 another rollup writes to OUT, 4 no connection to the brokers, 5 DATA is unusable.
"""


@click.command("rollup", epilog=EPILOG)
@click.argument("data", type=FILLED, metavar="[NODE=]DATA…", nargs=-1)
@click.argument("out", type=FILLED, metavar="OUT", callback=lambda _context, _option, text: parse_out(text))
@click.option(
    "--nodes",
    type=FilePath(dir_okay=False),
    help="A file with more nodes, a NODE=DATA on each line; # begins a comment.",
)
@click.option("--day", metavar="YYYY-MM-DD", help="The day, UTC [default: yesterday].")
@click.option("--from", "first", metavar="DAY", help="The first of several days; quick ones share a commit.")
@click.option("--to", "last", metavar="DAY", help="The last of them, which is included [default: yesterday].")
@click.option("--catch-up", is_flag=True, help="Also earlier days that were missed since the first one in OUT.")
@click.option(
    "--merge",
    type=click.Choice(("week", "month")),
    help="Only make the table of weeks or months out of the days in OUT, of the week or month of the day.",
)
@click.option(
    "--stream", "streams", type=FILLED, multiple=True, metavar="PATTERN", help="Only these streams; may be repeated."
)
@click.option(
    "--topics",
    type=click.IntRange(0, 100_000),
    default=0,
    show_default=True,
    metavar="N",
    help="Also a table of topics: at most N of each stream and hour; reads the messages too.",
)
@click.option("--replace", is_flag=True, help="Remove rows of other nodes, and of streams that are gone or made anew.")
@click.option("--verify", is_flag=True, help="Read the messages too, and count those whose checksum is wrong.")
@click.option(
    "--config",
    type=FilePath(dir_okay=False),
    help="The broker's configuration file; the report then shows what retention removes next.",
)
@click.option(
    "--metrics",
    type=FilePath(dir_okay=False),
    callback=lambda _context, _option, file: refuse_data_dir("--metrics", file),
    help="Write metrics of the run here, for Prometheus.",
)
@click.option(
    "--format",
    "tables",
    type=click.Choice(("parquet", "delta")),
    default="parquet",
    show_default=True,
    help="delta: write the tables as Delta Lake tables, too, in OUT/delta.",
)
@click.option("--no-report", is_flag=True, help="Write the tables only, no report.")
@click.option("--brokers", is_flag=True, help="DATA is not a directory but HOST:PORT,… of brokers.")
@click.option("--token", type=FILLED, help="The token that the brokers require, or with --user that of the user.")
@login_options
@click.option(
    "--engine",
    type=click.Choice(("local", "spark")),
    help="Processes of this machine, or Spark [default: local; spark with --master or --conf, or for a large day].",
)
@click.option("--cores", default="*", show_default=True, help="Processors to use; * for all.")
@click.option("--memory", default="1g", show_default=True, help="Memory of Spark's Java process.")
@click.option("--master", type=FILLED, metavar="URL", help="A Spark cluster [default: this machine].")
@click.option("--py-files", default="", metavar="ZIP,…", help="Python files that the cluster's nodes need.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
@click.option("--background", is_flag=True, help="Run at the lowest (idle) processor priority.")
@click.option("--log-level", type=click.Choice(LEVELS), default="warning", show_default=True)
@json_option
def command(
    data: tuple[str, ...],
    out: str,
    nodes: Path | None,
    day: str | None,
    first: str | None,
    last: str | None,
    catch_up: bool,
    merge: Period | None,
    streams: tuple[str, ...],
    topics: int,
    replace: bool,
    verify: bool,
    config: Path | None,
    metrics: Path | None,
    tables: str,
    no_report: bool,
    brokers: bool,
    token: str | None,
    engine: str | None,
    cores: str,
    memory: str,
    master: str | None,
    py_files: str,
    conf: tuple[str, ...],
    background: bool,
    log_level: str,
    as_json: bool,
) -> int:
    """Roll a day of the streams in DATA up into OUT; of several nodes each with a name before it."""
    check_options(merge, engine, memory, brokers=brokers)
    require(NEEDED, "rollup")
    check_format(tables, out)
    set_up_logging(log_level)
    if merge is not None:
        return merge_periods(out, merge, data, parse_days(day, first, last, catch_up), as_json)
    listed = data if nodes is None else (*data, *read_nodes_file(nodes))
    if not listed:
        raise click.UsageError("DATA is missing: a data directory, or --nodes FILE")
    if replace and len(listed) > 1:
        raise click.UsageError("--replace removes rows of other nodes, so it goes with one node")
    if verify and brokers:
        raise click.UsageError("--verify reads the files of a data directory; brokers verify what they send")
    days = parse_days(day, first, last, catch_up)
    login = broker_login(token) if brokers else {}
    sources = [(name, parse_source(text, brokers, login)) for name, text in parse_nodes(listed)]
    zips, settings = [path for path in py_files.split(",") if path], parse_settings(conf)
    if engine == "local" and (master or zips or settings):
        raise click.UsageError("--master, --py-files and --conf are for --engine spark")
    processors = parse_cores(cores)
    policies = load_policies(config)

    @cache
    def start() -> Any:
        from tailrace.spark.rollup.sessions import LOCAL, make_context

        return make_context(master or LOCAL, cores, memory, zips, settings, background=background)

    def choose(messages: int) -> Engine:
        wanted = engine or choose_engine(messages, is_for_spark=bool(master or zips or settings))
        shared = out if master and is_url(out) else ""
        is_quiet = log_level not in ("debug", "info")
        return make_engine(wanted, processors, start, background, is_quiet, shared, urls if master else {})

    urls: dict[str, str] = {}
    with as_command_errors(out), fetched(sources, streams, urls) as local, open_out(out) as store:
        jobs = make_jobs(local, store.path, days[-1], streams, verify, replace, topics)
        nights = make_nights(store, jobs, days, catch_up, policies, not no_report, tables == "delta")
        done = run(store, nights, choose, metrics, lambda night: print_day(night, out, as_json))
    return REFUSED if any(each.outcome is None or each.outcome.failures for each in done) else OK


def check_format(tables: str, out: str) -> None:
    """Raises CommandError, click.UsageError."""
    if tables == "delta":
        require(("deltalake",), "delta")
        if "://" in out:
            raise click.UsageError("--format delta writes into a folder; give OUT as a path")


def check_options(merge: Period | None, engine: str | None, memory: str, *, brokers: bool) -> None:
    """Raises click.UsageError if an option was given that would do nothing."""
    ctx = click.get_current_context()
    given = {
        each.name: each.opts[0]
        for each in ctx.command.params
        if each.name and ctx.get_parameter_source(each.name) is ParameterSource.COMMANDLINE
    }
    idle = {name: option for name, option in given.items() if name not in FOR_MERGE} if merge is not None else {}
    if idle:
        raise click.UsageError(f"--merge only reads the tables in OUT; it takes no {', '.join(idle.values())}")
    idle = {} if brokers else {name: option for name, option in given.items() if name in FOR_BROKERS}
    if idle:
        raise click.UsageError(f"{', '.join(idle.values())}: only with --brokers; files need no login")
    if engine == "local" and "memory" in given:
        raise click.UsageError("--memory is for --engine spark")
    if _MEMORY.fullmatch(memory) is None:
        raise click.UsageError(f"--memory {memory!r} is not a size of Java, such as 512m or 2g")


def merge_periods(out: str, period: Period, data: tuple[str, ...], days: list[date], as_json: bool) -> int:
    """Writes the weeks or months of these days. Raises click.UsageError, CommandError."""
    from tailrace.spark.rollup.periods import find_period, write_period

    if data:
        raise click.UsageError(
            f"--merge makes {period}s out of the days in OUT, without DATA: rollup OUT --merge {period}"
        )
    if is_url(out):
        raise click.UsageError(f"--merge needs OUT on this machine, not {out!r}")
    with as_command_errors(out):
        for first in sorted({find_period(day, period)[0] for day in days}):
            path, rows = write_period(Path(out).resolve(), first, period)
            print_period(period, first, path, rows, as_json)
    return OK


@contextmanager
def fetched(sources: list[NamedSource], streams: tuple[str, ...], urls: dict[str, str]) -> Iterator[list[NamedSource]]:
    """The sources, with a temporary copy on this machine of each directory that is at a URL. `urls` gets these, by the
    paths of the copies.

    A node of several that cannot be copied keeps its URL, and so is missing from the run. Raises click.UsageError,
    OSError.
    """
    if not any(is_url(source.get("path", "")) for _, source in sources):
        yield sources
        return
    with TemporaryDirectory(prefix="tailrace-data-") as folder:
        is_alone = len(sources) == 1
        targets = (Path(folder) / str(number) for number in range(len(sources)))
        local = [
            (name, fetch(name, source, target, streams, is_alone))
            for (name, source), target in zip(sources, targets, strict=True)
        ]
        for (_, source), (_, copy) in zip(sources, local, strict=True):
            if copy is not source:
                urls[copy["path"]] = source["path"]
        yield local


def fetch(name: str, source: dict[str, str], target: Path, streams: tuple[str, ...], is_alone: bool) -> dict[str, str]:
    """The source with a copy of its directory. Raises click.UsageError and, of the only node, OSError."""
    from tailrace.spark.file_systems import InvalidUrl
    from tailrace.spark.rollup.fetched import fetch_directory

    url = source.get("path", "")
    if not is_url(url):
        return source
    phase = f"copying {url.partition('?')[0]}"
    try:
        with Phases() as phases:
            fetch_directory(url, target, streams, lambda done, total: phases.show(phase, done, total))
    except InvalidUrl as error:
        raise click.UsageError(f"DATA is {error}") from None
    except OSError as error:
        if is_alone:
            raise
        complain(f"tailrace: node {name}: {show_error(error, url)}")
        return source
    return {**source, "path": str(target)}


@contextmanager
def open_out(out: str) -> Iterator[Store]:
    """The store in a folder, or at a URL. Raises click.UsageError, OSError."""
    from tailrace.spark.file_systems import InvalidUrl
    from tailrace.spark.rollup.remote import open_remote
    from tailrace.spark.rollup.store import Store

    if not is_url(out):
        yield Store(Path(out).resolve())
        return
    try:
        with open_remote(out) as store:
            yield store
    except InvalidUrl as error:
        raise click.UsageError(f"OUT is {error}") from None


def make_jobs(
    sources: list[NamedSource],
    out: Path,
    day: date,
    streams: tuple[str, ...],
    verify: bool,
    replace: bool,
    topics: int,
) -> list[Job]:
    """A job for each node."""
    from tailrace.spark.rollup.job import Job

    return [Job(source, out, day, streams, verify, replace, name, topics) for name, source in sources]


def make_nights(
    store: Store,
    jobs: list[Job],
    days: list[date],
    catch_up: bool,
    policy_of: Callable[[str], RetentionPolicy] | None,
    with_report: bool,
    with_delta: bool = False,
) -> list[Night]:
    """One night per day. Only the last has the forecast of retention. Raises click.UsageError for two sources of one
    node, what `read_node_ids` does, OSError."""
    from tailrace.spark.rollup.days import SameNode, plan_catch_up, read_node_ids
    from tailrace.spark.rollup.nightly import Night

    try:
        ids = read_node_ids(jobs) if catch_up or len(jobs) > 1 else []
    except SameNode as error:
        raise click.UsageError(str(error)) from None
    if catch_up:
        store.prepare_catch_up()
        planned = plan_catch_up(jobs, ids, days[-1])
    else:
        planned = [tuple(job._replace(day=day) for job in jobs) for day in days]
    nights = [Night(each[0], None, with_report, each[1:], len(jobs) > 1, with_delta) for each in planned]
    return [*nights[:-1], nights[-1]._replace(policy_of=policy_of)]


def choose_engine(messages: int, *, is_for_spark: bool) -> str:
    """The default engine. `is_for_spark`: an option of Spark was given."""
    from tailrace.spark.rollup.engine import LOCAL_MESSAGES_MAX

    return "spark" if is_for_spark or messages > LOCAL_MESSAGES_MAX else "local"


def make_engine(
    name: str,
    processors: int,
    make_context: Callable[[], Any],
    background: bool,
    is_quiet: bool,
    shared: str,
    urls: Mapping[str, str],
) -> Engine:
    """Raises CommandError if Spark is not installed."""
    if name == "local":
        from tailrace.spark.rollup.local import LocalEngine

        return LocalEngine(processors, background=background)
    require(("pyspark",), "spark")
    from tailrace.spark.rollup.spark_engine import SparkEngine

    return SparkEngine((lambda: start_quietly(make_context)) if is_quiet else make_context, shared, urls)


def parse_cores(text: str) -> int:
    """Parses --cores. Raises click.UsageError."""
    if text == "*":
        return len(os.sched_getaffinity(0))
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16):
        raise click.UsageError(f"--cores {text!r} is not a number of processors; give a number, or * for all")
    return int(text)


def is_url(text: str) -> bool:
    return _URL.match(text) is not None


def require_slashes(name: str, text: str) -> None:
    """Refuse a URL that would be taken for a folder of this machine, and one of nothing. Raises click.UsageError."""
    if is_url(text) and text.rstrip("/").endswith(":"):
        raise click.UsageError(f"{name} is {text!r}, which names no bucket or folder")
    if found := _WITHOUT_SLASHES.match(text):
        meant = f"{found[1]}//{text[found.end() :]}"
        raise click.UsageError(
            f"{name} is {text!r}, a URL without its slashes; give {meant}, or ./{text} for a folder of this machine"
        )


def read_nodes_file(path: Path) -> tuple[str, ...]:
    """The nodes in a file, as on the command line. Raises click.UsageError."""
    try:
        with path.open("rb") as file:
            content = file.read(NODES_FILE_BYTES_MAX + 1)
        lines = [line.strip() for line in content.decode().splitlines()]
    except OSError as error:
        raise click.UsageError(f"--nodes {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.UsageError(f"--nodes {path}: byte {error.start:,} is not UTF-8") from None
    if len(content) > NODES_FILE_BYTES_MAX:
        raise click.UsageError(f"--nodes {path}: longer than {NODES_FILE_BYTES_MAX:,} bytes")
    for number, line in enumerate(lines, 1):
        found = _NODE.fullmatch(line)
        if line and not line.startswith("#") and (found is None or not found[1]):
            raise click.UsageError(f"--nodes {path}, line {number}: {line[:80]!r} must be NODE=DATA")
    nodes = tuple(line for line in lines if line and not line.startswith("#"))
    if not nodes:
        raise click.UsageError(f"--nodes {path}: has no nodes")
    return nodes


def parse_nodes(texts: tuple[str, ...]) -> list[tuple[str, str]]:
    """Returns (name, source) pairs; a single source needs no name. Raises click.UsageError."""
    found = [_NODE.fullmatch(text) for text in texts]
    nodes = [(each[1] or "", each[2]) for each in found if each is not None]
    names = [name for name, _ in nodes]
    if len(texts) > 1 and (not all(names) or len(set(names)) < len(texts)):
        raise click.UsageError("several nodes need names, such as north=./data south=/mnt/south")
    return nodes


def broker_login(token: str | None) -> dict[str, str | None]:
    """The options of the data source for a login. Raises CommandError."""
    found = credentials()
    return {"token": token or found.token, "user": found.user, "password": None if token else found.password}


def parse_source(text: str, brokers: bool, login: Mapping[str, str | None]) -> dict[str, str]:
    """The options of the data source. Raises click.UsageError."""
    if brokers:
        return {"brokers": text, **{key: value for key, value in login.items() if value}}
    require_slashes("DATA", text)
    return {"path": text if is_url(text) else str(Path(text).resolve())}


def parse_out(text: str) -> str:
    """Raises click.UsageError."""
    require_slashes("OUT", text)
    path = Path(text)
    if not is_url(text) and path.exists() and not path.is_dir():
        raise click.UsageError(f"OUT is {text!r}, which is a file; give a folder")
    if not is_url(text):
        refuse_data_dir("OUT", path)
    return text


def refuse_data_dir(name: str, path: Path | None) -> Path | None:
    """Returns the path. Raises click.UsageError if it lies in a broker's data."""
    found = None if path is None else find_data_dir(path)
    if found is not None:
        raise click.UsageError(
            f"{name} is '{path}': {found} is the data directory of a broker; give a place outside it"
        )
    return path


def parse_days(day: str | None, first: str | None, last: str | None, catch_up: bool) -> list[date]:
    """The days to roll up, in order. Raises click.UsageError."""
    from tailrace.spark.rollup.days import DAYS_MAX, list_days

    if first is None:
        if last is not None:
            raise click.UsageError("--to is the last of several days; it needs --from, the first")
        return [parse_day(day)]
    if day is not None or catch_up:
        raise click.UsageError("--from is for a range of days, without --day and --catch-up")
    found = parse_day(first, "--from"), parse_day(last, "--to")
    if found[0] > found[1]:
        raise click.UsageError(f"--from {found[0]} is behind --to {found[1]}")
    if (found[1] - found[0]).days >= DAYS_MAX:
        raise click.UsageError(f"--from {found[0]} --to {found[1]} are more than the {DAYS_MAX:,} days of one run")
    return list_days(*found)


def parse_day(text: str | None, option: str = "--day") -> date:
    """The day; yesterday by default. Raises click.UsageError."""
    today = datetime.now(UTC).date()
    if text is None:
        return today - timedelta(days=1)
    try:
        day = date.fromisoformat(text) if _DAY.fullmatch(text) else None
    except ValueError:
        day = None
    if day is None:
        raise click.UsageError(f"{option} {text!r} is not a day; give YYYY-MM-DD")
    if day > today:
        raise click.UsageError(f"{option} {text} has not come yet; today is {today}, UTC")
    return day


def parse_settings(texts: tuple[str, ...]) -> dict[str, str]:
    """Parses --conf. Raises click.UsageError."""
    settings = {}
    for text in texts:
        name, is_set, value = text.partition("=")
        if not (is_set and name.startswith("spark.")):
            raise click.UsageError(f"--conf {text!r}: give a setting of Spark as spark.NAME=VALUE")
        settings[name] = value
    return settings


def load_policies(config: Path | None) -> Callable[[str], RetentionPolicy] | None:
    """Returns the retention settings of the broker's configuration. Raises CommandError."""
    if config is None:
        return None
    from tailrace.supervisor.config import ConfigError, load

    try:
        settings = load(config)
    except ConfigError as error:
        raise CommandError(str(error), USAGE) from None

    def policy_of(stream: str) -> RetentionPolicy:
        policy = settings.policy(stream)
        return RetentionPolicy(policy.max_age_s, policy.max_bytes)

    return policy_of


def run(
    store: Store, nights: list[Night], choose: ChooseEngine, metrics: Path | None, tell: Callable[[NightResult], None]
) -> list[NightResult]:
    """Run with a progress bar on a terminal; `tell` gets each day's result as it is done. Raises what `run_nights`
    does.
    """
    from tailrace.spark.rollup.nightly import run_nights

    with Phases() as phases:

        def end_of_day(done: NightResult) -> None:
            phases.end()
            tell(done)

        return run_nights(nights, choose, phases.show, end_of_day, metrics, store)


@contextmanager
def as_command_errors(out: str) -> Iterator[None]:
    """Turn the errors of a run into CommandError."""
    from tailrace.spark.options import InvalidOption
    from tailrace.spark.rollup.engine import EngineError
    from tailrace.spark.rollup.store import StoreInUse

    try:
        yield
    except StoreInUse as error:
        raise CommandError(str(error), IN_USE) from None
    except DirectoryError as error:
        raise CommandError(str(error), NO_DIRECTORY) from None
    except InvalidOption as error:
        raise CommandError(str(error), USAGE) from None
    except TailraceError as error:
        raise CommandError(str(error), NO_CONNECTION) from None
    except (OSError, EngineError) as error:
        raise CommandError(show_error(error, out)) from None


class Phases:
    """A progress bar for each phase of a run, one after the other."""

    def __init__(self) -> None:
        self._phase = ""
        self._bar: ProgressBar | None = None

    def show(self, phase: str, done: int, total: int) -> None:
        if phase != self._phase:
            self.end()
            self._phase = phase
            self._bar = ProgressBar(phase, total if total > 1 else None, is_bytes=False)
            self._bar.__enter__()
        if self._bar is not None:
            self._bar.show(done)

    def __enter__(self) -> Phases:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
        self._bar, self._phase = None, ""
