"""Stream names made from lines."""

from __future__ import annotations

import pytest

from tailrace.cli.template import BadTemplate, NoStream, parse_template


@pytest.mark.parametrize(
    ("template", "line", "stream"),
    [
        ("access.{1}", b"GET /index 200", "access.GET"),
        ("{3}-{1}", b"  GET\t/index  200 and more", "200-GET"),
        ("orders.{country}", b'{"country": "fr", "id": 7}', "orders.fr"),
        ("{country}/{id}", b'{"country": "fr", "id": 7}', "fr/7"),
        ("caf\u00e9.{1}", "\u00e7a".encode(), "caf\u00e9.\u00e7a"),
    ],
)
def test_templates(template: str, line: bytes, stream: str) -> None:
    assert parse_template(template)(line) == stream


@pytest.mark.parametrize("text", ["plain", "", "a{1", "a}1{", "a{}", "{0}", "{1}{name}", "{{1}}"])
def test_what_is_no_template(text: str) -> None:
    with pytest.raises(BadTemplate):
        parse_template(text)


@pytest.mark.parametrize(
    ("template", "line", "why"),
    [
        ("{2}", b"one", "has no word 2"),
        ("{1}", b"", "has no word 1"),
        ("{1}", b"a|b", "are not allowed"),
        ("{1}", b"x" * 201, "1 to 200 bytes"),
        ("{name}", b"no json", "is not a JSON object"),
        ("{name}", b"[1]", "is not a JSON object"),
        ("{name}", b"\xff", "is not a JSON object"),
        ("{name}", b"[" * 100_000, "is not a JSON object"),
        ("{name}", b'{"name": null}', "no text or number 'name'"),
        ("{name}", b'{"name": "a b"}', "are not allowed"),
    ],
)
def test_lines_without_a_stream(template: str, line: bytes, why: str) -> None:
    with pytest.raises(NoStream, match=why):
        parse_template(template)(line)
