"""delayhet-transport: no point mass where the paper's bound has one, the scale, the fall-back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.moments import MomentBank
from fedpace.selectors.delayhet_transport import DelayhetTransport


def transport_cost(supply: Any, demand: Any, cost: Any) -> float:
    """The cheapest way to carry `supply` to `demand`, as a linear programme."""
    n, m = cost.shape
    leaving = np.kron(np.eye(n), np.ones(m))
    arriving = np.kron(np.ones(n), np.eye(m))
    plan = linprog(cost.ravel(), A_eq=np.vstack([leaving, arriving]), b_eq=np.concatenate([supply, demand]))
    return float(plan.fun)


def bank_of(moments: list[float]) -> MomentBank:
    """One feature a client, with this second moment."""
    bank = MomentBank(len(moments))
    for row, moment in enumerate(moments):
        bank.put(row, [[np.sqrt(moment)]])
    return bank


MOMENTS = [0.4, 1.0, 1.6, 0.4, 1.0, 1.6]
DELAY = np.array([10.0, 14.0, 18.0, 90.0, 100.0, 110.0])


def test_several_clients_are_drawn_where_one_would_be_off(view: Any) -> None:
    known = view(6, delay=DELAY, moments=bank_of(MOMENTS))
    cohort, _ = DelayhetTransport(k=6, ridge=0.0).select(None, known, stream(0, "draw"))
    assert cohort.why.status == "ok"
    assert cohort.why.facts["effective_clients"] > 1.5
    assert set(cohort.clients) <= {0, 1, 2}, "the slow have what the fast have"


def test_the_plan_that_is_reported_is_the_cheapest(view: Any) -> None:
    """Clients of equal delay: carrying costs are all that matters, and staying costs nothing."""
    known = view(6, delay=np.full(6, 10.0), moments=bank_of(MOMENTS))
    cohort, _ = DelayhetTransport(k=6, ridge=0.0).select(None, known, stream(0, "draw"))
    difference = np.abs(np.subtract.outer(MOMENTS, MOMENTS))
    half = np.repeat([0.5, 0.0], 3)  # with equal delays any split between twins is free
    assert transport_cost(half * 2 / 3, np.full(6, 1 / 6), difference) == pytest.approx(0.0, abs=1e-9)
    assert cohort.why.facts["transport"] < 0.3 * cohort.why.facts["largest_mean_B"]


def test_scaling_is_stated_and_never_up(view: Any) -> None:
    known = view(6, delay=DELAY, moments=bank_of(MOMENTS))
    wide, _ = DelayhetTransport(k=6, ridge=0.0, target_heterogeneity=0.1).select(None, known, stream(0, "draw"))
    assert wide.why.facts["scale"] == pytest.approx(0.1 / wide.why.facts["largest_mean_B"])
    free, _ = DelayhetTransport(k=6, ridge=0.0, target_heterogeneity=0.0).select(None, known, stream(0, "draw"))
    assert free.why.facts["scale"] == 1.0
    loose, _ = DelayhetTransport(k=6, ridge=0.0, target_heterogeneity=50.0).select(None, known, stream(0, "draw"))
    assert loose.why.facts["scale"] == 1.0


def test_too_few_draws_are_said_so_and_drawn_by_shares(view: Any) -> None:
    known = view(6, delay=DELAY, moments=bank_of([0.01, 6.0, 0.01, 6.0, 0.01, 6.0]))
    cohort, _ = DelayhetTransport(k=1, ridge=0.0, target_heterogeneity=0.0).select(None, known, stream(0, "draw"))
    assert "infeasible" in cohort.why.status
    assert cohort.why.facts["effective_clients"] == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "k of delayhet-transport"),
        ({"ridge": float("nan")}, "ridge of delayhet-transport"),
        ({"target_heterogeneity": -0.1}, "target_heterogeneity of delayhet-transport"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        DelayhetTransport(**options)
