"""Who a connection is: shared values, and the form in which it moves to another worker."""

from __future__ import annotations

import msgpack

from tailrace.broker.access.identity import LOCAL, REMOTE, Identity, Proof, unix_peer


def test_what_a_log_line_says_of_it() -> None:
    assert str(REMOTE) == "user=- proof=anonymous"
    assert str(unix_peer(1000)) == "user=- proof=socket uid=1000"
    assert str(Identity("ann", frozenset(), Proof.SCRAM)) == "user=ann proof=scram"


def test_its_exported_form_is_plain() -> None:
    identity = Identity("ann", frozenset({"ops"}), Proof.BEARER, True, -1, b"mark")
    state = identity.export_state()
    assert msgpack.unpackb(msgpack.packb(state)) == state == ["ann", "bearer", True, -1, b"mark"]
    assert LOCAL.local and not REMOTE.local
