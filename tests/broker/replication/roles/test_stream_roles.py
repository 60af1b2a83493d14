"""What a node is to a stream, and in whose term."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.replication.downstream import replica_state
from tailrace.broker.replication.roles import stream_roles
from tailrace.broker.replication.roles.rules import Rule, Rules
from tailrace.broker.streams import roles as roles_module
from tailrace.broker.streams.owner import Owner, Refused
from tailrace.protocol.errors import Code
from tailrace.shard.deletion import DeletedStream
from tailrace.shard.epochs import EPOCH_FIRST_MAX, EPOCH_LEAP_MAX, EpochStart, History
from tailrace.shard.meta import Contact, Role, StreamMeta, Upstream, read_meta
from tailrace.shard.names import cursor_name
from tests.broker.owning import around, batch, make_owner, publish

S = b"s"
# Node ids before and behind any that is made, which is of hexadecimal digits.
LOW, HIGH = "!", "~"
PLACE = ["10.0.0.1", 5050, "time", 7]
UPSTREAM = Upstream("10.0.0.1", 5050, "time", 7)


class Node:
    """An owner, with the changes of roles that it reports."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.owner = make_owner(path, **settings)  # type: ignore[arg-type]
        self.changed: list[bytes] = []
        around(self.owner).on_role = self.changed.append

    @property
    def id(self) -> str:
        return self.owner.catalog.directory.node_id

    @property
    def meta(self) -> StreamMeta:
        return self.owner.roles.meta(S)

    @property
    def written(self) -> StreamMeta:
        return read_meta(self.owner.catalog.shard_path(S), "s")

    def history(self) -> History:
        return stream_roles.history_of(self.owner, self.owner.stream(S))

    def publish(self, *payloads: bytes) -> None:
        assert not publish(self.owner, S, *payloads).refusals

    def is_refused(self) -> Code:
        (refusal,) = publish(self.owner, S).refusals.values()
        return refusal[0]

    def be(self, role: Role, epoch: int = 1, upstream: Upstream | None = None, *history: tuple[int, int, str]) -> None:
        """Put the stream into this state, with a message in each term of its own before."""
        if S not in self.owner.catalog.names:
            self.owner.create(S)
        starts = tuple(EpochStart(*start) for start in history or ((1, 0, self.id),))
        self.owner.roles.set_meta(StreamMeta("s", role, epoch, upstream, starts))
        self.changed.clear()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def refusal(function: Any, owner: Owner, *args: Any) -> Code:
    with pytest.raises(Refused) as refused:
        function(owner, list(args))
    return refused.value.code


# --- commands of operators --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "before", "after"),
    [
        (stream_roles.master, None, (Role.MASTER, 1, None)),
        (stream_roles.master, Role.MASTER, (Role.MASTER, 3, None)),
        (stream_roles.master, Role.SLAVE, (Role.MASTER, 4, UPSTREAM)),
        (stream_roles.master, Role.DISABLED, (Role.MASTER, 4, None)),
        (stream_roles.promote, None, Code.UNKNOWN),
        (stream_roles.promote, Role.MASTER, (Role.MASTER, 3, None)),
        (stream_roles.promote, Role.SLAVE, (Role.MASTER, 4, UPSTREAM)),
        (stream_roles.promote, Role.DISABLED, (Role.MASTER, 4, None)),
        (stream_roles.unmaster, None, Code.UNKNOWN),
        (stream_roles.unmaster, Role.MASTER, (Role.DISABLED, 3, None)),
        (stream_roles.unmaster, Role.SLAVE, (Role.SLAVE, 3, UPSTREAM)),
        (stream_roles.unmaster, Role.DISABLED, (Role.DISABLED, 3, None)),
        (stream_roles.slave, None, (Role.SLAVE, 1, UPSTREAM)),
        (stream_roles.slave, Role.MASTER, (Role.SLAVE, 3, UPSTREAM)),
        (stream_roles.slave, Role.SLAVE, (Role.SLAVE, 3, UPSTREAM)),
        (stream_roles.slave, Role.DISABLED, (Role.SLAVE, 3, UPSTREAM)),
        (stream_roles.unslave, None, Code.UNKNOWN),
        (stream_roles.unslave, Role.MASTER, (Role.MASTER, 3, None)),
        (stream_roles.unslave, Role.SLAVE, (Role.DISABLED, 3, None)),
        (stream_roles.unslave, Role.DISABLED, (Role.DISABLED, 3, None)),
    ],
)
def test_each_command_in_each_role(
    node: Node, command: Any, before: Role | None, after: tuple[Role, int, Upstream | None] | Code
) -> None:
    if before is not None:
        upstream = UPSTREAM if before is Role.SLAVE else None
        node.be(before, 3, upstream, (1, 0, LOW), (3, 0, node.id if before is Role.MASTER else HIGH))
    args = [S, *PLACE] if command is stream_roles.slave else [S]
    if isinstance(after, Code):
        assert refusal(command, node.owner, *args) is after
        return
    command(node.owner, args)
    role, epoch, _upstream = after
    assert (node.meta.role, node.meta.epoch, node.meta.upstream) == after
    assert node.owner.catalog.open[S].epoch == (epoch if role is Role.MASTER else 0)
    if node.owner.roles.metas:
        assert node.written == node.meta


@pytest.mark.parametrize("command", [stream_roles.master, stream_roles.promote])
def test_a_promotion_begins_a_term_at_the_end_of_the_copy(node: Node, command: Any) -> None:
    node.publish(b"a", b"b")
    stream_roles.slave(node.owner, [S, *PLACE])
    assert node.is_refused() is Code.UNAVAILABLE, "its master cannot be reached from here"
    assert command(node.owner, [S]) == 2
    assert node.history() == (EpochStart(1, 0, node.id), EpochStart(2, 2, node.id))
    assert (node.written.role, node.written.epoch, node.written.history) == (Role.MASTER, 2, node.history())
    node.publish(b"c")
    assert node.owner.stream(S).log.entry(2).epoch == 2


def test_a_promotion_passes_every_term_that_is_known(node: Node) -> None:
    node.be(Role.SLAVE, 7, UPSTREAM, (1, 0, HIGH), (5, 0, HIGH))
    assert stream_roles.promote(node.owner, [S]) == 8
    assert node.history()[-1] == EpochStart(8, 0, node.id)


def test_a_term_that_no_other_can_follow(node: Node) -> None:
    node.be(Role.SLAVE, 2**32 - 1, UPSTREAM)
    assert refusal(stream_roles.promote, node.owner, S) is Code.UNSUPPORTED
    assert node.meta.role is Role.SLAVE


def test_what_was_once_a_master_says_so_when_it_follows(node: Node) -> None:
    """Its messages are this node's, of the first term: so they differ from a copy of another node's first term."""
    node.publish(b"a")
    stream_roles.slave(node.owner, [S, *PLACE])
    assert node.written.history == (EpochStart(1, 0, node.id),)


@pytest.mark.parametrize(
    "command",
    [stream_roles.master, stream_roles.promote, stream_roles.unmaster, stream_roles.slave, stream_roles.unslave],
)
def test_while_the_end_is_set_aside_nothing_changes(node: Node, command: Any) -> None:
    node.be(Role.SLAVE, 3, UPSTREAM)
    node.owner.stream(S).busy = True
    args = [S, *PLACE] if command is stream_roles.slave else [S]
    assert refusal(command, node.owner, *args) is Code.UNAVAILABLE
    assert node.meta.role is Role.SLAVE and not node.changed


def test_a_disk_that_takes_no_role_changes_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.publish(b"a")
    node.changed.clear()

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(roles_module, "write_meta", full)
    assert refusal(stream_roles.slave, node.owner, S, *PLACE) is Code.FULL
    assert node.meta.role is Role.MASTER and not node.changed
    node.publish(b"b")


def test_roles_outlive_the_worker(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.publish(b"a", b"b")
    stream_roles.slave(node.owner, [S, *PLACE])
    stream_roles.promote(node.owner, [S])
    node.owner.release()
    again = Node(tmp_path)
    assert again.meta == node.meta
    again.publish(b"c")
    assert again.owner.stream(S).log.entry(2).epoch == 2


# --- messages of other nodes ------------------------------------------------------------------------------------------


def claim(node: Node, epoch: int, master: str) -> list[Any]:
    rows = [[1, 0, LOW], [epoch, 0, master]] if epoch > 1 else [[1, 0, master]]
    return stream_roles.claimed(node.owner, [S, rows, "claimer", 6060])


@pytest.mark.parametrize(
    ("epoch", "master", "gives_in"),
    [
        (2, HIGH, False),  # an earlier term
        (3, LOW, False),  # of the same number, of a smaller node id
        (3, HIGH, True),
        (4, LOW, True),
        (9, LOW, True),
    ],
)
def test_a_master_gives_in_to_a_later_term_only(node: Node, epoch: int, master: str, gives_in: bool) -> None:
    node.be(Role.MASTER, 3, None, (1, 0, LOW), (3, 0, node.id))
    answer = claim(node, epoch, master)
    if gives_in:
        assert answer == ["slave", epoch, master, True]
        assert (node.meta.role, node.meta.epoch) == (Role.SLAVE, epoch)
        assert node.meta.upstream == Upstream("claimer", 6060, "seq", 0)
        assert node.written == node.meta and node.changed == [S]
        assert node.is_refused() is Code.UNAVAILABLE
    else:
        assert answer == ["master", 3, node.id, False]
        assert (node.meta.role, node.changed) == (Role.MASTER, [])
        node.publish(b"still the master")


@pytest.mark.parametrize("role", [Role.MASTER, Role.SLAVE, Role.DISABLED])
def test_a_term_too_far_beyond_is_not_believed(node: Node, role: Role) -> None:
    """There would be none left to begin, and nobody could take the stream back."""
    node.be(role, 3, UPSTREAM if role is Role.SLAVE else None, (3, 0, node.id))
    before, farthest = node.meta, 3 + EPOCH_LEAP_MAX
    for epoch in (farthest + 1, 2**32 - 1):
        with pytest.raises(Refused, match=f"term {epoch} cannot be: the latest that is known here is 3") as caught:
            claim(node, epoch, HIGH)
        assert caught.value.code is Code.USAGE
        if role is Role.MASTER:
            with pytest.raises(Refused, match="cannot be"):
                stream_roles.record_term(node.owner, S, epoch, HIGH)
    assert (node.meta, node.changed) == (before, [])
    assert claim(node, farthest, HIGH)[1:] == [farthest, HIGH, True]


def test_a_claim_of_the_term_that_is_known_is_accepted_again(node: Node) -> None:
    node.be(Role.MASTER, 3, None, (3, 0, node.id))
    claim(node, 4, LOW)
    node.be(Role.SLAVE, 4, Upstream("claimer", 6060), (1, 0, LOW), (4, 0, LOW))
    assert claim(node, 4, LOW) == ["slave", 4, LOW, True]
    assert not node.changed


def test_a_master_that_hears_of_its_own_term_stays_one(node: Node) -> None:
    node.be(Role.MASTER, 3, None, (3, 0, node.id))
    assert claim(node, 3, node.id) == ["master", 3, node.id, True]
    assert not node.changed


def test_who_was_deposed_follows_who_claims(node: Node) -> None:
    node.be(Role.SLAVE, 4, None, (3, 0, node.id))
    assert claim(node, 4, LOW) == ["slave", 4, LOW, True]
    assert node.meta.upstream == Upstream("claimer", 6060, "seq", 0)


def test_a_slave_turns_to_the_master_of_a_later_epoch_and_passes_it_on(node: Node) -> None:
    """To its old upstream, which gets claims until it confirms."""
    node.be(Role.SLAVE, 3, UPSTREAM, (3, 0, HIGH))
    assert claim(node, 5, LOW) == ["slave", 5, LOW, True]
    claimant = Upstream("claimer", 6060, "seq", 0)
    assert (node.meta.upstream, node.meta.epoch, node.written.epoch) == (claimant, 5, 5)
    assert node.written.contacts == (Contact("10.0.0.1", 5050),)
    assert [contact[:2] for contact in stream_roles.to_be_told(node.owner, S)] == [("10.0.0.1", 5050)]
    assert stream_roles.written_history(node.owner, S)[-1][::2] == (5, LOW), "before a message of it has come"


@pytest.mark.parametrize("first", [LOW, HIGH])
def test_of_two_claims_of_an_epoch_the_one_of_the_larger_id_holds(node: Node, first: str) -> None:
    """Two nodes that were promoted out of each other's sight: whichever comes first, the same one stays the master."""
    node.be(Role.SLAVE, 3, UPSTREAM, (3, 0, node.id))
    assert claim(node, 4, first)[3]
    second, epoch = (HIGH if first is LOW else LOW), 4
    rows = [[3, 0, node.id], [epoch, 0, second]]
    answer = stream_roles.claimed(node.owner, [S, rows, "second", 7070])
    assert answer == ["slave", 4, HIGH, second is HIGH]
    assert node.meta.upstream is not None and node.meta.upstream.host == ("second" if second is HIGH else "claimer")
    told = {contact.host for contact in stream_roles.to_be_told(node.owner, S)}
    assert told == ({"10.0.0.1", "claimer"} if second is HIGH else {"10.0.0.1"}), "who claimed first gives in as well"


def test_a_claim_from_a_peer_that_has_another_stream_of_the_name_changes_nothing(node: Node) -> None:
    node.be(Role.MASTER, 1, None, (1, 0, node.id))
    rows = [[1, 0, LOW], [2, 5, LOW]]
    assert stream_roles.claimed(node.owner, [S, rows, "claimer", 6060, True]) == ["master", 2, LOW, True]
    assert node.meta.role is Role.MASTER
    rows = [[1, 0, node.id], [2, 5, LOW]]
    assert stream_roles.claimed(node.owner, [S, rows, "claimer", 6060, True]) == ["slave", 2, LOW, True]


def test_contacts_outlive_commands_and_restarts(tmp_path: Path) -> None:
    """A slave gets a command to follow another node, before its former upstream is back: that one must learn still."""
    node = Node(tmp_path)
    node.be(Role.SLAVE, 1, UPSTREAM, (1, 0, HIGH))
    stream_roles.slave(node.owner, [S, "10.0.0.3", 5050, "seq", 0])
    learn(node, (1, 0, HIGH), (2, 7, LOW))
    node.owner.release()
    again = Node(tmp_path)
    (contact,) = stream_roles.to_be_told(again.owner, S)
    assert contact[:2] == ("10.0.0.1", 5050)
    stream_roles.note_confirmed(again.owner, S, contact[:2])
    assert stream_roles.to_be_told(again.owner, S) == [] and again.written.contacts == (contact._replace(epoch=2),)
    learn(again, (1, 0, HIGH), (2, 7, LOW), (3, 9, LOW))
    assert [each[:2] for each in stream_roles.to_be_told(again.owner, S)] == [("10.0.0.1", 5050)], "of each later term"


def test_a_promotion_is_told_to_the_former_upstream_and_to_every_peer(tmp_path: Path) -> None:
    node = Node(tmp_path, replication_peers=("10.0.0.1:5050", "10.0.0.2:5050", "10.0.0.0/8"))
    node.be(Role.SLAVE, 1, UPSTREAM, (1, 0, HIGH))
    stream_roles.promote(node.owner, [S])
    told = {contact[:2]: contact.was_above for contact in stream_roles.to_be_told(node.owner, S)}
    assert told == {("10.0.0.1", 5050): True, ("10.0.0.2", 5050): False}
    stream_roles.note_confirmed(node.owner, S, ("10.0.0.1", 5050))
    assert node.written.upstream is not None, "one write is enough, when all know"
    stream_roles.note_confirmed(node.owner, S, ("10.0.0.2", 5050))
    assert stream_roles.to_be_told(node.owner, S) == []
    assert [contact.epoch for contact in node.written.contacts] == [2, 2]


def test_a_copy_that_left_its_tree_tells_nobody(node: Node) -> None:
    node.be(Role.SLAVE, 1, UPSTREAM, (1, 0, HIGH))
    stream_roles.slave(node.owner, [S, "10.0.0.3", 5050, "seq", 0])
    stream_roles.unslave(node.owner, [S])
    stream_roles.promote(node.owner, [S])
    assert stream_roles.to_be_told(node.owner, S) == []


def test_a_slave_hears_of_a_later_epoch_from_whom_it_follows(node: Node) -> None:
    node.be(Role.SLAVE, 3, Upstream("claimer", 6060), (3, 0, HIGH))
    assert claim(node, 5, LOW) == ["slave", 5, LOW, True]
    assert (node.meta.upstream, node.meta.epoch) == (Upstream("claimer", 6060), 5)


# --- the fence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [4, 9])
def test_a_master_that_is_fenced_takes_no_more_messages(node: Node, epoch: int) -> None:
    node.be(Role.MASTER, 3, None, (3, 0, node.id))
    assert stream_roles.fence(node.owner, [S, epoch]) == ["slave", epoch]
    assert (node.written.epoch, node.written.fence) == (epoch, epoch)
    assert publish(node.owner, S).refusals


@pytest.mark.parametrize("role", list(Role))
def test_a_fence_of_a_term_that_is_known_changes_nothing(node: Node, role: Role) -> None:
    node.be(role, 4, UPSTREAM, (4, 0, LOW))
    before = node.meta
    for epoch in (3, 4):
        assert stream_roles.fence(node.owner, [S, epoch]) == [role.value, 4]
    assert node.meta == before


def test_a_fence_that_cannot_be_true_is_refused(node: Node) -> None:
    node.be(Role.MASTER, 3, None, (3, 0, node.id))
    with pytest.raises(Refused) as refused:
        stream_roles.fence(node.owner, [S, 4 + EPOCH_LEAP_MAX])
    assert refused.value.code is Code.USAGE and node.meta.role is Role.MASTER
    assert refusal(stream_roles.fence, node.owner, b"other", EPOCH_FIRST_MAX + 1) is Code.USAGE
    assert refusal(stream_roles.fence, node.owner, b"a*", 4) is Code.NAME
    assert refusal(stream_roles.fence, node.owner, cursor_name(S), 4) is Code.USAGE
    assert set(node.owner.catalog.names) == {S}


@pytest.mark.parametrize("upstream", [None, UPSTREAM])
def test_a_fence_of_a_stream_that_is_not_here_is_kept(node: Node, upstream: Upstream | None) -> None:
    """By a rule for new streams or without one, it is begun and copied here in no earlier term."""
    if upstream is not None:
        node.owner.roles.rules = Rules((Rule(b"*", upstream),))
    assert stream_roles.fence(node.owner, [S, EPOCH_LEAP_MAX + 9]) == ["slave", EPOCH_LEAP_MAX + 9]
    assert (node.written.role, node.written.fence, node.written.upstream) == (Role.SLAVE, EPOCH_LEAP_MAX + 9, upstream)
    assert publish(node.owner, S).refusals
    assert not claim(node, EPOCH_LEAP_MAX + 8, HIGH)[3]
    assert claim(node, EPOCH_LEAP_MAX + 9, HIGH)[3] and node.meta.upstream == Upstream("claimer", 6060, "seq", 0)
    assert stream_roles.promote(node.owner, [S]) == EPOCH_LEAP_MAX + 10


def test_a_fence_of_a_deleted_stream_makes_it_only_for_a_later_term(node: Node) -> None:
    node.owner.catalog.deleted[S] = DeletedStream("s", 5, HIGH, ())
    for epoch in (4, 5):
        assert stream_roles.fence(node.owner, [S, epoch]) == ["disabled", 5]
    assert S not in node.owner.catalog.names
    assert stream_roles.fence(node.owner, [S, 6]) == ["slave", 6]
    assert (node.written.fence, node.written.epoch) == (6, 6)
    node.owner.catalog.deleting.add(b"t")
    assert refusal(stream_roles.fence, node.owner, b"t", 6) is Code.UNAVAILABLE


def test_the_term_kept_for_a_deleted_stream_has_no_master_once_the_node_would_follow_another(node: Node) -> None:
    """A copy that missed the deletion learns of it here, and does not wait for a master of the term that was kept."""
    node.owner.catalog.deleted[S] = DeletedStream("s", 6, node.id, ())
    assert claim(node, 3, HIGH) == ["master", 6, node.id, False]
    node.owner.roles.rules = Rules((Rule(b"*", UPSTREAM),))
    assert claim(node, 3, HIGH) == ["slave", 5, "", False]
    assert claim(node, 5, HIGH) == ["slave", 5, "", True]
    assert S not in node.owner.catalog.names
    assert refusal(replica_state.follow, node.owner, S, 5, "") is Code.DELETED


def test_a_slave_that_is_fenced_turns_to_the_master_of_that_term(node: Node) -> None:
    """It has obeyed no claim of the term yet, unlike one that has turned to another claimant."""
    node.be(Role.SLAVE, 3, UPSTREAM, (3, 0, LOW))
    assert stream_roles.fence(node.owner, [S, 4]) == ["slave", 4]
    assert node.meta.upstream == UPSTREAM, "it may be the one that learns of the term next"
    assert claim(node, 4, HIGH)[3]
    assert (node.meta.upstream, node.meta.fence) == (Upstream("claimer", 6060, "seq", 0), 0)
    assert not stream_roles.claimed(node.owner, [S, [[4, 0, LOW]], "second", 6060])[3]


def test_a_fence_is_over_when_the_upstream_is_in_its_term(node: Node) -> None:
    node.be(Role.SLAVE, 3, UPSTREAM, (3, 0, LOW))
    stream_roles.fence(node.owner, [S, 5])
    stream_roles.learn(node.owner, node.owner.stream(S), (EpochStart(3, 0, LOW), EpochStart(4, 7, LOW)))
    assert node.written.fence == 5
    stream_roles.learn(node.owner, node.owner.stream(S), (EpochStart(3, 0, LOW), EpochStart(5, 7, LOW)))
    assert (node.written.fence, node.written.epoch) == (0, 5)


def test_a_term_that_is_given_must_be_above_all_that_are_known(node: Node) -> None:
    node.be(Role.SLAVE, 3, UPSTREAM, (3, 0, LOW))
    stream_roles.fence(node.owner, [S, 5])
    for epoch in (4, 5, 6 + EPOCH_LEAP_MAX):
        with pytest.raises(Refused) as refused:
            stream_roles.promote(node.owner, [S, epoch])
        assert refused.value.code is Code.USAGE
    assert stream_roles.promote(node.owner, [S, 8]) == 8
    assert (node.written.role, node.written.epoch, node.written.fence) == (Role.MASTER, 8, 0)
    assert stream_roles.promote(node.owner, [S]) == stream_roles.promote(node.owner, [S, 8]) == 8
    assert stream_roles.promote(node.owner, [S, 9]) == 9


def test_the_next_term_is_above_what_other_nodes_know(node: Node) -> None:
    node.be(Role.SLAVE, 3, UPSTREAM, (3, 0, LOW))
    assert stream_roles.promote(node.owner, [S, 0, 6]) == 7
    node.be(Role.SLAVE, 9, UPSTREAM, (9, 0, LOW))
    assert stream_roles.promote(node.owner, [S, 0, 2**32 - 1]) == 9 + EPOCH_LEAP_MAX


def test_other_nodes_are_to_be_asked_before_a_slave_is_promoted(node: Node) -> None:
    node.be(Role.SLAVE, 3, UPSTREAM, (3, 0, LOW))
    assert stream_roles.promote(node.owner, [S, 0, 0, True]) == 0
    assert node.meta.role is Role.SLAVE
    assert stream_roles.promote(node.owner, [S, 0, 0, False]) == 4
    assert stream_roles.master(node.owner, [b"new", 0, 0, True]) == 1, "nobody has anything of it"


@pytest.mark.parametrize("role", list(Role))
def test_who_comes_second_gives_in(node: Node, role: Role) -> None:
    node.be(role, 4, UPSTREAM, (3, 0, LOW), (4, 0, node.id))
    stream_roles.give_in(node.owner, S, 4)
    assert node.meta.role is (Role.SLAVE if role is Role.MASTER else role)
    assert node.meta.upstream == UPSTREAM


def test_what_is_disabled_stays_so(node: Node) -> None:
    node.be(Role.DISABLED, 3, None, (3, 0, node.id))
    assert claim(node, 4, LOW) == ["disabled", 4, LOW, True]
    assert (node.meta.role, node.meta.upstream, node.meta.epoch) == (Role.DISABLED, None, 4)
    assert stream_roles.promote(node.owner, [S]) == 5


def test_a_claim_of_a_stream_that_is_not_here_is_accepted_and_makes_none(node: Node) -> None:
    assert claim(node, 4, LOW) == ["disabled", 4, LOW, True]
    assert S not in node.owner.catalog.names


def test_a_claim_waits_while_the_end_is_set_aside(node: Node) -> None:
    node.be(Role.SLAVE, 3, None, (3, 0, node.id))
    node.owner.stream(S).busy = True
    assert refusal(stream_roles.claimed, node.owner, S, [[4, 0, LOW]], "claimer", 6060) is Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("role", "epoch", "master", "gives_in"),
    [
        (Role.MASTER, 2, HIGH, False),
        (Role.MASTER, 3, "", False),
        (Role.MASTER, 3, LOW, False),
        (Role.MASTER, 3, HIGH, True),
        (Role.MASTER, 4, "", True),
        (Role.SLAVE, 9, HIGH, False),
        (Role.DISABLED, 9, HIGH, False),
    ],
)
def test_who_hears_of_a_later_term_takes_no_more_messages(
    node: Node, role: Role, epoch: int, master: str, gives_in: bool
) -> None:
    upstream = None if role is Role.DISABLED else UPSTREAM
    node.be(role, 3, upstream, (1, 0, LOW), (3, 0, node.id))
    before = node.meta
    stream_roles.record_term(node.owner, S, epoch, master)
    if gives_in:
        assert (node.meta.role, node.meta.epoch, node.meta.upstream) == (Role.SLAVE, epoch, UPSTREAM)
        assert node.written == node.meta and node.changed == [S]
    else:
        assert node.meta == before and not node.changed


def test_hearing_of_a_stream_that_is_not_here_is_nothing(node: Node) -> None:
    stream_roles.record_term(node.owner, S, 9, HIGH)
    assert S not in node.owner.catalog.names and not node.changed


def test_one_who_has_given_in_with_nobody_to_follow_is_disabled_until_somebody_claims(node: Node) -> None:
    node.be(Role.MASTER, 3, None, (3, 0, node.id))
    stream_roles.record_term(node.owner, S, 4, "")
    assert (node.meta.role, node.meta.upstream) == (Role.SLAVE, None)
    assert stream_roles.term_of(node.owner, S) == (4, ""), "whose term it is nobody has said"


@pytest.mark.parametrize("role", list(Role))
def test_a_claim_is_settled_by_the_master_that_made_it(node: Node, role: Role) -> None:
    node.be(role, 3, UPSTREAM)
    stream_roles.settle_claim(node.owner, S)
    assert node.meta.role is role
    assert (node.meta.upstream is None) is (role is Role.MASTER) is bool(node.changed)


# --- terms reported by an upstream ------------------------------------------------------------------------------------


def learn(node: Node, *starts: tuple[int, int, str]) -> None:
    stream_roles.learn(node.owner, node.owner.stream(S), tuple(EpochStart(*start) for start in starts))


def test_the_terms_of_the_upstream_are_written_down(node: Node) -> None:
    node.be(Role.SLAVE, 1, UPSTREAM, (1, 0, ""))
    learn(node, (1, 0, LOW), (2, 5, HIGH))
    assert node.written.history == (EpochStart(1, 0, LOW), EpochStart(2, 5, HIGH))
    assert (node.written.epoch, node.meta.upstream, node.changed) == (2, UPSTREAM, [S])
    learn(node, (1, 0, LOW), (2, 5, HIGH))
    assert node.changed == [S], "nothing new"
    learn(node, (1, 0, LOW))
    assert (node.meta.epoch, len(node.meta.history)) == (2, 1), "an epoch never goes back"


def test_a_slave_by_rule_needs_no_file_for_a_first_term(node: Node) -> None:
    node.owner.roles.rules = Rules((Rule(b"*", UPSTREAM),))
    node.owner.create(S)
    node.changed.clear()
    learn(node, (1, 0, LOW))
    assert not node.changed and S not in node.owner.roles.metas
    learn(node, (1, 0, LOW), (2, 5, HIGH))
    assert node.changed == [S] and node.written.upstream == UPSTREAM


# --- after the machine went down --------------------------------------------------------------------------------------


def boot_again(path: Path, boot: str = "the next boot") -> Node:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.broker.owning.BOOT", boot)
        return Node(path)


def opened(node: Node, *, followed: bool = True) -> Node:
    """As a worker has it; the stream is opened for the first time in this boot."""
    node.owner.roles.was_followed = followed
    around(node.owner).on_open = lambda stream: stream_roles.begin_after_boot(node.owner, stream)
    node.owner.stream(S)
    return node


def test_a_master_begins_a_term_after_the_machine_went_down(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.publish(b"a", b"b")
    node.owner.release()
    again = opened(boot_again(tmp_path))
    assert again.history() == (EpochStart(1, 0, again.id), EpochStart(2, 2, again.id))
    assert again.written.epoch == again.owner.catalog.open[S].epoch == 2
    again.owner.release()
    same_boot = opened(boot_again(tmp_path))
    assert same_boot.meta.epoch == 2, "once a boot"
    same_boot.owner.release()
    assert opened(boot_again(tmp_path, "another boot")).meta.epoch == 3


def test_a_master_that_has_consumers_begins_a_term_too(tmp_path: Path) -> None:
    """Its consumers may be done with messages that it has lost, and will give out anew."""
    node = Node(tmp_path)
    node.publish(b"a", b"b")
    node.owner.create(cursor_name(S), by_command=True)
    node.owner.release()
    assert opened(boot_again(tmp_path), followed=False).meta.epoch == 2


@pytest.mark.parametrize("case", ["never followed", "slave", "disabled", "same boot"])
def test_who_gives_out_no_messages_to_be_told_apart_begins_none(tmp_path: Path, case: str) -> None:
    node = Node(tmp_path)
    node.publish(b"a")
    if case == "slave":
        stream_roles.slave(node.owner, [S, *PLACE])
    elif case == "disabled":
        stream_roles.unmaster(node.owner, [S])
    before = node.meta
    node.owner.release()
    again = Node(tmp_path) if case == "same boot" else boot_again(tmp_path)
    assert opened(again, followed=case != "never followed").meta == before


def test_no_message_is_taken_before_the_term_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the stream is opened first: it can be read and trimmed, and the term is begun later."""
    node = Node(tmp_path)
    node.publish(b"a", b"b")
    node.owner.release()
    again = boot_again(tmp_path)

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(roles_module, "write_meta", full)
        opened(again)
        assert again.is_refused() is Code.FULL
        again.owner.trim(again.owner.stream(S), 1)
        again.owner.close_logs()
        assert again.is_refused() is Code.FULL, "nor when it is opened for the second time"
    assert publish(again.owner, S, b"c").published_at == {0: 2}
    assert (again.meta.epoch, again.owner.stream(S).log.entry(2).epoch) == (2, 2)
    again.owner.close_logs()
    again.owner.append(batch(S, b"d"), 1_000.0)
    assert again.meta.epoch == 2, "once"
