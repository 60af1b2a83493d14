"""Where sections and keys stand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.supervisor.config_lines import Lines

TEXT = '''# [listen] in a comment
top = 1
[ listen ]   # why
host = "[node]"
"port" = 5
[node]
data = """
[metrics]
port = 1
"""
[[stream]]
pattern = "a"
[[ stream ]]

pattern = "b"
[metrics.deep]
x = 1
'''


def test_lines_of_sections_and_keys() -> None:
    lines = Lines(TEXT)
    assert lines.key("", "top") == 2
    assert lines.section("listen") == 3
    assert lines.key("listen", "host") == 4
    assert lines.key("listen", "port") == 5
    assert lines.section("node") == 6
    assert lines.key("stream", "pattern", 0) == 12
    assert lines.section("stream", 1) == 13
    assert lines.key("stream", "pattern", 1) == 15


def test_what_stands_in_a_multi_line_string_is_no_section() -> None:
    assert Lines(TEXT).section("metrics") == 16  # the deep one, not the one in the string


def test_a_key_that_is_not_found_has_its_sections_line_else_none() -> None:
    lines = Lines(TEXT)
    assert lines.key("listen", "nothing") == 3
    assert lines.key("limits", "nothing") is None
    assert lines.section("stream", 2) is None


def test_inline_and_dotted_forms() -> None:
    lines = Lines("\nlisten = {port = 1}\nnode.data = 'x'\nstream = [\n{pattern = 'a'}]")
    assert lines.key("listen", "port") == 2
    assert lines.key("node", "data") == 3
    assert lines.section("node") == 3
    assert lines.section("stream") == 4


@given(st.text(alphabet="[]=\"'#.\n ab\\", max_size=200))
def test_any_text_is_scanned_without_an_error(text: str) -> None:
    lines = Lines(text)
    found = lines.key("a", "b")
    assert found is None or 1 <= found <= text.count("\n") + 1
