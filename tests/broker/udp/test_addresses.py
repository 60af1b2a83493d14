"""Addresses in 28 bytes, and the sections of the configuration that give them rights."""

from __future__ import annotations

import pytest

from tailrace.broker.process.udp_settings import UdpPeer
from tailrace.broker.udp.addresses import NAME_BYTES, PeerRights, host_of, is_of_this_machine, pack_name


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
