"""On which file systems a full disk is an error, and never a signal. btrfs is not among them: see operations.md."""

from __future__ import annotations

import pytest

from tests.system.volume_try import require_outcome

pytestmark = pytest.mark.system


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay"])
def test_a_full_file_system_is_an_error(kind: str) -> None:
    require_outcome("tests.system.full_volume", kind, "done")
