"""Which nodes a node notifies of a stream's term, and that all of them end with one master after any history."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.broker.replication.downstream import replica_state
from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.replication.upstream.contacts import (
    CONTACTS_MAX,
    are_related,
    confirmed,
    outstanding,
    with_contacts,
    with_former,
)
from tailrace.broker.replication.upstream.leadership_claims import LeadershipClaims
from tailrace.broker.streams.owner import Owner
from tailrace.protocol.replication import Claim, Claimed
from tailrace.shard import directory
from tailrace.shard.epochs import EpochStart, History
from tailrace.shard.meta import Contact, Role, StreamMeta, Upstream
from tests.broker.owning import around, make_owner, publish
from tests.broker.replication.upstream_node import Ears
from tests.thorough import THOROUGH

S = b"s"
UP, NEW = Upstream("up", 1), Upstream("new", 2)


def test_a_former_upstream_is_told_of_each_term_until_it_confirms() -> None:
    meta = replace(with_former(StreamMeta("s", Role.SLAVE, 1, UP), NEW), upstream=NEW)
    assert [contact[:2] for contact in outstanding(meta, 1)] == [("up", 1)]
    meta = confirmed(meta, [("up", 1)], 1)
    assert list(outstanding(meta, 1)) == [] and [each.host for each in outstanding(meta, 2)] == ["up"]


def test_who_is_followed_is_not_told() -> None:
    meta = StreamMeta("s", Role.SLAVE, 2, UP, contacts=(Contact("up", 1), Contact("new", 2)))
    assert [contact.host for contact in outstanding(meta, 2)] == ["new"]
    assert with_former(meta, UP) is meta


def test_who_is_disabled_tells_nobody() -> None:
    assert list(outstanding(StreamMeta("s", Role.DISABLED, 2, contacts=(Contact("up", 1),)), 2)) == []


def test_there_is_a_bound_and_upstreams_count_before_peers() -> None:
    above = [Contact(f"above-{number}", 1) for number in range(CONTACTS_MAX - 1)]
    peers = [Contact(f"peer-{number}", 1, was_above=False) for number in range(5)]
    meta = with_contacts(StreamMeta("s", contacts=(*peers, *above)), [Contact("peer-0", 1)])
    assert len(meta.contacts) == CONTACTS_MAX
    assert {contact.host for contact in meta.contacts} == {"peer-0", *(contact.host for contact in above)}


@pytest.mark.parametrize(
    ("mine", "theirs", "related"),
    [
        ([(1, "a")], [(1, "a"), (2, "b")], True),
        ([(1, "a")], [(1, "b"), (2, "b")], False),
        ([(1, "")], [(1, "b"), (2, "b")], True),
        ([(1, "a"), (2, "c")], [(1, "a"), (2, "b")], True),
        ([(5, "a")], [(2, "b")], True),  # unknown
        ([], [(2, "b")], True),
    ],
)
def test_histories_of_one_stream_have_a_term_in_common(
    mine: list[tuple[int, str]], theirs: list[tuple[int, str]], related: bool
) -> None:
    def history(terms: list[tuple[int, str]]) -> History:
        return tuple(EpochStart(epoch, epoch, master) for epoch, master in terms)

    assert are_related(history(mine), history(theirs)) is related


# --- all of them together ---------------------------------------------------------------------------------------------


NODES = 4
STEPS = 40
ROUNDS_MAX = 40


def make_data_dir(path: Path, chance: random.Random) -> None:
    """With an id that is the same in each run."""
    directory.make_data_dir(path)
    file = path / directory.NODE_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "node_id": f"{chance.getrandbits(64):016x}"}))


class Model:
    """Nodes over real files whose links are a set. One thing happens at a time, in an order that chance gives."""

    def __init__(self, path: Path, chance: random.Random, peers: bool) -> None:
        self.chance = chance
        self._path = path
        self.addresses = [(f"10.0.0.{number}", 5050) for number in range(NODES)]
        self._peers = tuple(f"{host}:{port}" for host, port in self.addresses) if peers else ()
        self.nodes: list[Owner] = []
        self.cut: set[frozenset[int]] = set()
        for number in range(NODES):
            self.nodes.append(self._start(number))
            if number:
                self._slave(number, chance.randrange(number))
            else:
                publish(self.nodes[number], S)

    def _start(self, number: int) -> Owner:
        path = self._path / str(number)
        if not path.exists():
            make_data_dir(path, self.chance)
        owner = make_owner(path, replication_peers=self._peers)
        around(owner).on_role = lambda _name: None
        return owner

    def close(self) -> None:
        for node in self.nodes:
            node.release()

    def role(self, number: int) -> Role:
        return self.nodes[number].roles.role(S)

    def upstream(self, number: int) -> int | None:
        upstream = self.nodes[number].roles.meta(S).upstream
        is_slave = self.role(number) is Role.SLAVE
        return self.addresses.index(upstream[:2]) if upstream is not None and is_slave else None

    def linked(self, one: int, other: int) -> bool:
        return one != other and frozenset((one, other)) not in self.cut

    # --- what an operator and the world do

    def promote(self, number: int, _other: int) -> None:
        stream_roles.promote(self.nodes[number], [S])

    def slave(self, number: int, other: int) -> None:
        """The master is left alone: a test that takes it away has to promote another one."""
        if self.role(number) is Role.SLAVE:
            self._slave(number, other)

    def _slave(self, number: int, other: int) -> None:
        stream_roles.slave(self.nodes[number], [S, *self.addresses[other], "seq", 0])

    def restart(self, number: int, _other: int) -> None:
        self.nodes[number].release()
        self.nodes[number] = self._start(number)

    def toggle(self, number: int, other: int) -> None:
        self.cut ^= {frozenset((number, other))}

    # --- what the nodes do

    def follow(self, number: int, _other: int = 0) -> None:
        """A slave's upstream learns of its term, and it of the upstream's."""
        above = self.upstream(number)
        if above is None or not self.linked(number, above) or number in self._path_of(above):
            return
        node, upstream = self.nodes[number], self.nodes[above]
        replica_state.follow(upstream, [S, *stream_roles.term_of(node, S)])
        told = [contact for contact in stream_roles.to_be_told(upstream, S) if contact.was_above]
        history = stream_roles.history_of(upstream, upstream.stream(S))
        if history[-1].epoch >= node.roles.meta(S).epoch:
            stream_roles.learn(node, node.stream(S), history, [Contact(*contact[:2]) for contact in told])

    def _path_of(self, number: int) -> list[int]:
        path = [number]
        while (above := self.upstream(path[-1])) is not None and above not in path:
            path.append(above)
        return path

    def claim(self, number: int, other: int) -> None:
        address = self.addresses[other]
        if not any(contact[:2] == address for contact in stream_roles.to_be_told(self.nodes[number], S)):
            return
        said = bytearray()
        claims = LeadershipClaims(self.nodes[number], said.extend, address)
        claims.add(S)
        claims.tick(1.0)
        (message,) = Ears().hear(bytes(said))
        assert isinstance(message, Claim)
        if number == other:
            claims.clear()
            stream_roles.note_confirmed(self.nodes[number], S, address)
        elif self.linked(number, other):
            args = [S, message.history, *self.addresses[number], message.only_related]
            claims.answered(Claimed(message.id, *stream_roles.claimed(self.nodes[other], args)), 1.0)

    def masters(self) -> list[int]:
        return [number for number in range(NODES) if self.role(number) is Role.MASTER]

    def settle(self) -> int:
        """All links are well. Returns the rounds until no node has anything to report."""
        self.cut.clear()
        for number in range(ROUNDS_MAX):
            before = [node.roles.meta(S) for node in self.nodes]
            pairs = [(one, other) for one in range(NODES) for other in range(NODES)]
            self.chance.shuffle(pairs)
            for one, other in pairs:
                self.claim(one, other)
                self.follow(one)
            if [node.roles.meta(S) for node in self.nodes] == before:
                return number
        raise AssertionError("they never come to rest")


@pytest.fixture(params=range(12 if THOROUGH else 6))
def model(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Model]:
    seed: int = request.param
    made = Model(tmp_path, random.Random(seed), peers=bool(seed % 2))
    yield made
    made.close()


@pytest.mark.few(3)
def test_one_master_is_left_once_all_links_are_well(model: Model) -> None:
    happenings = [model.promote, model.slave, model.restart, model.toggle, model.toggle, model.follow, model.claim]
    for _ in range(STEPS):
        happening = model.chance.choice(happenings)
        happening(*model.chance.sample(range(NODES), 2))
    model.settle()
    terms = [stream_roles.term_of(node, S) for node in model.nodes]
    (master,) = model.masters()
    assert terms[master] == max(terms) == (terms[master][0], model.nodes[master].catalog.directory.node_id)
