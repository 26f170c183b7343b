"""Robust rules against their papers' definitions written out plainly, against Flower's, and under attack."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedpace._base.errors import InputError
from fedpace.trust.robust import ROBUST, make_robust

BLIND = [name for name, rule in ROBUST.items() if not rule.validates]
SEEING = [name for name, rule in ROBUST.items() if rule.validates]


def combine(rule, updates, weights=None, *, center=None, trusted=None, seed=0, **options):
    updates = np.asarray(updates, dtype=float)
    weights = np.full(len(updates), 1 / len(updates)) if weights is None else np.asarray(weights, dtype=float)
    rule = make_robust(rule, **options)
    if rule.validates and trusted is None:
        trusted = np.ones(updates.shape[1])
    center = np.zeros(updates.shape[1]) if center is None else center
    return rule.combine(updates, weights, center=center, trusted=trusted, rng=np.random.default_rng(seed))


def cloud(seed, count=None, width=None):
    rng = np.random.default_rng([seed, 7])
    count = int(rng.integers(1, 14)) if count is None else count
    width = int(rng.integers(1, 9)) if width is None else width
    return rng.standard_normal((count, width)) * rng.uniform(0.1, 10) + rng.uniform(-3, 3)


def uneven(seed, count):
    return np.random.default_rng([seed, 8]).uniform(0.05, 1, count)


seeds = st.integers(0, 10**6)
names = st.sampled_from(sorted(ROBUST))


# The definitions, written out.


def plain_krum_scores(updates, byzantine):
    scores = []
    for i, u in enumerate(updates):
        others = sorted(float(np.sum((u - v) ** 2)) for j, v in enumerate(updates) if j != i)
        scores.append(sum(others[: max(1, len(updates) - byzantine - 2)]))
    return np.array(scores)


def plain_bulyan(updates, byzantine):
    """Among equal scores the least sum of squared distances to all others."""
    left, chosen = list(updates), []
    while len(chosen) < len(updates) - 2 * byzantine:
        scores = plain_krum_scores(left, byzantine)
        tied = [i for i in range(len(left)) if scores[i] <= scores.min() * (1 + 1e-9)]
        best = min(tied, key=lambda i: sum(np.sum((left[i] - v) ** 2) for v in left))
        chosen.append(left.pop(best))
    step = []
    for column in np.array(chosen).T:
        middle = np.median(column)
        step.append(np.mean(sorted(column, key=lambda value: abs(value - middle))[: len(chosen) - 2 * byzantine]))
    return np.array(step)


def plain_clipping(updates, weights, center, radius, iterations):
    point = center
    for _ in range(iterations):
        clipped = [min(1, radius / np.linalg.norm(u - point)) * (u - point) for u in updates]
        point = point + sum(w * c for w, c in zip(weights, clipped, strict=True))
    return point


def plain_fltrust(updates, trusted):
    trust = [max(0, u @ trusted / np.linalg.norm(u) / np.linalg.norm(trusted)) for u in updates]
    total = sum(c * np.linalg.norm(trusted) / np.linalg.norm(u) * u for c, u in zip(trust, updates, strict=True))
    return total / sum(trust)


@pytest.mark.parametrize("seed", range(30))
def test_median_is_the_papers(seed):
    updates = cloud(seed)
    np.testing.assert_allclose(combine("median", updates).step, np.median(updates, axis=0), rtol=1e-14)


@pytest.mark.parametrize("seed", range(30))
def test_weighted_median_is_that_of_repeated_clients(seed):
    updates = cloud(seed)
    times = np.random.default_rng(seed).integers(0, 4, len(updates))
    times[0] += 1
    step = combine("median", updates, times / 7).step
    np.testing.assert_allclose(step * 7 / times.sum(), np.median(np.repeat(updates, times, axis=0), axis=0), rtol=1e-12)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.2, 0.3, 0.49])
@pytest.mark.parametrize("seed", range(8))
def test_trimmed_mean_is_the_papers(seed, fraction):
    updates = cloud(seed)
    cut = int(fraction * len(updates) + 1e-9)
    expected = np.sort(updates, axis=0)[cut : len(updates) - cut].mean(axis=0)
    found = combine("trimmed-mean", updates, fraction=fraction)
    np.testing.assert_allclose(found.step, expected, rtol=1e-12, atol=1e-12)
    assert found.note["trimmed"] == cut


def test_trimmed_mean_cuts_weight():
    # Ten updates of total weight 10; a fifth of it is cut from each end, the second update in part.
    weights = np.array([1.5, 1.5, 1, 1, 1, 1, 0.5, 0.5, 1, 1])
    values = np.arange(10.0)
    kept = np.array([0, 1, 1, 1, 1, 1, 0.5, 0.5, 0, 0])
    found = combine("trimmed-mean", values[:, None], weights)
    np.testing.assert_allclose(found.step, 10 * kept @ values / kept.sum(), rtol=1e-12)
    np.testing.assert_allclose(found.weights, 10 * kept / kept.sum(), rtol=1e-12, atol=0)
    assert found.note["left_out"] == 3


@pytest.mark.parametrize("seed", range(30))
def test_krum_is_the_papers(seed):
    updates = cloud(seed, count=3 + seed % 10)
    byzantine = min(int(0.3 * len(updates)), (len(updates) - 3) // 2)
    scores = plain_krum_scores(updates, byzantine)
    found = combine("krum", updates, fraction=0.3)
    chosen = int(np.flatnonzero(found.weights)[0])
    assert scores[chosen] <= scores.min() * (1 + 1e-9)
    np.testing.assert_allclose(found.step, updates[chosen])
    assert found.note == {"byzantine": byzantine, "left_out": len(updates) - 1}


@pytest.mark.parametrize("keep", [0, 1, 3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_multi_krum_is_the_papers(seed, keep):
    updates = cloud(seed, count=12, width=5)
    best = np.argsort(plain_krum_scores(updates, 2))[: keep or 12 - 2 - 2]
    found = combine("multi-krum", updates, keep=keep)
    np.testing.assert_allclose(found.step, updates[best].mean(axis=0))
    assert set(np.flatnonzero(found.weights)) == set(best)


def test_multi_krum_weighs_what_it_keeps():
    updates, weights = cloud(3, 8, 4), uneven(3, 8)
    best = np.argsort(plain_krum_scores(updates, 1))[:5]
    found = combine("multi-krum", updates, weights)
    np.testing.assert_allclose(found.step, weights.sum() * np.average(updates[best], axis=0, weights=weights[best]))


@pytest.mark.parametrize("count", [7, 9, 11, 15, 20])
@pytest.mark.parametrize("seed", range(5))
def test_bulyan_is_the_papers(seed, count):
    updates = cloud(seed, count, 4)
    expected = plain_bulyan(updates, min(int(0.2 * count + 1e-9), (count - 3) // 4))
    np.testing.assert_allclose(combine("bulyan", updates).step, expected, rtol=1e-10, atol=1e-12)


def test_bulyan_of_few_updates_is_the_median_or_the_mean():
    updates = cloud(1, 6, 4)
    np.testing.assert_allclose(combine("bulyan", updates).step, np.median(updates, axis=0))
    np.testing.assert_allclose(combine("bulyan", updates, fraction=0.1).step, updates.mean(axis=0))


@pytest.mark.parametrize("seed", range(20))
def test_geometric_median_has_the_least_sum_of_distances(seed):
    updates = cloud(seed, count=3 + seed % 9, width=2 + seed % 4)
    weights = uneven(seed, len(updates))

    def cost(point):
        return weights @ np.linalg.norm(updates - point, axis=1)

    starts = [updates.mean(axis=0), *updates]
    best = min(cost(minimize(cost, start, method="Nelder-Mead").x) for start in starts)
    found = combine("geometric-median", updates, weights)
    assert cost(found.step / weights.sum()) <= min(best, *map(cost, updates)) * (1 + 1e-6)
    np.testing.assert_allclose(found.weights @ updates, found.step, rtol=1e-9, atol=1e-9)


def test_geometric_median_is_a_fixed_point_of_weiszfeld():
    updates, weights = cloud(5, 9, 6), np.full(9, 1 / 9)
    point = combine("geometric-median", updates).step
    pulls = weights / np.linalg.norm(updates - point, axis=1)
    np.testing.assert_allclose(pulls @ updates / pulls.sum(), point, rtol=1e-8)


def test_geometric_median_in_one_dimension_is_the_median():
    np.testing.assert_allclose(combine("geometric-median", [[0.0], [1.0], [5.0]]).step, [1.0])
    np.testing.assert_allclose(combine("geometric-median", [[0.0], [1.0], [5.0], [6.0]]).step, [3.0])
    weighted = combine("geometric-median", [[0.0], [1.0], [5.0]], [0.2, 0.2, 0.6])
    np.testing.assert_allclose(weighted.step, [5.0])
    assert weighted.note == {"iterations": 0, "left_out": 2}


@pytest.mark.parametrize("radius", [0.5, 3.0, 1e9])
@pytest.mark.parametrize("iterations", [1, 4])
def test_centered_clipping_is_the_papers(radius, iterations):
    updates, weights = cloud(2, 7, 5), uneven(2, 7)
    center = np.random.default_rng(1).standard_normal(5)
    expected = plain_clipping(updates, weights / weights.sum(), center, radius, iterations)
    found = combine("centered-clipping", updates, weights, center=center, radius=radius, iterations=iterations)
    np.testing.assert_allclose(found.step, weights.sum() * expected)
    assert found.note["radius"] == radius


def test_centered_clipping_chooses_the_median_distance():
    updates, center = cloud(4, 7, 5), np.ones(5)
    radius = np.median(np.linalg.norm(updates - center, axis=1))
    found = combine("centered-clipping", updates, center=center, iterations=1)
    assert found.note["radius"] == pytest.approx(radius)
    assert found.note["clipped"] == 3
    np.testing.assert_allclose(found.step, plain_clipping(updates, np.full(7, 1 / 7), center, radius, 1))


def test_buckets_are_drawn_means():
    updates, weights = cloud(6, 8, 3), uneven(6, 8)
    shares = weights / weights.sum()
    order = np.random.default_rng(5).permutation(8)
    buckets = [order[:3], order[3:6], order[6:]]
    means = [np.average(updates[rows], axis=0, weights=shares[rows]) for rows in buckets]
    expected = plain_clipping(means, [shares[rows].sum() for rows in buckets], np.zeros(3), 1.0, 2)
    found = combine("centered-clipping", updates, weights, radius=1.0, iterations=2, bucket=3, seed=5)
    np.testing.assert_allclose(found.step, weights.sum() * expected)
    kept = found.weights / weights
    assert all(np.ptp(kept[rows]) < 1e-12 for rows in buckets)
    everybody = combine("centered-clipping", updates, weights, bucket=99)
    np.testing.assert_allclose(everybody.step, weights @ updates)


@pytest.mark.parametrize("seed", range(10))
def test_fltrust_is_the_papers(seed):
    updates = cloud(seed, 9, 6)
    trusted = np.random.default_rng(seed).standard_normal(6) + updates[0]
    found = combine("fltrust", updates, trusted=trusted, server_vote=0.0)
    np.testing.assert_allclose(found.step, plain_fltrust(updates, trusted))
    np.testing.assert_array_equal(found.weights == 0, updates @ trusted <= 0)
    assert found.note["left_out"] == 9 - found.note["accepted"]


@pytest.mark.parametrize(("rho", "epsilon"), [(0.01, 0.0), (0.4, 0.0), (0.2, 0.5)])
@pytest.mark.parametrize("seed", range(5))
def test_zeno_accepts_by_the_papers_score(seed, rho, epsilon):
    rate = 0.3
    gradients = cloud(seed, 9, 6)
    own = np.random.default_rng(seed).standard_normal(6) + gradients[0] / 3
    accepted = []
    for row in gradients:
        gradient = row * np.linalg.norm(own) / np.linalg.norm(row)
        score = rate * own @ gradient - rho * rate * gradient @ gradient
        if score >= -rate * epsilon * (own @ own):
            accepted.append(-rate * gradient)
    found = combine(
        "zeno", -rate * gradients, trusted=-rate * own, rho=rho, epsilon=epsilon, server_vote=0.0, rescale=True
    )
    np.testing.assert_allclose(found.step, sum(accepted, np.zeros(6)) / max(1, len(accepted)))
    assert found.note["accepted"] == len(accepted)


# Flower's implementations.


def flower():
    return pytest.importorskip("flwr.server.strategy.aggregate", exc_type=ImportError)


@pytest.mark.parametrize("seed", range(10))
def test_median_and_trimmed_mean_are_flowers(seed):
    there = flower()
    updates = cloud(seed)
    results = [([row], 1) for row in updates]
    np.testing.assert_allclose(combine("median", updates).step, there.aggregate_median(results)[0])
    for fraction in (0.1, 0.2, 0.4):
        expected = there.aggregate_trimmed_avg(results, fraction)[0]
        found = combine("trimmed-mean", updates, fraction=fraction).step
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [6, 8, 11, 16])
@pytest.mark.parametrize("seed", range(5))
def test_krum_is_flowers(seed, count):
    there = flower()
    updates = cloud(seed, count, 5)
    results = [([row], 1) for row in updates]
    byzantine = min(int(0.25 * count), (count - 3) // 2)
    found = combine("krum", updates, fraction=0.25).step
    np.testing.assert_allclose(found, there.aggregate_krum(results, byzantine, 0)[0])
    for keep in (1, 3, 5):
        found = combine("multi-krum", updates, fraction=0.25, keep=keep).step
        np.testing.assert_allclose(found, there.aggregate_krum(results, byzantine, keep)[0])


@pytest.mark.parametrize(("count", "byzantine"), [(7, 1), (10, 1), (11, 2), (16, 3)])
def test_bulyan_is_flowers(count, byzantine):
    there = flower()
    updates = cloud(count, count, 5)
    found = combine("bulyan", updates, fraction=byzantine / count).step
    # Its last choices are among equal scores, which Flower settles by the order of the clients.
    for seed in range(40):
        order = np.random.default_rng(seed).permutation(count)
        results = [([row], 1) for row in updates[order]]
        expected = there.aggregate_bulyan(results, byzantine, there.aggregate_krum, to_keep=0)[0]
        if np.allclose(found, expected, rtol=1e-10, atol=1e-12):
            return
    pytest.fail("no order of the clients gives it")


# Properties of all rules.


@given(names, seeds)
def test_order_of_clients_does_not_matter(name, seed):
    updates = cloud(seed)
    weights = uneven(seed, len(updates))
    order = np.random.default_rng(seed).permutation(len(updates))
    one, other = combine(name, updates, weights), combine(name, updates[order], weights[order])
    np.testing.assert_allclose(other.step, one.step, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(other.weights, one.weights[order], rtol=1e-5, atol=1e-6)


@given(names, seeds, st.floats(1e-3, 1e3))
def test_step_scales_with_the_sum_of_weights(name, seed, factor):
    updates = cloud(seed)
    weights = uneven(seed, len(updates))
    one, other = combine(name, updates, weights), combine(name, updates, weights * factor)
    np.testing.assert_allclose(other.step, one.step * factor, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(other.weights, one.weights * factor, rtol=1e-7, atol=1e-9)


@given(names, seeds)
def test_equal_updates_give_themselves(name, seed):
    rng = np.random.default_rng(seed)
    update = rng.standard_normal(5)
    weights = uneven(seed, int(rng.integers(1, 12)))
    found = combine(name, np.tile(update, (weights.size, 1)), weights, trusted=update)
    np.testing.assert_allclose(found.step, weights.sum() * update, rtol=1e-9)


@given(names, seeds, st.floats(1e-6, 1e6))
def test_unit_of_the_updates_does_not_matter(name, seed, unit):
    updates, rng = cloud(seed), np.random.default_rng(seed)
    trusted, center = rng.standard_normal((2, updates.shape[1]))
    one = combine(name, updates, trusted=trusted, center=center)
    other = combine(name, updates * unit, trusted=trusted * unit, center=center * unit)
    np.testing.assert_allclose(other.step / unit, one.step, rtol=1e-6, atol=1e-6)


@given(st.sampled_from(BLIND), seeds)
def test_place_of_the_updates_does_not_matter(name, seed):
    updates = cloud(seed)
    move, center = np.random.default_rng(seed).standard_normal((2, updates.shape[1])) * 10
    one = combine(name, updates, center=center)
    other = combine(name, updates + move, center=center + move)
    np.testing.assert_allclose(other.step - move, one.step, rtol=1e-6, atol=1e-5)


@given(names, seeds)
def test_weight_of_0_is_as_absent(name, seed):
    updates = cloud(seed, 9)
    weights = uneven(seed, 9)
    weights[[2, 5]] = 0
    there = weights > 0
    updates[2] = 1e9
    one, other = combine(name, updates, weights), combine(name, updates[there], weights[there])
    np.testing.assert_allclose(one.step, other.step)
    assert (one.weights[~there] == 0).all()
    assert one.note == pytest.approx(other.note)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(ROBUST))
def test_few_updates(name, count):
    updates = cloud(11, count, 4)
    found = combine(name, updates, trusted=updates.mean(axis=0))
    assert np.isfinite(found.step).all()
    assert found.weights.shape == (count,)
    if name in BLIND and count == 1:
        np.testing.assert_allclose(found.step, updates[0])
    if name in ("median", "trimmed-mean", "krum", "multi-krum", "bulyan", "geometric-median") and count == 2:
        np.testing.assert_allclose(found.step, updates.mean(axis=0))
    if name in BLIND:
        span = np.ptp(np.vstack([updates, np.zeros(4)]), axis=0)
        assert (np.abs(found.step - updates.mean(axis=0)) <= span + 1e-9).all()


def test_krum_of_three_is_the_middle_one():
    np.testing.assert_allclose(combine("krum", [[0.0], [1.0], [5.0]]).step, [1.0])


@given(names, seeds)
def test_weights_say_what_counted(name, seed):
    updates = cloud(seed)
    weights = uneven(seed, len(updates))
    found = combine(name, updates, weights)
    assert (found.weights >= 0).all()
    assert found.weights.sum() <= weights.sum() * (1 + 1e-9)
    if name in BLIND and name != "centered-clipping":
        assert found.weights.sum() == pytest.approx(weights.sum())
    assert found.note["left_out"] == np.count_nonzero(found.weights == 0)


# Under attack.

FAR = st.sampled_from([1e3, 1e8, 1e25, 1e200, 1.7e308])


@given(seeds, FAR, st.booleans())
def test_median_and_trimmed_mean_stay_within_the_honest_range(seed, far, together):
    rng = np.random.default_rng(seed)
    honest = cloud(seed, count=int(rng.integers(7, 12)), width=4)
    signs = np.ones(4) if together else rng.choice([-1.0, 1.0], (3, 4))
    updates = np.vstack([honest, np.ones((3, 4)) * far * signs])
    for name, options in (("median", {}), ("trimmed-mean", {"fraction": 3 / len(updates)})):
        step = combine(name, updates, **options).step
        assert (step >= honest.min(axis=0) - 1e-9).all()
        assert (step <= honest.max(axis=0) + 1e-9).all()


@given(seeds, FAR)
def test_trimmed_mean_bears_byzantine_weight(seed, far):
    weights = uneven(seed, 10)
    weights[:2] *= 0.2 * weights[2:].sum() / 0.8 / weights[:2].sum()  # exactly the fifth that is cut
    updates = cloud(seed, 10, 3)
    updates[:2] = far
    step = combine("trimmed-mean", updates, weights).step / weights.sum()
    assert (step <= updates[2:].max(axis=0) + 1e-6).all()


@given(seeds, FAR)
def test_krum_and_bulyan_leave_byzantine_clients_out(seed, far):
    rng = np.random.default_rng(seed)
    updates = cloud(seed, 15, 5)
    bad = rng.choice(15, 3, replace=False)
    updates[bad] = far * rng.choice([-1.0, 1.0], (3, 5))
    for name in ("krum", "multi-krum", "bulyan"):
        found = combine(name, updates, fraction=0.2)
        assert (found.weights[bad] == 0).all()
        honest = np.delete(updates, bad, axis=0)
        assert (found.step <= honest.max(axis=0) + 1e-9).all()
        assert (found.step >= honest.min(axis=0) - 1e-9).all()


@given(st.sampled_from(["geometric-median", "centered-clipping"]), seeds, FAR)
def test_less_than_half_cannot_carry_it_away(name, seed, far):
    rng = np.random.default_rng(seed)
    honest = cloud(seed, 7, 4)
    updates = np.vstack([honest, np.full((5, 4), far) * rng.choice([-1.0, 1.0], 4)])
    middle = honest.mean(axis=0)
    radius = np.linalg.norm(honest - middle, axis=1).max()
    found = combine(name, updates, center=middle, iterations=1000 if name == "geometric-median" else 3)
    # Minsker 2015, lemma 2.1: (1 - a) / sqrt(1 - 2a) radii at the fraction a. Clipping moves by a radius at most.
    share = 5 / 12
    reach = (1 - share) / np.sqrt(1 - 2 * share) if name == "geometric-median" else 9
    assert np.linalg.norm(found.step - middle) <= reach * radius * (1 + 1e-6)


def test_more_than_half_carry_the_geometric_median_away():
    updates = np.vstack([cloud(1, 5, 3), np.full((6, 3), 1e6)])
    np.testing.assert_allclose(combine("geometric-median", updates).step, 1e6)


@given(st.sampled_from(SEEING), seeds, FAR)
def test_validation_bears_any_number_of_sign_flips(name, seed, far):
    rng = np.random.default_rng(seed)
    trusted = rng.standard_normal(20)
    honest = trusted + 0.3 * rng.standard_normal((2, 20))
    flipped = -trusted / np.abs(trusted).max() * far * rng.uniform(0.5, 1, (8, 1))
    found = combine(name, np.vstack([honest, flipped]), trusted=trusted)
    assert (found.weights[2:] == 0).all()
    lengths = [np.linalg.norm(trusted), *(np.linalg.norm(honest, axis=1) if name == "zeno" else [])]
    assert np.linalg.norm(found.step) <= max(lengths) * (1 + 1e-9)
    assert found.step @ trusted > 0


@pytest.mark.parametrize("name", SEEING)
def test_nobody_trusted_is_no_step(name):
    updates = -np.abs(cloud(2, 4, 3))
    for rows, trusted in ((updates, np.ones(3)), (updates, np.zeros(3)), (np.zeros((4, 3)), np.ones(3))):
        found = combine(name, rows, trusted=trusted, server_vote=0.0)
        np.testing.assert_array_equal(found.step, np.zeros(3))
        assert found.note == {"accepted": 0, "left_out": 4}
        alone = {"fltrust": trusted, "zeno": np.zeros(3)}[name]  # Zeno++ does not train on the server's data alone
        np.testing.assert_allclose(combine(name, rows, trusted=trusted).step, alone)
        if name == "zeno":
            np.testing.assert_allclose(combine(name, rows, trusted=trusted, rescale=True).step, trusted)


def test_the_server_votes_like_one_client_whose_update_agrees_with_itself():
    trusted, updates = np.array([1.0, 0.0]), np.array([[0.0, 2.0], [1.0, 1.0]])
    (half,) = {np.sqrt(0.5)}
    found = combine("fltrust", updates, trusted=trusted)
    np.testing.assert_allclose(found.step, (half * np.array([half, half]) + trusted) / (half + 1.0))
    found = combine("zeno", updates, trusted=trusted, server_vote=2.0, rescale=True)
    np.testing.assert_allclose(found.step, (np.array([half, half]) + 2.0 * trusted) / 3.0)


def test_zeno_clips_accepted_updates_to_their_median_and_lets_the_server_have_half_of_the_vote_at_most():
    trusted = np.array([0.1, 0.0])
    updates = np.array([[1.0, 0.0], [2.0, 0.0], [30.0, 0.0], [-5.0, 0.0]])
    found = combine("zeno", updates, trusted=trusted, server_vote=0.0)
    np.testing.assert_allclose(found.step, [(1.0 + 2.0 + 2.0) / 3, 0.0])
    np.testing.assert_allclose(combine("zeno", updates[:1] / 100, trusted=trusted, server_vote=0.0).step, [0.01, 0.0])
    few = np.array([[1.0, 0.0], [-1.0, 0.0]])
    np.testing.assert_allclose(combine("zeno", few, trusted=trusted, server_vote=9.0).step, [(1.0 + 0.1) / 2, 0.0])


def test_distances_survive_a_large_common_part():
    updates = cloud(9, 10, 50) * 1e-6
    expected = combine("krum", updates).weights
    np.testing.assert_array_equal(combine("krum", updates + 1e3).weights, expected)
    updates[0] = 1e12
    found = combine("multi-krum", updates)
    best = np.argsort(plain_krum_scores(updates, 2))[:6]
    assert set(np.flatnonzero(found.weights)) == set(best)


def test_many_coordinates_are_done_in_blocks():
    updates = np.random.default_rng(0).standard_normal((30, 20_000))
    np.testing.assert_allclose(combine("median", updates).step, np.median(updates, axis=0))
    expected = np.sort(updates, axis=0)[6:24].mean(axis=0)
    np.testing.assert_allclose(combine("trimmed-mean", updates).step, expected, atol=1e-12)


@pytest.mark.parametrize("name", sorted(ROBUST))
def test_what_is_given_stays_and_what_comes_can_be_pickled(name):
    updates, weights, center, trusted = cloud(1, 8, 4), uneven(1, 8), np.ones(4), np.ones(4)
    given = [array.copy() for array in (updates, weights, center, trusted)]
    for array in (updates, weights, center, trusted):
        array.setflags(write=False)
    found = combine(name, updates, weights, center=center, trusted=trusted)
    for before, after in zip(given, (updates, weights, center, trusted), strict=True):
        np.testing.assert_array_equal(before, after)
    again = pickle.loads(pickle.dumps(found))  # noqa: S301
    np.testing.assert_array_equal(again.step, found.step)
    assert again.note == found.note


# What is refused.


@pytest.mark.parametrize("name", sorted(ROBUST))
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": [0.5, -0.1, 0.6]}, "update 1 is -0.1: importance weights below 0 cannot be combined robustly"),
        ({"weights": [0.0, 0.0, 0.0]}, "positive, finite sum, but it is 0"),
        ({"weights": [1e308, 1e308, 1e308]}, "positive, finite sum, but it is inf"),
        ({"weights": [0.5, 0.5]}, "expected 3 weights, one per update, but 2 came"),
        ({"weights": [0.5, np.nan, 0.5]}, "weights must be finite"),
        ({"updates": np.zeros((0, 2)), "weights": []}, "at least one update"),
        ({"updates": np.zeros((3, 0))}, "at least one update"),
        ({"updates": np.zeros(3)}, "updates must have 2 axes"),
        ({"updates": [[1.0, 2.0], [np.inf, 0.0], [0.0, 0.0]]}, "updates must be finite"),
        ({"center": np.zeros(3)}, "expected 2 entries of the center"),
        ({"trusted": np.zeros(1)}, "expected 2 entries of the trusted update"),
    ],
)
def test_bad_input(name, change, message):
    given = {"updates": cloud(0, 3, 2), "weights": np.full(3, 1 / 3), "center": np.zeros(2), "trusted": np.ones(2)}
    with pytest.raises(InputError, match=message):
        make_robust(name).combine(**(given | change), rng=np.random.default_rng(0))


@pytest.mark.parametrize("name", SEEING)
def test_validation_is_needed(name):
    with pytest.raises(InputError, match=f"{name} compares each update with the server's own, but none came"):
        make_robust(name).combine(
            np.ones((2, 2)), np.ones(2), center=np.zeros(2), trusted=None, rng=np.random.default_rng(0)
        )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("medain", {}, "there is no robust rule 'medain'. Did you mean 'median'"),
        (3, {}, "there is no robust rule 3. Known: median"),
        ("median", {"fraction": 0.1}, "robust rule 'median' has no option 'fraction'"),
        ("krum", {"fractoin": 0.1}, "has no option 'fractoin'. Did you mean 'fraction'"),
        ("krum", {"keep": 2}, "has no option 'keep'"),
        ("krum", {"fraction": 0.5}, "fraction of krum must lie in \\[0, 0.5\\), but 0.5 came"),
        ("bulyan", {"fraction": -0.1}, "fraction of .* must lie in"),
        ("trimmed-mean", {"fraction": float("nan")}, "fraction of .* must lie in"),
        ("multi-krum", {"fraction": "0.2"}, "fraction of .* must lie in"),
        ("multi-krum", {"keep": -1}, "keep of multi-krum must be at least 0"),
        ("multi-krum", {"keep": 1.5}, "keep of multi-krum must be a whole number"),
        ("geometric-median", {"iterations": 0}, "iterations of .* must be at least 1"),
        ("geometric-median", {"smoothing": 0}, "smoothing of geometric-median must lie in"),
        ("geometric-median", {"smoothing": 2}, "smoothing of geometric-median must lie in"),
        ("centered-clipping", {"radius": -1}, "radius of centered-clipping must be at least 0"),
        ("centered-clipping", {"radius": float("inf")}, "radius of centered-clipping must be a finite number"),
        ("centered-clipping", {"iterations": 0}, "iterations of .* must be at least 1"),
        ("centered-clipping", {"bucket": 0}, "bucket of centered-clipping must be at least 1"),
        ("zeno", {"rho": 1.5}, "rho of .* must lie between"),
        ("zeno", {"rescale": 1}, "rescale of .* must be True or False"),
        ("zeno", {"epsilon": -1}, "epsilon of .* must be at least 0"),
        ("zeno", {"epsilon": float("inf")}, "epsilon of zeno must be a finite number"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(InputError, match=message):
        make_robust(name, **options)


def test_names_and_who_validates():
    assert list(ROBUST) == [rule.name for rule in ROBUST.values()]
    assert SEEING == ["fltrust", "zeno"]
    assert make_robust("krum", fraction=0.1) == make_robust("krum", fraction=0.1)
