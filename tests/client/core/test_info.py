"""A client's facts about its connection before the first one. The rest is in test_client.py."""

from __future__ import annotations

from tailrace.core.address import Address
from tailrace.core.info import ClientInfo
from tailrace.core.options import ClientOptions
from tailrace.core.session import Session


def test_before_there_is_a_connection() -> None:
    info = ClientInfo(Session([Address()], ClientOptions(), lambda: 0.5, 0.0))
    assert (info.is_connected, info.connections, info.node, info.worker, info.software) == (False, 0, "", -1, "")
    assert (info.refused, info.last_refusal) == (0, None)
    assert repr(info) == "<ClientInfo node='' WAITING>"
