"""Which functions of the broker one request passes through, in the order of their calls.

    python -m tests.broker.walk              files, moves between files and calls of each walk
    python -m tests.broker.walk get --tree   the calls of one walk, indented by depth

A worker runs in this process, with real sockets and files. Each request is made several times before, so that nothing
is opened or created in the one that is traced. What a turn calls without any request is left out once: a walk shows the
calls that its request adds to a turn. Work that is due at intervals is not done meanwhile. The thread of the disk may
end something in a traced turn: of several walks the shortest counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from inspect import CO_GENERATOR
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.protocol.places import From
from tailrace.shard.window import SMALL_APPENDS_MIN
from tests.broker.binary import BinaryPeer
from tests.broker.consumers.owning import Member
from tests.broker.world import World, world
from tests.tidy import tree

TRACED = tuple(f"{tree.ROOT / folder}/" for folder in ("broker", "protocol", "shard"))
WARM_UP = SMALL_APPENDS_MIN + 2  # the streams have their windows then
WALKS_TRACED = 5
TURNS_MAX = 50
STREAM = "orders"
LINE_STREAM = "lines"


class Call(NamedTuple):
    depth: int
    code: CodeType

    @property
    def path(self) -> str:
        return str(Path(self.code.co_filename).relative_to(tree.ROOT))


class Walk(NamedTuple):
    calls: list[Call]

    @property
    def files(self) -> int:
        return len({call.path for call in self.calls})

    @property
    def moves(self) -> int:
        """How often the next call is in another file than the one before."""
        return sum(left.path != right.path for left, right in zip(self.calls, self.calls[1:], strict=False))

    def without(self, idle: Walk) -> Walk:
        """What an idle turn does as well is left out, each call as often as it is made there."""
        left = Counter(call.code for call in idle.calls)
        kept = []
        for call in self.calls:
            if left[call.code] > 0:
                left[call.code] -= 1
            else:
                kept.append(call)
        return Walk(kept)


def is_traced(code: CodeType) -> bool:
    """Functions of the product that have a name. Leaves do not count, whether they are compiled or not."""
    path = code.co_filename
    return path.startswith(TRACED) and not path.endswith("_cy.py") and not code.co_name.startswith("<")


def trace(step: Callable[[], object]) -> Walk:
    """The calls of functions of the product during `step`."""
    calls: list[Call] = []
    begun: set[FrameType] = set()
    depth = 0

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal depth
        if is_traced(frame.f_code):
            if event == "call":
                if frame not in begun:  # else a generator goes on
                    calls.append(Call(depth, frame.f_code))
                if frame.f_code.co_flags & CO_GENERATOR:
                    begun.add(frame)
                depth += 1
            elif event == "return":
                depth -= 1

    sys.setprofile(look)
    try:
        step()
    finally:
        sys.setprofile(None)
    return Walk(calls)


class Scene:
    """A node of one worker with one stream, a publisher, a subscriber and a member of a durable consumer."""

    def __init__(self, node: World) -> None:
        self.node = node
        self.publisher, self.reader, self.member = BinaryPeer(node), BinaryPeer(node), Member(node)
        self.publisher.open(STREAM)
        self.publisher.publish(1, b"first")
        self.reader.subscribe(1, STREAM)
        self.member.ask(c.Consume(1, "create", STREAM.encode(), b"workers", From("seq", 0)))
        self.line_publisher, self.line_reader = node.connect(), node.connect()
        node.ask(self.line_publisher, "ack on")
        node.ask(self.line_reader, f"sub {LINE_STREAM} 0 wait")
        self.seq = -1  # the message that the member was given last
        self.node.settle()

    def publish(self) -> None:
        self.publisher.publish(1, b"hello")

    def publish_line(self) -> None:
        self.line_publisher.send(f"pub {LINE_STREAM} |hello")

    def get(self) -> None:
        self.member.say(self._get(max_messages=1))

    def ack(self) -> None:
        self.member.say(self._get(finished=((self.seq, self.seq, 1),)))

    def _get(self, **more: Any) -> c.Get:
        return c.Get(2, STREAM.encode(), b"workers", b"member", **more)

    def turns(self, answered: Callable[[], bool]) -> None:
        """Turns of the worker until the answer is there."""
        for _ in range(TURNS_MAX):
            self.node.workers[0].turn()
            if answered():
                return
        raise AssertionError(f"there is no answer after {TURNS_MAX} turns")


def walk_line(scene: Scene) -> Walk:
    """The same in the line protocol."""
    publisher, reader = scene.line_publisher, scene.line_reader
    scene.node.settle()
    publisher.take()
    reader.take()

    def answered() -> bool:
        publisher.read()
        reader.read()
        return bool(publisher.received and reader.received)

    scene.publish_line()
    found = trace(lambda: scene.turns(answered))
    assert publisher.take()[0].startswith("ok pub") and reader.messages()[0][2] == "hello"
    return found


def walk_publish(scene: Scene) -> Walk:
    """One message published, acknowledged, and delivered to a subscriber of the same worker."""

    def answered() -> bool:
        for peer in (scene.publisher, scene.reader):
            peer.peer.read()
        return bool(scene.publisher.peer.received and scene.reader.peer.received)

    scene.publish()
    found = trace(lambda: scene.turns(answered))
    assert any(isinstance(answer, m.Published) for answer in scene.publisher.take())
    scene.reader.take()
    return found


def walk_member(scene: Scene, request: Callable[[], None]) -> tuple[Walk, c.Got]:
    scene.node.settle()
    scene.member.take()
    request()

    def answered() -> bool:
        scene.member.peer.read()
        return bool(scene.member.peer.received)

    found = trace(lambda: scene.turns(answered))
    (got,) = scene.member.take()
    assert isinstance(got, c.Got), got
    return found, got


def walk_get(scene: Scene) -> Walk:
    """One message given to a member of a durable consumer. It is acknowledged afterwards, not traced."""
    walk_publish(scene)
    found, got = walk_member(scene, scene.get)
    scene.seq = got.runs[0][0]
    walk_member(scene, scene.ack)
    return found


def walk_ack(scene: Scene) -> Walk:
    """One message acknowledged by a member."""
    walk_publish(scene)
    scene.seq = walk_member(scene, scene.get)[1].runs[0][0]
    return walk_member(scene, scene.ack)[0]


WALKS = {"publish-line": walk_line, "publish": walk_publish, "get": walk_get, "ack": walk_ack}


def measure(names: list[str]) -> dict[str, Walk]:
    """The walks by their names."""
    with tempfile.TemporaryDirectory() as folder, world(Path(folder), workers=1) as node:
        scene = Scene(node)
        found = {}
        for name in names:
            for _ in range(WARM_UP):
                WALKS[name](scene)
            node.settle()
            node.stop_timers()
            idle = trace(node.workers[0].turn)
            traced = [WALKS[name](scene).without(idle) for _ in range(WALKS_TRACED)]
            found[name] = min(traced, key=lambda walk: len(walk.calls))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walk", nargs="*", choices=[[], *WALKS], help="default: all")
    parser.add_argument("--tree", action="store_true", help="show every call")
    options = parser.parse_args()
    for name, walk in measure(options.walk or list(WALKS)).items():
        print(f"{name}: {walk.files} files, {walk.moves} moves, {len(walk.calls)} calls")
        if options.tree:
            for call in walk.calls:
                print(f"{'  ' * call.depth}{call.path}:{call.code.co_firstlineno} {call.code.co_qualname}")


if __name__ == "__main__":
    main()
