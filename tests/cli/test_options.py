"""Options that several subcommands share."""

from __future__ import annotations

import click
import pytest

from tailrace import Seq
from tailrace.cli.options import consumer_argument, server_options, start_option, stream_argument


def parse(*arguments: str) -> dict[str, object]:
    @click.command()
    @stream_argument
    @server_options
    def command(**values: object) -> dict[str, object]:
        return values

    values = command.main(list(arguments), standalone_mode=False)
    assert isinstance(values, dict)
    return values


def test_the_broker_is_no_parameter_of_a_command() -> None:
    assert parse("s") == {"stream": "s"}
    assert parse("-s", "a:1", "--host", "b", "-p", "2", "é") == {"stream": "é"}


@pytest.mark.parametrize("name", ["", "a b", "a|b", "a\n", "x" * 201, "$own"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(click.BadParameter, match="stream name"):
        parse(name)


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_ports_that_are_none(port: str) -> None:
    with pytest.raises(click.BadParameter):
        parse("s", "--port", port)


@pytest.mark.parametrize("name", ["", "a b", "x" * 101])
def test_names_of_consumers(name: str) -> None:
    @click.command()
    @consumer_argument
    def command(group: str) -> str:
        return group

    assert command.main(["g"], standalone_mode=False) == "g"
    with pytest.raises(click.BadParameter, match="consumer"):
        command.main([name], standalone_mode=False)


def test_places() -> None:
    @click.command()
    @start_option(None)
    def command(start: object) -> object:
        return start

    assert command.main([], standalone_mode=False) is None
    assert command.main(["--from", "#7"], standalone_mode=False) == Seq(7)
    with pytest.raises(click.BadParameter, match="is not a position"):
        command.main(["--from", "then"], standalone_mode=False)
