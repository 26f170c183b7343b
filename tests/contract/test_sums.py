"""Every scheme on a host that offers sums only: it works without any single update, or is refused at start."""

from __future__ import annotations

import gc
from itertools import islice
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest

import fedpace
from fedpace import Coordinator, Outcome, Settings, Step, Task, Trained, TrainingPrivacy, make_selector, registry
from fedpace._base.errors import InputError
from fedpace.core.sums import why_not_sums
from fedpace.core.types import Need, facts_wanted
from fedpace.data.digits import Digits
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Softmax
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.training import Training
from fedpace.testing import sum_support

DOCUMENT = Path(__file__).parents[2] / "docs" / "appendix" / "schemes-with-sums.md"
OPTIONS = {"k": 5, "m": 6, "buffer": 5, "d": 8}
"""Options that suit 12 clients, for the schemes that have them."""
REFUSED = {
    "ace",
    "adaptive-sampling",
    "approx-opt-sampling",
    "ca2fl",
    "divfl",
    "fedasync",
    "folb",
    "optimal-client-sampling",
    "rescaled-asgd",
    "ringleader",
} | {name for name in registry.selectors.names() if make_selector(name).sets_work}
SLOW_CHOICE = {"delayhet-sampling": {"max_iter": 4}, "delayhet-transport": {}}


def simulation(scheme, minimum=4, **privacy):
    cls = registry.selectors[scheme]
    options = {key: value for key, value in OPTIONS.items() if key in cls.__dataclass_fields__}
    return Simulation(
        Digits(clients=12, alpha=0.5),
        Softmax(),
        LognormalDelays(jitter=0.3),
        make_selector(scheme, **{**options, **SLOW_CHOICE.get(scheme, {})}),
        training=Training(epochs=1, batch=16, lr=0.2, arithmetic="numpy", moment_rank=4),
        fleet=Fleet(warmup_wait=0.5),
        privacy=TrainingPrivacy("sums", minimum=minimum, **privacy),
        seed=903,
    )


@pytest.mark.parametrize("scheme", registry.selectors.names())
def test_a_scheme_works_with_sums_or_says_what_to_use(scheme):
    if scheme in REFUSED:
        with pytest.raises(InputError, match=r"does not work with aggregation = 'sums': .* Use \w+"):
            simulation(scheme)
        return
    one = simulation(scheme)
    opened, before = [], one.groups.open

    def watched(group, minimum):
        found = before(group, minimum)
        if found is not None:
            opened.append(found.clients)
        return found

    one.groups.open = watched
    last = list(islice(one.rounds(), 1, 6))[-1]
    assert last.metric > 0.2, "the model learns"
    assert min(opened, default=0) >= 4, "no sum of fewer clients was opened"
    assert one.coordinator.ledger.tables.get("updates") is None


@pytest.mark.parametrize(
    "scheme",
    [name for name in registry.selectors.names() if name not in REFUSED and not make_selector(name).reads_losses],
)
@pytest.mark.parametrize("mechanism", ["gaussian", "ftrl"])
def test_a_run_ends_when_its_privacy_budgets_are_spent(scheme, mechanism):
    pytest.importorskip("dp_accounting")
    one = simulation(scheme, epsilon=3.0, clip=0.5, releases=2, mechanism=mechanism)
    rounds = list(islice(one.rounds(), 1, 60))
    assert one.exhausted, "it ended by itself"
    assert len(rounds) < 59
    budget = one.groups.budget
    assert max(budget.epsilon(client) for client in range(12)) <= 3.0 + 1e-6
    assert rounds[-1].facts["privacy"]["out of budget"] > 0


def test_the_document_has_the_table_of_schemes():
    text = DOCUMENT.read_text(encoding="utf-8")
    every = [sum_support(name) for name in registry.selectors.names()]
    counted = f"{sum(not each.why_not for each in every)} of {len(every)} schemes work"
    assert counted in (DOCUMENT.parents[1] / "privacy.md").read_text(encoding="utf-8")
    for name in registry.selectors.names():
        assert sum_support(name).row() in text, f"{DOCUMENT.name} needs the line\n{sum_support(name).row()}"


def test_schemes_that_need_what_sums_lack_are_refused():
    for name in registry.selectors.names():
        scheme = make_selector(name)
        if Need.UPDATE in scheme.needs:
            assert why_not_sums(scheme)
    assert {name for name in registry.selectors.names() if why_not_sums(make_selector(name))} == REFUSED


# -- no single update reaches the server ---------------------------------------------------------------------------


def vectors_behind(*roots, length):
    """Yield every array of the model's length that can be reached from objects, without modules, classes and globals.

    Globals of functions lead to every package that is imported, and some of those warn when they are looked at.
    """
    seen, stack = set(), list(roots)
    while stack:
        found = stack.pop()
        if id(found) in seen or isinstance(found, type) or type(found).__name__ == "module":
            continue
        seen.add(id(found))
        if isinstance(found, np.ndarray):
            if found.dtype.kind == "f" and found.shape[-1:] == (length,):
                yield from found.reshape(-1, length)
            continue
        if isinstance(found, FunctionType):
            stack += [found.__closure__, found.__defaults__, found.__kwdefaults__, found.__dict__]
            continue
        if callable(found) and not hasattr(found, "__dict__"):
            continue
        if type(found).__module__.startswith(("fedpace.sim", "fedpace.data", "fedpace.models")):
            continue  # the clients' side, where single updates live
        stack += gc.get_referents(found)


@pytest.mark.parametrize("scheme", ["pace-async", "pace", "momentum-approximation"])
def test_no_single_update_reaches_coordinator_or_aggregator(scheme, monkeypatch):
    one = simulation(scheme)
    updates = []
    before = one.groups._contribution

    def spying(group, member, ask, update, held):
        updates.append(update)
        return before(group, member, ask, update, held)

    one.groups._contribution = spying
    monkeypatch.setattr(Trained, "__new__", lambda *args, **kwargs: pytest.fail("a single update was made"))
    length, compared = one.trainer.trainable, 0
    for _ in islice(one.rounds(), 1, 5):
        known = list(vectors_behind(one.coordinator, one.aggregator, length=length))
        singles = np.array([update / np.linalg.norm(update) for update in updates])
        for vector in known:
            size = np.linalg.norm(vector)
            if size > 0:
                compared += 1
                assert np.abs(singles @ (vector / size)).max() < 0.9999, "a multiple of a single update is known"
    assert compared > 0, "rules with a state hold vectors, and they were compared"


def test_the_search_for_single_updates_finds_one():
    one = simulation("pace-async")
    list(islice(one.rounds(), 1, 4))
    update = np.arange(one.trainer.trainable, dtype=np.float64)
    one.aggregator.hidden = {"deep": [(update,)]}
    found = vectors_behind(one.coordinator, one.aggregator, length=update.size)
    assert any(np.array_equal(vector, update) for vector in found)


def test_the_coordinator_refuses_single_updates():
    coordinator = Coordinator(make_selector("fedbuff"), Settings(aggregation="sums"))
    coordinator.join(range(20))
    task = coordinator.due(0.0).tasks[0]
    assert Need.UPDATE not in task.facts
    with pytest.raises(InputError, match="no single updates: report without it"):
        coordinator.receive(task.id, Outcome(task.client, seconds=1.0, update=np.ones(4)), 1.0)
    step = Step(1, ((task, 1.0),), "average")
    with pytest.raises(InputError, match="use SumAggregator"):
        coordinator.bound(step, [Trained(task, np.ones(3), np.zeros(3))])


def test_rules_that_need_single_updates_are_refused():
    for name in ("calibrated", "client-means", "last-updates", "mixing"):
        with pytest.raises(InputError, match=r"needs single updates.*use nesterov"):
            fedpace.SumAggregator(fedpace.make_server(name), lambda: np.zeros(3))


def test_sizes_below_the_minimum_are_refused():
    with pytest.raises(InputError, match="random has k = 5, but a sum needs at least 8 clients: raise k"):
        Coordinator(make_selector("random", k=5), Settings(aggregation="sums"))
    with pytest.raises(InputError, match="there are 12: lower minimum"):
        simulation("malenia", minimum=13)
    assert Need.UPDATE in facts_wanted(make_selector("pace"))
    assert isinstance(Task(0, 0, "train", 0, 0.0), tuple)
