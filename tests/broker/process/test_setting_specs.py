"""A field carries its own description."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import pytest

from tailrace.broker.process.setting_specs import Kind, Spec, setting, spec_of


@dataclass
class Described:
    lines: int = setting("limits", "max_lines", Kind.COUNT, 5, "how many", low=1, high=9, zero="no bound")
    bare: int = field(default=0)


def test_a_field_carries_its_description() -> None:
    described, bare = fields(Described)
    assert Described().lines == 5
    assert spec_of(described) == Spec("limits", "max_lines", Kind.COUNT, 1, 9, "how many", "no bound", ())
    with pytest.raises(KeyError):
        spec_of(bare)
