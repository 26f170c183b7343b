"""The schemes of the paper run unchanged on a sketched bank, and choose about the same clients."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base.rng import stream
from fedpace.core.types import View
from fedpace.moments import MomentBank
from fedpace.selectors.delayhet_sampling import DelayhetSampling
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular

COUNT = 40


def view(moments):
    rng = stream(0, "view")
    never = np.full(COUNT, -1)
    return View(
        step=0,
        now=0.0,
        available=np.arange(COUNT) % 7 != 0,
        share=np.full(COUNT, 1 / COUNT),
        delay=rng.lognormal(2, 1, COUNT),
        loss=np.full(COUNT, np.nan),
        loss_step=never,
        participations=np.zeros(COUNT),
        moments=moments,
    )


@pytest.fixture
def banks():
    rng = stream(1, "moments")
    groups = rng.normal(size=(5, 20, 10)) * np.sqrt(rng.uniform(0.3, 3, (5, 1, 10)))
    exact, sketched = MomentBank(COUNT), MomentBank.sketched(COUNT, pilot=COUNT)
    for row in range(COUNT):
        factor = groups[row % 5] + 0.2 * rng.normal(size=(20, 10))
        exact.put(row, factor)
        sketched.put(row, factor)
    return exact, sketched


@pytest.mark.parametrize("target", [0.0, 0.5])
def test_submodular(banks, target):
    scheme = DelayhetSubmodular(target_heterogeneity=target)
    exact, sketched = (scheme.select(None, view(bank), stream(2, "select"))[0] for bank in banks)
    shared = len(np.intersect1d(exact.clients, sketched.clients))
    assert shared >= 0.8 * max(len(exact.clients), len(sketched.clients))
    np.testing.assert_allclose(sketched.weights.sum(), 1.0)


def test_sampling(banks):
    scheme = DelayhetSampling()
    for bank in banks:
        cohort, _ = scheme.select(None, view(bank), stream(3, "select"))
        assert (cohort.clients % 7 != 0).all()
