"""Claims: notifying an upstream of masters, with an owner of real files. The ways of the answers are in
test_connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.replication.upstream import leadership_claims as claims_module
from tailrace.broker.replication.upstream.leadership_claims import CLAIM_RETRY_S, LeadershipClaims
from tailrace.broker.streams.owner import Owner
from tailrace.protocol.messages import Hello, pack
from tailrace.protocol.replication import FEATURE, Claim, Claimed
from tailrace.shard.epochs import EpochStart
from tailrace.shard.meta import Contact, Role, StreamMeta, Upstream
from tests.broker.owning import make_owner, publish
from tests.protocol.plain_codec import PlainCodec

S = b"s"
UPSTREAM = Upstream("up", 5050)
NODE = UPSTREAM[:2]


class Said:
    """The claims received by the other end, parsed as a broker parses them."""

    def __init__(self) -> None:
        self._codec = PlainCodec(1 << 20, 1 << 20)
        hello = pack(Hello(1, (), "test"))
        list(self._codec.feed(hello, len(hello)))
        self._codec.features = frozenset({FEATURE})
        self.claims: list[Claim] = []

    def __call__(self, data: bytes) -> None:
        self.claims += [each for each in self._codec.feed(data, len(data)) if isinstance(each, Claim)]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = make_owner(tmp_path / "data")
    publish(owner, S)
    owner.roles.set_meta(
        StreamMeta("s", Role.MASTER, 5, UPSTREAM, (EpochStart(5, 0, owner.catalog.directory.node_id),))
    )
    yield owner
    owner.release()


def test_a_claim_is_said_once_and_settled_by_its_answer(owner: Owner) -> None:
    claims, said = LeadershipClaims(owner, heard := Said(), NODE), []
    claims.add(S)
    claims.tick(1.0)
    claims.tick(100.0)
    said = heard.claims
    assert [(each.id, each.stream, each.history[-1].epoch) for each in said] == [(1, S, 5)]
    claims.answered(Claimed(1, "slave", 5, owner.catalog.directory.node_id, True), 100.0)
    assert not claims and owner.roles.meta(S).upstream is None


def test_who_is_not_accepted_gives_in(owner: Owner) -> None:
    claims = LeadershipClaims(owner, Said(), NODE)
    claims.add(S)
    claims.tick(1.0)
    claims.answered(Claimed(1, "slave", 5, "another", False), 1.0)
    assert not claims and (owner.roles.role(S), owner.roles.meta(S).upstream) == (
        Role.SLAVE,
        UPSTREAM._replace(kind="seq"),
    )


def test_a_slave_passes_on_what_it_knows_of_its_master(owner: Owner) -> None:
    contact = Contact(*NODE)
    history = (EpochStart(1, 0, "former"),)
    owner.roles.set_meta(StreamMeta("s", Role.SLAVE, 7, Upstream("new", 1), history, (contact,), "master"))
    claims = LeadershipClaims(owner, heard := Said(), NODE)
    claims.add(S)
    claims.tick(1.0)
    assert heard.claims == [Claim(1, S, (EpochStart(1, 0, "former"), EpochStart(7, 0, "master")))]
    claims.answered(Claimed(1, "master", 9, "yet another", False), 1.0)
    assert not claims and owner.roles.meta(S).upstream == Upstream(*NODE, "seq", 0), "that one knows of a later term"
    assert ("new", 1) in [contact[:2] for contact in stream_roles.to_be_told(owner, S)], (
        "and so must the former upstream"
    )


def test_who_is_no_contact_is_told_only_of_the_same_stream(owner: Owner) -> None:
    claims = LeadershipClaims(owner, heard := Said(), ("elsewhere", 1))
    claims.add(S)
    claims.tick(1.0)
    assert heard.claims[0].only_related


def test_no_more_than_some_claims_wait_for_an_answer(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "CLAIMS_AT_ONCE", 2)
    claims = LeadershipClaims(owner, heard := Said(), NODE)
    names = [b"s", b"a", b"b"]
    for name in names[1:]:
        publish(owner, name)
    for name in names:
        claims.add(name)
    claims.tick(1.0)
    assert [each.stream for each in heard.claims] == [b"s", b"a"]
    claims.answered(Claimed(1, "slave", 5, owner.catalog.directory.node_id, True), 1.0)
    claims.tick(1.0)
    assert [each.stream for each in heard.claims] == names


def test_a_term_that_began_meanwhile_is_claimed_next(owner: Owner) -> None:
    claims = LeadershipClaims(owner, heard := Said(), NODE)
    claims.add(S)
    claims.tick(1.0)
    stream_roles.promote(owner, [S])
    owner.roles.set_meta(replace(owner.roles.meta(S), epoch=6))
    claims.answered(Claimed(1, "master", 5, "another", False), 1.0)
    claims.tick(1.0)
    assert [each.history[-1].epoch for each in heard.claims] == [5, 6] and owner.roles.role(S) is Role.MASTER


def test_a_claim_that_failed_and_one_on_a_lost_connection_are_said_again(owner: Owner) -> None:
    claims = LeadershipClaims(owner, heard := Said(), NODE)
    claims.add(S)
    claims.tick(1.0)
    claims.failed(1, 1.0)
    claims.tick(1.0 + CLAIM_RETRY_S / 2)
    assert len(heard.claims) == 1
    claims.tick(1.0 + CLAIM_RETRY_S)
    claims.went_down()
    claims.answered(Claimed(2, "slave", 5, "late", True), 2.0)
    claims.went_up()
    claims.tick(50.0)
    assert [each.id for each in heard.claims] == [1, 2, 1] and list(claims) == [S]
