"""What every scheme of this folder must bear: the contract, odd fleets, drop-outs; and unbiased means."""

from __future__ import annotations

import numpy as np
import pytest

from fedpace._base import registry
from fedpace.core.validation import check_cohort
from fedpace.selectors import adaptive_sampling, approx_opt_sampling
from fedpace.selectors._importance import solve
from fedpace.selectors.adaptive_sampling import AdaptiveSampling
from fedpace.selectors.approx_opt_sampling import ApproxOptSampling
from fedpace.selectors.clustered_sampling import ClusteredSampling
from fedpace.selectors.divfl import Divfl
from fedpace.selectors.fed_cbs import FedCbs
from fedpace.selectors.fed_cs import FedCs
from fedpace.selectors.flanp import Flanp
from fedpace.selectors.folb import Folb
from fedpace.selectors.oort import Oort
from fedpace.selectors.optimal_client_sampling import OptimalClientSampling
from fedpace.selectors.power_of_choice import PowerOfChoice
from fedpace.selectors.random import Random
from fedpace.selectors.tifl import Tifl
from fedpace.testing import check_selector

CASES = [
    AdaptiveSampling(k=4, pilot=2),
    ApproxOptSampling(k=4),
    ApproxOptSampling(k=4, solver="trust-constr", max_iter=5, clip=2.0),
    ClusteredSampling(k=4),
    ClusteredSampling(k=4, measure="l1"),
    ClusteredSampling(k=4, algorithm="size"),
    Divfl(k=4),
    Divfl(k=4, mode="exact", weights="proxy"),
    Divfl(k=4, mode="every-q", q=2, method="stochastic"),
    FedCbs(k=4),
    FedCs(k=4, deadline=30.0),
    FedCs(k=4, deadline=30.0, enforce=True),
    Flanp(k=2, period=2),
    Flanp(k=2, stop="period", period=2),
    Flanp(k=2, stop="statistical"),
    Flanp(k=2, stop="plateau", window=1, tolerance=0.5),
    Folb(k=4),
    Folb(k=4, sets="two"),
    Oort(k=4, pacer_step=2),
    Oort(k=4, overcommit=1.0),
    OptimalClientSampling(k=4),
    OptimalClientSampling(k=4, method="aocs", norms="last"),
    PowerOfChoice(k=4),
    PowerOfChoice(k=4, variant="cpow-d"),
    PowerOfChoice(k=4, variant="rpow-d"),
    PowerOfChoice(k=4, variant="adapow-d", switch=3),
    Tifl(k=4, tiers=3, interval=2, credits=1),
    Tifl(k=4, policy="uniform"),
]

ids = pytest.mark.parametrize("selector", CASES, ids=repr)


@ids
def test_contract(selector):
    check_selector(selector)


@ids
def test_it_is_registered_under_its_name(selector):
    assert registry.selectors[selector.name] is type(selector)


def odd_views(view):
    """Fleets that tempt a scheme into a NaN, a crash or an impossible choice."""
    nobody = np.full(6, np.nan)
    few = np.array([0, 1, 0, 0, 1, 0], bool)

    def hidden(values):
        """NaN in the rows that cannot be chosen."""
        values = np.array(values, float)
        values[~few] = np.nan
        return values

    plain = view(6)
    yield "few", view(6, available=few)
    yield (
        "NaN elsewhere",
        view(
            6,
            available=few,
            delay=hidden(plain.delay),
            loss=hidden(plain.loss),
            labels=hidden(plain.labels),
            updates=hidden(plain.updates),
        ),
    )
    yield "one client", view(6, available=np.arange(6) == 3)
    yield "equal", view(6, delay=np.ones(6), loss=np.ones(6), updates=np.ones((6, 2)), labels=np.ones((6, 3)))
    yield "no delay", view(6, delay=np.zeros(6))
    yield "zeros", view(6, updates=np.zeros((6, 2)), labels=np.zeros((6, 3)), loss=np.zeros(6))
    yield "zero shares", view(6, share=[0, 0, 0.5, 0.5, 0, 0])
    yield "only zero shares available", view(6, share=[0, 0, 0.5, 0.5, 0, 0], available=[1, 1, 0, 0, 1, 1])
    yield "one share", view(6, share=[0, 0, 0, 1, 0, 0])
    yield "never seen", view(6, loss=nobody, loss_step=np.full(6, -1), participations=np.zeros(6))
    yield "huge", view(6, delay=np.geomspace(1, 1e9, 6), updates=np.geomspace(1e-9, 1e9, 6)[:, None] * np.ones((6, 2)))


@ids
@pytest.mark.parametrize("step", [0, 1, 2, 40])
def test_odd_fleets(selector, step, view):
    for what, shown in odd_views(view):
        now = view(6, **{**vars(shown), "step": step})
        rng = np.random.default_rng(step)
        state = selector.init()
        for _ in range(3):
            selector.probe(state, now, rng)
            cohort, state = selector.select(state, now, rng)
            check_cohort(cohort, now, f"{selector.name} on {what}", str)
            assert cohort.clients.size <= 6
            if cohort.why.predicted_seconds is not None:
                assert np.isfinite(cohort.why.predicted_seconds), what
            assert all(v is None or isinstance(v, str) or np.isfinite(v) for v in cohort.why.facts.values()), what


@ids
def test_it_goes_on_when_three_in_ten_drop_out(selector, host):
    fleet = host(selector, 12, failing=0.3)
    for _ in range(25):
        selection = fleet.round()
        assert np.isfinite(selection.weights).all()
        assert np.abs(selection.weights).sum() < 12


UNBIASED = [
    (AdaptiveSampling(k=3, pilot=2), 0),
    (AdaptiveSampling(k=3, pilot=2), 2),
    (AdaptiveSampling(k=3, pilot=2), 4),
    (ApproxOptSampling(k=3), 0),
    (ClusteredSampling(k=3), 0),
    (ClusteredSampling(k=3, algorithm="size"), 0),
    (OptimalClientSampling(k=2), 0),
    (OptimalClientSampling(k=2, method="aocs", norms="last"), 0),
    (Random(k=3, variant="md"), 0),
    (Random(k=3, variant="uniform-unbiased"), 0),
]


@pytest.mark.parametrize(("selector", "step"), UNBIASED, ids=repr)
def test_the_mean_of_many_draws_is_full_participation(selector, step, view, monkeypatch):
    solved = {}

    def solve_once(*problem):
        """The problem is the same 20,000 times."""
        key = tuple(part.tobytes() if isinstance(part, np.ndarray) else part for part in problem)
        if key not in solved:
            solved[key] = solve(*problem)
        return solved[key]

    monkeypatch.setattr(approx_opt_sampling, "solve", solve_once)
    monkeypatch.setattr(adaptive_sampling, "solve", solve_once)
    share = np.array([0.4, 0.25, 0.15, 0.1, 0.07, 0.03])  # the first exceeds 1/k
    update = np.random.default_rng(1).standard_normal((6, 3))
    shown = view(6, share=share, step=step, updates=np.random.default_rng(2).standard_normal((6, 4)))
    rng = np.random.default_rng(3)
    state = selector.init()
    draws = np.empty((20_000, 3))
    for draw in draws:
        cohort, state = selector.select(state, shown, rng)
        draw[:] = cohort.weights @ update[cohort.clients]
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0) - share @ update) < 4 * error).all()
