"""Loading: everything that is wrong is named at once, each with its place."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.broker.process.settings import Durability, Settings, SlaveRule, StreamPolicy, described_fields
from tailrace.supervisor.config import FILE_MAX_BYTES, REPEATED_SECTIONS_MAX, ConfigError, flag_name, load
from tests.thorough import examples


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "t.toml"
    path.touch(0o600)
    return path


def faults(file: Path, text: str | bytes, **flags: object) -> list[str]:
    """The faults of `text`, with the file's name cut off."""
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        load(file, flags)
    assert str(caught.value) == "\n".join(map(str, caught.value.faults))
    return [str(fault).removeprefix(str(file)) for fault in caught.value.faults]


def test_nothing_given_is_the_defaults(file: Path) -> None:
    file.write_text("# nothing\n[listen]\n")
    assert load() == Settings()
    assert load(file) == Settings()
    assert load(None, {"port": None}) == Settings()


def test_file_and_flags_and_who_wins(file: Path) -> None:
    file.write_text(
        '[node]\ndata = "/d"\nauto_master = false\n[listen]\nport = 7\n[limits]\nchunk_bytes = "1 MiB"\n'
        '[timing]\nstall_timeout_s = "1.5 s"\n'
        '[[stream]]\npattern = "o.*"\ndurability = "interval"\ninterval_ms = "20 ms"\n'
        '[[stream]]\npattern = "*"\nmax_age_s = "7 d"\n'
        '[[slave]]\nstreams = "o.*"\nupstream = "[::1]:5050"\nfrom = "#7"\n'
        '[[slave]]\nstreams = "*"\nupstream = ["h:1", "[::1]:2"]\nfrom = 0\n'
    )
    assert load(file, {"port": "8", "workers": "3", "metrics_host": "::1"}) == Settings(
        data=Path("/d"),
        auto_master=False,
        port=8,
        workers=3,
        metrics_host="::1",
        chunk_bytes=1 << 20,
        stall_timeout_s=1.5,
        streams=(
            StreamPolicy("o.*", Durability.INTERVAL, interval_ms=20),
            StreamPolicy("*", max_age_s=7 * 86_400),
        ),
        slaves=(SlaveRule("o.*", ("[::1]:5050",), "#7"), SlaveRule("*", ("h:1", "[::1]:2"))),
    )


def test_values_have_the_types_that_are_declared(file: Path) -> None:
    file.write_text("[timing]\nstall_timeout_s = 3\n[limits]\nchunk_bytes = 8192\n")
    loaded = load(file)
    for field in described_fields():
        assert type(getattr(loaded, field.name)) is type(getattr(Settings(), field.name)), field.name


def test_peers_are_a_list_in_the_file_and_one_text_in_a_flag(file: Path) -> None:
    file.write_text('[replication]\npeers = ["10.0.0.1:5050", "fd00::/8"]\n')
    assert load(file).replication_peers == ("10.0.0.1:5050", "fd00::/8")
    assert load(file, {"replication_peers": "::1, 10.0.0.0/8"}).replication_peers == ("::1", "10.0.0.0/8")


def test_everything_wrong_is_named_at_once_with_its_line(file: Path) -> None:
    text = """port = 1
[node]
workrs = 4
shards = 0

[limts]
x = 1
[listen]
max_streams = 4
port = "5050"
[[stream]]
max_age = 3
"""
    assert faults(file, text, workers="900") == [
        "--workers: must be 0 (one per processor) or from 1 to 256, not 900",
        ":1: port: stands outside any section; it belongs in [listen] or [metrics]",
        ":3: [node] workrs: no such key; did you mean workers?",
        ":4: [node] shards: must be from 1 to 4,096, not 0",
        ":6: [limts]: no such section; did you mean [limits]?",
        ":9: [listen] max_streams: no such key; it belongs in [limits]",
        ':10: [listen] port: must be a whole number, not "5050"',
        ':11: [[stream]] pattern is missing; pattern = "*" is for every stream',
        ":12: [[stream]] max_age: no such key; did you mean max_age_s?",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = [\n\n", r":1: is not TOML: Invalid value"),
        ("[listen]\nport 3\n", r":2: is not TOML: .*\(column 6\)"),
        ("[listen]\n[listen]\n", r":2: is not TOML: Cannot declare .*"),
        ("[listen]\nport = " + "9" * 5_000, r":2: is not TOML: Exceeds the limit .*conversion"),
        ("x = " + "[" * 100_000, r": is not usable TOML: arrays or tables nested far too deep"),
        (b"[listen]\nhost = '\xff'", r":2: is not UTF-8: byte 0xff"),
        ("colour = 1", r":1: colour: stands outside any section; known are \[node\], .*"),
        ("listen = 3", r":1: \[listen\] must be a section, not 3"),
        ("[replication]\npeers = '10.0.0.1'", r":2: \[replication\] peers: must be an array such as .*"),
        ("[replication]\npeers = [3]", r":2: \[replication\] peers: must be text in quotes, not 3"),
        ("[replication]\npeers = ['n1:5050']", r':2: \[replication\] peers: "n1:5050": write an IP address, .*'),
        ("[replication]\npeers = ['10.0.0.1/8']", r":2: \[replication\] peers: .* write the first address .*"),
        (f"[replication]\npeers = {['::1'] * 257}", r":2: \[replication\] peers: has 257 entries; at most 256 .*"),
        ("[replication]\ntoken = 'a'\n[listen]\ntoken = 'a'", r":4: \[listen\] and \[replication\] have the same .*"),
        ("[stream]\npattern = 'x'", r":1: \[stream\] must be written \[\[stream\]\], once for each pattern"),
        ("listen = {prt = 3}", r":1: \[listen\] prt: no such key; did you mean port\?"),
        (
            '[listen]\n"a\\u001b" = 3',
            r':2: \[listen\] "a\\x1b": no such key; known are admin, .*, token, mqtt, .*, advertise',
        ),
        ('[[stream]]\npattern = "*"\n[[stream]]\npattern = "x"', r':3: .*is never used: .*"\*", matches first'),
        ('[[stream]]\npattern = "x"\n[[stream]]\npattern = "x"', r':3: .*is never used: .*"x", matches first'),
        ('[[stream]]\npattern = "x"\ninterval_ms = 3', r":1: .*interval_ms has no effect unless .*"),
        ('[[stream]]\npattern = "x"\nlinger_s = 3', r":1: .*linger_s has no effect unless .*"),
        (
            '[[stream]]\npattern = "x"\ndurability = "memory"\nlast_values = true',
            r":1: .*last_values is not possible .*",
        ),
        ('[[stream]]\npattern = "a$*"\ndurability = "memory"', r":1: .*memory.* has no effect on names with a \$: .*"),
        ("slave = 3", r":1: \[slave\] must be written \[\[slave\]\], once for each upstream and its streams"),
        ('[[slave]]\nupstream = "h:1"', r':1: .* streams is missing; streams = "\*" is for every stream'),
        ('[[slave]]\nstreams = "*"', r":1: .* upstream is missing; write the HOST:PORT of the node .*"),
        (
            '[[slave]]\nstreams = "*"\nupstream = "h"',
            r':3: \[\[slave\]\] upstream: "h" is no address: write HOST:PORT.*',
        ),
        ('[[slave]]\nstreams = "*"\nupstream = ["h:1", "h"]', r':3: .* upstream: "h" is no address: write HOST:PORT.*'),
        ('[[slave]]\nstreams = "*"\nupstream = []', r':3: .* upstream: has no entries; write "" for streams .* own'),
        (
            '[[slave]]\nstreams = "*"\nupstream = ["h:1", "g:1", "h:1"]',
            r':3: .* upstream: has "h:1" twice; .* each once',
        ),
        ('[[slave]]\nstreams = "*"\nupstream = 7', r':3: .* upstream: must be an array such as \["10.* not 7'),
        ('[[slave]]\nstreams = "*"\nupstream = ["h:1", 7]', r":3: .* upstream: must be text in quotes, not 7"),
        (
            f'[[slave]]\nstreams = "*"\nupstream = {json.dumps([f"h:{port}" for port in range(1, 18)])}',
            r":3: .* upstream: has 17 entries; at most 16 are allowed; list the ones that shall be tried first",
        ),
        ('[[slave]]\nstreams = "a*b"\nupstream = ""', r':2: \[\[slave\]\] streams: "a\*b" has a \* before its end; .*'),
        ('[[slave]]\nstreams = "a b"\nupstream = ""', r':2: .* "a b" matches no stream: .*white space.*'),
        ('[[slave]]\nstreams = "$*"\nupstream = ""', r':2: .* "\$\*" begins with \$, .*'),
        (
            '[[slave]]\nstreams = "*"\nupstream = ""\nfrom = "old"',
            r":4: \[\[slave\]\] from: 'old' is not a position .*",
        ),
        ('[[slave]]\nstreams = "*"\nupstream = ""\nfrom = -1', r":4: \[\[slave\]\] from: '-1' is not a position .*"),
        ('[[slave]]\nstreams = "*"\nupstream = ""\nfrom = true', r":4: .* from: must be text in quotes, not true"),
        (
            '[[slave]]\nstreams = "a*"\nupstream = ""\n[[slave]]\nstreams = "ab"\nupstream = "h:1"',
            r':4: \[\[slave\]\] is never used: .*"a\*", matches first',
        ),
    ],
)
def test_one_fault_each(file: Path, text: str | bytes, expected: str) -> None:
    (told,) = faults(file, text)
    assert re.fullmatch(expected, told), told


def test_a_wrong_value_is_told_and_nothing_that_follows_from_it(file: Path) -> None:
    """A faulty field has its default meanwhile; a conflict of that default would be noise."""
    (told,) = faults(
        file,
        '[limits]\nmax_line_bytes = "2 GiB"\nmax_message_bytes = "60 MiB"\nlink_window_bytes = "64 MiB"\n'
        'max_envelope_bytes = "64 MiB"\n',
    )
    assert told == ":2: [limits] max_line_bytes: must be from 1 KiB to 1 GiB, not 2 GiB"


def test_files_that_cannot_be_read(tmp_path: Path, file: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file or directory"):
        load(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)
    assert faults(file, b"#" * (FILE_MAX_BYTES + 1)) == [": cannot be read: is larger than 1,048,576 bytes"]


def test_too_many_stream_sections(file: Path) -> None:
    text = "".join(f'[[stream]]\npattern = "s{number}"\n' for number in range(REPEATED_SECTIONS_MAX + 1))
    assert faults(file, text) == [":2001: 1,001 [[stream]] sections; at most 1,000 are allowed"]
    text = "".join(f'[[slave]]\nstreams = "s{number}"\n' for number in range(REPEATED_SECTIONS_MAX + 1))
    assert faults(file, text) == [":2001: 1,001 [[slave]] sections; at most 1,000 are allowed"]


def test_a_byte_order_mark_does_no_harm(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf[listen]\nport = 1\n")
    assert load(file).port == 1


def test_flag_names() -> None:
    assert flag_name("max_line_bytes") == "--max-line-bytes"


KEYS = st.sampled_from(
    [
        "port",
        "host",
        "pattern",
        "durability",
        "interval_ms",
        "linger_s",
        "max_age_s",
        "streams",
        "upstream",
        "from",
        "x",
        '"\\u0007"',
    ]
)
VALUES = st.one_of(
    st.sampled_from(["true", "nan", "1979-05-27", "[1]", "{a = 1}", '"*"', '"8 MiB"', '"interval"', "-0.0", "9e999"]),
    st.integers(-(10**30), 10**30).map(str),
)
HEADERS = st.sampled_from(["[listen]", "[metrics]", "[limits]", "[[stream]]", "[[slave]]", "[x.y]", "[[listen]]"])
ANY_LINES = st.lists(st.one_of(HEADERS, st.tuples(KEYS, VALUES).map(" = ".join)), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(200))
@given(lines=ANY_LINES)
def test_any_file_gives_settings_or_faults_with_lines_of_it(lines: list[str], tmp_path: Path) -> None:
    file = tmp_path / "any.toml"
    file.write_text("\n".join(lines))
    try:
        load(file)
    except ConfigError as error:
        assert error.faults
        for fault in error.faults:
            assert 1 <= fault.line <= max(1, len(lines)), (lines, fault)
            assert str(fault).isprintable()


def test_reading_stays_within_its_recursion(file: Path) -> None:
    """The guard against deep nesting must not have changed the interpreter's limit."""
    before = sys.getrecursionlimit()
    faults(file, "x = " + "[" * 100_000)
    assert sys.getrecursionlimit() == before


def test_a_secret_in_a_file_that_everybody_may_open_is_refused(file: Path) -> None:
    text = '[listen]\nport = 7\ntoken = "s"\n[replication]\ntoken = "t"\n'
    file.write_text(text)
    for mode in (0o604, 0o602, 0o666):
        file.chmod(mode)
        assert faults(file, text) == [
            f":3: is a secret in a file that every user of this machine may open; chmod o= {file}"
        ]
    file.chmod(0o660)
    assert load(file).token == "s"
    file.write_text("[listen]\nport = 7\n")
    file.chmod(0o666)
    assert load(file, {"token": "from a flag"}).port == 7
