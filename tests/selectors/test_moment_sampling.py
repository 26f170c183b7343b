"""moment-sampling: what its choice is worth, the fall-back, and the draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.moments import MomentBank
from fedpace.selectors._optimised import cohort_from
from fedpace.selectors.moment_sampling import MomentSampling


def bank_of(kinds: list[int], spread: float = 0.4) -> MomentBank:
    """Clients of a few kinds, each with features along its own axis."""
    bank = MomentBank(len(kinds))
    for row, kind in enumerate(kinds):
        factor = np.eye(3)
        factor[kind, kind] += spread
        bank.put(row, factor)
    return bank


def test_the_fast_are_drawn_but_not_a_single_one(view: Any) -> None:
    """Three kinds, each with a fast and a slow client: the fast ones together are the population."""
    delay = np.array([10.0, 10.1, 10.2, 400.0, 500.0, 600.0])
    known = view(6, delay=delay, moments=bank_of([0, 1, 2, 0, 1, 2], spread=6.0))
    counts = np.zeros(6)
    for seed in range(30):
        cohort, _ = MomentSampling(k=6).select(None, known, stream(seed, "draw"))
        counts[cohort.clients] += cohort.weights
        assert cohort.weights.sum() == pytest.approx(1.0)
        assert cohort.why.status == "ok"
    assert counts[3:].sum() < 0.01 * counts.sum()
    assert (counts[:3] > 0.15 * counts.sum()).all()


def test_the_slow_keep_their_part_where_nobody_else_has_their_data(view: Any) -> None:
    delay = np.array([10.0, 11.0, 12.0, 13.0, 15.0, 16.0])
    known = view(6, delay=delay, moments=bank_of([0, 0, 1, 1, 2, 2], spread=6.0))
    cohort, _ = MomentSampling(k=6).select(None, known, stream(0, "draw"))
    assert set(cohort.clients) & {4, 5}
    assert cohort.why.facts["B_p"] < 1


def test_too_few_draws_are_said_so_and_drawn_by_shares(view: Any) -> None:
    rng = stream(0, "moments")
    bank = MomentBank(8)
    for row in range(8):
        bank.put(row, rng.normal(size=(1, 6)) * 3)  # one sample in six dimensions: every client is far from the mean
    known = view(8, moments=bank)
    cohort, _ = MomentSampling(k=1, ridge=0.0).select(None, known, stream(1, "draw"))
    assert "infeasible: B_p >= 1 for every distribution with k = 1" in cohort.why.status
    assert cohort.why.objective is None
    assert cohort.why.facts["effective_clients"] == pytest.approx(8.0)


def test_the_fastest_may_count_for_nothing(view: Any) -> None:
    """A client without a share of its own is as good as any other of its kind to draw."""
    delay = np.array([1.0, 10.1, 10.2, 400.0, 500.0, 600.0])
    share = np.array([0.0, 0.2, 0.2, 0.2, 0.2, 0.2])
    known = view(6, delay=delay, share=share, moments=bank_of([0, 1, 2, 0, 1, 2], spread=6.0))
    cohort, _ = MomentSampling(k=6).select(None, known, stream(0, "draw"))
    assert cohort.why.status == "ok"
    assert 0 in cohort.clients


def test_where_nobody_who_is_there_has_a_share_the_fall_back_is_even() -> None:
    rows, p = np.array([3, 5, 7, 8]), np.array([1.0, 0, 0, 0])
    cohort = cohort_from(rows, p, np.zeros(4), np.arange(1.0, 5), 2, 1.5, {}, stream(0, "draw"))
    assert "drawn by shares" in cohort.why.status
    assert cohort.why.facts["effective_clients"] == pytest.approx(4.0)


def test_the_answer_does_not_depend_on_the_unit_of_time_or_on_what_was_asked_before(view: Any) -> None:
    bank = bank_of([0, 1, 2, 0, 1, 2])
    delay = np.array([10.0, 11.0, 12.0, 14.0, 15.0, 16.0])
    facts = [
        MomentSampling(k=4).select(None, view(6, delay=scale * delay, moments=bank), stream(0, "draw"))[0].why.facts
        for scale in (1.0, 60.0, 1.0)
    ]
    assert facts[0]["B_p"] == pytest.approx(facts[1]["B_p"], abs=1e-4)
    assert facts[0] == facts[2]


def test_only_the_available_are_drawn_but_everybody_is_the_population(view: Any) -> None:
    bank = bank_of([0, 0, 0, 1, 1, 1])
    here = np.array([True, True, False, False, False, True])
    known = view(6, available=here, moments=bank)
    cohort, _ = MomentSampling(k=6).select(None, known, stream(0, "draw"))
    assert set(cohort.clients) <= {0, 1, 5}
    everybody, _ = MomentSampling(k=6).select(
        None, view(6, available=here & (np.arange(6) < 2), moments=bank), stream(0, "")
    )
    assert everybody.why.facts["B_p"] > cohort.why.facts["B_p"], "without kind 1 the population cannot be met"


def test_without_moments(view: Any) -> None:
    with pytest.raises(InputError, match="moment-sampling needs feature moments"):
        MomentSampling(k=2).select(None, view(4), stream(0, "draw"))


@pytest.mark.parametrize(
    ("options", "words"), [({"k": 0}, "k of moment-sampling"), ({"ridge": -1.0}, "ridge of moment")]
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        MomentSampling(**options)
