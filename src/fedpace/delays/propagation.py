"""Path loss between antennas in dB: published formulas, vectorised.

Sources: Okumura-Hata (Hata, IEEE Trans. Veh. Technol. 29(3), 1980); COST 231-Hata and the wall losses (COST 231 final
report, chapters 4.4 and 4.6); ITU-R P.1411, line of sight (the mean of its two bounds) and over the rooftops (the
Walfisch-Ikegami form of the early editions); ITU-R P.1238, indoors; the 2.6 GHz urban fit 36 + 26 log d (Kun et al.,
2008). `hybrid.py` decides which formula applies to a pair of antennas.

Names: d metres, f MHz, h_b height of the higher antenna, h_m of the lower one, h_r of the rooftops.

ns-3 3.44 departs from these texts in five ways. We found them by fitting its output, not from its source.
`rules="ns-3"` follows ns-3:

1. over the rooftops, the two slopes of k_f are exchanged: 0.7 for metropolitan centres and 1.5 for the rest;
2. k_d = 18 - 15 dh_b / h_r divides by the height of the first antenna instead of h_r, so that the loss from a to b
differs from the loss from b to a if both are below the rooftops;
3. COST 231 has one a(h_m) for all cities; ns-3 uses 3.2 (log 11.75 h_m)^2 in large ones, Hata's form without its -4.97;
4. COST 231's 3 dB are for metropolitan centres; ns-3 also adds them to suburbs and open areas of large cities;
5. (in `hybrid.py`) beyond 1 km, the gain of upper floors counts only if the first antenna is the indoor one.

`rules="recommendations"` undoes these five. Neither is better for a real link: choose the one to reproduce.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedpace._base.checks import FloatArray, IntArray

Rules = Literal["ns-3", "recommendations"]
Environment = Literal["urban", "suburban", "open"]
City = Literal["large", "small"]

LIGHT = 299_792_458.0
"""Speed of light in metres per second."""
WALLS = {"wood": 4.0, "concrete-with-windows": 7.0, "concrete-without-windows": 15.0, "stone-blocks": 12.0}
"""Loss of an outer wall in dB (COST 231)."""
INNER_WALL = 5.0
"""Loss of a wall between two rooms in dB."""
FLOOR_GAIN = 2.0
"""Gain in dB per floor above the ground, between indoors and outdoors (Turkmani et al.)."""

_INDOOR = {"residential": (28.0, 4.0, 4.0), "office": (30.0, 15.0, 4.0), "commercial": (22.0, 6.0, 3.0)}


def free_space(d: FloatArray, f: float) -> FloatArray:
    """Return the free-space loss in the form of ITU-R P.1411."""
    return np.asarray(32.4 + 20 * np.log10(d / 1000) + 20 * np.log10(f))


def line_of_sight(d: FloatArray, h_b: FloatArray, h_m: FloatArray, f: float) -> FloatArray:
    """Return the ITU-R P.1411 line-of-sight loss: the mean of its lower and upper bounds."""
    wavelength = LIGHT / (f * 1e6)
    at_break = np.abs(20 * np.log10(wavelength**2 / (8 * np.pi * h_b * h_m)))
    ratio = np.log10(d * wavelength / (4 * h_b * h_m))
    return np.asarray(at_break + 10 + np.where(ratio <= 0, 22.5, 40.0) * ratio)


def over_rooftops(
    d: FloatArray,
    h_a: FloatArray,
    h_other: FloatArray,
    f: float,
    *,
    rooftop: float,
    metropolitan: bool,
    rules: Rules,
    extent: float = 80.0,
    separation: float = 50.0,
    street: float = 20.0,
    orientation: float = 45.0,
) -> FloatArray:
    """Return the ITU-R P.1411 loss over the rooftops: free space + rooftop to street + multiple screens.

    `extent` is the distance covered by buildings, `separation` their spacing, `street` the width of a street, all in
    metres. `orientation` is the street's angle to the path in degrees. The defaults are ns-3's.
    """
    h_b, h_m = np.maximum(h_a, h_other), np.minimum(h_a, h_other)
    screens = _screens(d, h_a, h_b, f, rooftop, metropolitan, rules, extent, separation)
    if orientation < 35:
        angle = -10 + 0.354 * orientation
    elif orientation < 55:
        angle = 2.5 + 0.075 * (orientation - 35)
    else:
        angle = 4.0 - 0.114 * (orientation - 55)
    below = rooftop - h_m
    drop = np.log10(np.where(below > 0, below, 1.0))
    to_street = -8.2 - 10 * np.log10(street) + 10 * np.log10(f) + 20 * drop + angle
    extra = np.where(below > 0, to_street + screens, 0.0)  # antennas above the roofs see each other
    return np.asarray(free_space(d, f) + np.maximum(extra, 0.0))


def _screens(
    d: FloatArray,
    h_a: FloatArray,
    h_b: FloatArray,
    f: float,
    rooftop: float,
    metropolitan: bool,
    rules: Rules,
    extent: float,
    separation: float,
) -> FloatArray:
    """Return L_msd, the diffraction loss past rows of buildings."""
    wavelength = LIGHT / (f * 1e6)
    rise = h_b - rooftop
    above = rise > 0
    with np.errstate(divide="ignore"):
        settled = wavelength * d**2 / rise**2
    km = d / 1000

    k_a = np.where(above, 71.4 if f > 2000 else 54.0, 54.0 - 0.8 * rise * np.where(d < 500, 2 * km, 1.0))
    k_d = 18 - np.where(above, 0.0, 15 * rise / (h_a if rules == "ns-3" else rooftop))
    steep = metropolitan if rules == "recommendations" else not metropolitan
    k_f = -8.0 if f > 2000 else -4 + (1.5 if steep else 0.7) * (f / 925 - 1)
    shadow = -18 * np.log10(1 + np.maximum(rise, 0.0))
    near = shadow + k_a + k_d * np.log10(km) + k_f * np.log10(f) - 9 * np.log10(separation)

    # The recommendation's "h_b about h_r" means within one metre, as in ns-3.
    level = np.abs(rise) < 1
    away = np.where(level, 1.0, rise)
    theta = np.arctan(away / separation)
    rho = np.hypot(away, separation)
    high = 2.35 * (np.abs(away) / d * np.sqrt(separation / wavelength)) ** 0.9
    low = separation / (2 * np.pi * d) * np.sqrt(wavelength / rho) * (1 / theta - 1 / (2 * np.pi + theta))
    factor = np.where(level, separation / d, np.where(above, high, low))
    return np.asarray(np.where(settled < extent, near, -10 * np.log10(factor**2)))


def okumura_hata(
    d: FloatArray, h_b: FloatArray, h_m: FloatArray, f: float, *, environment: Environment, city: City, rules: Rules
) -> FloatArray:
    """Return Hata's loss up to 1500 MHz, COST 231-Hata's to 2300 MHz, else the 2.6 GHz fit; meant for d beyond 1 km."""
    if f > 2300:
        return np.asarray(36 + 26 * np.log10(d))
    log_f, log_h = np.log10(f), np.log10(h_b)
    slope = (44.9 - 6.55 * log_h) * np.log10(d / 1000) - 13.82 * log_h
    small = (1.1 * log_f - 0.7) * h_m - (1.56 * log_f - 0.8)
    large = 3.2 * np.log10(11.75 * h_m) ** 2
    if f > 1500:
        if rules == "ns-3":
            metropolitan, lower = city == "large", large if city == "large" else small
        else:
            metropolitan, lower = city == "large" and environment == "urban", small
        return np.asarray(46.3 + 33.9 * log_f + slope - lower + (3.0 if metropolitan else 0.0))
    in_large = 8.29 * np.log10(1.54 * h_m) ** 2 - 1.1 if f <= 200 else large - 4.97
    lower = in_large if city == "large" else small
    urban = 69.55 + 26.16 * log_f + slope - lower
    if environment == "suburban":
        return np.asarray(urban - 2 * np.log10(f / 28) ** 2 - 5.4)
    if environment == "open":
        return np.asarray(urban - 4.78 * log_f**2 + 18.33 * log_f - 40.94)
    return np.asarray(urban)


def indoors(d: FloatArray, floors: IntArray, f: float, *, kind: str) -> FloatArray:
    """Return the ITU-R P.1238 loss within one building, by distance, kind of building and floors between."""
    slope, first, further = _INDOOR[kind]
    between = np.where(floors > 0, first + further * (floors - 1), 0.0)
    return np.asarray(20 * np.log10(f) + slope * np.log10(d) + between - 28)


KINDS = tuple(_INDOOR)
"""Kinds of buildings that `indoors` supports."""
