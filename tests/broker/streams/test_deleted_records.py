"""Records of deleted streams: a bounded number of them, and what holds for streams whose record is dropped."""

from __future__ import annotations

import itertools

import pytest

from tailrace.broker.streams import deleted_records
from tailrace.shard.meta import StreamMeta
from tailrace.shard.names import cursor_name, shard_of
from tests.broker.consumers.desks import S
from tests.broker.streams.test_deletion import Place, place, terms_of_deleted

__all__ = ["place"]  # the fixture


def delete_more(place: Place, count: int) -> list[bytes]:
    """Streams of the same shard, which are made and deleted."""
    shards = place.owner.catalog.directory.shards
    names = (b"more-%d" % number for number in itertools.count())
    found = list(itertools.islice((name for name in names if shard_of(name, shards) == shard_of(S, shards)), count))
    for name in found:
        place.owner.create(name)
        place.delete(name)
        place.finish()
    return found


def test_records_are_bounded_and_a_name_that_is_forgotten_begins_in_a_later_term_too(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_records, "RECORDS_MAX", 3)
    place.owner.roles.set_meta(StreamMeta(S.decode(), epoch=4))
    place.delete()
    place.finish()
    more = delete_more(place, 4)
    place.finish()
    assert not place.deletions.removing and terms_of_deleted(place) == dict.fromkeys(more[1:], 2) | {more[-1]: 6}
    left = [file for file in place.owner.catalog.shard_path(S).iterdir() if file.suffix]
    assert len(left) == 2 * 3 + 1, "a record and a role of each, and one file for all others"
    office = place.crash()
    assert terms_of_deleted(office) == terms_of_deleted(place)
    office.owner.create(S)
    office.publish(b"again")
    assert (office.owner.roles.epoch(S), office.owner.stream(S).log.last_epoch) == (5, 5)
    assert not office.owner.catalog.deleted.before(cursor_name(S)), "its companions go with it"
    office.owner.release()


def test_a_start_forgets_records_beyond_the_bound(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    more = delete_more(place, 4)
    monkeypatch.setattr(deleted_records, "RECORDS_MAX", 2)
    office = place.crash()
    assert list(terms_of_deleted(office)) == more[2:] and S in office.owner.catalog.names
    assert set(office.owner.catalog.deleted.forgotten.values()) == {2}
    office.owner.release()
