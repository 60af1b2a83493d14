"""How the tests run Java: for seconds, several of them beside each other, on two processors."""

from __future__ import annotations

import os

QUICK = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Its compiler takes what is quickly made; one thread collects garbage, and not because there are many classes; Spark's
own jars are not verified."""


def with_quick_java() -> dict[str, str]:
    """The environment of a program that starts Java itself."""
    return {**os.environ, "JAVA_TOOL_OPTIONS": QUICK}
