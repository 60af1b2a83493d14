"""In which order a group of streams prefers the nodes: rendezvous hashing. Pure.

Each pair of a group and a node has a score. A thousand nodes and 16,384 groups are 16 million pairs, so the hashes of a
group with all nodes are computed at once, as parts of one large integer; and only the first nodes are put in order.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Final

BITS_64: Final = (1 << 64) - 1
FIRST: Final = 16
"""Nodes of a group that are put in order at first; the others follow if none of these can be taken."""
_LANE_BITS: Final = 128
"""Of each hash in the large integer: a product of two numbers of 64 bits fits."""
_STEP: Final = 0x9E3779B97F4A7C15
_FACTORS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT: Final = 31


class Preferences:
    """The orders of one set of nodes, kept once they were asked for."""

    def __init__(self, weights: Sequence[tuple[str, float]]) -> None:
        """`weights`: the nodes, in an order that decides between equal scores, and their weights."""
        self._weights = dict(weights)
        self._classes: dict[float, list[str]] = {}
        for name, weight in weights:
            self._classes.setdefault(weight, []).append(name)
        self._lanes = {weight: _Lanes(names) for weight, names in self._classes.items()}
        self._first: dict[int, tuple[str, ...]] = {}

    def first(self, group: int) -> tuple[str, ...]:
        """The FIRST nodes that it prefers, or all if there are fewer; the best one first."""
        found = self._first.get(group)
        if found is None:
            found = self._first[group] = tuple(self._ordered(group, FIRST))
        return found

    def order(self, group: int) -> Iterator[str]:
        """All nodes; those behind the first ones are put in order when they are asked for."""
        yield from self.first(group)
        yield from islice(self._ordered(group, None), FIRST, None)

    def _ordered(self, group: int, at_most: int | None) -> list[str]:
        """Within nodes of one weight a larger hash is a better score."""
        found: list[str] = []
        for weight, names in self._classes.items():
            hashes = self._lanes[weight].hashes(mixed(group))
            found += [names[place] for place in _largest(hashes, at_most)]
        if len(self._classes) > 1:
            found.sort(key=lambda name: score(group, name, self._weights[name]))
        return found[:at_most]


@lru_cache(maxsize=2)
def preferences_of(weights: tuple[tuple[str, float], ...]) -> Preferences:
    """Those of the nodes now, and of the nodes before, are kept: plans follow one another while the nodes stay."""
    return Preferences(weights)


def score(group: int, name: str, weight: float) -> float:
    """The smaller, the more a group prefers a node: an exponential variate, so that weights count in proportion."""
    uniform = (mixed(name_hash(name) ^ mixed(group)) + 1) / (BITS_64 + 2)
    return -math.log(uniform) / weight


def _largest(hashes: Sequence[int], at_most: int | None) -> list[int]:
    """The places of the largest hashes, the largest first."""
    places: Sequence[int] = range(len(hashes))
    if at_most is not None and len(hashes) > 4 * at_most:
        least = BITS_64 - BITS_64 // len(hashes) * 2 * at_most  # twice as many are expected above it
        above = [place for place, hashed in enumerate(hashes) if hashed > least]
        places = above if len(above) >= at_most else places
    return sorted(places, key=hashes.__getitem__, reverse=True)[:at_most]


class _Lanes:
    """The hashes of names, side by side in one integer."""

    def __init__(self, names: Sequence[str]) -> None:
        self._ones = sum(1 << _LANE_BITS * place for place in range(len(names)))
        self._mask = self._ones * BITS_64
        self._steps = self._ones * _STEP
        self._names = sum(name_hash(name) << _LANE_BITS * place for place, name in enumerate(names))
        self._bytes = len(names) * _LANE_BITS // 8

    def hashes(self, group_hash: int) -> list[int]:
        """mixed(name_hash(name) ^ group_hash) of each name."""
        mask = self._mask
        value = ((self._names ^ self._ones * group_hash) + self._steps) & mask
        for shift, factor in _FACTORS:
            value = ((value ^ value >> shift) & mask) * factor & mask
        value = (value ^ value >> _LAST_SHIFT) & mask
        found = array("Q", value.to_bytes(self._bytes, "little"))
        if sys.byteorder == "big":
            found.byteswap()
        return found[::2].tolist()


@cache
def name_hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def mixed(value: int) -> int:
    """splitmix64's finalizer: every bit of the result depends on every bit of the value."""
    value = (value + _STEP) & BITS_64
    for shift, factor in _FACTORS:
        value = ((value ^ value >> shift) * factor) & BITS_64
    return value ^ value >> _LAST_SHIFT
