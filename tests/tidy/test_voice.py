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


@pytest.fixture(scope="module")
def found() -> dict[str, voice.Count]:
    return voice.count_folders()


@pytest.mark.parametrize("idiom", voice.NAMES)
def test_idioms_are_rare(found: dict[str, voice.Count], idiom: str) -> None:
    above = {
        folder: f"{count.rate(idiom):.2f} > {TARGETS[idiom]}"
        for folder, count in found.items()
        if count.rate(idiom) > TARGETS[idiom]
    }
    assert not above, f"`python -m tests.tidy.voice FOLDER` shows each {idiom}"


def test_idioms_are_found() -> None:
    block = (1, "Of a stream: what is known of it, where there is none; whoever asks is told and hears.", True)
    assert {name for name, _ in voice.found_in(block)} == set(voice.NAMES)
