"""Medians and quantiles. Named after what they return; numbers come in any order."""

from __future__ import annotations

import math
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the middle two. ValueError for none."""
    if not values:
        raise ValueError("the median of no values")
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 < share <= 1) of the values do not exceed. ValueError for none."""
    if not values or not 0 < share <= 1:
        raise ValueError(f"the {share} quantile of {len(values)} values")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def spread(values: Sequence[float]) -> float:
    """(greatest - least) / median: how far the rounds lie apart; 0 where the median is."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0
