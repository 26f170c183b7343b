"""What one client can do to a coordinator by leaving at the wrong moment, or by reporting what does not fit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpace import Coordinator, FedpaceError, Outcome, Session, Settings, make_selector, stream
from fedpace._base.errors import InfeasibleError
from fedpace.core.aggregation import Trained
from fedpace.core.tasks import Apply, Move
from fedpace.core.types import Need, Traits
from fedpace.moments import MomentBank
from fedpace.trust.limits import WEIGHT_BURST

FREE = ("fedbuff", "fedasync", "pace-async")
ROUNDS = ("random", "pace", "refl")


def options(scheme):
    return {"random": {"k": 4}, "refl": {"k": 4}, "fedbuff": {"buffer": 4}}.get(scheme, {})


def started(scheme, clients=6, **settings):
    made = Coordinator(make_selector(scheme, **options(scheme)), Settings(seed=0, **settings))
    made.join(range(clients), samples=[1.0] * clients)
    return made


def told(client, rng, **other):
    facts = {"seconds": 1.0, "loss": 1.0, "moment": rng.normal(size=(4, 3)), "update": 1 + rng.normal(size=4)}
    return Outcome(client, **(facts | other))


def until_a_step(made, rng, now=0.0):
    """Answer everything until a step is due."""
    for _ in range(50):
        due = made.due(now)
        if due.step is not None and due.step.answers:
            return due
        if due.step is not None:
            made.stepped(now)
        now += 1.0
        for task in made.tasks:
            made.receive(task.id, told(task.client, rng), now)
    raise AssertionError("no step came")


@pytest.mark.parametrize("scheme", [*ROUNDS, *FREE])
@pytest.mark.parametrize("back", [False, True])
def test_who_leaves_between_a_step_and_its_end_stops_nobody(scheme, back):
    rng = stream(0, scheme)
    made = started(scheme)
    for _ in range(3):
        due = until_a_step(made, rng, made.now)
        gone = due.step.answers[0][0]
        made.leave([gone.client])
        if back:
            made.join([gone.client], samples=[1.0])
        sent = np.zeros(8)
        answers = [Trained(task, np.ones(8) * (1e9 if task is gone else 1.0), sent) for task, _ in due.step.answers]
        step, _, _ = made.bound(due.step, answers)
        made.refuse({gone.id}, step)
        made.stepped(made.now)
        assert not made.receive(gone.id, told(gone.client, rng)), "its task went with it"
        if not back:
            made.join([gone.client], samples=[1.0])
    assert made.step >= 3


def test_reasons_stay_with_their_clients_when_others_leave():
    rng = stream(0, "reasons")
    made = started("pace", 8)
    due = until_a_step(made, rng)
    made.stepped(made.now)
    due = made.due(made.now)
    assert due.tasks
    why = dict(made.log.why.reasons)
    assert why
    named = {made.clients[row]: reason for row, reason in why.items()}
    gone = made.clients[0]
    made.leave([gone])
    for task in made.tasks:
        made.receive(task.id, told(task.client, rng), made.now + 1)
    while (due := made.due()).step is None:
        pass
    turn = made.stepped()
    assert {made.clients[row]: reason for row, reason in turn.why.reasons.items()} == {
        client: reason for client, reason in named.items() if client != gone
    }
    turn.explained(made.ledger.ids)


@pytest.mark.parametrize("kind", ["moment", "update"])
def test_whoever_reports_a_wrong_width_first_locks_nobody_out(kind):
    rng = stream(0, kind)
    made = started("pace", 6)
    wrong = {"moment": np.ones((2, 7)), "update": np.ones(9)}[kind]
    tasks = made.due(0.0).tasks
    made.receive(tasks[0].id, told(tasks[0].client, rng, **{kind: wrong}), 1.0)
    with pytest.raises(FedpaceError, match="must report the same width"):  # one against one: the first stands
        made.receive(tasks[1].id, told(tasks[1].client, rng), 1.0)
    for task in (*tasks[2:], tasks[1]):
        made.receive(task.id, told(task.client, rng), 1.0)
    with pytest.raises(FedpaceError, match="must report the same width"):
        made._checked(tasks[0], told(tasks[0].client, rng, **{kind: wrong}))
    for _ in range(3):
        until_a_step(made, rng, made.now)
        made.stepped()
    known = made.ledger.moments.width if kind == "moment" else made.ledger.width("updates")
    assert known == {"moment": 3, "update": 4}[kind]


def test_a_width_that_is_known_alone_is_outvoted_later():
    rng = stream(0, "late")
    made = Session(make_selector("pace"), warmup="lazy", warmup_quota=1)
    made.join(range(5))
    made.observe([told(client, rng, moment=np.ones((2, 7))) for client in made.select().clients])
    for _ in range(6):
        chosen = made.select().clients
        outcomes = [told(client, rng) for client in chosen]
        try:
            made.observe(outcomes)
        except FedpaceError:
            made.abandon()
    assert made.coordinator.ledger.moments.width == 3


def test_a_session_names_the_one_that_differs_and_not_those_after_it():
    rng = stream(0, "odd")
    made = Session(make_selector("pace"))
    made.join(list("abcd"))
    clients = made.select().clients
    outcomes = [told(client, rng, moment=np.ones((2, 7 if client == "a" else 3))) for client in clients]
    with pytest.raises(FedpaceError, match="the moment of client 'a' has 7 features"):
        made.observe(outcomes)
    made.observe([Outcome("a", seconds=1.0), *outcomes[1:]])


def test_moments_that_are_forgotten_are_kept_anew_in_a_store_of_the_same_kind():
    made = Coordinator(make_selector("pace"), moments=MomentBank.sketched(0, ridge=0.1, dimension=8))
    made.join(range(3))
    kind = type(made.ledger.moments)
    made.widths.forget("moment")
    assert type(made.ledger.moments) is kind
    assert len(made.ledger.moments) == 3


@pytest.mark.parametrize("scheme", ["power-of-choice", "divfl"])
def test_anything_in_answer_to_a_probe_is_one_clients_silence(scheme):
    rng = stream(0, "probe")
    made = Coordinator(make_selector(scheme, k=2), Settings(seed=0))
    made.join(range(6), samples=[1.0] * 6)
    junk = ["low", None, math.inf, -math.inf, [1.0], np.ones(3), 10**400]
    for bad in junk:
        for field in ("loss", "update", "measured", "finished", "moment"):
            if made.due(made.now).step is not None:
                made.stepped()
            for task in made.tasks:
                change = {field: bad} if task.client == 0 else {}
                try:
                    made.receive(task.id, told(task.client, rng, **change), made.now)
                except FedpaceError:
                    made.lost(task.id, made.now)
    assert made.step > 3


def test_clients_without_samples_and_clients_with_impossibly_many():
    made = Coordinator(make_selector("pace-async"), Settings(seed=0, shares="samples"))
    made.join(range(4), samples=[0.0] * 4)
    np.testing.assert_allclose(made.shares(), 0.25)
    task = made.due(0.0).tasks[0]
    for samples in (1e300, 1e16, -1.0, math.inf):
        with pytest.raises(FedpaceError, match="samples"):
            made.receive(task.id, Outcome(task.client, seconds=1.0, samples=samples), 1.0)
    with pytest.raises(FedpaceError, match="loss"):
        made.receive(task.id, Outcome(task.client, seconds=1.0, loss=1e200), 1.0)


def test_a_client_that_claims_a_billion_samples_is_not_the_objective():
    def share(claimed, clients=30, trust=True):
        made = Coordinator(make_selector("random", k=1), Settings(seed=0, shares="samples", trust=trust))
        made.join(range(clients), samples=[claimed, *(float(100 + row) for row in range(1, clients))])
        return float(made.shares()[0])

    assert share(1e9) == share(1e6) == pytest.approx(0.5), "at most half of the objective"
    assert share(1e9, trust=False) > 0.99
    assert share(1e9, clients=5) > 0.99, "of few clients one may hold nearly all"
    assert share(300.0) == pytest.approx(share(300.0, trust=False)), "honest fleets do not feel it"
    rng = stream(0, "sizes")
    made = Coordinator(make_selector("random", k=1), Settings(seed=0, shares="samples"))
    sizes = rng.lognormal(4.0, 1.5, 200)
    made.join(range(200), samples=sizes.tolist())
    np.testing.assert_allclose(made.shares(), sizes / sizes.sum())


def test_a_scheme_without_a_feasible_set_asks_everybody_where_clients_are_not_believed():
    def play(trust):
        made = Coordinator(make_selector("delayhet-submodular", ridge=1e-6), Settings(seed=0, trust=trust))
        made.join(range(3))
        for task in made.due(0.0).tasks:
            made.receive(task.id, Outcome(task.client, seconds=1.0, moment=np.eye(3)[[task.client]]), 1.0)
        return made.due(1.0, available=[0])

    with pytest.raises(InfeasibleError):
        play(trust=False)
    assert [task.client for task in play(trust=True).tasks] == [0]


@pytest.mark.parametrize("client", [math.nan, 10**5000], ids=["nan", "long"])
def test_ids_that_cannot_be_found_again_are_refused(client):
    made = started("random")
    with pytest.raises(FedpaceError, match="a client id must"):
        made.join([client])
    assert len(made) == 6


class Weighs(Traits):
    """Starts everybody, and gives the answers weights of its own."""

    name = "weighs"
    rounds = False
    needs = frozenset[Need]()

    def __init__(self, weights, mode="average"):
        self.weights, self.mode = weights, mode

    def init(self):
        return None

    def probe(self, state, view, rng):
        return None

    def decide(self, state, view, rng):
        held = view.in_hand
        if not held.ids.size:
            return Move(view.candidates, np.full(view.candidates.size, 1 / view.candidates.size)), state
        weights = np.array([self.weights.get(int(row), 0.0) for row in held.clients])
        return Move(apply=Apply(held.ids, weights, self.mode)), state

    def observe(self, state, report):
        return state


def step_of(weights, clients=30, mode="average", **settings):
    """Return a coordinator, and the step that is due of a policy that weighs clients so."""
    made = Coordinator(Weighs(weights, mode), Settings(seed=0, **settings))
    made.join(range(clients), samples=[1.0] * clients)
    for task in made.due(0.0).tasks:
        made.receive(task.id, Outcome(task.client, seconds=1.0), 1.0)
    step = made.due(1.0).step
    return made, step, {task.client: weight * step.scale for task, weight in step.answers if weight}


def test_a_client_that_was_seldom_heard_may_be_most_of_a_step():
    assert step_of({0: 0.98, 1: 0.02})[2] == {0: 0.98, 1: 0.02}


def test_who_inherits_weight_of_those_refused_stays_within_its_caps():
    """Clients in league: some send what is not finite, so that another one inherits their weight."""
    made, step, _ = step_of({0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1})
    left = made.refuse({task.id for task, _ in step.answers if task.client in (1, 2)})
    assert {task.client: weight for task, weight in left.answers if weight} == pytest.approx({0: 0.8, 3: 0.2})
    made.ledger.trust.columns["weight_used"][:] = WEIGHT_BURST - 0.1
    left = made.refuse({task.id for task, _ in left.answers if task.client == 3})
    assert {task.client: weight for task, weight in left.answers if weight} == {0: 1.0}
    assert left.scale == pytest.approx(0.1 + 10 / 30), "nobody else has room: the step is shorter"
    made.stepped(1.0)
    assert made.ledger.trust.columns["weight_used"][0] == pytest.approx(WEIGHT_BURST)


def test_in_delta_mode_nobody_gets_what_is_above_a_cap():
    made, _, weights = step_of({0: 7.0, 1: -6.0, 2: 0.5}, mode="delta")
    assert weights == {0: WEIGHT_BURST, 1: -WEIGHT_BURST, 2: 0.5}
    assert made.stepped(1.0).capped == {"0": WEIGHT_BURST, "1": -WEIGHT_BURST}
