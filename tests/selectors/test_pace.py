"""moment-match and pace: the definition by hand, the calibration, repayment, and the cases that break other schemes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from mixtures import best_mixture

from fedpace import View
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.types import Report
from fedpace.moments import MomentBank
from fedpace.moments.factor import factor_from_features
from fedpace.numerics.arrivals import LEAST, UNBROKEN
from fedpace.numerics.calibration import PairSums
from fedpace.numerics.heterogeneity import whitened_gram
from fedpace.selectors.moment_match import MomentMatch
from fedpace.selectors.pace import JUMP, SUMS_KEPT, Measured, Pace, measured
from fedpace.server import server_step
from fedpace.server.average import Average
from fedpace.server.fedexp import Fedexp
from fedpace.server.memory_corrected import MemoryCorrected
from fedpace.server.nesterov import Nesterov


def view_of(factors, delay, *, updates=None, update_step=None, recent=None, available=None):
    bank = MomentBank(len(factors))
    for row, factor in enumerate(factors):
        if factor is not None:
            bank.put(row, factor)
    count = len(factors)
    return View(
        step=1,
        now=0.0,
        available=np.ones(count, bool) if available is None else np.asarray(available),
        share=np.full(count, 1 / count),
        delay=np.asarray(delay, float),
        loss=np.full(count, np.nan),
        loss_step=np.full(count, -1),
        participations=np.zeros(count, int),
        updates=updates,
        update_step=update_step,
        accumulated={} if recent is None else {"recent_weight": recent},
        moments=bank,
    )


def labelled(classes, *, of=3, samples=30, seed=0, width=4):
    """A client's joint moment: the same features for everybody, labels of the given classes only."""
    features = stream(seed, "features").standard_normal((samples, width))
    labels = np.resize(np.asarray(classes), samples)
    return factor_from_features(features, bias=True, labels=labels, classes=of)


def random_factors(count, seed=0, width=5, samples=12):
    rng = stream(seed, "factors")
    return [rng.standard_normal((samples, width)) * rng.uniform(0.5, 2, width) for _ in range(count)]


def report_of(clients, updates, weights, finished=None):
    count = len(clients)
    nothing = np.full(count, np.nan)
    return Report(
        step=0,
        now=1.0,
        clients=np.array(clients),
        finished=np.ones(count, bool) if finished is None else np.array(finished),
        seconds=np.ones(count),
        loss=nothing,
        samples=nothing,
        weights=np.asarray(weights, float),
        updates=np.asarray(updates, float),
    )


def select(scheme, view, state=None):
    state = scheme.init() if state is None else state
    return scheme.select(state, view, stream(0))


class TestMomentMatch:
    @pytest.mark.parametrize("seed", range(5))
    def test_is_the_best_prefix_with_its_best_weights(self, seed):
        factors = random_factors(8, seed)
        delay = stream(seed, "delay").uniform(1, 3, 8)
        gram = whitened_gram(factors, ridge=0.1)
        cohort, _ = select(MomentMatch(), view_of(factors, delay))
        values, vectors = np.linalg.eigh(gram)
        points = vectors * np.sqrt(np.maximum(values, 0))
        order = np.argsort(delay)
        predicted = []
        for length in range(1, 9):
            rho = best_mixture(points[order[:length]]).error
            predicted.append(delay[order[length - 1]] / (1 - rho) if rho < 1 else math.inf)
        assert cohort.why.objective == pytest.approx(min(predicted), rel=1e-6)
        within = gram[np.ix_(cohort.clients, cohort.clients)]
        assert cohort.weights @ within @ cohort.weights == pytest.approx(cohort.why.facts["rho"], abs=1e-4)

    def test_label_skew_with_equal_features_takes_every_class(self):
        """Where the paper's schemes, which see features only, pick one client."""
        factors = [labelled([0]), labelled([1]), labelled([2]), labelled([0]), labelled([1]), labelled([2])]
        cohort, _ = select(MomentMatch(), view_of(factors, [1, 1, 1, 50, 50, 50]))
        assert cohort.clients.tolist() == [0, 1, 2]
        assert cohort.weights == pytest.approx(np.full(3, 1 / 3), abs=1e-6)

    def test_a_fast_client_that_adds_nothing_is_left_alone(self):
        one, other = labelled([0]), labelled([1])
        everybody = np.vstack([one, other]) / math.sqrt(2)
        cohort, _ = select(MomentMatch(), view_of([everybody, one, other], [1, 1, 1]))
        assert cohort.clients.tolist() == [0]
        assert "without it" in cohort.why.reasons[1]

    def test_a_budget_is_kept(self):
        cohort, _ = select(MomentMatch(max_clients=3), view_of(random_factors(10), np.ones(10)))
        assert cohort.clients.size <= 3

    def test_explains_the_frontier_and_every_client(self):
        cohort, _ = select(MomentMatch(), view_of(random_factors(10), np.geomspace(1, 100, 10)))
        table = cohort.why.facts["frontier"]
        assert any(row[0] == cohort.why.facts["prefix"] for row in table)
        assert [row[3] for row in table] == sorted((row[3] for row in table), reverse=True)
        assert set(cohort.why.reasons) == set(range(10))

    def test_says_when_nothing_matches(self):
        factors = [labelled([0]), labelled([1]), labelled([2])]
        far = view_of(factors, [1, 1, 1], available=[True, False, False])
        cohort, _ = select(MomentMatch(ridge=0.0), far)
        assert cohort.clients.tolist() == [0]
        assert "closest" in cohort.why.status

    def test_without_moments_it_says_what_it_needs(self):
        view = dataclasses.replace(view_of(random_factors(3), np.ones(3)), moments=None)
        with pytest.raises(InputError, match="moment-match needs feature moments"):
            select(MomentMatch(), view)


def scaled(s, nu=0.0):
    """A state that has measured the slope s and the intercept nu, on pairs at distances 1 and 2."""
    x = np.array([1.0, 2.0])
    y = s * x + 2 * nu
    return Measured(x.mean(), y.mean(), (x * x).mean(), (x * y).mean())


class TestCalibration:
    def test_the_warm_up_is_measured_before_the_first_choice(self):
        updates = stream(2).standard_normal((6, 4)) + 3
        view = view_of(random_factors(6), np.ones(6), updates=updates, update_step=np.zeros(6, int))
        points = view.moments.directions(ridge=0.1, shares=view.share)
        mean = updates.mean(axis=0)
        expected = PairSums.of(updates, points, float(mean @ mean))
        cohort, state = select(Pace(), view)
        assert dataclasses.astuple(state.sums) == pytest.approx(dataclasses.astuple(expected))
        assert (cohort.why.facts["s"], cohort.why.facts["nu"]) == pytest.approx(expected.line())

    def test_only_updates_from_one_model_are_compared(self):
        updates = np.array([[1.0, 0], [1.2, 0], [90.0, 5], [-90.0, 2]])
        view = view_of(random_factors(4), np.ones(4), updates=updates, update_step=np.array([3, 3, 1, 2]))
        points = view.moments.directions(ridge=0.1, shares=view.share)
        assert measured(Measured(), view, points).sums == PairSums.of(updates[:2], points[:2], 1.1**2)

    def test_without_updates_it_matches_uncalibrated(self):
        view = view_of(random_factors(8), np.geomspace(1, 30, 8))
        plain, _ = select(MomentMatch(), view)
        cohort, state = select(Pace(), view)
        assert not cohort.why.facts["calibrated"]
        assert state.sums is None
        if plain.clients.size >= 2:
            assert cohort.clients.tolist() == plain.clients.tolist()

    def played(self, state, updates, weights=(0.5, 0.5)):
        """The state after a round of clients 0 and 1, as the next selection finds it."""
        state = Pace().observe(state, report_of([0, 1], updates, weights))
        table = np.vstack([updates, np.full((2, 2), np.nan)])
        view = view_of(random_factors(4), np.ones(4), updates=table, update_step=np.array([0, 0, -1, -1]))
        return measured(state, view, view.moments.directions(ridge=0.1, shares=view.share)), view

    def test_a_round_counts_by_its_share(self):
        updates = np.array([[1.0, 1.0], [1.0, -1.0]])
        before = Measured(1.0, 2.0, 1.0, 2.0)
        after, view = self.played(before, updates)
        points = view.moments.directions(ridge=0.1, shares=view.share)
        newest = PairSums.of(updates, points[:2], 1.0)
        assert after.sums == before.sums.mixed(newest, SUMS_KEPT)
        assert after.square == 0.0, "looked at once"

    def test_the_average_is_that_of_those_that_finished(self):
        """What the line is measured by is |u|^2 as it was aggregated, whoever was planned."""
        report = report_of([0, 1, 2], [[2.0, 0.0], [0.0, 0.0], [9.0, 9.0]], [0.45, 0.15, 0.4], [True, True, False])
        assert Pace().observe(scaled(1.0), report).square == pytest.approx(1.5**2)

    def test_one_wild_round_moves_it_by_a_bounded_factor(self):
        before = Measured(1.0, 1e-6, 1.0, 1e-6)
        after, _ = self.played(before, np.array([[1.0, 1.0], [1.0, -1.0]]))
        assert after.y == pytest.approx(1e-6 * (SUMS_KEPT + (1 - SUMS_KEPT) * JUMP))

    def test_agreement_is_not_for_ever(self):
        """A round in which all agree makes s = nu = 0, and the next can raise them again."""
        agreed = Measured(1.0, 0.0, 1.0, 0.0)
        after, _ = self.played(agreed, np.array([[1.0, 1.0], [1.0, -1.0]]))
        assert sum(after.sums.line()) > 0

    @pytest.mark.parametrize(
        ("weights", "finished"),
        [([1.0], [True]), ([0.5, 0.5], [True, False]), ([0.2, 0.2, 0.6], [True, True, False])],
        ids=["one client", "one came back", "a minority came back"],
    )
    def test_too_few_teach_nothing(self, weights, finished):
        state = scaled(1.0)
        updates = stream(4).standard_normal((len(weights), 3))
        report = report_of(range(len(weights)), updates, weights, finished)
        assert Pace().observe(state, report) == state

    def test_what_moments_cannot_see_makes_the_cohort_grow(self):
        """Two features: three clients match every moment. Noise of their own asks for more of them all the same."""
        factors, delay = random_factors(30, width=2, samples=40), np.geomspace(1, 3, 30)
        sizes = [select(Pace(), view_of(factors, delay), scaled(1.0, nu))[0].clients.size for nu in (0.0, 1.0, 8.0)]
        assert sizes[0] < sizes[1] < sizes[2]

    def test_clients_that_look_the_same_are_two_and_the_fastest(self):
        factors, delay = [labelled([0, 1, 2])] * 6, [1, 1, 500, 1000, 1000, 1000]
        for state in (None, scaled(0.0), scaled(1.0)):
            cohort, _ = select(Pace(), view_of(factors, delay), state)
            assert cohort.clients.tolist() == [0, 1]
            assert cohort.weights == pytest.approx([0.5, 0.5])
            assert cohort.why.predicted_seconds == 1.0

    def test_disagreement_makes_the_cohort_grow(self):
        factors, delay = random_factors(20, width=8, samples=6), np.geomspace(1, 40, 20)
        sizes = [select(Pace(), view_of(factors, delay), scaled(scale))[0].clients.size for scale in (0.001, 0.3, 30.0)]
        assert sizes[0] <= sizes[1] < sizes[2]
        assert sizes[0] >= 2

    def test_a_fleet_of_one_is_no_problem(self):
        cohort, _ = select(Pace(), view_of(random_factors(1), [3.0]))
        assert cohort.clients.tolist() == [0]


class TestRepayment:
    def test_who_was_left_out_comes_in_with_more_than_its_share(self):
        factors = [labelled([0]), labelled([1]), labelled([2])]
        fair = view_of(factors, [1, 1, 1], recent=np.zeros(3))
        cohort, _ = select(Pace(), fair, scaled(1.0))
        assert cohort.weights == pytest.approx(np.full(3, 1 / 3), abs=1e-6)
        behind = view_of(factors, [1, 1, 1], recent=np.array([0.35, 0.35, 0.0]))
        cohort, _ = select(Pace(), behind, scaled(1.0))
        weights = dict(zip(cohort.clients.tolist(), cohort.weights.tolist(), strict=True))
        assert weights[2] > 0.5
        cohort, _ = select(Pace(repay=False), behind, scaled(1.0))
        assert cohort.weights == pytest.approx(np.full(3, 1 / 3), abs=1e-6)

    def test_unknown_clients_are_neither_owed_nor_chosen(self):
        factors = [*random_factors(4), None]
        view = view_of(factors, [1, 1, 1, 1, np.nan], available=[1, 1, 1, 1, 0], recent=np.array([0.7, 0, 0, 0, 0.3]))
        view = dataclasses.replace(view, available=np.array([True, True, True, True, False]))
        cohort, _ = select(Pace(), view)
        assert 4 not in cohort.clients


def test_gathers_speed_unless_told_otherwise():
    assert Pace().server == MemoryCorrected(power=1.0, everyone=True)
    assert Pace(memory_gib=0.0).server == Nesterov(power=1.0)
    assert Pace(memory_gib=2.0).server == MemoryCorrected(memory_gib=2.0, everyone=True)
    assert Pace(momentum=False).server == Fedexp(power=1.0)
    assert Pace(fedexp_exponent=0.0).server == MemoryCorrected(power=0.0, everyone=True)
    assert server_step(Pace(momentum=False, fedexp_exponent=0.0)) == Average()
    assert server_step(MomentMatch()) == Average()
    assert server_step(Pace(), Fedexp()) == Fedexp(), "the user has the last word"


class TestDeadlines:
    """Who holds a cohort up is not waited for, where the others can stand in for it."""

    def view(self, lateness):
        view = view_of(random_factors(12), np.linspace(10.0, 11.0, 12))
        return dataclasses.replace(view, accumulated={"lateness": np.asarray(lateness, float)})

    def test_one_answer_in_ten_that_hangs(self):
        view = self.view([(1.0, 0)] * 18 + [(40.0, 0)] * 2)
        cohort, _ = select(Pace(), view, scaled(0.05))
        assert 10 < cohort.deadline < 12
        assert cohort.why.facts["deadline"] == cohort.deadline
        assert cohort.why.predicted_seconds <= cohort.deadline
        patient, _ = select(Pace(deadlines=False), view, scaled(0.05))
        assert patient.deadline == math.inf
        assert patient.clients.tolist() == cohort.clients.tolist()

    def test_after_a_deadline_that_nobody_met_the_next_is_at_least_twice_as_long(self):
        """All clients have become four times slower: what was learnt before misleads."""
        punctual = [(1.0 + 0.05 * (i % 5), 0) for i in range(60)] + [(30.0, 0)]
        cohort, state = select(Pace(), self.view(punctual), scaled(0.05))
        assert cohort.deadline < 15
        assert state.fresh == UNBROKEN
        late = report_of(cohort.clients, np.full((cohort.clients.size, 2), np.nan), cohort.weights)
        late = dataclasses.replace(late, finished=np.zeros(cohort.clients.size, bool))
        state = Pace().observe(state, late)
        missed = [(cohort.deadline / 10.5, 1)] * cohort.clients.size
        after, _ = select(Pace(), self.view(punctual + missed), state)
        assert state.fresh == cohort.clients.size
        assert after.deadline >= 2 * cohort.deadline

    def test_a_state_that_remembers_more_answers_than_there_are(self):
        state = dataclasses.replace(scaled(0.05), fresh=500)
        assert select(Pace(), self.view([(1.0, 0)] * (2 * LEAST)), state)[0].clients.size >= 2

    @pytest.mark.parametrize("lateness", [[(1.0, 0)] * 20, [(40.0, 0)] * 9, np.zeros((0, 2))])
    def test_punctual_clients_and_too_few_answers(self, lateness):
        cohort, _ = select(Pace(), self.view(lateness), scaled(0.05))
        assert cohort.deadline == math.inf
        assert cohort.why.facts["deadline"] is None


@pytest.mark.parametrize("scheme", [MomentMatch, Pace])
def test_options_are_checked(scheme):
    with pytest.raises(InputError, match="ridge"):
        scheme(ridge=-1)
    with pytest.raises(InputError, match="max_clients"):
        scheme(max_clients=-1)


def test_the_power_is_checked():
    with pytest.raises(InputError, match="fedexp_exponent of pace"):
        Pace(fedexp_exponent=1.5)
