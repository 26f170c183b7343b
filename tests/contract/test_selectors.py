"""Every registered selector, in the configurations that take different paths, against the shared contract."""

from __future__ import annotations

import pytest

from fedpace import make_selector
from fedpace._base import registry
from fedpace.testing import check_policy, check_selector

CASES = [
    make_selector("random", k=4),
    make_selector("random", k=0),
    make_selector("random", k=4, overcommit=1.3),
    make_selector("random", k=4, fedexp_exponent=1.0, momentum=True),
    make_selector("random", k=4, variant="md"),
    make_selector("random", k=4, variant="uniform-unbiased"),
    make_selector("delayhet-submodular"),
    make_selector("delayhet-submodular", target_heterogeneity=0.7),
    make_selector("delayhet-submodular", target_heterogeneity=0.7, max_clients=3),
    make_selector("delayhet-submodular", target_heterogeneity=0.7, solver="min-norm"),
    make_selector("delayhet-sampling", k=4, max_iter=8),
    make_selector("delayhet-sampling", k=4, max_iter=8, full_objective=True),
    make_selector("delayhet-transport", k=4),
    make_selector("moment-sampling", k=4),
    make_selector("power-of-choice", k=4),
    make_selector("power-of-choice", k=4, variant="cpow-d"),
    make_selector("power-of-choice", k=4, variant="rpow-d"),
    make_selector("power-of-choice", k=4, variant="adapow-d", switch=2),
    make_selector("divfl", k=4),
    make_selector("flanp"),
    make_selector("approx-opt-sampling", k=4),
    make_selector("adaptive-sampling", k=4),
    make_selector("optimal-client-sampling", k=4),
    make_selector("clustered-sampling", k=4),
    make_selector("fed-cbs", k=4),
    make_selector("fed-cs"),
    make_selector("fed-cs", quantile=0.5, enforce=True),
    make_selector("haccs", k=4),
    make_selector("haccs", k=4, losses="probed", distance="hellinger", radius=0.6),
    make_selector("oort", k=4),
    make_selector("folb", k=4),
    make_selector("tifl", k=4),
    make_selector("moment-match"),
    make_selector("moment-match", max_clients=3),
    make_selector("m-sync", m=4),
    make_selector("m-sync", m=0, lr=0.5),
    make_selector("fednova", k=4),
    make_selector("fedprox", k=4),
    make_selector("fedprox", k=4, straggling="random", stragglers=0.9),
    make_selector("timelyfl", k=4, concurrency=6),
    make_selector("timelyfl", k=4, concurrency=0, slack=1.0),
    make_selector("pace"),
    make_selector("pace", memory_gib=0.0),
    make_selector("pace", max_clients=3, repay=False, momentum=False, fedexp_exponent=0.0),
]
POLICIES = [
    make_selector("refl", k=4),
    make_selector("refl", k=4, overcommit=2.0, deadline=20.0),
    make_selector("refl", k=14),
    make_selector("fedbuff", buffer=4),
    make_selector("fedasync"),
    make_selector("fedasync", in_flight=3, discount="hinge"),
    make_selector("ca2fl", buffer=4),
    make_selector("ace"),
    make_selector("ace", buffer=4, max_age=3, wait_for_all=False),
    make_selector("ringleader"),
    make_selector("malenia"),
    make_selector("malenia", answers=2.0, lr=0.5),
    make_selector("rescaled-asgd"),
    make_selector("fadas", buffer=4),
    make_selector("momentum-approximation", buffer=4, history=5),
    make_selector("pisces", in_flight=4),
    make_selector("pisces", in_flight=0, epsilon=0.0, epsilon_least=0.0),
    make_selector("ca2fl", buffer=5, in_flight=3, lr=0.5),
    make_selector("pace-async"),
    make_selector("pace-async", in_flight=3, fedexp_exponent=0.0),
    make_selector("pace-async", work="adaptive"),
    make_selector("fedcompass"),
    make_selector("fedcompass", least=0.5, most=3.0, late=1.0),
    make_selector("fedbuff", buffer=5, in_flight=3, lr=0.5, momentum=0.5),
]
"""They work without rounds."""


@pytest.mark.parametrize("selector", CASES, ids=repr)
def test_contract(selector):
    check_selector(selector)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_contract_without_rounds(policy):
    check_policy(policy)


def test_every_registered_selector_is_listed():
    listed = {selector.name for selector in (*CASES, *POLICIES)}
    missing = set(registry.selectors.names()) - listed
    assert not missing, f"add {sorted(missing)} to CASES in this file: every scheme passes the contract test"
