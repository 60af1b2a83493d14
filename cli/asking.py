"""Asks one node for its replication status."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Final

from tailrace.core.address import Address
from tailrace.core.link import CLIENT_NAME
from tailrace.core.login import Login
from tailrace.core.options import ClientOptions
from tailrace.errors import BrokerFault
from tailrace.protocol import messages as m
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.errors import PeerError
from tailrace.protocol.replication import FEATURE, Ask, Told
from tailrace.protocol.strangers import STRANGER_BYTES, stranger
from tailrace.sockets import connect_blocking

ASK_TIMEOUT_S: Final = 5.0
"""From dialling to the answer."""
RECEIVE_BYTES: Final = 256 << 10
ANSWER_MAX_BYTES: Final = 1 << 20
ASK_ID: Final = 1


class AskFailed(Exception):
    """No answer; the text gives the reason."""


def ask_node(
    address: Address,
    stream: str | None,
    options: ClientOptions,
    timeout_s: float = ASK_TIMEOUT_S,
    tls: ssl.SSLContext | None = None,
) -> Told:
    """Returns the node's replication status for one stream, or for all. Raises AskFailed."""
    deadline_s = time.monotonic() + timeout_s
    try:
        with connect_blocking(address, timeout_s, tls) as sock:
            return _converse(sock, stream, options, deadline_s)
    except TimeoutError:
        raise AskFailed(f"no answer within {timeout_s:.0f} s") from None
    except UnicodeError:
        raise AskFailed(f"{address.host!r} is not a valid host name") from None
    except OSError as error:
        raise AskFailed(error.strerror or str(error)) from None
    except BrokerFault as error:
        raise AskFailed(str(error)) from None


def _converse(sock: socket.socket, stream: str | None, options: ClientOptions, deadline_s: float) -> Told:
    """Raises AskFailed, BrokerFault, OSError."""
    login = Login(options)
    codec, is_known = ClientCodec(ANSWER_MAX_BYTES, features=frozenset({FEATURE})), False
    sock.sendall(m.pack(login.hello(m.Hello(m.VERSION, (FEATURE,), CLIENT_NAME, options.token), options)))
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        sock.settimeout(left_s)
        data = sock.recv(RECEIVE_BYTES)
        if not data:
            raise AskFailed("the node closed the connection")
        try:
            messages = list(codec.feed(data))
        except PeerError as error:
            text = f"the peer is not a tailrace broker: {error.text}"
            raise AskFailed(text if is_known else stranger(data[:STRANGER_BYTES])) from None
        is_known = True
        for message in messages:
            if isinstance(message, m.Welcome):
                login.check(message.login)
                _check_welcome(message)
                sock.sendall(m.pack(Ask(ASK_ID, None if stream is None else stream.encode())))
            elif isinstance(message, m.Challenge):
                sock.sendall(m.pack(login.answer(message.data)))
            elif isinstance(message, m.Failed):
                raise AskFailed(f"{message.code}: {message.text}")
            elif isinstance(message, Told):
                return message


def _check_welcome(welcome: m.Welcome) -> None:
    if FEATURE not in welcome.features:
        raise AskFailed(f"{welcome.software} does not replicate")
