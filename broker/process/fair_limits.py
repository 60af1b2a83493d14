"""The settings that keep one peer from taking the share of the others: deadlines, and bounds for each address.

`Settings` inherits them (`broker.process.settings`).
"""



from __future__ import annotations

from dataclasses import dataclass

from tailrace.broker.process.setting_specs import KIB, MIB, Kind, setting


@dataclass(frozen=True, slots=True)
class FairLimits:
    notsent_bytes: int = setting(
        "limits",
        "notsent_bytes",
        Kind.BYTES,
        256 * KIB,
        "kernel memory for data of one connection that was not sent yet (TCP_NOTSENT_LOWAT)",
        low=4 * KIB,
        high=64 * MIB,
    )
