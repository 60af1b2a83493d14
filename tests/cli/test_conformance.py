"""Clients in other languages follow the document, and `tailrace conformance` finds those that do not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.cli.conformance import outcome
from tailrace.cli.conformance_checks import CHECKS, SETTINGS, CheckFailed, messages_of, payload_of
from tailrace.testing import Server
from tests.cli.process import ROOT, Done, start

pytestmark = pytest.mark.system

CLIENTS = ROOT / "examples" / "clients"
PATIENCE_S = 300.0  # eight checks, a broker that is killed, compiling
GO_MODULES = ["go", "mod", "download", "github.com/vmihailenco/msgpack/v5", "github.com/vmihailenco/tagparser/v2"]
LINES_MAX = 250
"""Of a client, so that it can be read in one go."""
CHECK = {check.__name__: check for check in CHECKS}
NAMES = list(CHECK)


def begin(*arguments: str) -> subprocess.Popen[bytes]:
    return start("conformance", *arguments)


def end(process: subprocess.Popen[bytes]) -> Done:
    out, err = process.communicate(timeout=PATIENCE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def conformance(*arguments: str) -> Done:
    return end(begin(*arguments))


def outcomes(done: Done) -> dict[str, str]:
    return {line.split()[1]: line.split()[0] for line in done.stdout.decode().splitlines()}


@pytest.fixture(scope="module")
def without_credit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """Half a minute passes before its silence is a failure: it begins before the tests that take as long."""
    if shutil.which("node") is None:
        pytest.skip("no Node.js on this machine")
    folder = tmp_path_factory.mktemp("silent")
    source, changed = (CLIENTS / "node.mjs").read_text(), folder / "node.mjs"
    assert source.count("this.send(OP.CREDIT, credit);") == 1
    changed.write_text(source.replace("this.send(OP.CREDIT, credit);", "if (message.seq > 90) return;"))
    program = Path(shutil.copy(CLIENTS / "conformance.mjs", folder))
    with begin("--only", "reading", "--", "node", str(program)) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """For programs that fail: no check of another program looks at what they leave."""
    with Server(**SETTINGS) as server:
        yield server


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js on this machine")
@pytest.mark.usefixtures("without_credit")
def test_the_client_for_node() -> None:
    done = conformance("--", "node", str(CLIENTS / "conformance.mjs"))
    assert outcomes(done) == dict.fromkeys(NAMES, "passed"), done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js on this machine")
def test_without_a_broker_the_client_for_node_goes_on_with_nothing() -> None:
    program = f"""
        import {{ connect }} from "{CLIENTS}/node.mjs";
        try {{ await connect("127.0.0.1:1"); }} catch (error) {{ setTimeout(() => process.exit(7), 3000).unref(); }}
        process.on("exit", () => console.log("ended"));
    """
    command = ["node", "--input-type=module", "-e", program]
    done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, b"ended\n"), "it tries to connect again after it was refused"


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go on this machine")
def test_the_client_for_go(tmp_path: Path) -> None:
    # Where nothing of Go's own library is compiled yet, to optimize it takes longer than all else here.
    quickly = ["-gcflags=all=-N -l", "-ldflags=-s -w"]
    build = ["go", "build", *quickly, "-o", str(tmp_path / "client"), "./conformance"]
    try:
        subprocess.run(GO_MODULES, cwd=CLIENTS / "go", capture_output=True, check=True, timeout=PATIENCE_S)
    except subprocess.SubprocessError:
        pytest.skip("the module for msgpack is neither here nor to be had")
    subprocess.run(build, cwd=CLIENTS / "go", env={**os.environ, "CGO_ENABLED": "0"}, check=True, timeout=PATIENCE_S)
    done = conformance("--", str(tmp_path / "client"))
    assert outcomes(done) == dict.fromkeys(NAMES, "passed"), done.stdout.decode() + done.stderr.decode()


@pytest.mark.parametrize("name", ["node.mjs", "go/tailrace.go"])
def test_a_client_can_be_read_in_one_go(name: str) -> None:
    assert 150 <= len((CLIENTS / name).read_text().splitlines()) <= LINES_MAX


@pytest.mark.skipif(shutil.which("gofmt") is None, reason="no Go on this machine")
def test_the_client_for_go_is_formatted() -> None:
    done = subprocess.run(["gofmt", "-l", "."], cwd=CLIENTS / "go", capture_output=True, check=True, timeout=PATIENCE_S)
    assert done.stdout == b""


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("import sys; sys.stdin.readline()", "connect: the program has ended"),
        ("input(); import os; os.close(0); print('{}', flush=True); os.read(1, 1)", "publish: the program has ended"),
        ("input(); print('hello'); input()", "connect: the answer is not JSON"),
        ("input(); print('[]'); input()", "connect: the answer is not a JSON object"),
        ("while True: print('{\"seq\": 7}', flush=True); input()", "the seq in 'p': 7, not 0"),
        ("while True: print('{}', flush=True); input()", "'seq' is missing, or not of its type: {}"),
        ('while True: print(\'{"error": "lost"}\', flush=True); input()', "connect: the error 'lost'"),
    ],
)
def test_other_programs_fail(server: Server, program: str, fault: str) -> None:
    found = outcome([sys.executable, "-S", "-c", program], CHECK["publishing"], server)
    assert found is not None and found.startswith(fault)


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ("7", "'messages' is missing, or not of its type: {'messages': 7}"),
        ("[7]", "a message is not an object: 7"),
        ('[{"seq": 0}]', "'epoch' is missing, or not of its type: {'seq': 0}"),
        ('[{"seq": 0, "epoch": 1, "headers": {}, "payload": "?"}]', "a payload is not base64: '?'"),
    ],
)
def test_messages_that_are_none(messages: str, fault: str) -> None:
    """The program is at fault, and not the runner."""
    with pytest.raises(CheckFailed, match=f"^{re.escape(fault)}$"):
        for each in messages_of(json.loads(f'{{"messages": {messages}}}')):
            payload_of(each)


def test_a_program_that_answers_before_it_has_read_all_fails(server: Server) -> None:
    """It repeats its input, piece by piece: a large line does not fit into the pipes between the two."""
    assert outcome(["cat"], CHECK["payloads"], server) is not None


@pytest.mark.thorough
def test_results_as_json() -> None:
    program = "input(); print('[]'); input()"
    done = conformance("--json", "--only", "publishing", "--", sys.executable, "-c", program)
    assert (json.loads(done.stdout), done.returncode) == (
        {
            "check": "publishing",
            "passed": False,
            "meaning": "seqs count from 0, each stream's own",
            "fault": "connect: the answer is not a JSON object",
        },
        1,
    )


def test_a_client_that_renews_no_credit_fails(without_credit: subprocess.Popen[bytes]) -> None:
    """The check of reading can fail: the client for Node, without its CREDIT."""
    assert outcomes(end(without_credit)) == {"reading": "FAILED"}


@pytest.mark.thorough
def test_a_program_that_does_not_exist() -> None:
    done = conformance("--", "/nonexistent/client")
    assert (done.returncode, done.stderr) == (
        1,
        b"tailrace: cannot run /nonexistent/client: No such file or directory\n",
    )
