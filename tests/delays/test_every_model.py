"""What every delay model promises, whichever it is. A new model is one line in MODELS."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest

import fedpace.delays
from fedpace._base.errors import InputError
from fedpace.core.types import DelayConfig
from fedpace.delays.async_hfl import AsyncHflDelays
from fedpace.delays.constant import ConstantDelays
from fedpace.delays.devices import DevicesDelays
from fedpace.delays.lognormal import LognormalDelays
from fedpace.delays.mixture import MixtureDelays
from fedpace.delays.nycmesh import NycmeshDelays
from fedpace.delays.synthetic import SyntheticDelays
from fedpace.delays.trace import TraceDelays
from fedpace.delays.uniform import UniformDelays

SIZE = 1_600_000
MODELS: list[DelayConfig] = [
    SyntheticDelays(),
    SyntheticDelays(jitter=0.4),
    LognormalDelays(),
    UniformDelays(),
    UniformDelays(seconds=(5.0, 500.0), jitter=0.5),
    ConstantDelays(jitter=0.2),
    MixtureDelays(),
    NycmeshDelays(),
    NycmeshDelays(model_bytes=0, cap=300.0, round_sigma=0.0),
    AsyncHflDelays(),
    DevicesDelays(),
    DevicesDelays(samples=50, model_bytes=26_000_000, compute_variation=0.3),
]
ALIKE: list[DelayConfig] = [ConstantDelays(), LognormalDelays(sigma=0.0, jitter=0.0)]
FROM_FILES = {TraceDelays.name}
"""Models that cannot be built without a file: `test_trace.py` has these promises for them."""


@pytest.fixture(params=MODELS + ALIKE, ids=repr)
def config(request: pytest.FixtureRequest) -> DelayConfig:
    return request.param


def test_every_registered_model_is_in_the_list() -> None:
    found = set()
    for module in pkgutil.iter_modules(fedpace.delays.__path__):
        loaded = importlib.import_module(f"fedpace.delays.{module.name}")
        for item in vars(loaded).values():
            if isinstance(item, type) and getattr(item, "name", None) == module.name.replace("_", "-"):
                found.add(item.name)
    assert {"synthetic", "lognormal"} <= found
    assert found == {config.name for config in MODELS} | FROM_FILES, "add the new model to MODELS above"


def test_shape_sign_and_read_only(config: DelayConfig) -> None:
    model = config.build(13, model_bytes=SIZE, seed=0)
    for seconds in (model.expected(), model.draw(0), model.draw(7)):
        assert seconds.shape == (13,)
        assert seconds.dtype == np.float64
        assert np.isfinite(seconds).all()
        assert (seconds > 0).all()
        with pytest.raises(ValueError, match="read-only"):
            seconds[0] = 1.0


def test_the_mean_of_the_draws_is_the_expected_delay(config: DelayConfig) -> None:
    model = config.build(40, model_bytes=SIZE, seed=3)
    draws = np.array([model.draw(step) for step in range(1500)])
    error = np.abs(draws.mean(axis=0) - model.expected())
    spread = draws.std(axis=0) / np.sqrt(len(draws))
    assert (error <= 5 * spread + 1e-9 * model.expected()).all()


def test_a_step_is_the_same_in_any_order_and_in_any_process(config: DelayConfig) -> None:
    one = config.build(20, model_bytes=SIZE, seed=5)
    other = config.build(20, model_bytes=SIZE, seed=5)
    forward = [one.draw(step) for step in range(6)]
    backward = [other.draw(step) for step in reversed(range(6))][::-1]
    np.testing.assert_array_equal(forward, backward)
    np.testing.assert_array_equal(one.expected(), other.expected())


@pytest.mark.parametrize("clients", [0, -1, 2.5, True])
def test_needs_at_least_one_client(config: DelayConfig, clients: int) -> None:
    with pytest.raises(InputError, match=r"number of clients|at least one client"):
        config.build(clients, model_bytes=SIZE, seed=0)


@pytest.mark.parametrize("step", [-1, 1.5])
def test_steps_count_from_zero(config: DelayConfig, step: int) -> None:
    with pytest.raises(InputError, match="a step must be"):
        config.build(2, model_bytes=SIZE, seed=0).draw(step)


def test_model_bytes_are_not_negative(config: DelayConfig) -> None:
    with pytest.raises(InputError, match="model_bytes"):
        config.build(2, model_bytes=-1, seed=0)


@pytest.mark.parametrize("config", MODELS, ids=repr)
def test_another_seed_gives_other_delays(config: DelayConfig) -> None:
    a = config.build(20, model_bytes=SIZE, seed=0).draw(3)
    b = config.build(20, model_bytes=SIZE, seed=1).draw(3)
    assert np.mean(a != b) > 0.9


def test_more_clients_leave_the_first_ones_as_they_were(config: DelayConfig) -> None:
    few = config.build(5, model_bytes=SIZE, seed=2)
    many = config.build(50, model_bytes=SIZE, seed=2)
    np.testing.assert_array_equal(few.expected(), many.expected()[:5])
    np.testing.assert_array_equal(few.draw(4), many.draw(4)[:5])
