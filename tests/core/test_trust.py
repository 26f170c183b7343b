"""What one client can gain by lying, claim by claim."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace import Cohort, Coordinator, Diagnostics, Outcome, Session, Settings, make_selector, stream
from fedpace.core.screening import compared
from fedpace.core.trust import CAP, Trust, capped
from fedpace.moments import factor_from_features

CLIENTS = 24


def fleet(count: int = CLIENTS) -> Trust:
    trust = Trust()
    trust.append(count)
    return trust


def timed(trust: Trust, ratios, step: int = 1, finished=None) -> None:
    ratios = np.asarray(ratios, dtype=np.float64)
    rows = np.arange(ratios.size)
    done = np.ones(ratios.size, dtype=bool) if finished is None else np.asarray(finished)
    trust.time(rows, np.full(ratios.size, 10.0), 10.0 * ratios, done, step)


def honest_ratios(seed: int = 0) -> np.ndarray:
    return np.exp(0.3 * stream(seed, "ratios").normal(size=CLIENTS))


# -- seconds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "measured", "counts"),
    [(8.0, 10.0, 8.0), (0.1, 10.0, 7.5), (100.0, 10.0, 100.0), (0.1, 0.5, 0.25), (3.0, math.nan, 3.0), (0.1, 2.0, 1.0)],
)
def test_a_report_counts_for_no_less_than_was_measured_less_an_allowance(told, measured, counts):
    assert Trust().seconds(Outcome("a", seconds=told, measured=measured)) == pytest.approx(counts)
    assert Trust(on=False).seconds(Outcome("a", seconds=told, measured=measured)) == told


def test_a_claimed_hundredth_is_shown_as_it_was_seen_and_honest_clients_are_left_alone():
    trust = fleet()
    ratios = honest_ratios()
    ratios[[3, 7]] *= [10.0, 100.0]
    timed(trust, ratios)
    slower = trust.slower()
    assert slower[3] == pytest.approx(10, rel=0.9)
    assert slower[7] == pytest.approx(100, rel=0.9)
    assert (np.delete(slower, [3, 7]) == 1).all()


def test_a_fleet_that_is_slower_than_claimed_altogether_is_no_mismatch():
    trust = fleet()
    timed(trust, 7.0 * honest_ratios())
    assert (trust.slower() == 1).all()


def test_waiting_in_vain_never_makes_a_liar_look_faster():
    trust = fleet()
    ratios = honest_ratios()
    ratios[0] = 100.0
    timed(trust, ratios)
    seen = trust.slower()[0]
    for step in range(2, 6):
        trust.time(np.array([0]), np.array([10.0]), np.array([15.0]), np.array([False]), step)
    assert trust.slower()[0] == pytest.approx(seen)


def test_evidence_is_forgiven():
    trust = fleet()
    ratios = honest_ratios()
    ratios[0] = 20.0
    timed(trust, ratios)
    assert trust.slower()[0] > 5
    timed(trust, honest_ratios(1)[1:], step=2000)
    assert trust.slower()[0] == 1


def test_a_coordinator_corrects_claimed_delays_by_its_own_clock():
    coordinator = Coordinator(make_selector("random", k=6), Settings(learn_delays=False))
    ids = [f"c{i}" for i in range(12)]
    coordinator.join(ids, delays=[10.0] * 11 + [0.1])
    now = 0.0
    for _ in range(12):
        tasks = coordinator.due(now).tasks
        now += 10.0
        for task in tasks:
            liar = task.client == "c11"
            coordinator.receive(task.id, Outcome(task.client, seconds=0.1 if liar else 10.0), now)
        assert coordinator.due(now).step is not None
        coordinator.stepped(now)
    shown = coordinator.view().delay
    assert shown[:11].tolist() == [10.0] * 11
    assert shown[11] == pytest.approx(7.5, rel=0.01)  # less the allowance
    due = coordinator.due(now)
    assert due.tasks
    why = coordinator.at.turn.why
    assert "was seen to take" in why.reasons[11]
    assert why.facts["distrusted"][0][0] == 11


# -- moments -------------------------------------------------------------------------------------------------


def moments(count: int, scale_of: dict[int, float] | None = None) -> dict[int, np.ndarray]:
    rng = stream(0, "moments")
    found = {row: factor_from_features(rng.normal(size=(40, 3)) * (1 + 0.2 * rng.random())) for row in range(count)}
    return {row: factor * math.sqrt((scale_of or {}).get(row, 1.0)) for row, factor in found.items()}


@pytest.mark.parametrize("scale", [10.0, 1e3, 1e6, 1e-6])
def test_a_moment_of_another_size_is_taken_at_the_median(scale):
    trust = fleet()
    told = moments(CLIENTS, {5: scale})
    scales = trust.weigh(told)
    sizes = [float((told[row] ** 2).sum()) * scales[row] for row in range(CLIENTS)]
    assert sizes[5] == pytest.approx(np.median(sizes), rel=0.05)
    assert all(scales[row] == 1 for row in range(CLIENTS) if row != 5)


@pytest.mark.filterwarnings("ignore:pace was told no update")
def test_moments_that_came_first_are_brought_to_size_when_the_fleet_is_known():
    session = Session(make_selector("pace"), warmup="lazy", warmup_quota=2, seed=1)
    session.join(range(8))
    told = moments(8, dict.fromkeys(range(8), 1.0))
    first: int | None = None
    for _ in range(8):
        chosen = session.select().clients
        first = chosen[0] if first is None else first
        session.observe(
            Outcome(client, seconds=1.0, moment=told[client] * (1e3 if client == first else 1.0)) for client in chosen
        )
    bank = session.coordinator.ledger.moments
    sizes = {client: float((bank.factor(client) ** 2).sum()) for client in range(8) if bank.known[client]}
    assert len(sizes) >= 6
    assert sizes[first] == pytest.approx(np.median(list(sizes.values())), rel=0.2)


# -- weights -------------------------------------------------------------------------------------------------


def test_one_client_has_at_most_half_of_a_cohort():
    cohort = Cohort([0, 1, 2], [0.98, 0.01, 0.01], why=Diagnostics(reasons={0: "in"}))
    bound = fleet().bound(cohort, np.full(CLIENTS, 1 / CLIENTS), np.ones(CLIENTS))
    np.testing.assert_allclose(bound.weights, [CAP, 0.25, 0.25])
    small = fleet(3).bound(cohort, np.full(3, 1 / 3), np.ones(3))
    assert small is cohort


def test_a_client_that_is_most_of_the_objective_may_be_most_of_a_cohort():
    shares = np.full(CLIENTS, 0.2 / (CLIENTS - 1))
    shares[0] = 0.8
    bound = fleet().bound(Cohort([0, 1], [0.9, 0.1]), shares, np.ones(CLIENTS))
    np.testing.assert_allclose(bound.weights, [0.8, 0.2])


def test_weights_that_fit_stay_to_the_last_bit():
    weights = np.array([0.3, 0.3, 0.4])
    assert capped(weights, CAP) is weights


# -- updates -------------------------------------------------------------------------------------------------


def judge(trust: Trust, liar: float, step: int) -> np.ndarray:
    rng = stream(step, "updates")
    told = [np.ones(16) + 0.5 * rng.normal(size=16) for _ in range(8)]
    told[0] = liar * told[0]
    lengths, cosines = compared(lambda: iter(told), [step] * 8)
    return trust.judge(range(8), lengths, [step] * 8, cosines, step).times


def test_pointing_away_again_and_again_costs_the_turn():
    trust = fleet()
    assert not judge(trust, -1.0, 0).any()
    assert (trust.weight() == 1).all()
    assert not judge(trust, -1.0, 1).any(), "it is as long as the others'"
    assert trust.weight()[0] < 0.6
    assert (trust.weight()[1:] == 1).all()
    everybody = np.ones(CLIENTS, dtype=bool)
    assert np.flatnonzero(~trust.admitted(everybody)).tolist() == [0]
    assert trust.admitted(np.arange(CLIENTS) == 0)[0], "who is alone there is asked all the same"


def test_pointing_away_is_seen_where_clients_differ_as_much():
    """Answers spread so widely that none stands out in its step; the mean of three does."""
    trust, rng = fleet(), stream(0, "spread")
    for step in range(4):
        cosines = np.clip(0.25 + 0.25 * rng.normal(size=CLIENTS), -0.9, 0.9)
        cosines[0] = (-0.53, -0.35, -0.3, -0.49)[step]
        trust.judge(range(CLIENTS), np.ones(CLIENTS), [step] * CLIENTS, cosines, step)
    assert np.flatnonzero(trust.weight() < 1).tolist() == [0]


def test_clients_that_differ_are_not_taken_for_liars():
    """Late in training everybody's updates are noise: some honest client points away by a little, for long."""
    trust, rng = fleet(), stream(1, "noise")
    own = np.linspace(-0.2, 0.3, CLIENTS)
    for step in range(60):
        cosines = np.clip(own + 0.25 * rng.normal(size=CLIENTS), -0.9, 0.9)
        trust.judge(range(CLIENTS), np.ones(CLIENTS), [step] * CLIENTS, cosines, step)
    assert (trust.weight() == 1).all()


def test_evidence_of_before_means_were_kept_is_taken_over():
    trust = fleet()
    saved = {name: column for name, column in trust.arrays().items() if name not in ("cosines", "compared")}
    saved["against"] = np.array([3.0, 2.0] + [0.0] * (CLIENTS - 2))
    trust.load(saved, CLIENTS)
    assert trust.weight()[:3].tolist() == [0.5, 1.0, 1.0]


def test_updates_that_are_far_too_long_are_refused():
    assert np.flatnonzero(judge(fleet(), -10.0, 1)).tolist() == [0]
    assert not judge(fleet(), 2.0, 1).any()
    off = Trust(on=False)
    off.append(8)
    assert not judge(off, 1e6, 1).any()


def test_who_is_not_asked_does_not_count_in_the_objective():
    coordinator = Coordinator(make_selector("random", k=4), Settings(shares="samples"))
    coordinator.join(range(8), samples=[1.0] * 7 + [5.0])
    before = coordinator.view().share
    coordinator.ledger.trust.refuse([7])
    after = coordinator.view().share
    assert before[7] == pytest.approx(5 / 12)
    np.testing.assert_allclose(after, [1 / 7] * 7 + [0.0])
    coordinator.ledger.trust.refuse(list(range(7)))
    np.testing.assert_allclose(coordinator.view().share, before, err_msg="where most would be out, nobody is")


def test_a_refused_update_fails_and_is_remembered():
    coordinator = Coordinator(make_selector("random", k=4), Settings())
    coordinator.join(range(8))
    for task in coordinator.due(0.0).tasks:
        coordinator.receive(task.id, Outcome(task.client, seconds=1.0), now=1.0)
    step = coordinator.due(1.0).step
    bad = step.answers[0][0]
    coordinator.refuse([bad.id])
    turn = coordinator.stepped(1.0)
    assert turn.failed == [bad.client]
    assert bad.client not in coordinator.clients or coordinator.ledger.trust.weight()[bad.client] == 0.5
    assert not coordinator.view().available[bad.client]


# -- saving --------------------------------------------------------------------------------------------------


def test_evidence_survives_saving(tmp_path):
    coordinator = Coordinator(make_selector("random", k=4), Settings(learn_delays=False))
    coordinator.join(range(8), delays=[1.0] * 8)
    trust = coordinator.ledger.trust
    timed(trust, [1, 1.1, 0.9, 1, 1.05, 0.95, 1, 50.0])
    trust.screen.judge([1.0, 2.0], [3, 4])
    coordinator.save(tmp_path)
    back = Coordinator.restore(tmp_path).ledger.trust
    for name, array in trust.arrays().items():
        np.testing.assert_array_equal(back.arrays()[name], array)
    assert back.slower()[7] == trust.slower()[7] > 10


def test_lengths_that_were_kept_without_versions_are_gone_on_with():
    trust = fleet(3)
    saved = trust.arrays() | {"fleet": np.array([7.0, 2.0, 1.5, 2.5])}
    trust.load(saved, 3)
    assert trust.screen.known.tolist() == [[7.0, 1.5, -1.0], [7.0, 2.5, -1.0]]


def test_a_state_from_before_there_was_any_evidence_is_gone_on_with():
    trust = fleet(3)
    trust.load({}, 3)
    assert (trust.weight() == 1).all()


def test_who_was_held_off_is_asked_again_where_trust_is_switched_off():
    trust = fleet()
    trust.columns["turned"][0] = trust.columns["refused"][1] = 1.0
    everybody = np.ones(CLIENTS, dtype=bool)
    assert np.flatnonzero(~trust.admitted(everybody)).tolist() == [0, 1]
    trust.on = False  # as a server that is restarted with trust=False does
    assert trust.admitted(everybody).all()
    assert (trust.weight() == 1).all()
