"""The subscriptions of a UDP client, its requests and their answers. Without clock or socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from tailrace.errors import BrokerError, InvalidTopic, ReservedName, broker_error
from tailrace.protocol import datagrams
from tailrace.protocol.datagrams import DatagramAnswer, DatagramMessage
from tailrace.protocol.topics import filter_fault, topic_fault

MESSAGES_MAX: Final = 65_536
"""That came and were not taken; the oldest are dropped, as a full socket drops datagrams."""
LEASE_S: Final = 120
"""Until the broker has answered with its own."""
RENEWALS_A_LEASE: Final = 3
RETRY_S: Final = 0.5
"""Between two requests for the same subscription."""


class DatagramState:
    """`outgoing`: datagrams to be sent; `messages`: those that came; `answer`: of the latest request, or a refusal."""

    def __init__(self) -> None:
        self.outgoing: deque[bytes] = deque()
        self.messages: deque[DatagramMessage] = deque(maxlen=MESSAGES_MAX)
        self.answer: DatagramAnswer | None = None
        self.topics: dict[bytes, bool] = {}  # whether the broker has answered
        self.lease_s = LEASE_S
        self._cookie = ""
        self._expected: tuple[str, ...] = ()  # the answer to the latest request, but for a number at its end
        self._renewing: set[bytes] = set()  # topics that were asked for again and have no answer yet
        self._refusals: list[DatagramAnswer] = []  # which may be of those

    def publish(self, topic: str | bytes, payload: bytes | str, *, asked: bool = False) -> None:
        """Raises InvalidTopic, ReservedName."""
        body = payload.encode() if isinstance(payload, str) else payload
        name = checked_topic(topic)
        datagram = datagrams.publish(name, body, asked=asked)
        if len(datagram) > datagrams.DATAGRAM_BYTES_MAX:
            raise InvalidTopic(f"a datagram has at most {datagrams.DATAGRAM_BYTES_MAX} bytes, not {len(datagram)}")
        if asked:
            self._expect("OK", name.decode())
        self.outgoing.append(datagram)

    def subscribe(self, topic: str | bytes) -> bytes:
        """Asks for a topic or a filter, and again in each renewal. Raises InvalidTopic, ReservedName."""
        name = checked_filter(topic)
        self.topics[name] = False
        self._renewing.discard(name)
        self._expect("OK", "SUB", name.decode())
        self.ask_again(name)
        return name

    def ask_again(self, name: bytes) -> None:
        self.outgoing.append(datagrams.subscribe(name, self._cookie))

    def unsubscribe(self, topic: str | bytes) -> None:
        """Raises InvalidTopic, ReservedName."""
        name = checked_filter(topic)
        self.topics.pop(name, None)
        self._expect("OK", "UNSUB", name.decode())
        self.outgoing.append(datagrams.unsubscribe(name))

    def renew(self) -> None:
        """Asks for all subscriptions again: the lease begins anew, also at a broker that has forgotten them."""
        self._refusals.clear()
        self._renewing = set(self.topics)
        if self._is_waiting and self._expected[1:-1] == ("SUB",):
            self._renewing.discard(self._expected[-1].encode())
        for name in self.topics:
            self.topics[name] = False
            self.ask_again(name)

    def ping(self) -> None:
        """Asks for a sign of life, by one of the subscriptions in turn: a broker that has forgotten it has it again."""
        name = next(iter(self.topics), None)
        if name is None or self._is_waiting:
            self.outgoing.append(datagrams.PING)
        else:
            del self.topics[name]
            self.topics[name] = False
            self._renewing.add(name)
            self.ask_again(name)

    def give_up(self) -> None:
        """The latest request is waited for no more."""
        self._expect()

    def leave(self) -> bool:
        """As `give_up`, unless the answer has come. Returns whether it may still come."""
        is_left = self._is_waiting
        if is_left:
            self.give_up()
        return is_left

    def go_on(self) -> None:
        """Another node, which knows nothing of this client, has its subscriptions from now on."""
        self._cookie = ""
        if self._expected[1:2] == ("UNSUB",):
            self.answer = DatagramAnswer("OK", self._expected)
        self.renew()

    def take(self, data: bytes) -> None:
        """A datagram has come."""
        found = datagrams.parse_answer(data)
        if isinstance(found, DatagramMessage):
            self.messages.append(found)
        elif found is not None and found.kind == "COOKIE" and len(found.words) == 2:
            self._take_cookie(found.words[1])
        elif found is not None:
            self._take_answer(found)

    def refusal(self) -> BrokerError | None:
        """The error that the latest answer stands for."""
        if self.answer is None or self.answer.kind != "ERR":
            return None
        code, text = (*self.answer.words[1:3], "", "")[:2]
        return broker_error(code, text or "the broker has refused that")

    @property
    def _is_waiting(self) -> bool:
        """Whether the latest request has no answer yet."""
        return bool(self._expected) and self.answer is None

    def _expect(self, *words: str) -> None:
        self.answer, self._expected = None, ()
        self._settle()
        self._expected = words

    def _take_cookie(self, cookie: str) -> None:
        if cookie != self._cookie:  # each request without one has it as its answer
            self._cookie = cookie
            self.renew()  # it is only sent to an address without subscriptions

    def _take_answer(self, found: DatagramAnswer) -> None:
        words, expected = found.words, self._expected
        if words[:2] == ("OK", "SUB") and len(words) == 4:
            name = words[2].encode()
            if name in self.topics:
                self.topics[name] = True
            if words[3].isdigit():
                self.lease_s = int(words[3]) or LEASE_S
        if words[1:2] in (("SUB",), ("UNSUB",)) and len(words) > 2:
            self._renewing.discard(words[2].encode())
        if found.kind == "ERR":
            self._refusals.append(found)
        elif expected in (words, words[:-1]):
            self.answer = found
        self._settle()

    def _settle(self) -> None:
        """Finds out whether the latest request was refused. Refusals have no topic: there must be more of them than
        renewals without an answer.
        """
        if len(self._refusals) < len(self._renewing) + self._is_waiting:
            return
        if self._is_waiting:
            self.answer = self._refusals[-1]
        self._refusals.clear()
        self._renewing.clear()


def checked_topic(topic: str | bytes) -> bytes:
    """The bytes of a topic to publish to. Raises InvalidTopic, ReservedName."""
    return _checked(topic, topic_fault)


def checked_filter(topic: str | bytes) -> bytes:
    """The bytes of a topic or a filter to subscribe to. Raises InvalidTopic, ReservedName."""
    return _checked(topic, filter_fault)


def _checked(topic: str | bytes, fault_of: Callable[[bytes], str]) -> bytes:
    """The bytes of a topic. Raises InvalidTopic, ReservedName."""
    name = topic if isinstance(topic, bytes) else topic.encode(errors="surrogatepass")
    fault = fault_of(name)
    if not fault and datagrams.has_white_space(name):
        fault = f"a topic of datagrams has no white space: {name.decode()!r}"
    if fault:
        raise InvalidTopic(fault)
    if fault := datagrams.reserved_fault(name):
        raise ReservedName(fault)
    return name
