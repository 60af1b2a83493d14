"""Copies of a stream that has changed its master: which of them is ahead, and what counts of the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tailrace
from tailrace import Ack
from tailrace.cli import main
from tailrace.cli.ending import OK, REFUSED, USAGE
from tailrace.core.address import Address
from tailrace.shard.directory import DataDirectory, open_data_dir
from tailrace.shard.epochs import DEFAULT_HISTORY, NEVER_SEQ, EpochStart, History
from tailrace.shard.meta import Role, StreamMeta, write_meta
from tailrace.spark.rollup.terms import Copy, choose_copy, find_foreign_seq, is_ahead, is_same_stream
from tailrace.spark.source import SourceOptions, open_source
from tests.spark.data import DAY_US, add_stream, make_directory, plain, trim
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US, HOUR_US, MINUTE_US
from tests.spark.rollup.tables import read_tables
from tests.system.node import Node, running

SHARED, TAIL, NEW = 100, 80, 30
NORTH, SOUTH = EpochStart(1, 0, "north"), EpochStart(2, SHARED, "south")


class Pair(NamedTuple):
    """`north` was the master, and has a tail that nobody else has; `south` was promoted, and has fewer messages."""

    north: DataDirectory
    south: DataDirectory


def make_pair(
    path: Path, shared_us: int = DAY_START_US, tail_us: int | None = None, new_us: int | None = None, tail: int = TAIL
) -> Pair:
    """The times are those of the first of the shared messages, of the tail, and of the messages of the new term."""
    shared = plain(SHARED, shared_us, 2_345_678)
    end_us = shared[-1].timestamp_us + 1
    new = [each._replace(epoch=2) for each in plain(NEW, new_us or end_us + 5_000_000, 3_210_000, "new")]
    north = make_directory(path / "north", {"a": [*shared, *plain(tail, tail_us or end_us, 1_234_567, "tail")]})
    south = make_directory(path / "south", {"a": [*shared, *new]})
    set_history(south, (EpochStart(1, 0, north.node_id), EpochStart(2, SHARED, south.node_id)))
    return Pair(north, south)


def set_history(data: DataDirectory, history: History, name: str = "a") -> None:
    write_meta(data.stream_directory(name), StreamMeta(name, Role.MASTER, history[-1].epoch, None, history))


def roll_up(tmp_path: Path, *names: str) -> int:
    nodes = [f"{name}={tmp_path / name}" for name in names]
    return main.run(["rollup", *nodes, str(tmp_path / "out"), "--day", str(DAY), "--no-report"])


def expect(tmp_path: Path, wanted: dict[reference.Key, reference.Row]) -> None:
    found = read_tables(tmp_path / "out", DAY)
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        assert found[key] == row, key


ORDERS = [("north", "south"), ("south", "north")]


@pytest.mark.few(2)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("in_one_run", [True, False])
def test_the_copy_of_the_later_term_counts_though_it_has_fewer_messages(
    tmp_path: Path, order: Sequence[str], in_one_run: bool
) -> None:
    """In whichever order they are read; also if one is missing at first, and comes in a later run."""
    make_pair(tmp_path)
    wanted = reference.roll_up(tmp_path / "south", DAY_START_US)
    if in_one_run:
        assert roll_up(tmp_path, *order) == OK
    else:
        away = tmp_path / "away"
        (tmp_path / order[1]).rename(away)
        assert roll_up(tmp_path, *order) == REFUSED
        expect(tmp_path, reference.roll_up(tmp_path / order[0], DAY_START_US))
        away.rename(tmp_path / order[1])
        assert roll_up(tmp_path, order[1]) == OK
    expect(tmp_path, wanted)
    for name in order:
        assert roll_up(tmp_path, name) == OK
        expect(tmp_path, wanted)


@pytest.mark.parametrize("order", ORDERS)
def test_two_copies_without_a_minute_in_common(tmp_path: Path, order: Sequence[str]) -> None:
    """All that they share is of the day before."""
    make_pair(tmp_path, DAY_START_US - HOUR_US, DAY_START_US + 5, DAY_START_US + MINUTE_US)
    for name in order:
        assert roll_up(tmp_path, name) == OK
    expect(tmp_path, reference.roll_up(tmp_path / "south", DAY_START_US))


@pytest.mark.parametrize("order", ORDERS)
def test_a_tail_on_a_day_of_which_the_new_master_has_nothing(tmp_path: Path, order: Sequence[str]) -> None:
    make_pair(tmp_path, DAY_START_US - HOUR_US, DAY_START_US + 5, DAY_START_US + DAY_US)
    for name in order:
        assert roll_up(tmp_path, name) == OK
    expect(tmp_path, {})


@pytest.mark.parametrize("order", ORDERS)
def test_what_the_new_master_has_trimmed_comes_from_the_former_one(tmp_path: Path, order: Sequence[str]) -> None:
    """Up to the point at which their histories part."""
    pair = make_pair(tmp_path)
    wanted = reference.roll_up(tmp_path / "south", DAY_START_US)
    trim(pair.south.path, "a", 60)
    for name in order:
        assert roll_up(tmp_path, name) == OK
    found = read_tables(tmp_path / "out", DAY)
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        exact = key[0] == "minute"  # hours and days of rows of both have no percentiles
        assert found[key] == row or (not exact and found[key]["messages"] == row["messages"]), key
        assert found[key]["node"] == pair.south.node_id


def test_a_third_node_that_lags_changes_nothing(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    west = make_directory(tmp_path / "west", {"a": plain(40, DAY_START_US, 2_345_678)})
    set_history(west, (EpochStart(1, 0, pair.north.node_id),))
    wanted = reference.roll_up(tmp_path / "south", DAY_START_US)
    assert roll_up(tmp_path, "north", "south", "west") == OK
    messages = {key: row["messages"] for key, row in wanted.items()}
    assert {key: row["messages"] for key, row in read_tables(tmp_path / "out", DAY).items()} == messages


def make_level(path: Path) -> list[DataDirectory]:
    """Three nodes with the same messages, in the order of their ids; the last has fewer than the others."""
    made = [make_directory(path / f"made-{number}", {}) for number in range(3)]
    nodes = []
    for number, each in enumerate(sorted(made, key=lambda each: each.node_id)):
        nodes.append(open_data_dir(each.path.rename(path / str(number))))
        add_stream(nodes[-1], "a", plain(SHARED - 10 * (number == 2), DAY_START_US, 2_345_678))
    return nodes


def expect_under(tmp_path: Path, node: DataDirectory) -> None:
    expect(tmp_path, reference.roll_up(node.path, DAY_START_US))


ALL_ORDERS = ["012", "021", "102", "120", "201", "210"]


@pytest.mark.few(1)
@pytest.mark.parametrize("order", ALL_ORDERS)
def test_level_copies_are_under_one_node_in_any_order(tmp_path: Path, order: str) -> None:
    """If none names the master: of those with the last message under the one with the largest id."""
    nodes = make_level(tmp_path)
    assert roll_up(tmp_path, *order) == OK
    expect_under(tmp_path, nodes[1])
    for name in order:  # a lagging node that is read again, alone, takes no message away
        assert roll_up(tmp_path, name) == OK
        expect_under(tmp_path, nodes[1])


@pytest.mark.few(1)
@pytest.mark.parametrize("order", ALL_ORDERS)
def test_level_copies_are_under_the_master_that_a_slave_names(tmp_path: Path, order: str) -> None:
    nodes = make_level(tmp_path)
    for slave in nodes[1:]:
        set_history(slave, (EpochStart(1, 0, nodes[0].node_id),))
    assert roll_up(tmp_path, *order) == OK
    expect_under(tmp_path, nodes[0])
    for name in order:
        assert roll_up(tmp_path, name) == OK
        expect_under(tmp_path, nodes[0])


def promoted(path: Path) -> None:
    """Two real nodes: `south` is promoted after `north`, its master, was killed with messages that nobody else has."""
    south = Node(path / "south", workers=1).start()
    try:
        with running_until_killed(path / "north") as north:
            tell(south, f"slave 127.0.0.1 {north.port} * 0")
            publish(north, SHARED, Ack.REPLICATED)
            assert south.stop() == 0, south.log()
            publish(north, TAIL)
        south.start()
        tell(south, "promote *")
        publish(south, NEW)
        assert south.stop() == 0, south.log()
    finally:
        south.kill()


@contextmanager
def running_until_killed(data: Path) -> Iterator[Node]:
    node = Node(data, workers=1).start()
    try:
        yield node
    finally:
        node.kill()


def tell(node: Node, command: str) -> None:
    with node.client() as client:
        assert client.ask(command).startswith("ok "), node.log()


def publish(node: Node, count: int, ack: Ack = Ack.APPENDED) -> None:
    """Ten at a time, so that there are several times."""
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        for first in range(0, count, 10):
            client.publish_many("a", [b"%d" % number for number in range(first, first + 10)], ack=ack)


@pytest.mark.system
def test_the_terms_of_nodes_of_which_one_was_promoted_for_real(tmp_path: Path) -> None:
    """As their files have them, and as messages over a connection show them."""
    promoted(tmp_path)
    north, south = (copy_at(SourceOptions(str(tmp_path / name))) for name in ("north", "south"))
    assert find_foreign_seq(north, [south]) == SHARED
    assert find_foreign_seq(south, [north]) == NEVER_SEQ
    with running(tmp_path / "south", workers=1) as node:
        shown = copy_at(SourceOptions(brokers=(Address("127.0.0.1", node.port),)))
    assert [start[:2] for start in shown.history] == [start[:2] for start in south.history]
    assert find_foreign_seq(north, [shown]) == SHARED


def copy_at(options: SourceOptions) -> Copy:
    with closing(open_source(options)) as source, source.view(source.ref("a")) as view:
        return Copy(source.node_id(), view.history())


@pytest.mark.system
def test_over_connections(tmp_path: Path) -> None:
    make_pair(tmp_path)
    wanted = reference.roll_up(tmp_path / "south", DAY_START_US)
    with running(tmp_path / "north", workers=1) as north, running(tmp_path / "south", workers=1) as south:
        nodes = {"north": f"north=127.0.0.1:{north.port}", "south": f"south=127.0.0.1:{south.port}"}
        for order in ORDERS:
            out = tmp_path / "-".join(order)
            words = ["--brokers", *(nodes[name] for name in order), str(out), "--day", str(DAY), "--no-report"]
            assert main.run(["rollup", *words]) == OK
            found = read_tables(out, DAY)
            assert found == {key: {**row, "shard": -1} for key, row in wanted.items()}


@pytest.mark.system
def test_one_node_at_two_addresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path / "north", workers=1) as north:
        nodes = [f"a=127.0.0.1:{north.port}", f"b=localhost:{north.port}"]
        assert main.run(["rollup", "--brokers", *nodes, str(tmp_path / "out"), "--no-report"]) == USAGE
    assert "a and b are or share one node" in capsys.readouterr().err


@pytest.mark.system
@pytest.mark.parametrize("is_there", [True, False])
def test_lists_of_addresses_that_share_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_there: bool
) -> None:
    """Either may be read from it once a connection is lost. The nodes of one list are read once."""
    with running(tmp_path / "north", workers=1) as north, running(tmp_path / "south", workers=1) as south:
        first, shared = f"127.0.0.1:{north.port}", f"127.0.0.1:{south.port}"
        again = f"localhost:{south.port}" if is_there else shared
        if not is_there:
            south.stop()
        words = ["rollup", "--brokers", f"a={first},{shared}", f"b={again}", str(tmp_path / "out"), "--no-report"]
        assert main.run(words) == USAGE
        assert "a and b are or share one node, " in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
        assert main.run(["rollup", "--brokers", f"{first},{shared}", *words[-2:]]) == OK


def copy(node: str, *history: EpochStart) -> Copy:
    return Copy(node, history)


def test_which_copy_is_ahead() -> None:
    north, south = copy("north", *DEFAULT_HISTORY), copy("south", NORTH, SOUTH)
    assert is_ahead(south, north) and not is_ahead(north, south) and not is_ahead(south, south)
    rival = copy("west", NORTH, EpochStart(2, 90, "west"))
    assert is_ahead(rival, south) and not is_ahead(south, rival), "of two masters of a term the larger id"
    unknown = copy("west", NORTH, EpochStart(2, 90))
    assert not is_ahead(unknown, south) and not is_ahead(south, unknown)


def test_of_level_copies_the_master_then_the_fullest_then_the_larger_id() -> None:
    north, south, west = copy("north", *DEFAULT_HISTORY), copy("south", NORTH), copy("west", NORTH)
    unnamed = copy("zero", *DEFAULT_HISTORY)
    ahead = copy("a", NORTH, EpochStart(2, 90, "a"))
    assert choose_copy([unnamed, north]) == choose_copy([north, unnamed]) == unnamed
    for order in permutations([unnamed, north, south, west]):
        assert choose_copy(order) == north
        assert choose_copy([*order, ahead]) == choose_copy([ahead, *order]) == ahead
    assert choose_copy([unnamed, north], [south]) == north, "also by what a copy without rows says"
    assert choose_copy([south, unnamed, west], [north]) == west, "followers of the master that is named"
    former = copy("zero", NORTH, SOUTH._replace(master=""))
    assert choose_copy([former, copy("south", NORTH, SOUTH)]).node == "south", "it names itself"
    assert choose_copy([north._replace(last_seq=9), unnamed._replace(last_seq=8)]).node == "north", "it has more"
    assert choose_copy([copy("zero"), south]) == south, "of the other nothing is known"


def test_where_another_copy_stops_being_the_stream() -> None:
    north, south = copy("north", *DEFAULT_HISTORY), copy("south", NORTH, SOUTH)
    assert find_foreign_seq(north, [south]) == SHARED
    assert find_foreign_seq(south, [north]) == NEVER_SEQ
    later = copy("east", NORTH, EpochStart(3, 70, "east"))
    assert find_foreign_seq(north, [south, later]) == 70
    at_once = copy("south", EpochStart(1, 0, "north"), EpochStart(2, 0, "south"))
    assert find_foreign_seq(north, [at_once]) == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (copy("north", *DEFAULT_HISTORY), copy("south", NORTH, SOUTH), True),
        (copy("north", *DEFAULT_HISTORY), copy("south", *DEFAULT_HISTORY), False),
        (copy("south", NORTH), copy("west", NORTH), True),
        (copy("north"), copy("north"), False),
    ],
)
def test_copies_of_one_stream_have_a_term_of_one_master(one: Copy, other: Copy, same: Any) -> None:
    assert is_same_stream(one, other) is is_same_stream(other, one) is same
