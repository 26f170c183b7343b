"""What the wrapper does to a strategy, on a federation in this process."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flower_fleet import NODES, as_numpy, fleet, mod, start
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAdam, FedAvg, FedTrimmedAvg

import fedpace
from fedpace._base.errors import InputError
from fedpace.flower import PacedServer, PacedStrategy, report_mod
from fedpace.server.average import Average
from fedpace.server.fedexp import Fedexp
from fedpace.server.nesterov import Nesterov


def of_flower(name, *options, **named):
    """A strategy of Flower's, of which older versions have fewer."""
    if not hasattr(strategies, name):
        pytest.skip(f"this version of Flower has no {name}")
    return getattr(strategies, name)(*options, **named)


def everybody(inner, **options):
    return PacedStrategy(inner, "random", k=NODES, clock="reported", **options)


def assert_same_bits(left, right):
    left, right = as_numpy(left), as_numpy(right)
    assert left.keys() == right.keys()
    for key in left:
        assert left[key].dtype == right[key].dtype
        assert left[key].tobytes() == right[key].tobytes()


class InOrder(FedAvg):
    """Plain FedAvg whose replies come in the order of nodes: floating-point sums depend on it."""

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, sorted(replies, key=lambda reply: reply.metadata.src_node_id))


def test_equal_weights_and_everybody_is_plain_fedavg_bit_for_bit(flower, grid):
    plain = flower.rounds(InOrder(), grid, start(flower), 3)
    paced = flower.rounds(everybody(InOrder()), grid, start(flower), 3)
    assert_same_bits(plain, paced)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAdam(eta=0.1),
        lambda: of_flower("FedYogi", eta=0.1),
        lambda: of_flower("FedAvgM", server_momentum=0.9),
        lambda: of_flower("FedProx", proximal_mu=0.1),
        lambda: of_flower("DifferentialPrivacyServerSideFixedClipping", FedAvg(), 0.0, 0.5, NODES),
    ],
    ids=["fedadam", "fedyogi", "fedavgm", "fedprox", "dp"],
)
def test_strategies_work_unmodified(flower, grid, make):
    plain = as_numpy(flower.rounds(make(), grid, start(flower), 3))
    paced = as_numpy(flower.rounds(everybody(make()), grid, start(flower), 3))
    for key, expected in plain.items():
        np.testing.assert_allclose(paced[key], expected, rtol=1e-5)
        assert not np.allclose(expected, as_numpy(start(flower))[key])


def test_fedprox_sends_its_term_and_the_round(flower, grid):
    flower.rounds(everybody(of_flower("FedProx", proximal_mu=0.25)), grid, start(flower), 1)
    config = next(m for m in grid.sent if "arrays" in m.content).content["config"]
    assert config["proximal-mu"] == 0.25
    assert config["server-round"] == 1


def replies_with(flower, grid, inner, weights):
    """What `inner` makes of the same models under other weights."""
    record = flower.arrays(np.linspace(-1, 1, 7))  # one array: some strategies collect garbage for each
    messages = list(inner.configure_train(1, record, flower.config(), grid))
    replies = sorted(grid.send_and_receive(messages), key=lambda reply: reply.metadata.src_node_id)
    for reply, weight in zip(replies, weights, strict=True):
        reply.content["metrics"]["num-examples"] = weight
    return inner.aggregate_train(1, replies)[0]


@pytest.mark.parametrize(
    ("name", "options", "heard"),
    [
        ("FedAvg", {}, True),
        ("FedAdam", {}, True),
        ("FedAvgM", {}, True),
        ("MultiKrum", {"num_malicious_nodes": 1, "num_nodes_to_select": 4}, True),
        ("Krum", {"num_malicious_nodes": 1}, False),
        ("FedMedian", {}, False),
        ("FedTrimmedAvg", {}, False),
        ("Bulyan", {"num_malicious_nodes": 1}, False),
        ("QFedAvg", {"client_learning_rate": 0.1, "train_loss_key": "train_loss"}, False),
    ],
)
def test_who_ignores_weights_is_said(flower, grid, caplog, name, options, heard):
    """Tried out, so that the list stays true for the installed Flower."""

    def make():
        return of_flower(name, **options)

    even = replies_with(flower, grid, make(), [1.0] * NODES)
    uneven = replies_with(flower, grid, make(), [1.0 + 50.0 * (client % 2) for client in range(NODES)])
    assert heard != all(np.array_equal(even[key].numpy(), uneven[key].numpy()) for key in even)
    with caplog.at_level(logging.WARNING, "flwr"):
        PacedStrategy(make(), "random")
    assert heard != ("ignores weights" in caplog.text)


def test_the_cohort_weights_are_what_counts(flower, grid):
    strategy = PacedStrategy(FedAvg(), "delayhet-submodular", warmup="full", warmup_wait=1.0, clock="reported")
    record = flower.rounds(strategy, grid, start(flower), 1)
    before = len(grid.sent)
    messages = strategy.configure_train(2, record, flower.config(), grid)
    assert messages == [], "the round is over when it returns"
    cohort = {task.client: weight for task, weight in strategy._step.answers}
    assert 1 <= len(cohort) <= NODES
    assert len(grid.sent) - before == len(cohort)
    assert sum(cohort.values()) == pytest.approx(1)
    result, metrics = strategy.aggregate_train(2, grid.send_and_receive(messages))
    before = as_numpy(record)
    targets = {f"partition-{client}": 1.0 + 0.37 * client for client in range(NODES)}
    mean = sum(weight * targets[name] for name, weight in cohort.items())
    for key, array in as_numpy(result).items():
        np.testing.assert_allclose(array, before[key] + 0.3 * (mean - before[key]), rtol=1e-5)
    assert metrics["train_loss"] == pytest.approx(0.5)


@pytest.mark.parametrize("make", [FedAvg, lambda: of_flower("FedAvgM", server_momentum=0.5)], ids=["fedavg", "fedavgm"])
def test_delta_mode_adds_the_current_arrays_back(flower, grid, make):
    strategy = PacedStrategy(make(), HalfStep(), clock="reported")
    record = start(flower)
    result = as_numpy(flower.rounds(strategy, grid, record, 1))
    mean = np.mean([1.0 + 0.37 * client for client in range(4)])
    for key, before in as_numpy(record).items():
        np.testing.assert_allclose(result[key], before + 0.5 * 0.3 * (mean - before), rtol=1e-5)


class HalfStep(fedpace.core.types.Stateless):
    """Four clients in delta mode, with weights that sum to 1/2."""

    name = "half-step"
    needs = frozenset()

    def select(self, state, view, rng):
        return fedpace.Cohort(np.arange(4), np.full(4, 0.125), mode="delta"), None


class Opposed(fedpace.core.types.Stateless):
    """FOLB's weights may be negative, and may even sum to less than 0."""

    name = "opposed"
    needs = frozenset()

    def select(self, state, view, rng):
        return fedpace.Cohort(np.arange(3), np.array([0.25, -0.5, self.last]), mode="delta"), None

    def __init__(self, last):
        self.last = last


@pytest.mark.parametrize("last", [-0.125, 0.25], ids=["sum below 0", "sum of 0"])
def test_negative_weights_are_what_they_say(flower, grid, last):
    record = start(flower)
    result = as_numpy(flower.rounds(PacedStrategy(FedAvg(), Opposed(last), clock="reported"), grid, record, 1))
    for key, before in as_numpy(record).items():
        steps = [0.3 * (1.0 + 0.37 * client - before) for client in range(3)]
        expected = before + 0.25 * steps[0] - 0.5 * steps[1] + last * steps[2]
        np.testing.assert_allclose(result[key], expected, rtol=1e-4)


class Extrapolating(fedpace.core.types.Stateless):
    """Three clients whose average may be extrapolated."""

    name = "extrapolating"
    needs = frozenset()
    server = Fedexp()

    def select(self, state, view, rng):
        return fedpace.Cohort(np.arange(3), np.array([0.25, 0.25, 0.5])), None


@pytest.mark.parametrize("guarded", [False, True])
def test_an_extrapolated_step_is_as_long_as_disagreement_allows(flower, guarded):
    """Guarded, the first step is at most twice the average."""
    targets = [9.0, -9.0, 2.0]
    grid = flower.grid()
    for client, target in enumerate(targets):
        grid.add(500 + client, flower.app([mod(flower)], target=target), **{"partition-id": client})
    record = flower.arrays(np.zeros(3))
    strategy = PacedStrategy(FedAvg(), Extrapolating(), clock="reported", server=Fedexp(guarded=guarded))
    result = as_numpy(flower.rounds(strategy, grid, record, 1))
    steps = [0.3 * np.full(3, target) for target in targets]
    mean = 0.25 * steps[0] + 0.25 * steps[1] + 0.5 * steps[2]
    squares = [float(step @ step) for step in steps]
    factor = (0.25 * squares[0] + 0.25 * squares[1] + 0.5 * squares[2]) / (2 * float(mean @ mean))
    assert factor > 2
    np.testing.assert_allclose(result["w0"], (2.0 if guarded else factor) * mean, rtol=1e-5)


def test_steps_are_carried_on_and_a_restarted_server_goes_on_with_them(flower, grid, tmp_path):
    """Against Nesterov's method by hand: every client goes 0.3 of the way to its target."""
    record = start(flower)
    target = np.mean([1.0 + 0.37 * client for client in range(NODES)])
    expected = {}
    for key, before in as_numpy(record).items():
        model, ahead = before.astype(np.float64), np.zeros_like(before, dtype=np.float64)
        for age in range(4):
            step = 0.3 * (target - model)
            ahead = age / (age + 3) * (ahead + step)
            model = model + step + ahead
        expected[key] = model

    def strategy(inner=FedAvg):
        folder = tmp_path / inner.__name__
        return PacedStrategy(inner(), "random", k=NODES, momentum=True, clock="reported", state=folder)

    half = flower.rounds(strategy(), grid, record, 2)
    resumed = strategy()
    result = as_numpy(flower.rounds(resumed, grid, half, 2))
    for key, array in result.items():
        np.testing.assert_allclose(array, expected[key], rtol=1e-4)
    own = strategy(FedAdam)
    flower.rounds(own, grid, record, 3)
    assert own._server.rule == Average(), "FedAdam has a momentum of its own"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PacedStrategy(FedAvg(fraction_train=0.5), "random"), "fraction_train = 0.5"),
        (lambda: PacedStrategy(object(), "random"), "wraps a strategy"),
        (lambda: PacedStrategy(FedAvg(), "randon"), "Did you mean 'random'"),
        (lambda: PacedStrategy(FedAvg(), fedpace.make_selector("random"), k=3), "beside a ready selector"),
        (lambda: PacedStrategy(FedAvg(), "random", kk=3), "no option 'kk'. Did you mean 'k'"),
        (lambda: PacedStrategy(FedAvg(), warmup_weight=0.5), "Did you mean 'warmup_wait'"),
        (lambda: PacedStrategy(FedAvg(), "random", server="fedadm"), "Did you mean 'fedadam'"),
        (lambda: PacedStrategy(FedAvg(), "random", clock="wall"), "clock"),
        (lambda: PacedStrategy(FedAvg(), "random", deadline=0), "deadline"),
        (lambda: PacedStrategy(FedAvg(), "random", nodes_seconds=-1), "nodes_seconds"),
        (lambda: PacedStrategy(FedAvg(), "random", shares="size"), "shares"),
    ],
)
def test_what_cannot_work_is_refused_at_once(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_integers_in_a_model_survive_delta_mode(flower):
    """Batch normalisation counts batches."""
    grid = flower.grid()

    def counting(message, context, call_next):
        reply = call_next(message, context)
        record = reply.content["arrays"]
        record["batches"] = Array(np.asarray(message.content["arrays"]["batches"].numpy() + 2))
        return reply

    for client in range(4):
        grid.add(10 + client, flower.app([mod(flower), counting]), **{"partition-id": client})
    record = ArrayRecord({"w0": Array(np.zeros(3, np.float32)), "batches": Array(np.asarray(4))})
    result = flower.rounds(PacedStrategy(FedAvg(), HalfStep(), clock="reported"), grid, record, 1)
    assert result["batches"].numpy() == 6, "counters are averaged, whatever the step does"


@pytest.mark.parametrize("selector", ["pace", HalfStep()], ids=["pace", "delta"])
def test_running_statistics_are_averages_of_what_clients_sent(flower, selector):
    """Steps are lengthened and carried on, or not whole; a variance is neither."""
    grid, moved = flower.grid(), []

    def normalising(message, context, call_next):
        reply = call_next(message, context)
        sent = np.float32(0.01 * (1 + context.node_config["partition-id"]))
        reply.content["arrays"]["bn.running_var"] = Array(np.full(2, sent))
        return reply

    for client in range(4):
        grid.add(10 + client, flower.app([mod(flower), normalising]), **{"partition-id": client})
    record = ArrayRecord({"w0": Array(np.zeros(3, np.float32)), "bn.running_var": Array(np.ones(2, np.float32))})
    strategy = PacedStrategy(FedAvg(), selector, clock="reported")
    for number in range(1, 7):
        record = flower.rounds(strategy, grid, record, 1, first=number)
        moved.append(float(record["w0"].numpy()[0]))
        assert ((record["bn.running_var"].numpy() >= 0.0099) & (record["bn.running_var"].numpy() <= 0.0401)).all()
    assert len(set(moved)) == 6


def test_replies_without_a_count_are_weighed_all_the_same(flower):
    grid = flower.grid()

    def uncounted(message, context, call_next):
        reply = call_next(message, context)
        metrics = MetricRecord({"train_loss": reply.content["metrics"]["train_loss"]})
        return Message(RecordDict({"arrays": reply.content["arrays"], "metrics": metrics}), reply_to=message)

    for client in range(3):
        grid.add(10 + client, flower.app([mod(flower), uncounted]), **{"partition-id": client})
    strategy = PacedStrategy(FedAvg(), "random", k=3, clock="reported")
    assert flower.rounds(strategy, grid, start(flower), 1) is not None
    assert strategy.coordinator.step == 1


@pytest.mark.parametrize("as_function", [False, True])
def test_only_eligible_clients_are_chosen(flower, as_function):
    names = {"partition-1", "partition-3"}
    grid = flower.grid()
    for client in range(4):
        grid.add(100 + client, flower.app([report_mod(transfer=False)]), **{"partition-id": client})
    eligible = (lambda name: name in names) if as_function else list(names)
    strategy = PacedStrategy(FedAvg(), "random", k=3, clock="reported", eligible=eligible, nodes_seconds=0)
    record = flower.rounds(strategy, grid, flower.arrays([0.0]), 2)
    assert set(grid.trained()) == {101, 103}
    assert set(strategy.coordinator.clients) == names
    if as_function:  # it is asked anew in every round
        names -= {"partition-1"}
        flower.rounds(strategy, grid, record, 1, first=3)
        assert grid.trained()[4:] == [103]


def test_one_eligible_name_must_be_in_a_list():
    with pytest.raises(InputError, match="put it into a list"):
        PacedStrategy(FedAvg(), "random", eligible="partition-1")


class Watching(FedAvg):
    """Looks at the replies, and lets FedAvg average."""

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, list(replies))


def test_a_server_rule_that_needs_each_update_makes_the_same_steps_as_without_a_strategy(flower):
    """pace remembers by how much clients differ: the inner FedAvg must not hide whose update is whose."""
    options = {"clock": "reported", "seed": 2, "sketch": 4}
    strategy = PacedStrategy(FedAvg(fraction_evaluate=0.0), "pace", **options)
    assert "rows" in strategy._server.rule.takes
    model = flower.rounds(strategy, fleet(flower), start(flower), 8)
    alone = PacedServer("pace", **options).start(fleet(flower), start(flower), 8).arrays
    for key, array in as_numpy(alone).items():
        np.testing.assert_allclose(as_numpy(model)[key], array, rtol=1e-6)


@pytest.mark.parametrize("inner", [Watching, FedTrimmedAvg])
def test_a_strategy_that_combines_updates_itself_gets_a_rule_that_can_live_with_that(flower, inner, caplog):
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy = PacedStrategy(inner(), "pace", clock="reported")
    assert "combines the updates of clients itself, so pace works without its memory" in caplog.text
    assert strategy._server.rule == Nesterov(1.0)
    record = start(flower)
    assert flower.rounds(strategy, fleet(flower), record, 2) is not record
    for rule in ("memory-corrected", "calibrated", "fadas"):
        with pytest.raises(
            InputError, match=f"the server rule {rule} needs each client's update, but {inner.__name__}"
        ):
            PacedStrategy(inner(), "random", k=2, server=rule)
