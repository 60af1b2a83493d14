"""A world whose owners of consumers are played by the test: it sees their requests, and answers when it likes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tailrace.broker.streams.refused import Refused
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.consuming import FEATURE, Got, MemberNotice
from tailrace.protocol.messages import Hello, Response, Welcome
from tests.broker.binary import BinaryPeer
from tests.broker.world import World

GIVEN_NOTHING: dict[str, Any] = {"runs": [], "stale": [], "trimmed": 0}


def given(*runs: list[int], stale: tuple[list[int], ...] = (), trimmed: int = 0) -> dict[str, Any]:
    """An owner's answer to a get, of messages of epoch 1 unless a run names another."""
    return {"runs": [run if len(run) > 3 else [*run, 1] for run in runs], "stale": list(stale), "trimmed": trimmed}


class Owners:
    """`asked`: requests that have no answer yet, in their order; `told`: what nobody waits for."""

    def __init__(self, node: World) -> None:
        self.node = node
        self.asked: list[Any] = []
        self.told: list[MemberNotice] = []
        self._done: list[Callable[[Any], None]] = []
        for worker in node.workers:
            self._watch(worker.router.call, worker.router)

    def _watch(self, call: Callable[..., None], router: Any) -> None:
        def asked(name: bytes, verb: str, args: list[Any], done: Callable[[Any], None], *asker: Any) -> None:
            if verb not in ("get", "consume"):
                call(name, verb, args, done, *asker)
            elif isinstance(args[1], MemberNotice):
                self.told.append(args[1])
            else:
                assert name == args[0] == args[1].stream and verb == type(args[1]).__name__.lower()
                self.asked.append(args[1])
                self._done.append(done)

        router.call = asked

    def answer(self, value: dict[str, Any] | Refused = GIVEN_NOTHING) -> None:
        """To the first that has no answer."""
        self.asked.pop(0)
        self._done.pop(0)(value)
        self.node.settle()


class Member(BinaryPeer):
    """A binary peer that has agreed on durable consumers."""

    def __init__(self, node: World, slot: int = 0, **how: Any) -> None:
        super().__init__(node, slot, hello=False, **how)
        self.codec = ClientCodec(features=frozenset({FEATURE}))
        (welcome,) = self.ask(Hello(1, (FEATURE,), "test"))
        assert isinstance(welcome, Welcome) and welcome.features == (FEATURE,)

    def take(self) -> list[Response]:
        """With frames that stay."""
        data = bytes(self.peer.received)
        self.peer.received.clear()
        return [
            replace(each, frames=memoryview(bytes(each.frames))) if isinstance(each, Got) else each
            for each in self.codec.feed(data)
        ]
