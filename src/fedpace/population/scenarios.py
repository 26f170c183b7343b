"""Ready-made fleets: two time zones, three speed classes, and data that depend on speed or do not.

| scenario | who holds the rare classes | how often slow devices check in |
|---|---|---|
| `alike` | everybody | as often as others |
| `rare` | slow devices | as often as others |
| `rare-shy` | slow devices | a third as often |
| `zones` | one zone each half of the classes | as often as others |
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpace._base.checks import one_of, whole
from fedpace.population.fleet import Group
from fedpace.population.learning import Learning

SCENARIOS = ("alike", "rare", "rare-shy", "zones")
SPEEDS = {"fast": (0.5, 60.0), "middle": (0.3, 180.0), "slow": (0.2, 900.0)}
"""Speed class -> its share of the devices, and the median seconds of a task."""
ZONES = {"west": 0.0, "east": 8.0}
CLASSES = 10
RARE = (8, 9)
"""Classes that only slow devices hold, in the scenarios `rare` and `rare-shy`."""
SHY = 1 / 3


def scenario(name: str = "rare", devices: int = 1_000_000, **learning: Any) -> tuple[list[Group], Learning]:
    """Return the device groups and the `Learning` task; keywords override its options."""
    one_of(name, SCENARIOS, "scenario")
    whole(devices, 6, "devices")
    groups: list[Group] = []
    mixes: dict[str, Any] = {}
    for zone, hours in ZONES.items():
        for speed, (share, seconds) in SPEEDS.items():
            presence = SHY if name == "rare-shy" and speed == "slow" else 1.0
            count = max(1, round(devices * share / len(ZONES)))
            group = Group(f"{zone}-{speed}", count, seconds=seconds, zone=hours, presence=presence)
            groups.append(group)
            mixes[group.name] = _mix(name, zone, speed)
    return groups, Learning(mixes, **learning)


def _mix(name: str, zone: str, speed: str) -> list[float]:
    mix = np.ones(CLASSES)
    if name in ("rare", "rare-shy"):
        mix[list(RARE)] = 0.0
        if speed == "slow":
            mix[:] = 0.25
            mix[list(RARE)] = 3.0
    elif name == "zones":
        mix[: CLASSES // 2] = 1.0 if zone == "west" else 0.05
        mix[CLASSES // 2 :] = 0.05 if zone == "west" else 1.0
    found: list[float] = mix.tolist()
    return found
