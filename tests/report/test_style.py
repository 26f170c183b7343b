"""The schemes' colours, measured: seen on both pages, and told apart whatever colours one sees."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedpace.report.style import NEUTRAL, PALETTE

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
# the severest degree of each; on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)


def linear(colour):
    values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(light):
    ratio = TO_XYZ @ np.clip(light, 0, 1) / WHITE
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("page", ["#ffffff", "#14181f"])
@pytest.mark.parametrize("colour", [*PALETTE, NEUTRAL])
def test_curves_stand_out_from_the_page(colour, page):
    """By WCAG's measure for graphics."""
    dark, bright = sorted(float(TO_XYZ[1] @ linear(each)) for each in (colour, page))
    assert (bright + 0.05) / (dark + 0.05) >= 3


@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_are_told_apart(sight):
    seen = {colour: lab(np.array(SIGHT[sight]) @ linear(colour)) for colour in (*PALETTE, NEUTRAL)}
    assert min(np.linalg.norm(seen[one] - seen[other]) for one, other in combinations(seen, 2)) > 20
