"""Claims: what an upstream is to hear of masters, with an owner of real files. The answers' ways are in test_uplink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.owner import Owner
from broker.protocol.binary import ServerCodec
from broker.protocol.messages import Hello, pack
from broker.protocol.replication import FEATURE, Claim, Claimed
from broker.replication.claims import CLAIM_RETRY_S, Claims
from shard.epochs import EpochStart
from shard.meta import Role, StreamMeta, Upstream
from tests.broker.owning import make_owner, publish

S = b"s"
UPSTREAM = Upstream("up", 5050)
PASSED_ON = (EpochStart(1, 0, "former"), EpochStart(7, 3, "master"))


class Said:
    """What the other end has heard, read as a broker reads it."""

    def __init__(self) -> None:
        self._codec = ServerCodec(1 << 20, 1 << 20)
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
    owner.set_meta(StreamMeta("s", Role.MASTER, 5, UPSTREAM, (EpochStart(5, 0, owner.directory.node_id),)))
    yield owner
    owner.release()


def test_a_claim_is_said_once_and_settled_by_its_answer(owner: Owner) -> None:
    claims, said = Claims(owner, heard := Said()), []
    claims.add(S)
    claims.tick(1.0)
    claims.tick(100.0)
    said = heard.claims
    assert [(each.id, each.stream, each.history[-1].epoch) for each in said] == [(1, S, 5)]
    claims.answered(Claimed(1, "slave", 5, owner.directory.node_id, True), 100.0)
    assert not claims and owner.meta(S).upstream is None


def test_who_is_not_accepted_gives_in(owner: Owner) -> None:
    claims = Claims(owner, Said())
    claims.add(S)
    claims.tick(1.0)
    claims.answered(Claimed(1, "slave", 5, "another", False), 1.0)
    assert not claims and (owner.role(S), owner.meta(S).upstream) == (Role.SLAVE, UPSTREAM)


def test_what_is_passed_on_is_another_nodes_and_holds_while_this_one_is_a_slave(owner: Owner) -> None:
    owner.set_meta(StreamMeta("s", Role.SLAVE, 7, UPSTREAM))
    claims = Claims(owner, heard := Said())
    claims.pass_on(S, PASSED_ON)
    claims.drop(S)
    claims.tick(1.0)
    assert heard.claims[0].history == PASSED_ON
    before = owner.meta(S)
    claims.answered(Claimed(1, "master", 9, "yet another", False), 1.0)
    assert not claims and owner.meta(S) == before, "it is for the claimant to give in"


def test_nothing_is_passed_on_to_whom_the_stream_follows(owner: Owner) -> None:
    claims = Claims(owner, Said())
    claims.pass_on(S, PASSED_ON)
    claims.drop_all_of(S)
    assert not claims


def test_a_master_claims_for_itself(owner: Owner) -> None:
    claims = Claims(owner, heard := Said())
    claims.pass_on(S, PASSED_ON)
    claims.add(S)
    claims.tick(1.0)
    assert heard.claims[0].history[-1].epoch == 5


def test_a_claim_that_failed_and_one_on_a_lost_connection_are_said_again(owner: Owner) -> None:
    claims = Claims(owner, heard := Said())
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
