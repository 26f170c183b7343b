"""Path loss: against ns-3's own table where it lies beside the project, against a few of its values always."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.delays.propagation import (
    Antennas,
    free_space,
    hybrid_loss,
    indoors,
    line_of_sight,
    okumura_hata,
    over_rooftops,
)

PAIRS = Path(__file__).parents[3] / "shared" / "nycmesh" / "ns3_pairs.csv"
FIXTURES = Path(__file__).parent / "ns3_fixtures.csv"

WALLS = {"Wood": 4.0, "ConcreteWithWindows": 7.0, "ConcreteWithoutWindows": 15.0, "StoneBlocks": 12.0, "": 0.0}
"""Loss of an outer wall in dB (COST 231)."""
ENVIRONMENT = {"Urban": "urban", "SubUrban": "suburban", "OpenAreas": "open"}


def places(rows: list[dict[str, str]], side: str) -> Antennas:
    def column(name: str, dtype: type = float) -> np.ndarray:
        return np.array([row[f"{side}{name}"] or 0 for row in rows], dtype=dtype)

    kinds = [row[f"{side}_kind"] for row in rows]
    return Antennas(
        column("x"),
        column("y"),
        column("z"),
        np.array([int(kind.split("#")[1]) if kind else -1 for kind in kinds]),
        column("_floor", int),
        column("_roomx", int),
        column("_roomy", int),
        np.array([WALLS[row[f"{side}_wall"]] for row in rows]),
        np.array([kind.split("#")[0].lower() for kind in kinds]),
    )


def errors_against_ns3(path: Path, rules: str = "ns-3") -> tuple[np.ndarray, list[dict[str, str]]]:
    groups = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            groups[row["freq_mhz"], row["rooftop_m"], row["env"], row["city"]].append(row)
    errors, order = [], []
    for (f, rooftop, environment, city), rows in groups.items():
        loss = hybrid_loss(
            places(rows, "a"),
            places(rows, "b"),
            frequency_mhz=float(f),
            rooftop=float(rooftop),
            environment=ENVIRONMENT[environment],
            city=city.lower(),
            rules=rules,
        )
        errors.append(loss - np.array([float(row["loss_db"]) for row in rows]))
        order += rows
    return np.concatenate(errors), order


@pytest.mark.skipif(not PAIRS.exists(), reason="ns-3's table of pairs is not beside the project")
def test_every_pair_of_ns3_s_table() -> None:
    errors, rows = errors_against_ns3(PAIRS)
    assert len(errors) == 1337
    assert np.abs(errors).max() < 1e-9, rows[int(np.abs(errors).argmax())]


def test_our_own_few_values_of_ns3() -> None:
    errors, rows = errors_against_ns3(FIXTURES)
    assert len(errors) >= 12
    assert np.abs(errors).max() < 1e-9, rows[int(np.abs(errors).argmax())]


def test_the_switch_undoes_the_departures_and_only_those() -> None:
    errors, rows = errors_against_ns3(FIXTURES, rules="recommendations")
    departs = np.array([row["departs"] == "yes" for row in rows])
    assert (np.abs(errors[departs]) > 1e-3).all()
    assert (np.abs(errors[~departs]) < 1e-9).all()


@pytest.fixture
def pair() -> tuple[Antennas, Antennas]:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-4000, 4000, (2, 2, 500))
    low, high = rng.uniform(1, 60, (2, 500))
    return Antennas.outdoors(*a, low), Antennas.outdoors(*b, high)


def test_the_recommendations_do_not_care_who_sends(pair: tuple[Antennas, Antennas]) -> None:
    a, b = pair
    there = hybrid_loss(a, b, rules="recommendations", frequency_mhz=900.0)
    np.testing.assert_allclose(there, hybrid_loss(b, a, rules="recommendations", frequency_mhz=900.0), rtol=1e-14)
    assert np.isfinite(there).all()


def test_one_place_is_paired_with_all(pair: tuple[Antennas, Antennas]) -> None:
    a, b = pair
    one = a.at(slice(0, 1))
    np.testing.assert_array_equal(hybrid_loss(one, b)[7], hybrid_loss(one, b.at(slice(7, 8)))[0])


def test_hand_calculated_values() -> None:
    d, h_b, h_m = np.array([2000.0]), np.array([50.0]), np.array([10.0])
    # 46.3 + 33.9 log f - 13.82 log h_b + (44.9 - 6.55 log h_b) log 2 - a + 3
    # with a = (1.1 log f - 0.7) h_m - (1.56 log f - 0.8)
    cost = okumura_hata(d, h_b, h_m, 2000.0, environment="urban", city="large", rules="recommendations")
    assert cost[0] == pytest.approx(46.3 + 111.9041 - 23.4797 + 10.1662 - 24.9614 + 3, abs=1e-3)
    hata = okumura_hata(d, h_b, h_m, 900.0, environment="urban", city="large", rules="ns-3")
    assert hata[0] == pytest.approx(69.55 + 77.2830 - 23.4797 + 10.1662 - (3.2 * 4.28520 - 4.97), abs=1e-3)
    vhf = okumura_hata(d, h_b, h_m, 180.0, environment="urban", city="large", rules="ns-3")
    assert vhf[0] == pytest.approx(69.55 + 58.9973 - 23.4797 + 10.1662 - (8.29 * 1.41021 - 1.1), abs=1e-3)
    assert free_space(np.array([1000.0]), 1000.0)[0] == pytest.approx(92.4)
    assert indoors(np.array([10.0]), np.array([0]), 1000.0, kind="office")[0] == pytest.approx(62.0)
    assert indoors(np.array([10.0]), np.array([3]), 1000.0, kind="office")[0] == pytest.approx(85.0)


def test_line_of_sight_is_continuous_at_the_break_point() -> None:
    wavelength = 299_792_458.0 / 900e6
    at = 4 * 30.0 * 2.0 / wavelength
    h_b, h_m = np.full(2, 30.0), np.full(2, 2.0)
    near, far = line_of_sight(np.array([at * (1 - 1e-9), at * (1 + 1e-9)]), h_b, h_m, 900.0)
    assert near == pytest.approx(far, abs=1e-6)


def test_the_street_s_angle() -> None:
    d, high, low = np.array([400.0]), np.array([30.0]), np.array([2.0])

    def at(angle: float) -> float:
        options = {"rooftop": 20.0, "metropolitan": True, "rules": "ns-3", "orientation": angle}
        return float(over_rooftops(d, high, low, 900.0, **options)[0])

    assert at(20.0) - at(45.0) == pytest.approx(-10 + 7.08 - 3.25)
    assert at(80.0) - at(45.0) == pytest.approx(4 - 2.85 - 3.25)


def test_two_antennas_above_the_roofs_have_free_space() -> None:
    d, high = np.array([700.0]), np.array([60.0])
    loss = over_rooftops(d, high, high / 2, 2160.0, rooftop=20.0, metropolitan=True, rules="ns-3")
    np.testing.assert_allclose(loss, free_space(d, 2160.0))


def test_antennas_in_one_spot_lose_nothing() -> None:
    spot = Antennas.outdoors(np.zeros(1), np.zeros(1), np.full(1, 10.0))
    assert hybrid_loss(spot, spot)[0] == 0.0


def test_bad_places_and_words(pair: tuple[Antennas, Antennas]) -> None:
    a, b = pair
    with pytest.raises(InputError, match=r"place 0 of b must be finite and above the ground"):
        hybrid_loss(a, Antennas.outdoors(np.zeros(1), np.zeros(1), np.zeros(1)))
    with pytest.raises(InputError, match="expected 1 or 500 places in b, but 3 came"):
        hybrid_loss(a, b.at(slice(0, 3)))
    with pytest.raises(InputError, match="environment must be one of 'urban'"):
        hybrid_loss(a, b, environment="jungle")
    with pytest.raises(InputError, match="rules must be one of"):
        hybrid_loss(a, b, rules="mine")
