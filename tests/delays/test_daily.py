"""Nights, zones and days: when clients are there, what that is calibrated to, and what is tied to it."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from scipy import stats

from fedpace import make_selector, simulate
from fedpace._base.errors import InfeasibleError, InputError
from fedpace.data.digits import Digits
from fedpace.data.federated import FederatedData, Samples
from fedpace.delays.availability import HOUR, Availability, DailyModel
from fedpace.delays.devices import DevicesDelays
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Softmax
from fedpace.sim.fleet import Fleet, virtual_time
from fedpace.sim.reclock import has_own_availability


def nights(clients: int = 3000, *, seed: int = 0, delays: object = None, **options: object) -> DailyModel:
    model = Availability(**{"hours": 8.0, **options}).build(clients, seed=seed, delays=delays)  # type: ignore[arg-type]
    assert isinstance(model, DailyModel)
    return model


def shares(model: DailyModel, days: int = 2) -> np.ndarray:
    """Share of the clients that is there, every half hour from noon on."""
    return np.array([model.available_at(half * HOUR / 2).mean() for half in range(48 * days)])


def test_four_times_as_many_at_the_peak_as_at_the_trough() -> None:
    here = shares(nights())
    assert here.max() / here.min() == pytest.approx(4.0, abs=0.3), "Bonawitz et al., MLSys 2019"
    peak = (12 + np.argmax(here[:48]) / 2) % 24
    assert 2 <= peak <= 6, "the middle of the night, by the clock of the first of four zones"


def test_a_night_by_hand() -> None:
    model = nights(5, spread=0.0, habits=0.0, nights=0.0, zones=1, by_day=0.0, plugs_in=22.0, starts=12.0)
    for clock, there in ((21.9, False), (22.0, True), (29.9, True), (30.1, False), (46.1, True), (54.1, False)):
        assert (model.available_at((clock - 12) * HOUR) == there).all(), clock
    assert model.next_available_at(0.0) == pytest.approx(10 * HOUR, abs=600)
    assert model.next_available_at(11 * HOUR) == 11 * HOUR


def test_zones_spread_the_nights() -> None:
    one, world = shares(nights(zones=1, by_day=0.0)), shares(nights(zones=24, by_day=0.0))
    assert one.min() == 0.0
    assert world.min() > 0.25, "it always is night somewhere"
    assert world.mean() == pytest.approx(8 / 24, abs=0.02)


def test_the_same_days_in_any_order_for_a_prefix_and_read_only() -> None:
    few, many = nights(10, seed=3), nights(40, seed=3)
    for hour in (50, 3, 17, 3):
        np.testing.assert_array_equal(few.available_at(hour * HOUR), many.available_at(hour * HOUR)[:10])
    with pytest.raises(ValueError, match="read-only"):
        few.available_at(0.0)[0] = True
    assert (shares(nights(50, seed=1)) != shares(nights(50, seed=2))).any()


@pytest.mark.parametrize(("strength", "sign"), [(0.8, -1), (-0.8, 1), (0.0, 0)])
def test_slow_clients_may_have_short_nights_or_long_ones(strength: float, sign: int) -> None:
    delays = LognormalDelays().build(2000, model_bytes=0, seed=1).expected()
    model = nights(2000, delays=delays, slow_away=strength)
    rank = stats.spearmanr(delays, model.hours).statistic
    assert rank == pytest.approx(0.78 * sign, abs=0.06)
    np.testing.assert_allclose(np.sort(model.hours), np.sort(nights(2000).hours)), "nobody's nights are invented"


@pytest.mark.parametrize("strength", [0.7, -0.7])
def test_slow_phones_may_hold_much_data_or_little(strength: float) -> None:
    rng = np.random.default_rng(0)
    train = tuple(Samples(np.ones((n, 2), np.float32), np.zeros(n, np.int64)) for n in rng.integers(5, 200, 400))
    data = FederatedData("sizes", train, train[0], 2, "accuracy")
    sizes = [len(client) for client in train]
    time = virtual_time(data, LognormalDelays(), fleet=Fleet(slow_large=strength), model_bytes=0, seed=0)
    assert stats.spearmanr(sizes, time.expected).statistic == pytest.approx(strength, abs=0.1)
    phones = virtual_time(data, DevicesDelays(), fleet=Fleet(slow_large=strength), model_bytes=0, seed=0)
    speeds = phones.delays.device_seconds()  # type: ignore[attr-defined]
    assert stats.spearmanr(sizes, speeds).statistic == pytest.approx(strength, abs=0.1)


@pytest.mark.parametrize("name", ["random", "pace", "fedbuff"])
def test_an_experiment_by_night_chooses_those_who_are_there(name: str) -> None:
    availability = Availability(hours=7.0, by_day=0.0, zones=2, starts=14.0, crash=0.05)
    model = availability.build(20, seed=2, delays=None)
    options = {"k": 4} if name == "random" else {}
    rounds = simulate(
        Digits(clients=20),
        Softmax(),
        DevicesDelays(samples=20_000),
        make_selector(name, **options),
        availability=availability,
        fleet=Fleet(warmup="lazy"),
        seed=2,
    )
    played = list(islice(rounds, 12))
    assert played[1].clock > 3 * HOUR, "the run begins in the afternoon, when nobody charges"
    for current in played[1:]:
        began = current.clock - current.seconds
        if name == "random":
            assert model.available_at(began)[list(current.clients)].all()


def test_who_is_there_by_the_clock_is_not_clocked_anew() -> None:
    data = Digits(clients=5).build(seed=0)
    for availability, apart in ((Availability(hours=8.0), False), (Availability(on=3.0, off=1.0), True)):
        time = virtual_time(data, LognormalDelays(), availability=availability, model_bytes=0, seed=0)
        assert has_own_availability(time) is apart


def test_an_empty_fleet_ends_in_a_sentence() -> None:
    never = DailyModel(
        hours=np.zeros(3), plugs_in=np.zeros(3), nights=0.0, by_day=np.zeros(3), starts=0.0, crash=0.0, seed=0
    )
    with pytest.raises(InfeasibleError, match="two weeks"):
        never.next_available_at(0.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hours": 25.0}, "hours"),
        ({"zones": 0}, "zones"),
        ({"by_day": 1.1}, "by_day"),
        ({"off": 2.0}, "count in rounds"),
        ({"late": 0.5}, "count in rounds"),
        ({"hours": 0.0, "slow_away": 0.5}, "set hours too"),
        ({"slow_away": 0.5}, "needs the clients' delays"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        nights(3, **options)


def test_one_coupling_of_speed_at_a_time() -> None:
    with pytest.raises(InputError, match="leave one of them out"):
        Fleet(slow_rare=0.5, slow_large=0.5)
    with pytest.raises(InputError, match="slow_large"):
        Fleet(slow_large=-1.5)
