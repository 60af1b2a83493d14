"""The documented example file is the settings themselves."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace.broker.process.settings import Settings, SlaveRule, StreamPolicy, described_fields
from tailrace.supervisor.config import load
from tailrace.supervisor.config_example import render_example

EXAMPLE = Path(__file__).parents[2] / "deploy" / "tailrace.toml"


def test_the_example_is_what_the_settings_say() -> None:
    assert EXAMPLE.read_text() == render_example(), (
        "renew it: python -m tailrace.supervisor.config_example > deploy/tailrace.toml"
    )


def test_the_example_is_the_defaults_commented_out_or_not(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    assert load(EXAMPLE) == Settings()
    uncommented = re.sub(r"^#(?=\[\[|\w+ = )", "", text, flags=re.MULTILINE)
    keys = re.findall(r"^(\w+) = ", uncommented, flags=re.MULTILINE)
    assert len(keys) == len(described_fields()) + 9 + 3
    # They have no effect with the default durability, which is a fault.
    uncommented = uncommented.replace("\ninterval_ms = ", "\n#interval_ms = ").replace(
        "\nlinger_s = ", "\n#linger_s = "
    )
    file = tmp_path / "example.toml"
    file.write_text(uncommented)
    uncommented = uncommented.replace("\nusers_file = ", "\n#users_file = ")  # it must be there if it is named
    file.write_text(uncommented)
    assert load(file) == Settings(streams=(StreamPolicy(),), slaves=(SlaveRule(),))
