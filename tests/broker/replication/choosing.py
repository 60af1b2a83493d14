"""Nodes that choose their upstreams in a network with a time of its own: `UpstreamChoice` is real, the rest a model.

A connection is made, refused, or never answered; FOLLOW is answered with the path to the master, or refused for a
circle; each change of a path goes on to the nodes below. What goes over a connection keeps its order.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import count, pairwise

from tailrace.broker.replication.downstream.replica_state import require_no_cycle
from tailrace.broker.replication.upstream.choice import UpstreamChoice
from tailrace.broker.replication.upstream.connection import STEADY_S
from tailrace.broker.replication.upstream.fetchers import RETRY_MAX_S, RETRY_S
from tailrace.broker.streams.refused import Refused

SILENCE_S = 10.0
LOOK_S = 0.1
"""Between two looks at an upstream that leads to no master."""
SWITCH_S = 5.0
DELAYS_S = (0.0001, 0.01)


class ModelNode:
    """`parent`: the node that it is connected to, `following` if that answers FOLLOW; `left_too_soon`: moves away from
    a node that led to the master a moment ago.
    """

    def __init__(self, model: Model, name: str, upstreams: Sequence[str]) -> None:
        self.model = model
        self.name = name
        self.upstreams = upstreams
        self.delay_s = model.chance.uniform(*DELAYS_S)
        self.children: dict[ModelNode, None] = {}
        self.held: list[float] = []  # when each message came
        self.left_too_soon: list[str] = []
        self.connections = 0
        self.alive = False

    def start(self) -> None:
        self.alive = True
        self.parent: ModelNode | None = None
        self.path: tuple[str, ...] = ()
        self.following = self.leads = False
        self.led_s = self.up_s = 0.0
        self.retries = 0
        if self.upstreams:
            chance = self.model.chance.uniform
            self.choice = UpstreamChoice(len(self.upstreams), SWITCH_S, chance)
            self._dial()

    def kill(self) -> None:
        self.alive = False
        self.connections += 1
        if self.parent is not None:
            self.parent.children.pop(self, None)
        for child in list(self.children):
            child.later(lambda child=child: child.fail(), on=child.connections)  # type: ignore[misc]
        self.children.clear()

    def whole_path(self) -> tuple[str, ...]:
        return (self.name, *self.path)

    def later(self, act: Callable[[], None], *, on: int, pause_s: float = 0.0) -> None:
        """Act after the delay of the connection `on`, if it is still there."""
        self.model.at(self.model.now_s + self.delay_s + pause_s, lambda: act() if self.connections == on else None)

    # --- the connection to the upstream -----------------------------------------------------------------------------

    def _dial(self) -> None:
        now_s, former = self.model.now_s, self.upstreams[self.choice.index]
        target = self.model.nodes[self.upstreams[self.choice.dial(now_s)]]
        if target.name != former and now_s - self.led_s < SWITCH_S and self.led_s:
            self.left_too_soon.append(f"{self.name} left {former} at {now_s:.2f}, which led at {self.led_s:.2f}")
        if frozenset((self.name, target.name)) in self.model.cuts:
            self.later(self.fail, on=self.connections, pause_s=min(self.choice.attempt_s, SILENCE_S))
        elif not target.alive or target is self:
            self.later(self.fail, on=self.connections)
        else:
            self.later(lambda: self._connected(target), on=self.connections)

    def _connected(self, target: ModelNode) -> None:
        if not target.alive:
            self.fail()
            return
        self.parent, self.up_s, self.retries = target, self.model.now_s, 0
        self._follow(target)
        self._look()

    def _look(self) -> None:
        if self.parent is None or self.leads:
            return
        if self.choice.is_useless(self.up_s, self.model.now_s):
            self.fail()
        else:
            self.later(self._look, on=self.connections, pause_s=LOOK_S)

    def fail(self) -> None:
        """The connection has ended, or could not be made."""
        now_s, self.connections = self.model.now_s, self.connections + 1
        was_steady = self.parent is not None and now_s - self.up_s > STEADY_S
        if self.parent is not None:
            self.parent.children.pop(self, None)
        self._lead(False)
        self.choice.failed(now_s, was_steady=was_steady)
        self.parent, self.following = None, False
        self._set_path(())
        connection = self.connections
        self.model.at(self.choice.dial_s, lambda: self._dial() if self.connections == connection else None)

    def _lead(self, leads: bool) -> None:
        if self.leads or leads:
            self.led_s = self.model.now_s
            self.choice.leads(self.led_s)
        self.leads = leads

    # --- FOLLOW -----------------------------------------------------------------------------------------------------

    def _follow(self, target: ModelNode) -> None:
        try:
            require_no_cycle(self.name, target.whole_path())
        except Refused:
            self.later(self._wait, on=self.connections)
            return
        target.children[self] = None
        path, held = target.whole_path(), len(target.held)
        self.later(lambda: self._followed(path, held), on=self.connections)

    def _followed(self, path: tuple[str, ...], held: int) -> None:
        self.following, self.retries = True, 0
        self.on_news(path)
        self.take(held)

    def _wait(self) -> None:
        """A stream that waits keeps its path, and asks again."""
        self.following = False
        if self.leads:
            self._lead(False)
            self.later(self._look, on=self.connections, pause_s=LOOK_S)
        pause_s, target = min(RETRY_S * 2.0**self.retries, RETRY_MAX_S), self.parent
        self.retries += 1
        if target is not None:
            self.later(lambda: self._follow(target), on=self.connections, pause_s=pause_s)

    def on_news(self, path: tuple[str, ...]) -> None:
        if not self.following:
            return
        leads = len(path) > 1 or not self.model.nodes[path[0]].upstreams
        if self.leads and not leads:
            self.later(self._look, on=self.connections, pause_s=LOOK_S)
        self._lead(leads)
        self._set_path(path)

    def _set_path(self, path: tuple[str, ...]) -> None:
        if path == self.path:
            return
        self.path = path
        for child in list(self.children):
            whole = self.whole_path()
            if child.name in whole:
                del self.children[child]
                child.later(child._wait, on=child.connections)
            else:
                child.later(lambda child=child, whole=whole: child.on_news(whole), on=child.connections)  # type: ignore[misc]

    # --- messages ---------------------------------------------------------------------------------------------------

    def take(self, number: int) -> None:
        """The messages up to this number have come, as far as they are not here yet."""
        if number <= len(self.held):
            return
        self.held += [self.model.now_s] * (number - len(self.held))
        for child in self.children:
            child.later(lambda child=child: child.following and child.take(number), on=child.connections)  # type: ignore[misc]


class Model:
    """`lists`: by node, those of which it follows one; the node without any is the master."""

    def __init__(self, lists: Mapping[str, Sequence[str]], seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.cuts: set[frozenset[str]] = set()
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self.nodes = {name: ModelNode(self, name, upstreams) for name, upstreams in lists.items()}
        (self.master,) = [node for node in self.nodes.values() if not node.upstreams]
        for node in self.nodes.values():
            node.start()

    def at(self, when_s: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._events, (max(when_s, self.now_s), next(self._order), act))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False, every_s: float = 0.25) -> bool:
        """Whether it has become true in this time."""
        end_s, look_s = self.now_s + seconds, self.now_s
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
            if self.now_s >= look_s:
                look_s = self.now_s + every_s
                if until():
                    return True
        self.now_s = end_s
        return until()

    def publish(self) -> None:
        self.master.take(len(self.master.held) + 1)

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between two nodes; they notice it by silence."""
        self.cuts.add(frozenset((one, other)))
        for below, above in ((one, other), (other, one)):
            node = self.nodes[below]
            if node.alive and node.parent is self.nodes[above]:
                node.parent.children.pop(node, None)
                node.later(node.fail, on=node.connections, pause_s=SILENCE_S)

    def circle(self) -> list[str]:
        """Nodes that follow each other in a circle."""
        for node in self.nodes.values():
            seen: list[ModelNode] = []
            at: ModelNode | None = node
            while at is not None and at.alive and at.following and at not in seen:
                seen.append(at)
                at = at.parent
            if at is not None and at in seen:
                return [each.name for each in seen[seen.index(at) :]]
        return []

    def all_reached(self) -> bool:
        """Whether each living node has everything, over living nodes up to the master."""
        return not self.unreached()

    def unreached(self) -> list[str]:
        wanted = len(self.master.held)
        living = (node for node in self.nodes.values() if node.alive and node.upstreams)
        return [node.name for node in living if not node.leads or len(node.held) < wanted or not self._is_true(node)]

    def _is_true(self, node: ModelNode) -> bool:
        """Whether a node is connected over its path indeed."""
        names = (node.name, *node.path)
        return names[-1] == self.master.name and all(
            (parent := self.nodes[below].parent) is not None and parent.name == above
            for below, above in pairwise(names)
        )
