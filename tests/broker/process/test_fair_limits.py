"""Every bound has a name, a default that is on (or the reason why not), and a sentence for operators."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from tailrace.broker.process.fair_limits import FairLimits
from tailrace.broker.process.setting_specs import spec_of

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"


@pytest.mark.parametrize("field", fields(FairLimits), ids=lambda field: field.name)
def test_operators_read_of_it(field: object) -> None:
    name = field.name  # type: ignore[attr-defined]
    assert f"`{name}`" in OPERATIONS.read_text()
    assert spec_of(field).key == name  # type: ignore[arg-type]
