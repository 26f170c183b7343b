"""Path loss between two antennas, by the rules of ns-3's HybridBuildingsPropagationLossModel.

    outdoors - outdoors     P.1411 up to 1 km, and beyond it if both are below the rooftops; else Okumura-Hata
    outdoors - indoors      the same, + outer wall - 2 dB per floor above the ground
    indoors, two buildings  P.1411 + both outer walls
    indoors, one building   P.1238 + 5 dB for each inner wall between the rooms

P.1411 means line of sight below 200 m, and propagation over the rooftops beyond. A loss is at least 0 dB. The caller
adds shadowing. The code follows ns-3's published model description and agrees with ns-3's output to 1e-9 dB. Where ns-3
departs from the texts that it names, `rules` decides which to follow (`propagation.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import BoolArray, FloatArray, IntArray, one_of
from fedpace._base.errors import InputError
from fedpace.delays import propagation as loss_of
from fedpace.delays.propagation import City, Environment, Rules

FAR = 1000.0
"""Distance in metres beyond which Okumura-Hata applies."""
BLOCKED = 200.0
"""Distance in metres from which there is no line of sight."""


@dataclass(frozen=True, eq=False)
class Places:
    """Positions of antennas in metres; for those indoors also building, floor (1 = ground), room and walls."""

    x: FloatArray
    y: FloatArray
    z: FloatArray
    building: IntArray
    """(n,) number of the building; -1 = outdoors."""
    floor: IntArray
    room_x: IntArray
    room_y: IntArray
    wall: FloatArray
    """(n,) loss of the outer wall in dB."""
    kind: NDArray[np.str_]
    """(n,) kind of building, one of `propagation.KINDS`; ignored outdoors."""

    @staticmethod
    def outdoors(x: FloatArray, y: FloatArray, z: FloatArray) -> Places:
        """Return antennas outdoors."""
        n = x.size
        whole = np.zeros(n, dtype=np.int64)
        return Places(
            x, y, z, np.full(n, -1), whole, whole, whole, np.zeros(n), np.full(n, loss_of.KINDS[0], dtype=np.str_)
        )

    @property
    def inside(self) -> BoolArray:
        """(n,) True for antennas indoors."""
        return np.asarray(self.building >= 0)

    def at(self, rows: Any) -> Places:
        """Return a subset of the places, by index or mask."""
        return replace(self, **{name: value[rows] for name, value in vars(self).items()})


def hybrid_loss(
    a: Places,
    b: Places,
    *,
    frequency_mhz: float = 2160.0,
    rooftop: float = 20.0,
    environment: Environment = "urban",
    city: City = "large",
    rules: Rules = "ns-3",
) -> FloatArray:
    """(n,) loss in dB from each place in `a` to the same row of `b`; a single place is paired with all the others."""
    one_of(environment, get_args(Environment), "environment")
    one_of(city, get_args(City), "city")
    one_of(rules, get_args(Rules), "rules")
    n = max(a.x.size, b.x.size)
    a, b = _spread(a, n, "a"), _spread(b, n, "b")
    d = np.sqrt((a.x - b.x) ** 2 + (a.y - b.y) ** 2 + (a.z - b.z) ** 2)

    same = a.inside & (a.building == b.building)
    below = (a.z < rooftop) & (b.z < rooftop)
    far = (d > FAR) & ~below & ~(a.inside & b.inside)
    clear = ~far & ~same & (d < BLOCKED)
    roofs = ~far & ~same & ~clear
    high, low = np.maximum(a.z, b.z), np.minimum(a.z, b.z)

    loss = np.empty(n)
    with np.errstate(divide="ignore"):  # two antennas in one spot give -inf, clipped to 0 below
        loss[far] = loss_of.okumura_hata(
            d[far], high[far], low[far], frequency_mhz, environment=environment, city=city, rules=rules
        )
        loss[clear] = loss_of.line_of_sight(d[clear], high[clear], low[clear], frequency_mhz)
        loss[roofs] = loss_of.over_rooftops(
            d[roofs],
            a.z[roofs],
            b.z[roofs],
            frequency_mhz,
            rooftop=rooftop,
            metropolitan=environment == "urban" and city == "large",
            rules=rules,
        )
        if same.any():
            loss[same] = _within(a.at(same), b.at(same), d[same], frequency_mhz)

    loss += np.where(a.inside & ~same, a.wall, 0.0) + np.where(b.inside & ~same, b.wall, 0.0)
    floors = np.where(a.inside, a.floor, b.floor) - 1
    counts = (a.inside ^ b.inside) & (~far | a.inside | (rules == "recommendations"))
    loss -= np.where(counts, loss_of.FLOOR_GAIN * floors, 0.0)
    return np.maximum(loss, 0.0)


def _spread(places: Places, n: int, name: str) -> Places:
    if (bad := ~(np.isfinite(places.x) & np.isfinite(places.y) & (places.z > 0) & np.isfinite(places.z))).any():
        row = int(np.flatnonzero(bad)[0])
        spot = (float(places.x[row]), float(places.y[row]), float(places.z[row]))
        raise InputError(f"place {row} of {name} must be finite and above the ground (z > 0), but it is {spot}")
    if places.x.size == n:
        return places
    if places.x.size != 1:
        raise InputError(f"expected 1 or {n} places in {name}, but {places.x.size} came")
    return places.at(np.zeros(n, dtype=np.int64))


def _within(a: Places, b: Places, d: FloatArray, frequency_mhz: float) -> FloatArray:
    """Return the loss between rooms of one building."""
    floors = np.abs(a.floor - b.floor)
    loss: FloatArray = loss_of.INNER_WALL * (np.abs(a.room_x - b.room_x) + np.abs(a.room_y - b.room_y))
    for kind in loss_of.KINDS:
        mine = a.kind == kind
        loss[mine] += loss_of.indoors(d[mine], floors[mine], frequency_mhz, kind=kind)
    return loss
