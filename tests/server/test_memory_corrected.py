"""The memory of what is each client's own, on updates whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpace.core.server_rule import Gather, Source, join_state, split_state
from fedpace.server._memory import LEAST_RESPONSE
from fedpace.server.memory_corrected import MemoryCorrected
from fedpace.server.nesterov import Nesterov

CLIENTS, WIDTH = 6, 4
OWN = np.random.default_rng(1).normal(size=(CLIENTS, WIDTH))
OWN -= OWN.mean(axis=0)
OPTIMUM = np.arange(1.0, WIDTH + 1)


def common(model):
    """What all clients' updates average to."""
    return 0.3 * (OPTIMUM - model)


def stepped(state, model, version, answers, *, power=0.0, memory_gib=1.0, awaited=None, share_of=None):
    """Make a step of (client, the model that it was given, its version, weight)."""
    rule = MemoryCorrected(power, memory_gib)
    gather = Gather(rule, np.zeros(WIDTH), mean=False)
    for client, given, of, weight in answers:
        gather.add(given + common(given) + OWN[client], given, weight, Source(client, of, 1 / CLIENTS))
    return rule.apply(state, model, gather.answers(version, awaited, share_of))


def everybody(model, version):
    return [(client, model, version, 1 / CLIENTS) for client in range(CLIENTS)]


def test_one_client_speaks_for_all_that_were_heard():
    start = np.zeros(WIDTH)
    model, state = stepped(MemoryCorrected(0.0).init(np.zeros(WIDTH)), start, 0, everybody(start, 0))
    np.testing.assert_allclose(model, start + common(start))
    assert state.remembered == CLIENTS
    _, after = stepped(state, model, 1, [(2, model, 1, 1.0)])
    np.testing.assert_allclose(after.last, common(model), atol=1e-12)


def test_an_answer_to_an_old_model_says_how_its_client_differs():
    first = np.zeros(WIDTH)
    fast = [(client, first, 0, 0.2) for client in range(5)]
    model, state = stepped(MemoryCorrected(0.0).init(np.zeros(WIDTH)), first, 0, fast)
    assert state.remembered == 5
    without = np.mean(OWN[:5], axis=0)
    np.testing.assert_allclose(state.last, common(first) + without, err_msg="client 5 is not known yet")
    late = [(5, first, 0, 0.0)]
    _, state = stepped(state, model, 1, [(0, model, 1, 1.0), *late])
    assert state.remembered == CLIENTS
    np.testing.assert_allclose(state.last, common(model), atol=1e-12)


def test_differences_that_are_not_what_they_were_are_not_taken_off():
    rng = np.random.default_rng(2)
    model, state = np.zeros(WIDTH), MemoryCorrected(0.0).init(np.zeros(WIDTH))
    rule = MemoryCorrected(0.0)
    for version in range(30):
        gather = Gather(rule, np.zeros(WIDTH), mean=False)
        for client in range(CLIENTS):
            gather.add(model + rng.normal(size=WIDTH), model, 1 / CLIENTS, Source(client, version, 1 / CLIENTS))
        model, state = rule.apply(state, model, gather.answers(version))
    assert state.predicted < 0.3
    assert state.disagreement_left > 0.7


def test_what_shrinks_as_training_converges_is_remembered_as_shrunk():
    rule, model = MemoryCorrected(0.0), np.zeros(WIDTH)
    state = rule.init(np.zeros(WIDTH))
    for version in range(25):
        gather = Gather(rule, np.zeros(WIDTH), mean=False)
        for client in range(CLIENTS):
            gather.add(model + 0.8**version * OWN[client], model, 1 / CLIENTS, Source(client, version, 1 / CLIENTS))
        model, state = rule.apply(state, model, gather.answers(version))
    assert state.shrinking == pytest.approx(0.8, abs=0.02)
    shrunk = np.exp(state.log_scale - state.remembered_scales[0]) * state.offsets.rows[0]
    np.testing.assert_allclose(shrunk, 0.8**25 * OWN[state.remembered_clients[0]], rtol=0.1)
    assert state.disagreement_left < 0.05


def test_differences_may_shrink_for_as_long_as_one_trains():
    """A product of shrinkings is no number any more after a thousand halvings; late answers were divided by it."""
    rule, model = MemoryCorrected(0.0), np.zeros(WIDTH)
    state = rule.init(np.zeros(WIDTH))
    for version in range(2500):
        gather = Gather(rule, np.zeros(WIDTH), mean=False)
        for client in range(CLIENTS - 1):
            update = np.ones(WIDTH) + 0.5**version * OWN[client]
            gather.add(model + update, model, 1 / (CLIENTS - 1), Source(client, version, 1 / CLIENTS))
        if version:
            late = np.ones(WIDTH) + 0.5 ** (version - 1) * OWN[-1]
            gather.add(model + late, model, 0.0, Source(CLIENTS - 1, version - 1, 1 / CLIENTS))
        model, state = rule.apply(state, model, gather.answers(version))
        assert np.isfinite(model).all()
    assert state.log_scale < -1000
    assert state.remembered == CLIENTS
    np.testing.assert_allclose(state.last, np.ones(WIDTH))


def test_without_names_it_is_nesterov():
    rule, plain = MemoryCorrected(), Nesterov()
    gather, other = Gather(rule, np.zeros(WIDTH)), Gather(plain, np.zeros(WIDTH))
    for client in range(CLIENTS):
        gather.add(OWN[client], np.zeros(WIDTH), 1 / CLIENTS)
        other.add(OWN[client], np.zeros(WIDTH), 1 / CLIENTS)
    ours, _ = rule.apply(rule.init(np.zeros(WIDTH)), np.zeros(WIDTH), gather.answers())
    theirs, _ = plain.apply(plain.init(np.zeros(WIDTH)), np.zeros(WIDTH), other.answers())
    np.testing.assert_allclose(ours, theirs, atol=1e-15)


def test_those_heard_longest_ago_are_forgotten_where_there_is_no_room():
    start, room = np.zeros(WIDTH), 3 * 4 * WIDTH / 2**30
    model, state = stepped(MemoryCorrected(0.0).init(np.zeros(WIDTH)), start, 0, everybody(start, 0), memory_gib=room)
    assert state.remembered_clients == (3, 4, 5)
    _, state = stepped(state, model, 1, [(3, model, 1, 0.5), (0, model, 1, 0.5)], memory_gib=room)
    assert state.remembered_clients == (5, 3, 0)


def test_an_answer_is_remembered_however_late_it_comes():
    """Where the host says what is still trained from; a client a thousand times as slow as the others is heard too."""
    start = np.zeros(WIDTH)
    model, state = stepped(MemoryCorrected(0.0).init(np.zeros(WIDTH)), start, 0, everybody(start, 0)[:5])
    for version in range(1, 300):
        fast = [(client, model, version, 0.2) for client in range(5)]
        model, state = stepped(state, model, version, fast, awaited=frozenset({0, version}))
    assert state.reference_versions == (0, 299)
    _, state = stepped(state, model, 300, [(0, model, 300, 1.0), (5, start, 0, 0.0)], awaited=frozenset({300}))
    assert state.remembered == CLIENTS
    assert state.reference_versions == (300,)
    np.testing.assert_allclose(state.last, common(model), atol=1e-5, err_msg="its share of the step is in it")


def test_it_goes_on_from_what_was_saved():
    start = np.zeros(WIDTH)
    rule = MemoryCorrected()
    model, state = stepped(rule.init(np.zeros(WIDTH)), start, 0, everybody(start, 0), power=1.0)
    scalars, vectors = split_state(state)
    again = join_state(rule.init(np.zeros(WIDTH)), scalars, vectors)
    answers = [(1, model, 1, 0.5), (4, model, 1, 0.5), (0, start, 0, 0.0)]
    one, other = (stepped(each, model, 1, answers, power=1.0) for each in (state, again))
    np.testing.assert_array_equal(one[0], other[0])


def played(versions, feels):
    """States of a federation in which client 0 counts alone and the others are three versions late.

    `feels` says what part of each coordinate client 0 feels of the model that it was given.
    """
    rule, models = MemoryCorrected(0.0), [np.zeros(WIDTH)]
    state = rule.init(np.zeros(WIDTH))
    for version in range(versions):
        gather = Gather(rule, np.zeros(WIDTH), mean=False)
        answers = [(0, version)] + [(client, max(0, version - 3)) for client in range(1, CLIENTS) if version >= 3]
        for client, of in answers:
            felt = feels(of) if client == 0 else np.ones(WIDTH)
            update = 0.2 * felt * (OPTIMUM - models[of]) + OWN[client]
            gather.add(models[of] + update, models[of], float(client == 0), Source(client, of, 1 / CLIENTS))
        model, state = rule.apply(state, models[-1], gather.answers(version, frozenset(range(version + 1))))
        models.append(model)
        yield state


def test_late_answers_tell_how_far_the_memory_is_off():
    """Where the one that counts does not feel what the others do, what was remembered of them is off by that."""
    *_, alike = played(12, lambda of: np.ones(WIDTH))
    *_, blind = played(12, lambda of: np.array([1.0, 1.0, 1.0, 0.0]))
    assert max(alike.remembered_drifts) < 1e-3
    assert max(blind.remembered_drifts[:-1]) > 0.03
    assert blind.memory_error > 100 * alike.memory_error


def test_drift_that_was_shown_once_fades():
    """A client's drift rises at once and falls by a third per answer."""
    states = played(24, lambda of: np.array([1.0, 1.0, 1.0, 0.2]) if of < 5 else np.ones(WIDTH))
    drifts = [max(state.remembered_drifts) for state in states]
    assert max(drifts) > 0.03
    assert drifts[-1] < 0.1 * max(drifts)


def test_the_drift_of_a_client_is_its_change_per_distance():
    """Client 1 changes by half of what the model moves, and client 0, which alone counts, by nothing."""
    rule, start = MemoryCorrected(0.0), np.zeros(WIDTH)
    state = rule.init(np.zeros(WIDTH))
    models = [start]

    def step(state, version, late):
        gather = Gather(rule, np.zeros(WIDTH), mean=False)
        gather.add(models[version] + 1.0, models[version], 1.0, Source(0, version, 0.5))
        for of in late:
            update = 1.0 - 0.5 * models[of]
            gather.add(models[of] + update, models[of], 0.0, Source(1, of, 0.5))
        model, state = rule.apply(state, models[version], gather.answers(version, frozenset(range(9))))
        models.append(model)
        return state

    state = step(state, 0, [])
    state = step(state, 1, [0])
    state = step(state, 2, [])
    distance = state.reference_paths[2] - state.reference_paths[0]
    state = step(state, 3, [2])
    assert state.remembered_clients == (1, 0)
    expected = np.linalg.norm(0.5 * (models[2] - models[0])) / distance
    assert state.remembered_drifts[0] == pytest.approx(expected, rel=1e-5)
    assert state.remembered_drifts[1] == -1, "client 0 has never been late"


def test_an_older_late_answer_does_not_replace_a_newer_one():
    start = np.zeros(WIDTH)
    model, state = stepped(MemoryCorrected(0.0).init(np.zeros(WIDTH)), start, 0, everybody(start, 0))
    _, state = stepped(state, model, 1, [(0, model, 1, 0.5), (1, model, 1, 0.5)])
    newest = dict(zip(state.remembered_clients, state.remembered_versions, strict=True))
    _, state = stepped(state, model, 2, [(0, model, 2, 1.0), (1, start, 0, 0.0)])
    assert newest[1] == 1
    assert dict(zip(state.remembered_clients, state.remembered_versions, strict=True))[1] == 1


def test_the_step_is_exact_where_everybody_answers():
    """Whatever is remembered, and whatever the weights are: shares decide."""
    rng = np.random.default_rng(5)
    shares = rng.dirichlet(np.ones(CLIENTS))
    rule, model = MemoryCorrected(0.0), np.zeros(WIDTH)
    state = rule.init(np.zeros(WIDTH))
    for version in range(6):
        gather = Gather(rule, np.zeros(WIDTH), mean=False)
        updates, weights = rng.normal(size=(CLIENTS, WIDTH)), rng.dirichlet(np.ones(CLIENTS))
        for client in range(CLIENTS):
            gather.add(model + updates[client], model, weights[client], Source(client, version, shares[client]))
        model, state = rule.apply(state, model, gather.answers(version))
        np.testing.assert_allclose(state.last, shares @ updates, atol=1e-10)


@pytest.mark.parametrize("reach", [0.5, 2.0])
def test_the_model_moves_no_farther_on_its_memory_than_the_reach(reach):
    """One client answers again and again and feels nothing; all others are silent."""
    rule, model = MemoryCorrected(1.0, reach=reach), np.zeros(WIDTH)
    state = rule.init(np.zeros(WIDTH))
    for version in range(40):
        gather = Gather(rule, np.zeros(WIDTH), mean=False)
        for client in range(CLIENTS if version == 0 else 1):
            gather.add(model + 1.0 + OWN[client], model, 1.0, Source(client, version, 1 / CLIENTS))
        model, state = rule.apply(state, model, gather.answers(version))
        shares = np.array(state.remembered_shares)
        moved = shares @ (state.path - np.array(state.remembered_paths))
        assert moved <= reach * shares @ np.array(state.remembered_lengths) * (1 + 1e-9)
    assert 0 in state.remembered_clients


def test_who_has_left_is_forgotten():
    """What it differed by would stay in the mean, and seem to drift further with every step that it is not heard in."""
    start = np.zeros(WIDTH)
    model, state = stepped(MemoryCorrected(0.0).init(np.zeros(WIDTH)), start, 0, everybody(start, 0))
    here = dict.fromkeys(range(5), 1 / 5)
    for version in range(1, 40):
        answers = [(client, model, version, 0.2) for client in range(5)]
        model, state = stepped(state, model, version, answers, share_of=here.get)
    assert state.remembered_clients == (0, 1, 2, 3, 4)
    assert state.mean_age == 1.0, "everybody who is still there was heard in the last step"
    np.testing.assert_allclose(model, OPTIMUM + OWN[:5].mean(axis=0) / 0.3, atol=1e-3)


def test_a_client_that_weighs_nothing_is_still_known():
    start = np.zeros(WIDTH)
    model, state = stepped(MemoryCorrected(0.0).init(np.zeros(WIDTH)), start, 0, everybody(start, 0))
    shares = dict.fromkeys(range(CLIENTS), 1 / CLIENTS) | {5: 0.0}
    _, state = stepped(state, model, 1, [(0, model, 1, 1.0)], share_of=shares.get)
    assert set(state.remembered_clients) == set(range(CLIENTS))


# -- what the memory measures, on numbers worked out by hand ---------------------------------------------------------


def heard(state, model, version, updates, late=()):
    """Make a step of fresh updates, a dictionary from clients, and of late ones: (client, version, update)."""
    rule = MemoryCorrected(0.0)
    gather = Gather(rule, np.zeros(WIDTH), mean=False)
    for client, update in updates.items():
        gather.add(model + update, model, 1 / len(updates), Source(client, version, 1 / CLIENTS))
    for client, of, update in late:
        gather.add(model + update, model, 0.0, Source(client, of, 1 / CLIENTS))
    return rule.apply(state, model, gather.answers(version, frozenset(range(99))))


def first_step(offsets=OWN):
    start = np.zeros(WIDTH)
    updates = {client: np.ones(WIDTH) + offsets[client] for client in range(CLIENTS)}
    return heard(MemoryCorrected(0.0).init(start), start, 0, updates)


@pytest.mark.parametrize(("slope", "noise", "b"), [(0.4, 1.0, 0.4), (0.4, 0.0, 0.4), (2.0, 0.0, 1.0), (-0.5, 1.0, 0.0)])
def test_b_is_the_slope_of_new_offsets_against_remembered_ones(slope, noise, b):
    """New offsets are `slope` times the old ones plus noise that is orthogonal to them; b stays within [0, 1]."""
    offsets, rest = OWN.copy(), np.random.default_rng(3).normal(size=OWN.shape)
    rest -= rest.mean(axis=0)
    rest -= np.vdot(rest, offsets) / np.vdot(offsets, offsets) * offsets
    model, state = first_step(offsets)
    now = slope * offsets + noise * rest
    _, state = heard(state, model, 1, {client: np.ones(WIDTH) + now[client] for client in range(CLIENTS)})
    assert state.predicted == pytest.approx(b, abs=1e-6)
    left = np.vdot(now - b * offsets, now - b * offsets) / np.vdot(now, now)
    assert state.disagreement_left == pytest.approx(min(left, 1.0), abs=1e-6)


def test_shrinking_is_counted_per_step():
    """Clients 1 to 5 are heard three steps later; their offsets are 0.8^3 of what they were."""
    model, state = first_step()
    for version in (1, 2):
        model, state = heard(state, model, version, {0: np.ones(WIDTH)})
        assert state.shrinking == 1.0, "one client shows no shrinking"
    _, state = heard(state, model, 3, {client: np.ones(WIDTH) + 0.8**3 * OWN[client] for client in range(1, CLIENTS)})
    assert state.shrinking == pytest.approx(0.8, abs=1e-6)
    assert state.log_scale == pytest.approx(np.log(0.8), abs=1e-6)


def test_offsets_shrink_by_no_more_than_half_per_step():
    """All six agree by accident: the shrinking that one step shows is bounded."""
    model, state = first_step()
    _, state = heard(state, model, 1, {client: np.ones(WIDTH) + 0.01 * OWN[client] for client in range(CLIENTS)})
    assert state.shrinking == 0.5


def test_the_disagreement_is_averaged_over_steps():
    """Of the old value 0.7 is kept; that of one step alone would follow every accident."""
    model, state = first_step()
    variance = np.sum(OWN**2) / (CLIENTS - 1)
    first = variance / state.square
    assert state.disagreement == pytest.approx(first)
    _, state = heard(state, model, 1, {client: np.ones(WIDTH) + 2 * OWN[client] for client in range(CLIENTS)})
    assert state.disagreement == pytest.approx(0.7 * first + 0.3 * 4 * variance / state.square)


def test_a_step_that_is_almost_nothing_changes_the_disagreement_tenfold_at_most():
    """Where answers cancel by accident, |u| is close to 0, and the variance relative to it is enormous."""
    model, state = first_step()
    first = state.disagreement
    _, state = heard(state, model, 1, {client: 1e-9 * np.ones(WIDTH) + OWN[client] for client in range(CLIENTS)})
    assert state.disagreement == pytest.approx((0.7 + 0.3 * 10) * first)


@pytest.mark.parametrize("b", [1.0, 0.5])
@pytest.mark.parametrize(("before", "kept"), [(-1.0, 0.0), (0.0, 0.0), (1000.0, 0.7)])
def test_drift_is_b_times_the_change_per_distance_and_falls_slowly(b, before, kept):
    """A larger drift than before is taken over at once; of a larger one that was shown before, 0.7 is kept."""
    model, state = first_step()
    model, state = heard(state, model, 1, {0: np.ones(WIDTH)})
    distance = state.reference_paths[1] - state.reference_paths[0]
    assert distance > 0
    state = replace(
        state,
        predicted=b,
        remembered_drifts=tuple(before if client == 4 else -1.0 for client in state.remembered_clients),
    )
    change = np.array([0.0, 3.0, 0.0, 4.0])
    reference = np.asarray(state.references.rows[1])
    known = np.asarray(state.offsets.rows[state.remembered_clients.index(4)])
    _, state = heard(state, model, 2, {0: np.ones(WIDTH)}, [(4, 1, reference + known + change)])
    shown = b * 5.0 / distance
    drift = state.remembered_drifts[state.remembered_clients.index(4)]
    assert drift == pytest.approx(kept * before + (1 - kept) * shown, rel=1e-5)


def test_changes_that_cancel_leave_no_error_in_the_memory():
    """Clients 4 and 5 change by the same length: once in the same direction, and once in opposite ones."""
    found = {}
    for sign in (1.0, -1.0):
        model, state = first_step()
        model, state = heard(state, model, 1, {0: np.ones(WIDTH)})
        state = replace(state, common_change=1e3, total_change=1e3)  # earlier evidence, which a third of them replace
        reference = np.asarray(state.references.rows[1])
        late = []
        for client, factor in ((4, 1.0), (5, sign)):
            known = np.asarray(state.offsets.rows[state.remembered_clients.index(client)])
            late.append((client, 1, reference + known + factor * np.array([0.0, 3.0, 0.0, 4.0])))
        _, found[sign] = heard(state, model, 2, {0: np.ones(WIDTH)}, late)
    assert found[1.0].common_change == pytest.approx(found[1.0].total_change)
    assert found[-1.0].common_change == pytest.approx(0.0, abs=1e-9)
    assert found[1.0].total_change == pytest.approx(found[-1.0].total_change)
    for sign, coherence in ((1.0, 1.0), (-1.0, 0.0)):
        state = found[sign]
        unknown = min(state.curvature, 1.0)  # of clients that have never been late
        drifts = [coherence * drift if drift >= 0 else unknown for drift in state.remembered_drifts]
        paths = [state.path - path for path in state.remembered_paths]
        error = np.mean(np.multiply(drifts, paths))
        assert state.memory_error == pytest.approx(error**2 / state.mean_square, rel=1e-4)


# -- clients that train more, and respond more ---------------------------------------------------------------------

STEPS = (5, 5, 5, 100, 100, 100)
"""Local steps of each client; updates grow with them, up to the client's own optimum."""
RESPONSES = 1 - 0.95 ** np.array(STEPS)
OPTIMA = 10 * np.linalg.qr(np.random.default_rng(7).normal(size=(8, CLIENTS)))[0].T
"""(6, 8) the clients' own optima, all as far from the first model."""


def responding(state, model, version, answers, *, steps=STEPS):
    """Make a step of (client, the model that it was given, its version); updates are s_j (m_j - x)."""
    rule = MemoryCorrected(0.0)
    gather = Gather(rule, np.zeros(8), mean=False)
    fresh = sum(of == version for _, _, of in answers)
    for client, given, of in answers:
        told = float(steps[client]) if steps else float("nan")
        trained = given + RESPONSES[client] * (OPTIMA[client] - given)
        weight = 1 / fresh if of == version else 0.0
        gather.add(trained, given, weight, Source(client, of, 1 / CLIENTS, 1.0, told))
    return rule.apply(state, model, gather.answers(version))


def wanted(model):
    """The mean of all clients' updates."""
    return np.mean(RESPONSES[:, None] * (OPTIMA - model), axis=0)


def after_a_step(steps):
    start = np.zeros(8)
    everyone = [(client, start, 0) for client in range(CLIENTS)]
    return responding(MemoryCorrected(0.0).init(np.zeros(8)), start, 0, everyone, steps=steps)


def test_clients_that_train_more_are_predicted_to_respond_more():
    errors = {}
    for steps in (STEPS, None):
        model, state = after_a_step(steps)
        _, after = responding(state, model, 1, [(0, model, 1), (1, model, 1)], steps=steps)
        errors[steps] = np.linalg.norm(after.last - wanted(model)) / np.linalg.norm(wanted(model))
    assert errors[None] > 0.3, "the two with 5 steps hardly feel the move that all others feel"
    assert errors[STEPS] < 0.1


def test_a_late_first_answer_is_predicted_to_respond_too():
    start, state = np.zeros(8), MemoryCorrected(0.0).init(np.zeros(8))
    model, state = responding(state, start, 0, [(client, start, 0) for client in (0, 1, 2)])
    late = [(client, start, 0) for client in (3, 4, 5)]
    _, state = responding(state, model, 1, [(0, model, 1), (1, model, 1), *late])
    found = dict(zip(state.remembered_clients, state.remembered_responses, strict=True))
    usual = np.exp(np.mean(np.log(RESPONSES[:3])))
    np.testing.assert_allclose([found[client] for client in (3, 4, 5)], RESPONSES[3:] / usual, rtol=0.15)
    assert np.linalg.norm(state.last - wanted(model)) < 0.1 * np.linalg.norm(wanted(model))


def test_a_response_is_no_larger_than_the_ratio_of_local_steps():
    state = after_a_step((1, 1, 1, 4, 4, 4))[1]
    assert state.usual_steps == pytest.approx(2)
    assert state.remembered_responses == (1.0,) * CLIENTS, "twice or half as many steps as usual count as alike"
    state = after_a_step((1, 1, 1, 5, 5, 5))[1]
    assert state.remembered_responses[-1] == pytest.approx(np.sqrt(5) / 2), "a little more than twice as many count"
    state = after_a_step((1, 1, 1, 1, 1, 1000))[1]
    assert max(state.remembered_responses[:-1]) <= 1 < state.remembered_responses[-1]
    assert state.remembered_responses[-1] <= 1000 / state.usual_steps / 2


def test_a_client_that_claims_few_steps_does_not_rule_the_reference():
    """A response divides updates. Were it 1e-6, the client would count a million times as much as the others."""
    rule, start = MemoryCorrected(0.0), np.zeros(8)
    gather = Gather(rule, start, mean=False)
    for client in range(CLIENTS):
        tiny = client == 0
        trained = OPTIMA[client] * (1e-6 if tiny else 1.0)
        gather.add(trained, start, 1 / CLIENTS, Source(client, 0, 1 / CLIENTS, 1.0, 1e-6 if tiny else 50.0))
    _, state = rule.apply(rule.init(np.zeros(8)), start, gather.answers(0))
    found = dict(zip(state.remembered_clients, state.remembered_responses, strict=True))
    assert found[0] == LEAST_RESPONSE
    assert all(response >= 1 for client, response in found.items() if client)


def test_similar_numbers_of_steps_change_nothing():
    alike = (20, 30, 20, 25, 30, 24)
    models = []
    for steps in (alike, None):
        model, state = after_a_step(steps)
        models.append(responding(state, model, 1, [(0, model, 1), (3, model, 1)], steps=steps)[0])
    np.testing.assert_array_equal(*models)


def test_few_local_steps_do_not_vouch_for_many():
    """The error that is expected of a next step counts that clients with many steps may respond unseen."""
    model, state = after_a_step(STEPS)
    after = responding(state, model, 1, [(0, model, 1), (1, model, 1)])[1]
    found = dict(zip(after.remembered_clients, after.remembered_responses, strict=True))
    least = sum(0.5 * max(0.0, 1 - 2 * found[0] / found[client]) for client in (3, 4, 5)) * after.path / CLIENTS
    assert least > 0
    assert after.memory_error * after.mean_square >= (least * (1 - after.remembered_paths[0] / after.path)) ** 2


def test_where_offsets_predict_nothing_responses_do_not_count():
    """With b = 0 the step is the plain average, however few local steps made it."""
    model, state = after_a_step(STEPS)
    state = replace(state, offsets=state.offsets.of([-row for row in state.offsets.rows]))
    _, after = responding(state, model, 1, [(0, model, 1), (1, model, 1)])
    assert after.predicted == 0
    plain = np.mean([RESPONSES[client] * (OPTIMA[client] - model) for client in (0, 1)], axis=0)
    silent = (CLIENTS - 2) / CLIENTS
    spoken = np.sum([RESPONSES[client] * (OPTIMA[client] - model) for client in (0, 1)], axis=0) / CLIENTS
    np.testing.assert_allclose(after.last, silent * plain + spoken)


def test_a_late_answer_that_is_ignored_may_come_from_any_number_of_steps():
    """Client 5 answers for the first time, to a version whose reference is gone."""
    start, state = np.zeros(8), MemoryCorrected(0.0).init(np.zeros(8))
    model, state = responding(state, start, 3, [(client, start, 3) for client in (0, 1, 2)])
    _, after = responding(state, model, 4, [(0, model, 4), (1, model, 4), (5, start, 0)])
    assert 5 not in after.remembered_clients
    assert np.isfinite(after.last).all()
