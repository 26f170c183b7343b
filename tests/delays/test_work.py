"""Which part of a delay grows with the work of a task."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.types import DelayConfig
from fedpace.delays.async_hfl import AsyncHflDelays
from fedpace.delays.base import WorkDelays, compute_seconds
from fedpace.delays.constant import ConstantDelays
from fedpace.delays.correlation import correlated
from fedpace.delays.devices import DevicesDelays
from fedpace.delays.lognormal import LognormalDelays
from fedpace.delays.mixture import MixtureDelays
from fedpace.delays.nycmesh import NycmeshDelays
from fedpace.delays.synthetic import SyntheticDelays
from fedpace.delays.trace import TraceDelays, delays_from_array
from fedpace.delays.uniform import UniformDelays

N = 40
MODELS = [
    SyntheticDelays(),
    SyntheticDelays(jitter=0.4),
    LognormalDelays(),
    UniformDelays(jitter=0.5),
    ConstantDelays(),
    MixtureDelays(),
    NycmeshDelays(),
    NycmeshDelays(cap=40.0),
    AsyncHflDelays(),
    AsyncHflDelays(cap=60.0),
    DevicesDelays(),
]


@pytest.mark.parametrize("config", MODELS, ids=repr)
def test_compute_is_a_part_of_the_delay(config: DelayConfig) -> None:
    model = config.build(N, model_bytes=1_600_000, seed=3)
    for step in (0, 1, 7):
        compute = compute_seconds(model, step)
        assert compute.shape == (N,)
        assert (compute >= 0).all()
        assert (compute <= model.draw(step) * (1 + 1e-12)).all()
        np.testing.assert_array_equal(compute, compute_seconds(model, step))


def test_synthetic_as_the_paper_defines_it() -> None:
    """tau = MS / c + tau_comp: the transfer does not depend on the work."""
    model = SyntheticDelays().build(N, model_bytes=2_000_000, seed=5)
    speed = stream(5, "delay", "synthetic", "link").uniform(200e3, 5e6, N)
    np.testing.assert_allclose(model.draw(1) - compute_seconds(model, 1), 2_000_000 / speed)


def test_nycmesh_has_one_compute_time() -> None:
    model = NycmeshDelays(cap=1e9, compute=12.0).build(N, model_bytes=0, seed=1)
    np.testing.assert_allclose(compute_seconds(model, 3), 12.0)


def test_devices_by_their_columns(tmp_path) -> None:
    file = tmp_path / "phones.csv"
    file.write_text("compute_ms_per_sample,kbit_per_second\n20,8000\n")
    config = DevicesDelays(file=str(file), compute_variation=0.0, network_variation=0.0)
    model = config.build_for([100, 300], model_bytes=1_000_000, seed=0)
    np.testing.assert_allclose(compute_seconds(model, 2), [6.0, 18.0])
    np.testing.assert_allclose(model.draw(2), [8.0, 20.0])


@pytest.mark.parametrize("config", [LognormalDelays(compute_share=0.25), UniformDelays(compute_share=0.25)])
def test_a_stated_share(config: DelayConfig) -> None:
    model = config.build(N, model_bytes=0, seed=0)
    np.testing.assert_allclose(compute_seconds(model, 4), 0.25 * model.draw(4))


def test_a_trace_has_a_stated_share(tmp_path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("client,step,seconds\n0,0,10\n0,1,20\n1,0,30\n1,1,40\n")
    model = TraceDelays(str(file), compute_share=0.8).build(2, model_bytes=0, seed=0)
    np.testing.assert_allclose(compute_seconds(model, 1), [16.0, 32.0])
    given = delays_from_array([4.0, 6.0]).build(2, model_bytes=0, seed=0)
    np.testing.assert_allclose(compute_seconds(given, 0), [2.0, 3.0])


def test_a_share_lies_between_0_and_1() -> None:
    with pytest.raises(InputError, match=r"compute_share of lognormal must lie between 0 and 1, but 1\.5 came"):
        LognormalDelays(compute_share=1.5)


@pytest.mark.parametrize("config", [SyntheticDelays(), DevicesDelays()])
def test_reassigned_delays_keep_both_parts_together(config: DelayConfig) -> None:
    model = config.build(N, model_bytes=1_000_000, seed=2)
    slow = correlated(model, np.arange(N), strength=1.0)
    pairs = zip(np.round(model.draw(0), 6), np.round(compute_seconds(model, 0), 6), strict=True)
    if config.name == "synthetic":
        assert {*zip(np.round(slow.draw(0), 6), np.round(compute_seconds(slow, 0), 6), strict=True)} == {*pairs}
    assert isinstance(slow, WorkDelays)


def test_a_model_that_does_not_say_is_refused() -> None:
    class Plain:
        def expected(self):
            return np.ones(2)

        def draw(self, step):
            return np.ones(2)

    with pytest.raises(InputError, match="Plain does not say which part of its seconds grows with the work"):
        compute_seconds(Plain(), 0)
    assert not isinstance(correlated(Plain(), [1.0, 2.0], strength=0.5), WorkDelays)
