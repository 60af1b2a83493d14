"""How every subcommand is found, and how it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

import click
import pytest

from tailrace.cli import main
from tailrace.cli.ending import INTERRUPTED, NO_CONNECTION, OK, REFUSED, USAGE, CommandError
from tests.cli.process import ROOT, tailrace


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], *([name, "--help"] for name in main.COMMANDS)])
def test_help_has_examples_and_exit_codes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == OK
    shown = capsys.readouterr().out
    assert "Examples:" in shown
    assert "tailrace " in shown
    if arguments[0] != "serve":
        assert "xit codes:" in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == OK
    assert capsys.readouterr().out == f"tailrace {version('tailrace')}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["publish"], "No such command 'publish'; did you mean pub\\?"),
        (["consumer", "s"], "No such command 'consumer'; did you mean consumers, consume\\?"),
        (["version"], "No such command 'version'; did you mean --version\\?"),
        (["xyzzy"], "No such command 'xyzzy' \\(see tailrace --help\\)"),
        (["consumers", "rst", "s", "g"], "No such command 'rst'; did you mean reset\\?"),
        (["consumers", "list", "s"], "No such command 'list'; did you mean ls\\?"),
        (["consumers", "orders", "g"], "unexpected extra argument"),
        (["completion"], "Missing argument .* Choose from: bash, zsh, fish"),
        (["pub", "s", "x", "--ack", "synced", "--no-ack"], "--no-ack is --ack none, and contradicts --ack synced"),
        (["pub", "s", "-K", ":", "-H", "key=b"], "-K and the header 'key': pass one of them"),
        (["pub", "s", "-H", "a=1", "-H", "a=2"], "the header 'a' is given twice"),
        (["tail", "s", "--topics", ""], "a topic filter has 1 to 1024 bytes"),
        (["tail", "s", "--topics", "a/#/b"], "# must be the last level of a topic filter"),
        (["tail", "s", "--wait", "--no-follow"], "--wait waits for messages to come, and --no-follow does not"),
        (["consume", "s", "g", "--json", "--", "cat"], "--json is for messages that are printed"),
        (["get", "s", "g", "--json", "--", "cat"], "--json is for messages that are printed"),
        (["get", "s", "g", "--", ""], "COMMAND must not be empty"),
        (["consume", "s", "g", "--retry-after", "1"], "--retry-after is for messages that COMMAND fails for"),
        (["consume", "s", "g", "--ack-wait", "0"], "0<x<=604800"),
        (["consume", "s", "g", "--member", "a b"], "Invalid value for '--member'"),
        (["consumers", "create", "s", "g", "--deliveries", "-1"], "0<=x<=65535"),
        (["consumers", "create", "s", "g", "--retry", "9", "--retry-max", "5"], "--retry 9 is more than --retry-max 5"),
        (["pub", "s", "x", "--server", "http://a:1"], "'http://a:1' is not HOST:PORT, tail://HOST:PORT or tails://"),
        (["tree", "a:1", "--server", "b:1"], "HOST:PORT and --server, --host or --port: pass one of them"),
        (["dump", "data", "s", "--part", "1"], "--part is for --diverged, --torn or a file of those"),
        (["republish", "x.txt", "--stream", "s"], "x.txt is not a .diverged file"),
        (["admin", " "], "a command is one line, which is not empty"),
        (["admin", "--jsn", "workers"], "No such option '--jsn'"),
        (["pub", "s", "text", "-K", ":"], "-K SEP, at least one character, goes with lines"),
        (["pub", "s", "--key", "a", "-H", "key=b"], "--key and the header 'key': pass one of them"),
        (["tail"], "Missing argument 'STREAMS...'"),
        (["tail", "s", "--form", "0"], "No such option '?--form"),
        (["tail", "s", "--from", "yesterday"], "is not a position; write 0, new, #SEQ, -COUNT"),
        (["tail", "s", "--count", "0"], "0 is not in the range x>=1"),
        (["tail", "a b"], "the stream name 'a b' has ' ' in it"),
        (["pub", "$own"], "begins with \\$, which is reserved for the broker"),
        (["pub", "s", "--server", "a:b"], "'a:b' is not HOST:PORT: 'b' is not a port"),
        (["admin"], "Missing argument 'COMMAND...'"),
        (["admin", "a\nb"], "a command is one line"),
        *((["get", "s", "g", "--wait", each], "is not a number of seconds") for each in ("nan", "inf")),
        (["consumers", "create", "s", "g", "--ack-wait", "nan"], "is not a number of seconds"),
        (["top", "--json", "--once", "--interval", "nan"], "is not a number of seconds"),
        (["top", "--json", "--interval", "1e300"], "is not a number of seconds"),
        (["tail", "s", "--reconnect", "nan"], "is not a number of seconds"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAILRACE_SERVER", raising=False)
    assert main.run(arguments) == USAGE
    shown = capsys.readouterr().err
    assert shown.startswith("tailrace: ")
    assert shown.count("\n") == 1
    assert re.search(message, shown), shown


@pytest.mark.parametrize("words", [[], ["user"], ["consumers", "create", "--help"]])
def test_help_is_shown_as_it_is(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Also without a command, which is an error."""
    code = main.run(words)
    out, err = capsys.readouterr()
    assert (out or err).startswith("Usage: tailrace") and "see tailrace --help" not in err
    assert code == (OK if out else USAGE)


@pytest.mark.parametrize("words", [[], ["tail"], ["consumers", "create"]])
def test_help_may_be_written_as_a_word(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*words, "--help"]) == OK
    expected = capsys.readouterr().out
    assert main.run(["help", *words]) == OK
    assert capsys.readouterr().out == expected
    assert main.run(["help", "tial"]) == USAGE
    assert "did you mean tail?" in capsys.readouterr().err


WITHOUT_JSON = {"serve", "agent", "completion", "man"}
"""They run a node or its agent, whose log is their output, or print a script or a page."""


def test_what_prints_a_result_prints_it_as_json() -> None:
    without = set()
    context = click.Context(main.cli)
    for name in main.COMMANDS:
        command = main.cli.get_command(context, name)
        assert command is not None
        for each in command.commands.values() if isinstance(command, click.Group) else [command]:
            if "--json" not in [option for parameter in each.params for option in parameter.opts]:
                without.add(name)
    assert without == WITHOUT_JSON


@pytest.mark.parametrize(
    ("raised", "code", "shown"),
    [
        (CommandError("the reason", NO_CONNECTION), NO_CONNECTION, "tailrace: the reason\n"),
        (click.ClickException("said by click"), REFUSED, "tailrace: said by click\n"),
        (KeyboardInterrupt(), INTERRUPTED, ""),
        (UnicodeEncodeError("utf-8", "a\udcffb", 1, 2, "x"), USAGE, "tailrace: not UTF-8: 'a\\udcffb'\n"),
    ],
)
def test_how_errors_end(
    raised: BaseException, code: int, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command("serve")
    def failing() -> int:
        raise raised

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda _self, _ctx, _name: failing)
    assert main.run(["serve"]) == code
    assert capsys.readouterr().err == shown


def test_the_exit_code_is_what_the_command_returns() -> None:
    done = tailrace("serve", "--port", "x", "--check-config")
    assert (done.returncode, done.stdout) == (USAGE, b"")
    assert tailrace("serve", "--check-config").returncode == OK


def test_the_package_is_light() -> None:
    """Importing the public face must not load a broker, nor the libraries of the command."""
    code = "import sys, tailrace; print(sorted(set(sys.modules) & set(sys.argv[1:])))"
    ours = [f"tailrace.{name}" for name in ("broker", "cli", "protocol", "shard", "spark", "supervisor")]
    heavy = ("click", "rich", "prometheus_client", "psutil", "msgpack", *ours)
    shown = subprocess.run([sys.executable, "-c", code, *heavy], cwd=ROOT, capture_output=True, check=True, text=True)
    assert shown.stdout == "[]\n"


def test_publishing_loads_no_broker() -> None:
    code = (
        "import sys; from tailrace.cli import main; main.run(['pub', 's', '--port', '1']); "
        "heavy = {'rich', 'tailrace.broker', 'tailrace.supervisor', 'prometheus_client', 'psutil'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True)
    assert shown.stdout == "[]\n"
