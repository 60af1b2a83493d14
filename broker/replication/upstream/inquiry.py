"""A short conversation with another node: connect, send HELLO, ask how replication stands, one question at a time."""

from __future__ import annotations

import select
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.broker.process.poller import Poller
from tailrace.broker.process.version import program_version
from tailrace.broker.replication.upstream.login import NodeLogin, NodeLoginFailed, NodeLogins
from tailrace.broker.replication.upstream.socket import (
    ChunkRun,
    ResolvedAddress,
    ResponseRun,
    UpstreamClosed,
    UpstreamSocket,
    numeric_address,
)
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.messages import pack

Resolve = Callable[[str, int, Callable[[ResolvedAddress | None, str], None]], None]
"""Looks up a host and a port; calls back with the address, or with None and why."""
OnInquiryAnswer = Callable[["Inquiry", "r.Told | str"], None]


@dataclass(frozen=True, slots=True)
class InquiryServices:
    """What inquiries need to reach other nodes. token: of this node's clients, shown in HELLO; tls: None: plain."""

    poller: Poller
    resolve: Resolve
    token: str | None
    tls: ssl.SSLContext | None
    logins: NodeLogins


class Inquiry:
    """`heard` is called with each answer, and once with the reason if none comes; then this is closed.

    node: the id of the node at the other end, "" until it has answered.
    """

    def __init__(self, outside: InquiryServices, host: str, port: int, heard: OnInquiryAnswer) -> None:
        self.host, self.port = host, port
        self.node = ""
        self.closed = False
        self._outside = outside
        self._heard = heard
        self._ask: r.Ask | None = None
        self._wire: UpstreamSocket | None = None
        self._login: NodeLogin = outside.logins.begin()
        self._connected = self._welcome = False
        self._mask = 0

    def ask(self, ask: r.Ask) -> None:
        """Ask the first question, which begins the conversation, or the next one."""
        self._ask = ask
        if self._wire is not None:
            self._send_ask()
            return
        address = numeric_address(self.host, self.port)
        if address is not None:
            self._connect(address)
            return

        def looked_up(found: ResolvedAddress | None, wrong: str) -> None:
            if self.closed:
                return
            if found is None:
                self.fail(f"its host is not known: {wrong}")
            else:
                self._connect(found)

        self._outside.resolve(self.host, self.port, looked_up)

    def fail(self, why: str) -> None:
        """No answer will come, for this reason."""
        if not self.closed:
            self.close()
            self._heard(self, why)

    def close(self) -> None:
        self.closed = True
        wire, self._wire = self._wire, None
        if wire is not None:
            self._outside.poller.unregister(wire.fileno())
            wire.close()

    def _connect(self, address: ResolvedAddress) -> None:
        try:
            wire = UpstreamSocket(address, self._outside.tls, self.host)
        except UpstreamClosed as closed:
            self.fail(str(closed))
            return
        self._wire, self._mask = wire, select.EPOLLOUT
        self._outside.poller.register(wire.fileno(), self._mask, self._on_event)

    def _on_event(self, mask: int) -> None:
        wire = self._wire
        if wire is None:
            return
        try:
            if not self._connected:
                self._connected = wire.connected()
                if self._connected:
                    self._greet(wire)
            elif mask & ~select.EPOLLOUT:
                for message in wire.receive():
                    self._take(message)
                    if self.closed:
                        return
            self._flush(wire)
        except (UpstreamClosed, NodeLoginFailed) as closed:
            self.fail(str(closed))

    def _greet(self, wire: UpstreamSocket) -> None:
        hello = m.Hello(m.VERSION, (r.FEATURE,), f"tailrace/{program_version()}", self._outside.token)
        wire.queue(pack(self._login.greet(hello)))

    def _flush(self, wire: UpstreamSocket) -> None:
        """Raises UpstreamClosed."""
        wire.flush()
        if wire.interest != self._mask:
            self._mask = wire.interest
            self._outside.poller.modify(wire.fileno(), self._mask)

    def _take(self, message: ResponseRun | ChunkRun) -> None:
        """Raises UpstreamClosed, NodeLoginFailed."""
        if isinstance(message, m.Welcome):
            self._login.check(message.login)
            if r.FEATURE not in message.features:
                raise UpstreamClosed("it does not replicate")
            self._welcome = True
            self._send_ask()
        elif isinstance(message, m.Challenge):
            self._login.answer(message.data, self._send, self.fail)
        elif isinstance(message, r.Told) and self._ask is not None and message.id == self._ask.id:
            self.node = message.node
            self._heard(self, message)
        elif isinstance(message, m.Failed):
            raise UpstreamClosed(f"{message.code}: {message.text}")
        elif isinstance(message, m.Ping) and self._wire is not None:
            self._wire.queue(pack(m.Pong()))

    def _send_ask(self) -> None:
        if self._welcome and self._ask is not None:
            self._send(pack(self._ask))

    def _send(self, envelope: bytes) -> None:
        if self._wire is None:
            return
        self._wire.queue(envelope)
        try:
            self._flush(self._wire)
        except UpstreamClosed as closed:
            self.fail(str(closed))
