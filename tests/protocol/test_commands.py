"""The vocabulary: immutable values."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest

from tailrace.protocol import commands as c
from tailrace.protocol.errors import Code, PeerError


def test_commands_are_immutable_values() -> None:
    command = c.Subscribe(b"s", c.From("seq", 3))
    assert command == c.Subscribe(b"s", c.From("seq", 3), 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        command.skip = 1  # type: ignore[misc]


def test_no_command_has_a_dictionary() -> None:
    for kind in c.Command.__args__:
        assert "__slots__" in vars(kind), kind


def test_a_place_goes_through_msgpack_as_a_pair() -> None:
    assert c.From(*msgpack.unpackb(msgpack.packb(c.From("seq", 3)))) == c.From("seq", 3)


def test_only_commands_are_for_administrators() -> None:
    assert set(c.Command.__args__) >= c.ADMIN
    assert not c.ADMIN & {c.Staged, c.Subscribe, c.Invalid, c.Reply}


def test_invalid_carries_its_error() -> None:
    error = PeerError(Code.NAME, "text")
    assert c.Invalid(error).error is error
