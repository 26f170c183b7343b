"""From answers to the next model: `Aggregator` against plain NumPy, and against clients that send anything."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedpace import Coordinator, Outcome, Settings, make_selector, stream
from fedpace._base import registry
from fedpace._base.errors import InputError
from fedpace.core.aggregation import Aggregator, Trained, check_robust
from fedpace.core.server_rule import split_state
from fedpace.trust.bounds import reference_length
from fedpace.trust.limits import CLIP, MAX_REFUSALS, WEIGHT_BURST, WEIGHT_RATE
from fedpace.trust.robust import ROBUST, make_robust

WIDTH = 6
RULES = registry.servers.names()
KINDS = {
    "numpy": (lambda vector: np.array(vector, dtype=np.float64), lambda: np.zeros(WIDTH)),
    "torch": (
        lambda vector: torch.tensor(np.asarray(vector), dtype=torch.float32),
        lambda: torch.zeros(WIDTH, dtype=torch.float64),
    ),
}


def fleet(clients=8, k=0, **settings):
    made = Coordinator(make_selector("random", k=k or clients), Settings(seed=0, **settings))
    made.join(range(clients), samples=[1.0] * clients)
    return made


def due(made, now=0.0):
    """Answer every task, and return the step that is due then."""
    while (found := made.due(now)).step is None:
        now += 1.0
        for task in made.tasks:
            made.receive(task.id, Outcome(task.client, seconds=1.0, loss=1.0), now)
    return found.step


def answers(step, model, update_of, kind="numpy"):
    make = KINDS[kind][0]
    return [Trained(task, make(np.asarray(model) + update_of(task.client)), model) for task, _ in step.answers]


def aggregator(rule="average", kind="numpy", robust=None, **options):
    made = None if robust is None else make_robust(robust)
    if made is not None and made.validates:
        make = KINDS[kind][0]
        options.setdefault("validation", lambda model: make(np.asarray(model) + np.ones(WIDTH)))
    return Aggregator(registry.servers.make(rule), KINDS[kind][1], robust=made, **options)


def updates(seed=0, clients=8):
    return 1 + 0.3 * stream(seed, "updates").normal(size=(clients, WIDTH))


# -- the plain step ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_step_is_the_weighted_mean(kind, trust):
    made, sent = fleet(trust=trust), updates()
    step, model = due(made), KINDS[kind][0](np.arange(WIDTH))
    applied = aggregator(kind=kind).apply(made, step, model, answers(step, model, lambda client: sent[client], kind))
    weights = np.array([weight for _, weight in step.answers])
    moved = np.asarray(applied.model) - np.asarray(model)
    np.testing.assert_allclose(moved, weights @ [sent[task.client] for task, _ in step.answers], rtol=1e-6)
    assert applied.moved
    assert not applied.buffer_factors
    assert not made.stepped(made.now).clipped


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_update_is_clipped_to_its_limit_and_keeps_its_direction(kind):
    made, sent = fleet(), updates()
    sent[3] *= 1e4
    step, model = due(made), KINDS[kind][0](np.arange(WIDTH))
    applied = aggregator(kind=kind).apply(made, step, model, answers(step, model, lambda client: sent[client], kind))
    lengths = np.linalg.norm(sent, axis=1)
    limit = CLIP * np.sort(lengths)[5]  # the lower upper quartile of 8: 0.75 * 7 = 5.25
    expected = sent * np.minimum(1, limit / lengths)[:, None]
    np.testing.assert_allclose(np.asarray(applied.model) - np.asarray(model), expected.mean(axis=0), rtol=1e-5)
    assert made.stepped(made.now).clipped == {"3": pytest.approx(limit / lengths[3], rel=1e-5)}


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("trust", [True, False])
def test_what_is_not_finite_is_refused_and_the_others_have_its_weight(bad, trust):
    made, sent = fleet(trust=trust), updates()
    step, model = due(made), np.zeros(WIDTH)
    applied = aggregator().apply(
        made, step, model, answers(step, model, lambda client: np.full(WIDTH, bad) if client == 2 else sent[client])
    )
    np.testing.assert_allclose(applied.model, np.delete(sent, 2, axis=0).mean(axis=0))
    assert [task.client for task, _ in applied.step.answers] == [0, 1, 3, 4, 5, 6, 7]
    turn = made.stepped(made.now)
    assert turn.failures == {"2": "its update is not finite"}
    assert turn.failed == [2]


def test_a_model_stays_where_it_is_if_no_answer_counts():
    made = fleet()
    step, model = due(made), np.arange(float(WIDTH))
    found = aggregator("nesterov")
    applied = found.apply(made, step, model, answers(step, model, lambda client: np.full(WIDTH, np.nan)))
    assert not applied.moved
    np.testing.assert_array_equal(applied.model, model)
    assert split_state(found.state)[0]["age"] == 0
    made.stepped(made.now)


@pytest.mark.parametrize("rule", RULES)
def test_a_scale_shortens_the_move(rule):
    moves = []
    for used in (0.0, WEIGHT_BURST - 0.1):
        made = fleet(clients=40, k=1)
        made.ledger.trust.columns["weight_used"][:] = used
        step, model = due(made), np.zeros(WIDTH)
        assert step.scale == pytest.approx(min(1.0, WEIGHT_BURST - max(0.0, used - WEIGHT_RATE / 40)))
        applied = aggregator(rule).apply(made, step, model, answers(step, model, lambda client: np.ones(WIDTH)))
        moves.append((step.scale, np.asarray(applied.model)))
        made.stepped(made.now)
    (whole, first), (part, second) = moves
    assert part < whole == 1.0
    np.testing.assert_allclose(second, part * first)


# -- robust rules --------------------------------------------------------------------------------------------


def played(rule, robust, kind="numpy", *, order=1, steps=3, bad=()):
    """Play steps of eight clients, and return the models."""
    made, found, sent = fleet(), aggregator(rule, kind, robust), updates()
    model = KINDS[kind][0](np.zeros(WIDTH))
    for number in range(steps):
        step = due(made, made.now)

        def update(client, model=model, number=number):
            noise = stream(number, "noise", client).normal(size=WIDTH)  # equal updates would be left to rounding
            return np.full(WIDTH, -30.0) if client in bad else sent[client] - 0.5 * np.asarray(model) + 0.2 * noise

        came = answers(step, model, update, kind)[::order]
        object.__setattr__(step, "answers", step.answers[::order])
        applied = found.apply(made, step, model, came)
        model = KINDS[kind][0](applied.model)
        made.stepped(made.now)
        yield np.asarray(model, dtype=np.float64), found


@pytest.mark.parametrize(("rule", "robust"), list(itertools.product(RULES, ROBUST)))
def test_every_server_rule_steps_with_every_robust_rule_whatever_the_order_and_the_arrays(rule, robust):
    plain = [model for model, _ in played(rule, robust)]
    turned = [model for model, _ in played(rule, robust, order=-1)]
    tensors = [model for model, _ in played(rule, robust, "torch")]
    assert all(np.isfinite(model).all() for model in plain)
    assert np.linalg.norm(plain[-1]) > 1e-3, "it has moved"
    np.testing.assert_allclose(turned, plain, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(tensors, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("robust", ROBUST)
@pytest.mark.parametrize("rule", ["average", "memory-corrected", "calibrated", "mixing"])
def test_one_client_that_turns_its_updates_round_does_not_turn_the_step(rule, robust):
    (model, _), *_ = played(rule, robust, steps=1, bad={0})
    if robust not in ("trimmed-mean", "centered-clipping"):  # these cut in part what is far, and have no threshold
        assert (model > 0.3).all()
    assert (model > -0.5).all()
    (plain, _), *_ = played(rule, None, steps=1, bad={0})
    assert (plain < 0).all(), "the plain mean is turned round"


@pytest.mark.parametrize("robust", ["krum", "zeno", "fltrust"])
@pytest.mark.parametrize(
    ("rule", "memory"), [("memory-corrected", "remembered_clients"), ("calibrated", "cached_clients")]
)
def test_a_memory_does_not_hold_answers_that_were_left_out(rule, memory, robust):
    *_, (_, found) = played(rule, robust, bad={0, 1})
    remembered = set(getattr(found.state, memory))
    assert remembered
    assert not remembered & {0, 1}
    *_, (_, plain) = played(rule, None, bad={0, 1})
    assert {0, 1} <= set(getattr(plain.state, memory))


def test_a_late_answer_counts_although_a_validation_set_refused_all_before():
    found = Aggregator(
        registry.servers["memory-corrected"](reach=3.0),
        KINDS["numpy"][1],
        robust=make_robust("fltrust"),
        validation=lambda model: model + np.ones(WIDTH),
    )
    made, model = fleet(), np.zeros(WIDTH)
    step = due(made)
    model = found.apply(made, step, model, answers(step, model, lambda client: -np.ones(WIDTH))).model
    made.stepped(made.now)
    assert not found.state.remembered_clients, "every answer points the wrong way"
    step = due(made, made.now)
    late = replace(step, answers=tuple((task._replace(step=0), weight) for task, weight in step.answers))
    after = found.apply(made, late, model, answers(late, model, lambda client: np.ones(WIDTH))).model
    assert (after > model).all()


def test_who_a_validation_set_rejects_is_left_out_judged_and_excluded_and_no_rule_else_judges():
    for robust, excluded in (("zeno", {0}), ("krum", set()), (None, set())):
        made, found, model = fleet(), aggregator("average", robust=robust), np.zeros(WIDTH)
        for number in range(MAX_REFUSALS):
            assert not made.excluded
            step = due(made, made.now)
            came = answers(step, model, lambda client: (-1.0 if client == 0 else 1.0) * np.ones(WIDTH))
            model = found.apply(made, step, model, came).model
            turn = made.stepped(made.now)
            if robust == "zeno":
                assert turn.left_out == ["0"]
                assert turn.excluded == (["0"] if number == MAX_REFUSALS - 1 else None)
        assert made.excluded == excluded
        made.readmit()
        assert not made.excluded


def test_the_centre_is_saved_and_comes_back():
    whole, first = (
        aggregator("nesterov", robust="centered-clipping"),
        aggregator("nesterov", robust="centered-clipping"),
    )
    other, models = aggregator("nesterov", robust="centered-clipping"), []
    for found in (whole, first):
        made, sent, model = fleet(), updates(), np.zeros(WIDTH)
        for number in range(4):
            if number == 2 and found is first:
                scalars, vectors = first.saved()
                assert "robust_center" in vectors
                other.load(scalars, vectors)
                found = other
            step = due(made, made.now)
            model = found.apply(made, step, model, answers(step, model, sent.__getitem__)).model
            made.stepped(made.now)
        models.append(model)
    np.testing.assert_array_equal(*models)
    fresh = aggregator("nesterov", robust="centered-clipping")
    assert "robust_center" not in fresh.saved()[1]
    fresh.load(*fresh.saved())
    assert fresh.center is None


def test_a_robust_rule_and_a_validation_set_go_together():
    check_robust(None, None)
    check_robust(make_robust("krum"), None)
    check_robust(make_robust("zeno"), lambda model: model)
    with pytest.raises(InputError, match=r"fltrust compares updates .* give it a validation set"):
        check_robust(make_robust("fltrust"), None)
    with pytest.raises(InputError, match="krum does not use it"):
        check_robust(make_robust("krum"), lambda model: model)
    with pytest.raises(InputError, match="no robust rule"):
        check_robust(None, lambda model: model)
    with pytest.raises(InputError, match="robust must be a robust rule or the name of one, but 3 came"):
        Aggregator(registry.servers.make("average"), lambda: np.zeros(WIDTH), robust=3)


# -- the proposition -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "options"), [("random", {"k": 5}), ("fedbuff", {"buffer": 5}), ("random", {"k": 1})]
)
@pytest.mark.parametrize("seed", range(3))
def test_adversaries_move_the_average_by_no_more_than_their_weight_and_length_allow(scheme, options, seed):
    """docs/appendix/trust.md: over T steps at most (WEIGHT_BURST m + WEIGHT_RATE f T) * CLIP * reference.

    Adversaries answer at once and others seldom, so that they are most of what is in hand; some send what is not
    finite, so that others of them inherit its weight. Honest updates are 0, so that all that moves is theirs;
    the lengths of earlier honest updates are known.
    """
    clients, adversaries = 40, {0, 1, 2, 3}
    made = Coordinator(make_selector(scheme, **options), Settings(seed=seed))
    made.join(range(clients), samples=[1.0] * clients)
    trust = made.ledger.trust
    trust.clip_factors(range(4, clients), np.linspace(0.5, 1.5, clients - 4))
    found, rng, model, steps, heard = aggregator(), np.random.default_rng(seed), np.zeros(WIDTH), 0, 0
    while steps < 80:
        step = made.due(made.now).step
        if step is None:
            for task in made.tasks:
                if task.client in adversaries or rng.random() < 0.1:
                    made.receive(task.id, Outcome(task.client, seconds=1.0, loss=1.0), made.now + 1.0)
            continue
        sent = {
            task.id: np.full(WIDTH, np.nan if rng.random() < 0.2 else 10.0 ** rng.uniform(0, 100))
            if task.client in adversaries
            else np.zeros(WIDTH)
            for task, _ in step.answers
        }
        came = [Trained(task, model + sent[task.id], model) for task, _ in step.answers]
        model = np.asarray(found.apply(made, step, model, came).model)
        heard += sum(task.client in adversaries for task, _ in step.answers)
        made.stepped(made.now)
        steps += 1
        budget = WEIGHT_BURST * len(adversaries) + WEIGHT_RATE * len(adversaries) / clients * steps
        reference = reference_length(trust.longest["update"])
        assert reference <= 1.5
        assert np.linalg.norm(model) <= budget * CLIP * reference * (1 + 1e-9)
    assert heard > 3
    assert np.linalg.norm(model) > 1, "it is a bound, and they do move the model"
