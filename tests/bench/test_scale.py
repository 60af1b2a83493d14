from __future__ import annotations

from dataclasses import asdict

from bench.scale import FULL, QUICK


def test_a_quick_run_is_no_larger_in_anything() -> None:
    full, quick = asdict(FULL), asdict(QUICK)
    assert all(quick[name] <= full[name] for name in full)
    assert quick["seconds"] < full["seconds"]
