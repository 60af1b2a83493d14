"""The tables of the features match their modules, which are loaded only when they are needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.protocol import messages as m
from tailrace.protocol.features import HOMES, PACKERS, REQUESTS, RESPONSES, readers_of
from tests.protocol.wires import REQUEST_KINDS, RESPONSE_KINDS

ROOT = Path(__file__).parents[2]
IMPORTS = """
import sys
from tailrace.protocol import features, messages
from tailrace.protocol.binary import ClientCodec
from tests.protocol.plain_codec import PlainCodec
for module in features.HOMES.values():
    assert module not in sys.modules and module.removesuffix("_readers") not in sys.modules, module
"""


@pytest.mark.parametrize("feature", HOMES)
def test_the_tables_have_the_opcodes_that_are_read(feature: str) -> None:
    readers = readers_of(feature)
    assert {op for op, name in REQUESTS.items() if name == feature} == set(readers.requests)
    responses = {op for op, name in RESPONSES.items() if name == feature}
    assert responses == readers.responses.keys() | readers.fixed_responses.keys()


def test_no_opcode_is_of_two_kinds() -> None:
    assert not REQUESTS.keys() & RESPONSES.keys()
    assert set(REQUESTS.values()) | set(RESPONSES.values()) == set(HOMES)


def test_every_message_has_its_packer() -> None:
    assert set(PACKERS) >= REQUEST_KINDS | RESPONSE_KINDS
    assert {kind.__name__.upper() for kind in PACKERS if kind is not m.Failed} <= {op.name for op in m.Op}


def test_the_modules_of_a_feature_wait_for_its_first_message() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, check=True)
