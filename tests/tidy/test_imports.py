"""Which rooms may import which.

shard imports none of the others, protocol imports shard. client and broker stand on these two, supervisor on broker.
spark and cluster import the client as well, bench the codecs alone. Of the modules of the command (cli), which load
each other only when they are asked for, `serve` and `user` alone import the supervisor. Names are those of folders:
`client.core.session` is imported as `tailrace.core.session`. The client's core imports neither of its two shells, nor a
clock or a socket.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy import tree

CODECS = ("shard", "protocol")
MAY_IMPORT = {
    "shard": ("shard",),
    "protocol": CODECS,
    "client": ("client", *CODECS),
    "client.core": ("client.core", "client.errors", "client.version", *CODECS),
    "client.sync": ("client.sync", "client.core", "client.sockets", "client.tls", "client.errors", *CODECS),
    "client.aio": ("client.aio", "client.core", "client.sockets", "client.tls", "client.errors", *CODECS),
    "broker": ("broker", *CODECS),
    "supervisor": ("supervisor", "broker", *CODECS),
    "cluster": ("cluster", "client", *CODECS),
    "cli": ("cli", "client", *CODECS),
    "cli.agent": ("cli", "client", "cluster", *CODECS),
    "cli.cluster": ("cli", "client", "cluster", *CODECS),
    "cli.etcd": ("cli", "client", "cluster", *CODECS),
    "cli.serve": ("cli", "client", "supervisor", "broker", *CODECS),
    "cli.user": ("cli", "client", "supervisor", "broker", *CODECS),
    "cli.rollup": ("cli", "client", "spark", "supervisor.config", *CODECS),
    "cli.spark_zip": ("cli", "spark", *CODECS),
    "spark": ("spark", "client", *CODECS),
    "bench": ("bench", *CODECS),
    "bench.load.clients": ("bench", "client", *CODECS),
    "bench.load.kernel_rate": ("bench", "spark", *CODECS),
    "bench.load.live": ("bench", "spark", *CODECS),
    "bench.load.local_rollup": ("bench", "spark", *CODECS),
    "bench.load.many_live": ("bench", "client", "spark", *CODECS),
    "bench.load.rollup": ("bench", "spark", *CODECS),
    "bench.load.starting": ("bench", "client", *CODECS),
    "bench.load.spark_server": ("bench", "spark", *CODECS),
}
# Bytes in, commands out: code that waits, reads a clock or opens a file belongs elsewhere.
NOT_IN_CODECS = {"asyncio", "mmap", "multiprocessing", "pathlib", "select", "selectors", "socket", "subprocess", "time"}
# The client's core gets bytes and times from its shells.
NOT_IN_CORE = {"asyncio", "select", "selectors", "socket", "threading", "time"}
# The work loop has one thread. Modules that wait for the disk beside it, and those that such a thread touches, are
# listed here.
THREADED = {
    "tailrace.broker.topics.index_builder": "its thread makes topic indexes, as the loop must not wait for the disk",
    "tailrace.broker.streams.syncer": "its threads sync streams, as the loop must not wait for the disk",
    "tailrace.supervisor.http_server": "in the metrics process: a scrape reads files, and /healthz must not wait",
    "tailrace.shard.files": "the threads that sync streams sync a file system one after the other",
    "tailrace.shard.journal_writer": "the threads that sync streams write blocks one after the other",
    "tailrace.shard.log": "sync is called from that thread; a lock keeps it from files that are being closed",
}


def rule_of(module: str) -> str:
    """The most special rule that holds for a module."""
    return max((rule for rule in MAY_IMPORT if f"{module}.".startswith(f"{rule}.")), key=len)


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(module, line) for each import, wherever it stands, that is not only for types."""
    package = tuple(tree.module_name(path.with_name("__init__.py")).split("."))
    for node in _walk(tree.parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            for alias in node.names:
                yield ".".join((*base, *filter(None, [node.module]), alias.name)).removesuffix(".*"), node.lineno


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, tree.HOLDERS) and not (
            isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        ):
            yield child
            yield from _walk(child)


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("path", tree.modules(), ids=tree.shown)
def test_imports_keep_to_the_rule(path: Path) -> None:
    rule = rule_of(tree.room_name(path))
    wrong = [
        f"line {line}: {name}"
        for name, line in imports(path)
        if name.split(".")[0] in (tree.PACKAGE, "bench", "tests") and not within(tree.room_of(name), MAY_IMPORT[rule])
    ]
    assert not wrong, f"{tree.shown(path)} is in {rule}, which imports only {', '.join(MAY_IMPORT[rule])}: {wrong}"


@pytest.mark.parametrize("path", tree.modules("protocol"), ids=tree.shown)
def test_codecs_touch_nothing_outside(path: Path) -> None:
    assert not {name.split(".")[0] for name, _ in imports(path)} & NOT_IN_CODECS


@pytest.mark.parametrize("path", tree.modules("client/core"), ids=tree.shown)
def test_the_clients_core_has_no_clock_and_no_socket(path: Path) -> None:
    assert not {name.split(".")[0] for name, _ in imports(path)} & NOT_IN_CORE


def test_threads_are_started_only_where_listed() -> None:
    threaded = {
        tree.module_name(path)
        for path in tree.modules("shard", "broker", "supervisor")
        if {name.split(".")[0] for name, _ in imports(path)} & {"threading", "_thread", "concurrent"}
    }
    assert threaded == set(THREADED)


def test_the_walk_sees_all_kinds_of_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "ROOT", tmp_path)
    (tmp_path / "shard").mkdir()
    path = tmp_path / "shard" / "sample.py"
    path.write_text(
        "import tailrace.broker.worker\nfrom . import log\nfrom tailrace.supervisor import main\n"
        "if TYPE_CHECKING:\n    import tests\ndef late():\n    import tailrace\n"
    )
    found = [name for name, _ in imports(path)]
    assert found == ["tailrace.broker.worker", "tailrace.shard.log", "tailrace.supervisor.main", "tailrace"]
    assert [tree.room_of(name) for name in found] == ["broker.worker", "shard.log", "supervisor.main", "client"]
