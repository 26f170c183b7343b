"""Every registered selector, in the configurations that take different paths, against the shared contract."""

from __future__ import annotations

import pytest

from fedpace import registry
from fedpace.selectors.delayhet_sampling import DelayHetSampling
from fedpace.selectors.delayhet_submodular import DelayHetSubmodular
from fedpace.selectors.random import Random
from fedpace.testing import check_selector

CASES = [
    Random(k=4),
    Random(k=4, variant="md"),
    Random(k=4, variant="uniform-unbiased"),
    DelayHetSubmodular(),
    DelayHetSubmodular(target_heterogeneity=0.7),
    DelayHetSubmodular(target_heterogeneity=0.7, max_clients=3),
    DelayHetSubmodular(solver="min-norm", target_heterogeneity=0.7),
    DelayHetSampling(k=4, max_iter=8),
    DelayHetSampling(k=4, max_iter=8, full_objective=True),
]


@pytest.mark.parametrize("selector", CASES, ids=repr)
def test_contract(selector):
    check_selector(selector)


def test_every_registered_selector_is_listed():
    listed = {selector.name for selector in CASES}
    missing = set(registry.selectors.names()) - listed
    assert not missing, f"add {sorted(missing)} to CASES in this file: every scheme passes the contract test"
