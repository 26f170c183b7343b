"""DeviceDelays: FedScale's formula by hand, the tables against the file, and who has which phone."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace.data.digits import Digits
from fedpace.delays.correlation import correlated
from fedpace.delays.devices import BANDWIDTH_KBIT, COMPUTE_MS, FILE_VARIABLE, PHONE_COUNTS, DevicesDelays
from fedpace.delays.mixture import MixtureDelays
from fedpace.sim.fleet import virtual_time
from fedpace.sim.training import Training

SIZE = 1_600_000
STILL = {"compute_variation": 0.0, "network_variation": 0.0}


def _file() -> Path | None:
    """The file of all phones, where somebody has it: named by a variable, or beside the data sets."""
    beside = Path(os.environ.get("FEDPACE_DATA") or "none").parent / "devices" / "devices.parquet"
    named = Path(os.environ.get(FILE_VARIABLE) or beside)
    return named if named.is_file() else None


@pytest.fixture
def phones(tmp_path: Path) -> str:
    path = tmp_path / "phones.csv"
    path.write_text("compute_ms_per_sample,kbit_per_second\n100,1000\n20,64000\n50,16000\n")
    return str(path)


def test_the_formula_by_hand(phones: str) -> None:
    model = DevicesDelays(file=phones, **STILL).build_for([10, 400, 1000], model_bytes=500_000, seed=1)
    rows = {(100, 1000), (20, 64000), (50, 16000)}
    # 500,000 bytes are 4,000 kbit, which travel twice.
    possible = [{3 * work * ms / 1000 + 2 * 4000 / kbit for ms, kbit in rows} for work in (10, 400, 1000)]
    expected = model.expected()
    for seconds, among in zip(expected, possible, strict=True):
        assert min(abs(seconds - one) for one in among) < 1e-9
    np.testing.assert_array_equal(expected, model.draw(5))


def test_rounds_vary_as_much_as_was_measured() -> None:
    work = DevicesDelays(network_variation=0.0).build(200, model_bytes=0, seed=0)
    draws = np.array([work.draw(step) for step in range(400)])
    assert np.std(draws / work.expected()) == pytest.approx(0.04, rel=0.02)
    network = DevicesDelays(compute_variation=0.0, samples=1).build(200, model_bytes=10**9, seed=0)
    draws = np.array([network.draw(step) for step in range(400)])
    assert np.std(draws / network.expected()) == pytest.approx(0.38, rel=0.03)


def test_the_size_of_the_model_and_the_work_are_the_clients_own() -> None:
    config = DevicesDelays(**STILL)
    small, large = (config.build(50, model_bytes=size, seed=3).expected() for size in (0, SIZE))
    kbit = 2 * 8 * SIZE / 1000 / (large - small)
    assert kbit.min() >= BANDWIDTH_KBIT[0] - 1
    assert kbit.max() <= BANDWIDTH_KBIT[-1] + 1
    once, twice = (config.build_for([n] * 50, model_bytes=0, seed=3).expected() for n in (100, 200))
    np.testing.assert_allclose(twice, 2 * once)
    fixed = DevicesDelays(model_bytes=SIZE, samples=400, **STILL)
    np.testing.assert_array_equal(fixed.build_for([7] * 50, model_bytes=12, seed=3).expected(), large)


def test_a_simulation_tells_the_model_how_much_each_client_trains() -> None:
    data = Digits(clients=12).build(seed=4)
    time = virtual_time(data, DevicesDelays(**STILL), training=Training(epochs=3), model_bytes=0, seed=4)
    work = np.array([3 * len(client) for client in data.train])
    ms = 1000 * time.expected / (3 * work)
    np.testing.assert_allclose(ms, np.round(ms))
    assert set(np.round(ms).astype(int)) <= set(COMPUTE_MS.tolist())


def test_slow_phones_are_given_without_the_work() -> None:
    work = np.arange(1, 101) * 10
    model = DevicesDelays(**STILL).build_for(work, model_bytes=SIZE, seed=0)
    scores = np.linspace(0, 1, 100)[::-1]
    dealt = correlated(model, scores, strength=1.0)
    speeds = dealt.device_seconds()  # type: ignore[attr-defined]
    assert (np.diff(speeds) <= 0).all(), "the largest score has the slowest phone"
    np.testing.assert_allclose(np.sort(speeds), np.sort(model.device_seconds()))
    same = correlated(model, scores, strength=0.0)
    np.testing.assert_array_equal(same.expected(), model.expected())


def test_in_a_mixture_every_part_that_asks_is_told_the_work() -> None:
    parts = ({"share": 1.0, "name": "devices", **STILL}, {"share": 1.0, "name": "constant", "seconds": 5.0})
    mixture = MixtureDelays(parts=parts)
    few, many = (mixture.build_for([n] * 40, model_bytes=0, seed=0).expected() for n in (10, 30))
    constant = few == 5.0
    assert 5 < constant.sum() < 35
    np.testing.assert_allclose(many[~constant], 3 * few[~constant])


def test_a_variable_names_the_file_and_is_written_down(phones: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    assert DevicesDelays().file == ""
    monkeypatch.setenv(FILE_VARIABLE, phones)
    assert DevicesDelays().file == phones


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"file": "nowhere.csv"}, "nowhere.csv"),
        ({"samples": -1}, "samples"),
        ({"model_bytes": 1.5}, "model_bytes"),
        ({"training": 0.0}, "training"),
        ({"network_variation": -0.1}, "network_variation"),
        ({"file": 3}, "file"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        DevicesDelays(**options).build(3, model_bytes=SIZE, seed=0)  # type: ignore[arg-type]


def test_everybody_has_something_to_do() -> None:
    with pytest.raises(InputError, match="above 0"):
        DevicesDelays().build_for([5, 0], model_bytes=SIZE, seed=0)


def test_a_phone_without_a_speed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.csv"
    path.write_text("compute_ms_per_sample,kbit_per_second\n100,0\n")
    with pytest.raises(InputError, match=r"row 2, column 'kbit_per_second'"):
        DevicesDelays(file=str(path)).build(3, model_bytes=SIZE, seed=0)


@pytest.mark.skipif(_file() is None, reason=f"the file of all phones is not here: {FILE_VARIABLE} names it")
def test_the_tables_say_what_the_file_says() -> None:
    from pyarrow import parquet

    table = parquet.read_table(_file())
    ms, kbit = (table[name].to_numpy() for name in ("compute_ms_per_sample", "kbit_per_second"))
    values, counts = np.unique(ms, return_counts=True)
    np.testing.assert_array_equal(values, COMPUTE_MS)
    np.testing.assert_array_equal(counts, PHONE_COUNTS)
    np.testing.assert_allclose(np.quantile(kbit, np.linspace(0, 1, BANDWIDTH_KBIT.size)), BANDWIDTH_KBIT, rtol=5e-4)
    assert abs(np.corrcoef(np.log(ms), np.log(kbit))[0, 1]) < 0.01, "the tables draw the two independently"
    levels = [0.05, 0.25, 0.5, 0.75, 0.9, 0.99]
    whole = DevicesDelays(file=str(_file()), **STILL).build(ms.size, model_bytes=SIZE, seed=0).expected()
    # What the file's own description gives for 1.6 MB and 20 steps of 20 samples.
    np.testing.assert_allclose(np.quantile(whole, levels), [26, 35, 55, 182, 215, 243], atol=0.6)
    drawn = DevicesDelays(**STILL).build(1_000_000, model_bytes=SIZE, seed=0).expected()
    np.testing.assert_allclose(np.quantile(drawn, levels), np.quantile(whole, levels), rtol=0.01)
