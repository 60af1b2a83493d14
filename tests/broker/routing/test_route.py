"""Routes: waiting and in-flight messages, and their fate when the owner goes or is replaced."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.broker.routing.route import OVERLOAD_FACTOR, Route
from tailrace.protocol.errors import Code


@dataclass
class FakeRequest:
    request_id: int
    log: list[tuple[object, int]]
    nbytes: int = 10
    since_s: float = 0.0
    failed: list[Code] = field(default_factory=list)

    def send(self, link: object) -> None:
        self.log.append((link, self.request_id))

    def fail(self, code: Code, text: str) -> None:
        self.failed.append(code)


class World:
    def __init__(self, window_bytes: int = 1000) -> None:
        self.now_s = 0.0
        self.log: list[tuple[object, int]] = []
        self.route = Route(1, window_bytes, lambda: self.now_s, lambda _link: None, on_switch=lambda _link: None)
        self.requests: dict[int, FakeRequest] = {}

    def submit(self, *ids: int) -> None:
        for request_id in ids:
            request = self.requests[request_id] = FakeRequest(request_id, self.log)
            self.route.submit(request)

    def sent(self, link: object) -> list[int]:
        return [request_id for each, request_id in self.log if each == link]


def test_requests_wait_for_an_owner_then_go_in_order() -> None:
    world = World()
    world.submit(1, 2, 3)
    assert world.log == []
    world.route.switch("a")  # type: ignore[arg-type]
    assert world.sent("a") == [1, 2, 3]
    world.submit(4)
    assert world.sent("a") == [1, 2, 3, 4]


def test_the_successor_gets_nothing_before_the_predecessor_has_answered_all() -> None:
    world = World()
    world.route.switch("a")  # type: ignore[arg-type]
    world.submit(1, 2, 3)
    assert world.route.settle(1) is world.requests[1]
    world.route.moved(2)
    world.submit(4)
    world.route.switch("b")  # type: ignore[arg-type]
    assert world.sent("b") == []
    world.route.moved(3)
    assert world.sent("b") == [2, 3, 4]


def test_a_dead_owner_fails_what_was_in_flight_and_keeps_what_waits() -> None:
    world = World()
    world.route.switch("a")  # type: ignore[arg-type]
    world.submit(1, 2)
    world.route.moved(2)
    world.submit(3)
    world.route.link_closed("a")  # type: ignore[arg-type]
    assert world.requests[1].failed == [Code.UNAVAILABLE]
    assert world.requests[2].failed == world.requests[3].failed == []
    world.route.switch("b")  # type: ignore[arg-type]
    assert world.sent("b") == [2, 3]


def test_the_end_of_another_link_is_no_matter() -> None:
    world = World()
    world.route.switch("a")  # type: ignore[arg-type]
    world.submit(1)
    world.route.link_closed("z")  # type: ignore[arg-type]
    assert world.requests[1].failed == []


def test_a_successor_that_dies_before_it_took_over_is_forgotten() -> None:
    world = World()
    world.route.switch("a")  # type: ignore[arg-type]
    world.submit(1)
    world.route.switch("b")  # type: ignore[arg-type]
    world.route.link_closed("b")  # type: ignore[arg-type]
    world.route.settle(1)
    world.submit(2)
    assert world.sent("a") == [1, 2]


def test_waiting_has_an_end() -> None:
    world = World()
    world.submit(1)
    world.now_s = 5.0
    world.submit(2)
    world.route.expire(3.0)
    assert world.requests[1].failed == [Code.UNAVAILABLE]
    assert world.requests[2].failed == []
    assert world.route.bytes_held == 10


def test_a_row_far_over_its_window_refuses() -> None:
    world = World(window_bytes=10)
    world.submit(*range(1, OVERLOAD_FACTOR + 2))
    assert world.route.overloaded
    world.submit(99)
    assert world.requests[99].failed == [Code.OVERLOADED]


def test_feeders_go_on_when_half_the_window_is_free() -> None:
    world = World(window_bytes=20)
    resumed: list[int] = []
    world.route.switch("a")  # type: ignore[arg-type]
    world.submit(1, 2, 3)
    assert world.route.congested
    world.route.feeders.add(lambda: resumed.append(1))
    world.route.settle(1)
    assert resumed == []
    world.route.settle(2)
    assert resumed == [1]


def test_a_late_answer_finds_nobody() -> None:
    world = World()
    world.route.switch("a")  # type: ignore[arg-type]
    world.submit(1)
    world.route.link_closed("a")  # type: ignore[arg-type]
    assert world.route.settle(1) is None
    world.route.moved(1)
    assert world.route.waiting == type(world.route.waiting)()


def test_what_waits_and_is_chosen_is_given_back_and_the_rest_waits_on() -> None:
    world = World()
    world.submit(1, 2, 3, 4)
    world.route.give_up(lambda request: request.request_id in (2, 3), "why")
    lost = [Code.UNAVAILABLE]
    assert [world.requests[number].failed for number in (1, 2, 3, 4)] == [[], lost, lost, []]
    assert world.route.bytes_held == 20
    world.route.switch("a")  # type: ignore[arg-type]
    assert world.sent("a") == [1, 4]


def test_what_the_owner_has_taken_over_makes_room_and_is_still_answered() -> None:
    world = World(window_bytes=20)
    resumed: list[int] = []
    world.route.switch("a")  # type: ignore[arg-type]
    world.submit(1, 2, 3)
    world.route.feeders.add(lambda: resumed.append(1))
    assert world.route.lighten(1, 1) is world.requests[1] and not resumed
    world.route.lighten(2, 1)
    world.route.lighten(3, 1)
    assert resumed == [1] and world.route.bytes_held == 3
    world.route.switch("b")  # type: ignore[arg-type]
    world.submit(4)
    assert world.sent("b") == [], "three are not answered yet"
    for number in (1, 2, 3):
        world.route.settle(number)
    assert world.sent("b") == [4] and world.route.bytes_held == 10
    assert world.route.lighten(1, 0) is None
