"""A file system that shuts down under open streams gives errors, and never a signal; and nothing is synced any more."""

from __future__ import annotations

import pytest

from tests.system.volume_try import require_outcome

pytestmark = pytest.mark.system


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_file_system_that_shuts_down_is_an_error(kind: str) -> None:
    require_outcome("tests.system.shut_volume", kind, "appended")
