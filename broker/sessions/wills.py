"""Publishes the wills of sessions whose connections are gone, if the rights that their users have now allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.broker.access.identity import Identity
from tailrace.broker.access.rules import Right, denied_text
from tailrace.broker.process.event_log import Event
from tailrace.broker.process.work import Nobody
from tailrace.broker.sessions.record import Will
from tailrace.broker.streams.refused import Refused
from tailrace.broker.topics.rights import may_publish
from tailrace.broker.topics.rules import Placed
from tailrace.protocol.errors import Code
from tailrace.shard.frame import HEADER_BYTES, unpack_header
from tailrace.shard.topics import topic_in

if TYPE_CHECKING:
    from tailrace.broker.services import Services

_NOBODYS: Final = "sessions:0"
"""In the place of the address of sessions without a user: together they make as many streams as one address."""


class _WillPublisher(Nobody):
    """The publisher of one will."""

    __slots__ = ("_account", "_identity", "_placed", "_services")

    def __init__(self, services: Services, user: str, identity: Identity, placed: Placed) -> None:
        self._services = services
        self._identity = identity
        self._placed = placed
        book, now_s = services.accounts, services.now_s
        self._account = book.of_user(user, now_s) if user else book.of(_NOBODYS, now_s)

    def publish_refused(self, name: bytes, count: int, code: Code, text: str) -> None:
        _refuse(self._services, self._identity.user, name, Refused(code, text))

    def may_create(self, name: bytes) -> bool:
        return self._creation_refusal(name) is None

    def creation_refusal(self, name: bytes) -> Refused:
        return self._creation_refusal(name) or Refused(Code.UNKNOWN, "no such stream here")

    def _creation_refusal(self, name: bytes) -> Refused | None:
        services, identity, topic = self._services, self._identity, self._placed.topic
        may, right = services.access.may, Right.CREATE
        if not (may(identity, right, name) or (topic and may(identity, right, topic))):
            return Refused(Code.DENIED, denied_text(identity, right))
        text = self._account.streams_refusal(services.now_s)
        return Refused(Code.STREAMS, text) if text else None

    def count_created(self) -> None:
        if self._account.streams is not None:
            self._account.streams.take(1, self._services.now_s)


def publish_will(services: Services, user: str, will: Will) -> None:
    """Give it to the owner of its stream, in this turn or the next. `user`: of the session, "" without one."""
    metadata_bytes = unpack_header(will.frame).metadata_bytes
    placed = Placed(will.stream, topic_in(will.frame[HEADER_BYTES : HEADER_BYTES + metadata_bytes]))
    identity = services.access.named(user)
    if identity is None:
        _refuse(services, user, will.stream, Refused(Code.DENIED, "its user may not log in any more"))
    elif not may_publish(services.access, identity, placed):
        _refuse(services, user, will.stream, Refused(Code.DENIED, denied_text(identity, Right.PUBLISH)))
    else:
        publisher = _WillPublisher(services, user, identity, placed)
        services.router.batch(will.stream).add_quiet(publisher, 1, bytearray(will.frame))


def _refuse(services: Services, user: str, stream: bytes, refused: Refused) -> None:
    services.metrics.refused.add(refused.code)
    text = f"a will was not published to {stream.decode()}: {refused.text}"
    services.events.write(Event.REFUSED, user=user, code=refused.code.value, text=text)
