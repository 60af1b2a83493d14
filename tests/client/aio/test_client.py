"""The asyncio client against a broker in memory, through real sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

import tailrace
from tailrace import Ack, AsyncClient, Client, Receipt
from tailrace.protocol import messages as m
from tests.client.model import ModelConnection
from tests.client.model_server import ModelServer, running_model

PATIENCE_S = 20.0


def run(what: Callable[[AsyncClient], Awaitable[None]], server: ModelServer, **options: object) -> None:
    """Run it with a client that is closed afterwards."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), tailrace.connect_async(server.address, **options) as client:  # type: ignore[arg-type]
            await what(client)

    asyncio.run(main())


async def wait_for(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def refuse_publishes(code: str) -> Callable[[ModelConnection, m.AnyMessage], bool]:
    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Publish):
            connection.fail(code, op=m.Op.PUBLISH, id=message.request)
        return isinstance(message, m.Publish)

    return on_message


@pytest.mark.parametrize(
    ("sync", "asynchronous"),
    [
        (Client, AsyncClient),
        (tailrace.Subscription, tailrace.AsyncSubscription),
        (tailrace.Batcher, tailrace.AsyncBatcher),
    ],
)
def test_both_shells_have_the_same_names(sync: type, asynchronous: type) -> None:
    def surface(kind: type) -> dict[str, object]:
        members = {name: each for name, each in inspect.getmembers(kind) if not name.startswith("_")}
        for own in ("connected", "due_s", "send_due"):  # how each is wired to its engine
            members.pop(own, None)
        return {
            name: list(inspect.signature(each).parameters.values()) if callable(each) else "property"
            for name, each in members.items()
        }

    assert surface(sync) == surface(asynchronous)


def test_connecting_takes_the_same() -> None:
    parameters = [inspect.signature(each).parameters for each in (tailrace.connect, tailrace.connect_async)]
    assert list(parameters[0].values()) == list(parameters[1].values())


def test_publishing(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        assert await client.publish("s", b"a", headers={"k": "v"}) == Receipt("s", 0, 1, 1)
        assert await client.publish_many("s", [b"b", b"c"]) == Receipt("s", 1, 2, 1)
        assert await client.publish_to(["s", "t"], b"x") == [Receipt("s", 3, 1, 1), Receipt("t", 0, 1, 1)]
        assert await client.publish("s", b"y", ack=Ack.NONE) == Receipt("s", -1, 1, 0)

    run(work, server)
    assert server.payloads(b"s") == [b"a", b"b", b"c", b"x", b"y"]


def test_messages_without_acknowledgement_go_together(server: ModelServer) -> None:
    expected = [b"%d" % number for number in range(2_000)]

    async def work(client: AsyncClient) -> None:
        for payload in expected:
            await client.publish("s", payload, ack=Ack.NONE)
        await client.publish("s", b"behind them")
        assert server.payloads(b"s") == [*expected, b"behind them"]
        await client.publish("s", b"the last", ack=Ack.NONE)
        await client.flush()
        assert client._driver.session.is_flushed

    run(work, server)
    assert len(server.payloads(b"s")) == 2_002
    assert len(server.model.said(m.Publish)) < 10


def test_a_turn_sends_what_it_held(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        for number in range(3):
            await client.publish("s", b"%d" % number, ack=Ack.NONE)
        while len(server.payloads(b"s")) < 3:
            await asyncio.sleep(0)

    run(work, server)
    assert len(server.model.said(m.Publish)) == 1


def test_a_full_buffer_makes_publishing_wait(server: ModelServer) -> None:
    """The broker reads nothing: the messages held are bounded, and all that were taken arrive when it reads again."""
    taken = 0

    async def work(client: AsyncClient) -> None:
        nonlocal taken
        await client.publish("s", bytes(1_000))
        with server.standing_still(), pytest.raises(tailrace.OperationTimeout):
            while taken < 100_000:
                await client.publish("s", bytes(1_000), ack=Ack.NONE, timeout_s=0.05)
                taken += 1
        await client.flush()

    run(work, server, max_in_flight_bytes=1 << 17)
    assert len(server.payloads(b"s")) == 1 + taken


def test_how_many_nodes_hold_it(server: ModelServer) -> None:
    async def publish(client: AsyncClient) -> None:
        await client.publish("s", b"0", ack=Ack.REPLICATED)
        await client.publish_many("s", [b"1"], ack=Ack.REPLICATED, replicas=2, retry=False)
        await client.publish_to(["s", "t"], b"2", ack=Ack.REPLICATED, replicas=3)
        async with client.batcher("s", ack=Ack.REPLICATED, replicas=4) as batch:
            await batch.add(b"3")
        with pytest.raises(tailrace.InvalidArgument, match=r"goes with ack=Ack\.REPLICATED"):
            await client.publish("s", b"x", replicas=1)

    run(publish, server)
    said = [each for each in server.model.received if isinstance(each, m.Publish)]
    assert [(each.ack, each.replicas) for each in said] == [(3, 1), (3, 2), (3, 3), (3, 4)]


def test_many_at_once(server: ModelServer) -> None:
    """More than may be in flight; those that wait go in their order."""

    async def work(client: AsyncClient) -> None:
        receipts = await asyncio.gather(*(client.publish("s", b"%d" % number) for number in range(200)))
        assert [receipt.seq for receipt in receipts] == list(range(200))

    run(work, server, max_in_flight=7)
    assert server.payloads(b"s") == [b"%d" % number for number in range(200)]


def test_what_goes_wrong_is_raised(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        with pytest.raises(tailrace.MessageTooLarge):
            await client.publish("s", bytes((1 << 20) + 1))
        server.model.on_message = refuse_publishes("full")
        with pytest.raises(tailrace.DiskFull):
            await client.publish("s", b"a")
        server.model.on_message = lambda _connection, message: isinstance(message, m.Publish)
        with pytest.raises(tailrace.OperationTimeout):
            await client.publish("s", b"a", timeout_s=0.05)
        await client.close()
        with pytest.raises(tailrace.ClientClosed):
            await client.publish("s", b"a")
        with pytest.raises(tailrace.ClientClosed):
            client.subscribe("s")

    run(work, server)


def test_a_publisher_that_is_cancelled_harms_nobody(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        server.model.on_message = lambda _connection, message: isinstance(message, m.Publish)
        task = asyncio.create_task(client.publish("s", b"a"))
        await wait_for(lambda: server.model.said(m.Publish))
        task.cancel()
        server.model.on_message = lambda _connection, _message: False
        server.cut()
        assert (await client.publish("s", b"b")).seq == 1  # behind the first, which was sent again

    run(work, server)
    assert server.payloads(b"s") == [b"a", b"b"]


def test_a_lost_connection_is_made_again(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        for number in range(20):
            if number % 5 == 4:
                server.cut()
            await client.publish("s", b"%d" % number)
        assert client.connections > 1

    run(work, server)
    assert list(dict.fromkeys(server.payloads(b"s"))) == [b"%d" % number for number in range(20)]


def test_pings_are_answered_and_lost_connections_made_again_while_nobody_waits(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        server.call(lambda: server.model.connections[0].say(m.Ping()))
        await wait_for(lambda: server.model.said(m.Pong))
        server.cut()
        await wait_for(lambda: client.connections == 2)

    run(work, server)


def raised_by(what: Coroutine[Any, Any, object]) -> BaseException:
    async def main() -> BaseException:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await what
        except tailrace.TailraceError as error:
            return error
        raise AssertionError("nothing was raised")

    return asyncio.run(main())


async def connected(*addresses: str, **options: object) -> None:
    await tailrace.connect_async(*addresses, **options)  # type: ignore[arg-type]


def test_no_broker(server: ModelServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert "no broker has answered within 0.1 s" in str(raised_by(connected(address, timeout_s=0.1)))
        assert "no greeting within 0.5 s" in str(raised_by(connected(address, connect_timeout_s=0.5)))
    assert "Connection refused; is the broker running there" in str(raised_by(connected(address)))
    assert "cannot find the host" in str(raised_by(connected("no.such.host.invalid")))
    server.model.token = "right"
    assert isinstance(raised_by(connected(server.address, token="wrong")), tailrace.Denied)


def test_the_next_address(server: ModelServer) -> None:
    with running_model() as other:
        gone = other.address

    async def main() -> None:
        client = await tailrace.connect_async(gone, server.address)
        async with client:
            assert client.is_connected

    asyncio.run(main())


def test_a_broker_that_is_gone_for_good() -> None:
    async def main() -> None:
        with running_model() as server:
            client = await tailrace.connect_async(server.address, reconnect_s=0.2)
        with pytest.raises(tailrace.ConnectionLost):
            await client.publish("s", b"a")
        with pytest.raises(tailrace.ConnectionLost, match="given up"):
            await client.publish("s", b"a")

    asyncio.run(main())


def test_closing_waits_for_answers_and_not_for_ever(server: ModelServer) -> None:
    async def main() -> None:
        client = await tailrace.connect_async(server.address)
        publish = asyncio.create_task(client.publish("s", b"a"))
        await asyncio.sleep(0)
        await client.close()
        assert (await publish).seq == 0
        client = await tailrace.connect_async(server.address)
        server.model.on_message = lambda _connection, _message: True
        publish = asyncio.create_task(client.publish("s", b"a"))
        await asyncio.sleep(0)
        await client.close(timeout_s=0.05)
        with pytest.raises(tailrace.ClientClosed):
            await publish

    asyncio.run(main())


def test_a_large_message_that_the_transport_takes_in_parts(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        payload = bytes(1 << 20)
        await asyncio.gather(*(client.publish("s", payload) for _ in range(20)))

    run(work, server)
    assert server.payloads(b"s") == [bytes(1 << 20)] * 20


def test_the_loop_is_never_held_up(server: ModelServer) -> None:
    """A timer of the program is on time while much is read."""
    server.publish(b"s", *(bytes(1_000) for _ in range(20_000)))
    late_s = []

    async def tick() -> None:
        while True:
            due_s = time.monotonic() + 0.005
            await asyncio.sleep(0.005)
            late_s.append(time.monotonic() - due_s)

    async def work(client: AsyncClient) -> None:
        ticking = asyncio.create_task(tick())
        count = 0
        async for _message in client.subscribe("s", end=tailrace.NOW):
            count += 1
        ticking.cancel()
        assert count == 20_000

    run(work, server)
    assert late_s


async def collect(messages: AsyncIterator[tailrace.Message]) -> list[int]:
    return [message.seq async for message in messages]


def test_values(server: ModelServer) -> None:
    async def publish(client: AsyncClient) -> None:
        assert (await client.publish_json("s", {"id": 7}, key="k")).seq == 0
        assert (await client.publish_msgpack("s", [1, None])).seq == 1
        found = [each async for each in client.subscribe("s", end=tailrace.NOW)]
        assert (found[0].key, found[0].json(), found[1].msgpack()) == ("k", {"id": 7}, [1, None])

    run(publish, server)


def test_publishes_of_one_turn_are_one_request(server: ModelServer) -> None:
    """Each has its own receipt. Who is cancelled leaves the message under way."""

    async def work(client: AsyncClient) -> None:
        tasks = [asyncio.ensure_future(client.publish("s", b"%d" % at, key=f"k{at % 2}")) for at in range(20)]
        await asyncio.sleep(0)
        tasks[7].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done.pop(7), asyncio.CancelledError)
        assert [each.seq for each in done if isinstance(each, Receipt)] == [at for at in range(20) if at != 7]

    run(work, server)
    assert server.payloads(b"s") == [b"%d" % at for at in range(20)]
    assert len(server.model.said(m.Publish)) == 2


def test_an_error_of_one_request_reaches_all_that_wait(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        server.model.on_message = refuse_publishes("full")
        found = await asyncio.gather(*(client.publish("s", b"x") for _ in range(5)), return_exceptions=True)
        assert [getattr(each, "code", None) for each in found] == ["full"] * 5
        assert len({id(each) for each in found}) == 5

    run(work, server)


def test_publishes_of_one_turn_keep_within_the_bound(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        counted = []
        publications = client._driver.session.publications
        tasks = [asyncio.ensure_future(client.publish("s", b"%d" % at)) for at in range(20)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            counted.append(publications.count + client._driver.session.held.waiting)
        assert max(counted) <= 3

    run(work, server, max_in_flight=3)
    assert server.payloads(b"s") == [b"%d" % at for at in range(20)]


def test_what_waits_at_the_end_is_told(server: ModelServer) -> None:
    """`close` in the turn of the publishes sends them; a client that is cut off fails them."""

    async def work(client: AsyncClient) -> None:
        tasks = [asyncio.ensure_future(client.publish("s", b"x")) for _ in range(3)]
        await asyncio.sleep(0)
        await client.close()
        assert [receipt.seq for receipt in await asyncio.gather(*tasks)] == [0, 1, 2]

    async def abort(client: AsyncClient) -> None:
        tasks = [asyncio.ensure_future(client.publish("s", b"x")) for _ in range(3)]
        await asyncio.sleep(0)
        client._driver.abort()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in found] == [tailrace.ClientClosed] * 3

    run(work, server)
    run(abort, server)


def test_another_event_loop(server: ModelServer) -> None:
    """uvloop's transports, sockets and options differ from asyncio's."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), tailrace.connect_async(f"localhost:{server.port}") as client:
            found = await asyncio.gather(*(client.publish("s", bytes(10_000 * at)) for at in range(20)))
            assert [each.seq for each in found] == list(range(20))
            await client.publish("s", b"the last", ack=Ack.NONE)
            async for message in client.subscribe("s", end=tailrace.Seq(21)):
                assert message.payload == (bytes(10_000 * message.seq) if message.seq < 20 else b"the last")
            server.cut()
            assert (await client.publish("s", b"again")).seq == 21

    uvloop.run(main())


def test_publishes_that_wait_for_room_go_together(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        found = await asyncio.gather(*(client.publish("s", b"%d" % at) for at in range(200)))
        assert [receipt.seq for receipt in found] == list(range(200))

    run(work, server, max_in_flight=20)
    assert server.payloads(b"s") == [b"%d" % at for at in range(200)]
    assert len(server.model.said(m.Publish)) < 40


def test_publishes_that_wait_for_room_end_in_time(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        session = client._driver.session
        session.options = dataclasses.replace(session.options, timeout_s=0.1)
        server.model.on_message = lambda _connection, message: isinstance(message, m.Publish)
        first = asyncio.ensure_future(client.publish("s", b"no answer", timeout_s=math.inf))
        await asyncio.sleep(0)
        late = await asyncio.gather(*(client.publish("s", b"late") for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in late] == ["s: too much is under way; it was not sent"] * 3
        first.cancel()

    run(work, server, max_in_flight=1)
    assert len(server.model.said(m.Publish)) == 1
