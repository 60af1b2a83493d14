"""What every test shares: hypothesis profiles. Fixtures that start processes are in tests/system."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline: the machine is shared, and a slow moment is no fault. A failing example prints how to run it again.
settings.register_profile("tailrace", deadline=None, print_blob=True)
settings.register_profile(
    "tailrace-ci",
    deadline=None,
    print_blob=True,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tailrace-ci" if os.environ.get("CI") else "tailrace")
