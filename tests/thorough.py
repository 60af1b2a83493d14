"""How much of a large space the tests try: a share of it in an ordinary run, all of it with TAILRACE_THOROUGH=1.

Tests with the mark `thorough` are left out of an ordinary run: further kinds, versions and engines of what another test
tries, and long series of faults that shorter ones stand for. Each file that docs/promises.md names has tests in every
run (tests/tidy/test_promises.py). Of a test with the mark `few(N)` an ordinary run has N cases, evenly spread over all
of them in their order, the first and the last among them if there are two.

Hypothesis gets a sixth of its examples, but 12 at least, and with interpreted leaves, whose run repeats what the
compiled ones did, a tenth and 8. A test that would repeat a session for every byte of it takes
the bytes at both ends and a random sample of the others, another one in each run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from tailrace.shard.leaves import interpreted_wanted

VARIABLE = "TAILRACE_THOROUGH"
THOROUGH = os.environ.get(VARIABLE, "") not in ("", "0")
EXAMPLES_PART, EXAMPLES_LEAST = (10, 8) if interpreted_wanted() else (6, 12)
EDGE = 12
"""Places at each end of a range that are always tried."""


def examples(count: int, *, thorough: bool = THOROUGH) -> int:
    """`max_examples` of a property that has `count` examples in a thorough run."""
    return count if thorough else min(count, max(EXAMPLES_LEAST, count // EXAMPLES_PART))


def places(found: range, count: int, chance: random.Random, *, thorough: bool = THOROUGH) -> list[int]:
    """`count` of these places in order: EDGE at each end, the others at random. All of them in a thorough run."""
    if thorough or len(found) <= count:
        return list(found)
    inner = found[EDGE:-EDGE]
    return [*found[:EDGE], *sorted(chance.sample(inner, count - 2 * EDGE)), *found[-EDGE:]]


def kept(cases: int, few: int) -> set[int]:
    """The places of the `few` cases that an ordinary run has, of all `cases`."""
    if few >= cases:
        return set(range(cases))
    return {round(place * (cases - 1) / max(1, few - 1)) for place in range(few)}


def ordinary(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Those of collected tests that an ordinary run has, in their order."""
    functions: dict[tuple[Any, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("thorough") is None:
            functions.setdefault((item.parent, getattr(item, "originalname", item.name)), []).append(item)
    found = set()
    for cases in functions.values():
        few = cases[0].get_closest_marker("few")
        found |= {cases[place] for place in kept(len(cases), *few.args)} if few else {*cases}
    return [item for item in items if item in found]


def only_thorough(*values: Any) -> list[Any]:
    """Parameters, single or in tuples, whose tests an ordinary run leaves out."""
    return [pytest.param(*_as_tuple(value), marks=pytest.mark.thorough) for value in values]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if type(value) is tuple else (value,)
