from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.delays.async_hfl import AsyncHflDelays
from fedpace.delays.nycmesh import CLUSTERS, SERVER_HEIGHT, NycmeshDelays

SHARED = Path(__file__).parents[3] / "shared" / "nycmesh"
shared = pytest.mark.skipif(not SHARED.exists(), reason="the network's own tables are not beside the project")


def fleets(config: NycmeshDelays | AsyncHflDelays, seeds: int = 150) -> np.ndarray:
    return np.array([config.build(100, model_bytes=1, seed=seed).draw(0) for seed in range(seeds)])


def test_the_paper_s_two_numbers() -> None:
    seconds = fleets(NycmeshDelays())
    assert np.mean(seconds > 1000) == pytest.approx(0.10, abs=0.012)
    assert seconds.max(axis=1).mean() == pytest.approx(1980, abs=25)


@shared
def test_the_fitted_clusters_give_the_delays_of_the_real_positions() -> None:
    fitted, real = fleets(NycmeshDelays()), fleets(NycmeshDelays(nodes=str(SHARED / "nodes.csv")))
    levels = [0.05, 0.25, 0.5, 0.75, 0.9]
    np.testing.assert_allclose(np.quantile(fitted, levels), np.quantile(real, levels), rtol=0.08)


def test_a_link_by_hand() -> None:
    config = NycmeshDelays()
    # 16 + 27 - loss - (-174 + 73.0103 + 7) - 6 = 0 dB at loss 130.9897: log2(1 + 1) = 1 bit a second and Hz
    rate = config.rate(np.array([16 + 27 + 174 - 10 * np.log10(20e6) - 7 - 6]))
    assert rate[0] == pytest.approx(20e6 / 60)
    assert config.rate(np.array([0.0]))[0] == 2.048e6


def test_further_and_lower_is_slower(tmp_path: Path) -> None:
    file = tmp_path / "nodes.csv"
    file.write_text(
        "x_m,y_m,height_m,kind\n0,0,180,supernode\n500,0,40,a\n6000,0,40,b\n6000,0,15,c\n0,6000,0,d\n0,6000,10,e\n0,900,50,hub\n"
    )
    config = NycmeshDelays(nodes=str(file), shadowing_db=0.0)
    where = config.positions(4, seed=0)
    assert sorted(map(tuple, where)) == [(0, 6000, 10), (500, 0, 40), (6000, 0, 15), (6000, 0, 40)]
    seconds = dict(zip(map(tuple, where), config.build(4, model_bytes=0, seed=0).expected(), strict=True))
    assert seconds[500, 0, 40] < seconds[6000, 0, 40] < seconds[6000, 0, 15] < seconds[0, 6000, 10]


def test_sites_come_again_only_when_all_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "nodes.csv"
    file.write_text("x_m,y_m,height_m\n" + "".join(f"{i},1000,20\n" for i in range(1, 8)))
    where = NycmeshDelays(nodes=str(file)).positions(16, seed=4)[:, 0]
    assert sorted(where[:7]) == sorted(where[7:14]) == list(range(1, 8))


def test_the_fitted_positions_surround_the_server() -> None:
    where = NycmeshDelays().positions(50_000, seed=0)
    assert np.median(np.hypot(where[:, 0], where[:, 1])) == pytest.approx(5500, rel=0.05)
    assert np.median(where[:, 2]) == pytest.approx(30.5, rel=0.05)
    weight, east, north, sd_east, sd_north, rho = CLUSTERS.T[:6]
    centre = weight @ np.column_stack([east, north])
    across = weight @ (rho * sd_east * sd_north + (east - centre[0]) * (north - centre[1]))
    np.testing.assert_allclose(where[:, :2].mean(axis=0), centre, atol=200)
    assert np.cov(where[:, 0], where[:, 1])[0, 1] == pytest.approx(across, rel=0.1)
    assert where[:, 2].min() >= 3
    assert where[:, 2].max() <= SERVER_HEIGHT


def test_the_reference_size_holds_unless_asked_otherwise() -> None:
    small, large = (NycmeshDelays().build(20, model_bytes=size, seed=0).expected() for size in (1000, 10**8))
    np.testing.assert_array_equal(small, large)
    own = NycmeshDelays(model_bytes=0).build(20, model_bytes=5_000_000, seed=0).expected()
    assert own.mean() > 1.3 * small.mean()


def test_a_dead_link_takes_the_cap() -> None:
    seconds = NycmeshDelays(gain_db=-300.0, power_dbm=-300.0).build(5, model_bytes=0, seed=0)
    np.testing.assert_array_equal(seconds.expected(), 1980.0)
    np.testing.assert_array_equal(seconds.draw(1), 1980.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x_m,y_m\n1,2\n", r"nodes.csv: column 'height_m' is missing; the columns are x_m, y_m"),
        (
            "x_m,y_m,height_m\n1,2,3\n4,five,6\n",
            r"nodes.csv, row 3, column 'y_m': expected a finite number, but 'five'",
        ),
        ("x_m,y_m,height_m\n1,2,nan\n", r"row 2, column 'height_m'.*'nan' came"),
        ("x_m,y_m,height_m\n1,2\n", r"row 2: expected 3 cells, but 2 came"),
        ("x_m,y_m,height_m\n", r"at least one row"),
        ("", r"column 'x_m', 'y_m', 'height_m' is missing"),
        ("x_m,y_m,height_m\n0,0,180\n", r"besides hubs and the server"),
    ],
)
def test_a_bad_node_file(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "nodes.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        NycmeshDelays(nodes=str(file)).build(3, model_bytes=0, seed=0)


def test_no_such_file() -> None:
    with pytest.raises(InputError, match=r"nowhere.csv: there is no such file"):
        NycmeshDelays(nodes="nowhere.csv").build(3, model_bytes=0, seed=0)


@pytest.mark.parametrize(
    "options",
    [{"rules": "mine"}, {"cap": 0.0}, {"share": 1.5}, {"shadowing_db": -1.0}, {"gain_db": float("nan")}, {"nodes": 3}],
)
def test_bad_options(options: dict) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        NycmeshDelays(**options)


@shared
def test_the_earlier_table_itself() -> None:
    config = AsyncHflDelays(table=str(SHARED / "async_hfl_delays.csv"), round_mu=-300.0, round_sigma=0.0)
    seconds = config.build(184, model_bytes=0, seed=0).expected()
    assert np.median(seconds) == pytest.approx(161, abs=1)
    assert np.mean(seconds > 1000) == pytest.approx(0.12, abs=0.005)


def test_the_earlier_table_s_figures() -> None:
    seconds = fleets(AsyncHflDelays(round_mu=-300.0, round_sigma=0.0))
    assert np.median(seconds) == pytest.approx(163, rel=0.05)
    assert np.mean(seconds > 1000) == pytest.approx(0.10, abs=0.015)
    assert seconds.max() <= 109.1 + 15_000 + 1e-6
    stated = fleets(AsyncHflDelays(compute_sigma=3.0))
    assert np.mean(stated > 1000) == pytest.approx(0.175, abs=0.02)


def test_a_bad_earlier_table(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("link_s,compute_s\n3,4\n5,-6\n")
    with pytest.raises(InputError, match=r"t.csv, row 3, column 'compute_s': .* of at least 0, but '-6' came"):
        AsyncHflDelays(table=str(file)).build(3, model_bytes=0, seed=0)
