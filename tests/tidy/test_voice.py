"""Texts are plain technical English: few of the idioms that `voice.py` counts."""

from __future__ import annotations

import pytest

from tests.tidy import voice

# Idioms per 1,000 words, as in libraries that are easy to read (h11, websockets, gunicorn).
TARGETS = {
    "what-noun": 0.5,
    "tell-say": 1.0,
    "where-if": 0.5,
    "is-no": 0.3,
    "hear": 0.0,
    "whoever": 0.0,
    "opening": 0.0,
}
# Folders above their targets: the present rates, rounded up. These numbers only fall; a folder that meets its targets
# is taken out.
CEILINGS: dict[str, dict[str, float]] = {
    "broker": {
        "what-noun": 3.3,
        "tell-say": 1.7,
        "where-if": 1.1,
        "is-no": 0.4,
        "hear": 0.2,
        "whoever": 0.7,
        "opening": 0.2,
    },
}


@pytest.fixture(scope="module")
def found() -> dict[str, voice.Count]:
    return voice.count_folders()


@pytest.mark.parametrize("idiom", voice.NAMES)
def test_idioms_stay_below_their_ceilings(found: dict[str, voice.Count], idiom: str) -> None:
    above = {
        folder: f"{count.rate(idiom):.2f} > {ceiling(folder, idiom)}"
        for folder, count in found.items()
        if count.rate(idiom) > ceiling(folder, idiom)
    }
    assert not above, f"`python -m tests.tidy.voice FOLDER` shows each {idiom}"


def ceiling(folder: str, idiom: str) -> float:
    return CEILINGS.get(folder, TARGETS).get(idiom, TARGETS[idiom])


def test_ceilings_are_needed(found: dict[str, voice.Count]) -> None:
    """A folder that meets its targets has no ceiling, so that it stays there."""
    met = [folder for folder in CEILINGS if all(found[folder].rate(name) <= TARGETS[name] for name in voice.NAMES)]
    assert not met


def test_idioms_are_found() -> None:
    block = (1, "Of a stream: what is known of it, where there is none; whoever asks is told and hears.", True)
    assert {name for name, _ in voice.found_in(block)} == set(voice.NAMES)
