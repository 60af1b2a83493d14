"""A program that forks with a client in its hands: the child's copy is closed, and the parent's goes on as before."""

from __future__ import annotations

import asyncio
import http.client
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tailrace
from bench.ports import free_port
from tailrace import NOW, START, Ack
from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.proxy import Proxy, Way

pytestmark = pytest.mark.system

APP = Path(__file__).with_name("forked_app.py")
SERVERS = 3  # processes of the pre-forking server
REQUESTS = 30


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("forks") / "data", workers=1) as node:
        yield node


def in_child(what: Callable[[], str]) -> str:
    """What the function returns, or the client's error that it raises, in a child made with fork(2)."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if not pid:
        told = "failed"
        try:
            told = what()
        except tailrace.TailraceError as error:
            told = f"{type(error).__name__}: {error}"
        finally:
            os.write(sending, told.encode())
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as reader:
        told = reader.read()
    os.waitpid(pid, 0)
    return told


def logged(node: Node, stream: str) -> list[bytes]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        return [message.payload for message in client.subscribe(stream, START, NOW, wait=True)]


def test_a_child_that_publishes_with_its_parents_client_is_told_and_nothing_is_lost(node: Node) -> None:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        receipts = [client.publish("inherited", b"%d" % number) for number in range(3)]
        for number in range(3, 6):
            told = in_child(lambda number=number: str(client.publish("inherited", b"child %d" % number)))  # type: ignore[misc]
            assert told.startswith("ClientClosed: ") and "fork" in told
            receipts.append(client.publish("inherited", b"%d" % number))
    assert [receipt.seq for receipt in receipts] == list(range(6))
    assert logged(node, "inherited") == [b"%d" % number for number in range(6)]


def test_whatever_a_child_does_with_it_not_a_byte_goes_out(node: Node) -> None:
    """Each of a program's objects of a client raises at its next use; closing it is not an error."""
    with Proxy(node.port) as proxy:
        route = proxy.route()
        with tailrace.connect(f"127.0.0.1:{route.port}") as client:
            client.publish_many("used", [b"0", b"1", b"2"])
            subscription = client.subscribe("used", wait=True)
            consumer = client.consumer("used", "group")
            given = consumer.receive(PATIENCE_S)
            assert next(subscription).seq == 0 and given is not None
            batcher = client.batcher("used", linger_s=0.001)
            client.publish("used", b"3")  # everything due by then has been sent
            before = dict(route.passed)
            uses: list[Callable[[], object]] = [
                lambda: client.publish("used", b"x"),
                lambda: client.publish("used", b"x", ack=Ack.NONE),
                lambda: client.flush(),
                lambda: client.subscribe("used", wait=True),
                lambda: next(subscription),
                lambda: subscription.receive(1.0),
                lambda: consumer.receive(1.0),
                lambda: consumer.flush(1.0),
                given.ack,
                lambda: batcher.add(b"x"),
                batcher.flush,
                lambda: client.consumers("used"),
            ]
            for use in uses:
                assert in_child(lambda use=use: repr(use())).startswith("ClientClosed: ")  # type: ignore[misc]
            assert in_child(lambda: ended(client, subscription)) == "not connected"
            assert in_child(lambda: repr(list(subscription))).startswith("ClientClosed: ")
            assert route.passed[Way.TO_BROKER] == before[Way.TO_BROKER] and route.connections == 1
            given.ack()
            assert [next(subscription).seq for _ in range(3)] == [1, 2, 3], "in the parent all is as before"
            batcher.add(b"4")
            batcher.flush()
            consumer.flush()
            assert client.connections == 1
    assert logged(node, "used") == [b"0", b"1", b"2", b"3", b"4"]


def ended(client: tailrace.Client, subscription: tailrace.Subscription) -> str:
    """Both are ended, which is not an error."""
    subscription.cancel()
    client.close()
    return "connected" if client.is_connected else "not connected"


def test_a_fork_in_the_middle_of_other_threads_calls(node: Node) -> None:
    """The child finds every lock free, even if threads that it does not have were holding them."""
    ending = threading.Event()
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:

        def publish(name: int) -> None:
            while not ending.is_set():
                sent.append((client.publish("threads", b"%d" % name).seq, b"%d" % name))

        sent: list[tuple[int, bytes]] = []
        threads = [threading.Thread(target=publish, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        context = multiprocessing.get_context("fork")
        for round_ in range(20):
            wait_for(lambda round_=round_: len(sent) > 5 * round_, "the threads publish")  # type: ignore[misc]
            child = context.Process(target=_publish_anew, args=(client, node.port, round_))
            child.start()
            child.join(PATIENCE_S)
            assert child.exitcode == 0, f"round {round_}: {child.exitcode}"
        ending.set()
        for thread in threads:
            thread.join()
    log = logged(node, "threads")
    assert all(log[seq] == payload for seq, payload in sent)
    assert len(log) == len(sent) + 20, "and one of each child, with a client of its own"


def _publish_anew(client: tailrace.Client, port: int, number: int) -> None:
    signal.alarm(int(PATIENCE_S))
    try:
        client.publish("threads", b"of nobody")
    except tailrace.ClientClosed:
        with tailrace.connect(f"127.0.0.1:{port}") as own:
            own.publish("threads", b"child %d" % number)
        return
    raise AssertionError("it was published")


def test_an_asyncio_client_is_its_parents_too(node: Node) -> None:
    async def main() -> None:
        async with tailrace.connect_async(f"127.0.0.1:{node.port}") as client:
            receipts = [await client.publish("async", b"%d" % number) for number in range(3)]
            subscription = await client.subscribe("async", wait=True)
            batcher = client.batcher("async")
            assert (await anext(subscription)).seq == 0
            await client.publish("async", b"held at the fork", ack=Ack.NONE)
            uses = [
                lambda: client.publish("async", b"child"),
                lambda: client.publish("async", b"child", ack=Ack.NONE),
                lambda: client.flush(),
                lambda: anext(subscription),
                lambda: batcher.add(b"child"),
                lambda: client.consumers("async"),
            ]
            for use in uses:
                told = in_child(lambda use=use: repr(run_to_the_end(use())))  # type: ignore[misc]
                assert told.startswith("ClientClosed: "), told
            assert in_child(lambda: repr(run_to_the_end(client.close()))) == "None"
            assert in_child(lambda: repr(asyncio.run(publish_anew(node.port)))) == "3"
            receipts.append(await client.publish("async", b"3"))
            await batcher.add(b"4")
            await batcher.flush()
            assert [receipt.seq for receipt in receipts] == [0, 1, 2, 5] and client.connections == 1
            assert [(await anext(subscription)).seq for _ in range(6)] == [1, 2, 3, 4, 5, 6]

    asyncio.run(main())
    assert logged(node, "async") == [b"0", b"1", b"2", b"own", b"held at the fork", b"3", b"4"]


async def publish_anew(port: int) -> int:
    async with tailrace.connect_async(f"127.0.0.1:{port}") as client:
        return (await client.publish("async", b"own")).seq


def run_to_the_end(coroutine: object) -> object:
    """Run a coroutine that waits for nothing, without a loop: the loop it was made for is the parent's."""
    try:
        coroutine.send(None)  # type: ignore[attr-defined]
    except StopIteration as end:
        return end.value
    return "it waits"


@pytest.mark.thorough
def test_a_pre_forking_server(node: Node, tmp_path: Path) -> None:
    """gunicorn --preload: the application, and its client, are made before the fork; each worker publishes."""
    pytest.importorskip("gunicorn")
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", str(SERVERS), "--bind", f"127.0.0.1:{port}"]
    command += ["--chdir", str(APP.parent), "--no-control-socket", "forked_app:app"]
    environment = {**os.environ, "BROKER": f"127.0.0.1:{node.port}"}
    with (tmp_path / "gunicorn.log").open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        wait_for(lambda: answers(port), "the server answers")
        told = [ask(port, f"/{number}") for number in range(REQUESTS)]
    finally:
        server.terminate()
        server.wait(PATIENCE_S)
    log = logged(node, "preloaded")
    seqs = {int(each.split()[0]): each.split()[1].encode() for each in told}
    assert len(seqs) == REQUESTS and all(log[seq] == payload for seq, payload in seqs.items()), "none is lost"
    assert log[0] == b"master" and all(each.split()[2] == "ClientClosed" for each in told)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def ask(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, text
        return text
    finally:
        connection.close()
