from __future__ import annotations

import pytest

from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code


def test_a_refusal_says_why() -> None:
    with pytest.raises(Refused, match="no such stream") as refused:
        raise Refused(Code.UNKNOWN, "no such stream here")
    assert (refused.value.code, refused.value.text) == (Code.UNKNOWN, "no such stream here")
