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
    ".": {"what-noun": 8.9, "tell-say": 5.4, "where-if": 1.9, "is-no": 1.9, "whoever": 7.2},
    ".ci": {"what-noun": 18.0},
    "broker": {
        "what-noun": 11.6,
        "tell-say": 7.8,
        "where-if": 4.3,
        "is-no": 1.5,
        "hear": 1.8,
        "whoever": 3.0,
        "opening": 1.6,
    },
    "cli": {
        "what-noun": 10.8,
        "tell-say": 9.9,
        "where-if": 4.8,
        "is-no": 2.2,
        "hear": 1.0,
        "whoever": 2.7,
        "opening": 1.4,
    },
    "client": {
        "what-noun": 12.1,
        "tell-say": 8.1,
        "where-if": 3.7,
        "is-no": 1.6,
        "hear": 2.4,
        "whoever": 3.2,
        "opening": 1.1,
    },
    "deploy": {"what-noun": 3.6, "tell-say": 4.3, "where-if": 0.7, "whoever": 1.4},
    "docs": {"what-noun": 4.7, "tell-say": 5.4, "where-if": 2.3, "is-no": 1.0, "hear": 0.6, "whoever": 1.4},
    "examples": {"what-noun": 11.7, "tell-say": 5.9, "where-if": 5.9},
    "protocol": {
        "what-noun": 5.5,
        "tell-say": 6.2,
        "where-if": 3.6,
        "is-no": 4.8,
        "hear": 0.9,
        "whoever": 2.3,
        "opening": 0.8,
    },
    "scripts": {"what-noun": 6.2, "tell-say": 9.2, "where-if": 3.1, "is-no": 3.1},
    "shard": {"what-noun": 6.1, "tell-say": 5.7, "where-if": 4.5, "is-no": 3.5, "whoever": 2.0, "opening": 0.3},
    "spark": {"what-noun": 6.0, "tell-say": 6.4, "where-if": 5.4, "is-no": 3.3, "whoever": 0.6, "opening": 2.5},
    "supervisor": {"what-noun": 5.5, "tell-say": 10.1, "where-if": 2.2, "is-no": 1.2, "hear": 0.5, "whoever": 1.5},
    "tests": {
        "what-noun": 11.1,
        "tell-say": 8.7,
        "where-if": 2.5,
        "is-no": 1.3,
        "hear": 1.6,
        "whoever": 3.6,
        "opening": 0.8,
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
