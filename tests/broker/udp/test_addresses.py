"""Addresses in 28 bytes, and the sections of the configuration that give them rights."""

from __future__ import annotations

import pytest

from tailrace.broker.process.udp_settings import UdpPeer
from tailrace.broker.udp import addresses
from tailrace.broker.udp.addresses import (
    NAME_BYTES,
    PeerRights,
    RefusedAddresses,
    host_of,
    is_of_this_machine,
    pack_name,
)


@pytest.mark.parametrize(
    ("address", "host", "is_local"),
    [
        (("127.0.0.1", 5050), "127.0.0.1", True),
        (("10.0.0.7", 1), "10.0.0.7", False),
        (("::1", 5050, 0, 0), "::1", True),
        (("::ffff:127.0.0.1", 5050, 0, 0), "::ffff:127.0.0.1", True),
        (("2001:db8::7", 65_535, 0, 0), "2001:db8::7", False),
    ],
)
def test_names(address: tuple[str, int], host: str, is_local: bool) -> None:
    name = pack_name(address)
    assert len(name) == NAME_BYTES and host_of(name) == host and is_of_this_machine(name) == is_local


def test_the_first_section_with_the_address_holds() -> None:
    rights = PeerRights(
        (
            UdpPeer(("10.0.1.0/24", "2001:db8::/32"), publish=("a/#",), subscribe=("a/+",)),
            UdpPeer(("10.0.0.0/8",), subscribe=("#",)),
        )
    )
    near, mapped, far = (pack_name(each) for each in (("10.0.1.5", 1), ("::ffff:10.0.1.5", 1, 0, 0), ("10.9.0.1", 1)))
    six, other = pack_name(("2001:db8::1", 1, 0, 0)), pack_name(("192.0.2.1", 1))
    for name in (near, mapped, six):
        assert rights.may_publish(name, b"a/b/c") and not rights.may_publish(name, b"b")
        assert rights.may_subscribe(name, b"a/b") and rights.may_subscribe(name, b"a/+")
        assert not rights.may_subscribe(name, b"a/#") and not rights.may_subscribe(name, b"+/b")
    assert rights.may_subscribe(far, b"x/#") and not rights.may_publish(far, b"a/b")
    assert not rights.may_subscribe(other, b"a/b") and not rights.may_publish(other, b"a/b")


def test_an_address_is_ignored_until_a_second_in_which_it_sends_little() -> None:
    senders, most = RefusedAddresses(), addresses.REFUSED_A_SECOND
    for _ in range(most):
        senders.add(b"a")
        assert not senders.ignores(b"a")
    senders.tick(1.5)
    senders.add(b"a")
    assert not senders.ignores(b"a")
    for _ in range(most):
        senders.add(b"a")
    assert senders.ignores(b"a") and not senders.ignores(b"b")
    senders.tick(1.9)
    senders.tick(2.0)
    assert [senders.ignores(b"a") for _ in range(most)] == [True] * most
    senders.tick(3.0)
    assert not senders.ignores(b"a") and senders.refused == 2 * most + 1


def test_an_address_that_is_quiet_for_a_second_is_answered_again() -> None:
    senders = RefusedAddresses()
    senders.tick(1.0)
    for _ in range(addresses.REFUSED_A_SECOND + 1):
        senders.add(b"a")
    senders.tick(3.0)  # nothing came in between, so nobody has called it
    assert not senders.ignores(b"a")


def test_refusals_of_so_many_addresses_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "REFUSED_ADDRESSES_MAX", 2)
    senders = RefusedAddresses()
    for name in (b"a", b"b", b"c") * (addresses.REFUSED_A_SECOND + 1):
        senders.add(name)
    assert [senders.ignores(name) for name in (b"a", b"b", b"c")] == [True, True, False]
