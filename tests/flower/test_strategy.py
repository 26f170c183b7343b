"""What the wrapper does to a strategy, on a federation in this process."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAdam, FedAvg

import fedpace
from fedpace.core.errors import InputError
from fedpace.flower import PacedStrategy, report_mod
from fedpace.records.run import read_run
from fedpace.server.average import Average
from fedpace.server.fedexp import Fedexp

NODES = 10


def of_flower(name, *options, **named):
    """A strategy of Flower's, of which older versions have fewer."""
    if not hasattr(strategies, name):
        pytest.skip(f"this version of Flower has no {name}")
    return getattr(strategies, name)(*options, **named)


@pytest.fixture
def grid(flower):
    """Ten clients with equal counts and targets of their own, which all report."""
    grid = flower.grid()
    for client in range(NODES):
        app = flower.app([mod(flower)], target=1.0 + 0.37 * client)
        grid.add(500 + client, app, **{"partition-id": client})
    return grid


def mod(flower, seconds=lambda client: 1.0 + client):
    return report_mod(
        features=lambda message, context: flower.rows(context.node_config["partition-id"]),
        delay=lambda message, context, measured: seconds(context.node_config["partition-id"]),
    )


def start(flower):
    return flower.arrays(np.linspace(-1, 1, 7), np.full((3, 2), 0.1))


def as_numpy(record):
    return {key: array.numpy() for key, array in record.items()}


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
    strategy = PacedStrategy(FedAvg(), "delayhet-submodular", warmup="full", clock="reported")
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


def test_pace_is_what_chooses_unless_told_otherwise(flower, grid, caplog):
    strategy = PacedStrategy(FedAvg(), clock="reported", warmup="full")
    flower.rounds(strategy, grid, start(flower), 3)
    assert strategy.coordinator.policy.name == "pace"
    asked = [m.content["config"].get("fedpace-moment") for m in grid.sent if "arrays" in m.content]
    assert asked[:NODES] == [True] * NODES
    assert not any(asked[NODES:])  # one moment a client: those of different models cannot be compared
    assert strategy.coordinator.view().updates is not None


def test_pace_without_moments_goes_on_and_says_what_lacks(flower, caplog):
    grid = flower.grid()
    for client in range(6):
        grid.add(20 + client, flower.app([report_mod()]), **{"partition-id": client})
    strategy = PacedStrategy(FedAvg(), warmup_quota=3)
    record = start(flower)
    with caplog.at_level(logging.INFO, "flwr"):
        assert flower.rounds(strategy, grid, record, 2) is not record
    assert "pace needs feature moments, 'partition-" in caplog.text
    assert "add report_mod(module=...)" in caplog.text
    assert "pace knows too little of every client" in caplog.text
    assert len(grid.trained()) == 6


def test_a_warmup_that_waits_for_half_goes_on_with_it(flower):
    """Time is what clients report: node i takes 10 i seconds, and a round that ends after that knows it."""
    grid = flower.grid()
    for client in range(6):
        apps = [report_mod(features=lambda m, c: flower.rows(c.node_config["partition-id"]), delay=slow)]
        grid.add(30 + client, flower.app(apps, target=1.0 + client), **{"partition-id": client})
    strategy = PacedStrategy(FedAvg(), "moment-match", warmup="full", warmup_wait=0.5, clock="reported")
    record = start(flower)
    flower.rounds(strategy, grid, record, 1)
    assert strategy.coordinator.now == 30.0
    known = strategy.coordinator.view().available.sum()
    assert known == 3
    for number in range(2, 9):
        before = strategy.coordinator.now
        record = flower.rounds(strategy, grid, record, 1, first=number)
        assert strategy.coordinator.view().available.sum() == min(6, before // 10)
    assert strategy.coordinator.view().available.all()
    assert not strategy.coordinator.tasks


def slow(message, context, measured):
    return 10.0 * (1 + context.node_config["partition-id"])


def test_late_answers_to_a_warmup_are_fetched_when_they_come(flower):
    """On the server's clock: two replies are held back; one node is gone for good, as the SuperLink says later."""
    grid = flower.grid()
    for client in range(4):
        apps = [report_mod(features=lambda m, c: flower.rows(c.node_config["partition-id"]))]
        grid.add(40 + client, flower.app(apps, target=1.0 + client), **{"partition-id": client})
    held, pull = {42, 43}, grid.pull_messages

    def asked():
        return {m.metadata.dst_node_id: m for m in grid.sent if "arrays" in m.content}

    def slow_pull(message_ids):
        wanted = {message.metadata.message_id for node, message in asked().items() if node in held}
        return pull([identifier for identifier in message_ids if identifier not in wanted])

    grid.pull_messages = slow_pull
    strategy = PacedStrategy(FedAvg(), "moment-match", warmup="full", warmup_wait=0.5, name_seconds=5.0)
    record = start(flower)
    first = as_numpy(flower.rounds(strategy, grid, record, 1))
    for key, before in as_numpy(record).items():
        np.testing.assert_allclose(first[key], before + 0.3 * (1.5 - before), rtol=1e-5)  # of those that answered
    for number in (2, 3):
        flower.rounds(strategy, grid, record, 1, first=number)
        assert strategy.coordinator.view().available.tolist() == [True, True, False, False]
    late = asked()[43]
    grid._replies[late.metadata.message_id] = Message(Error(code=5, reason="node unavailable"), reply_to=late)
    held.clear()
    flower.rounds(strategy, grid, record, 1, first=4)
    assert strategy.coordinator.view().available.tolist()[2]
    assert strategy.coordinator.ledger.columns["failures"].tolist()[3] == 1, "and is met as a newcomer again"


def test_a_restarted_server_asks_those_that_were_awaited_anew(flower, tmp_path):
    """On the server's clock: what nodes answer to a server that is gone, nobody hears."""
    grid = flower.grid()
    for client in range(4):
        apps = [report_mod(features=lambda m, c: flower.rows(c.node_config["partition-id"]))]
        grid.add(50 + client, flower.app(apps), **{"partition-id": client})

    def strategy():
        options = {"warmup": "full", "warmup_wait": 0.5, "state": tmp_path / "state"}
        return PacedStrategy(FedAvg(), "moment-match", **options)

    record, pull = start(flower), grid.pull_messages
    late = {52, 53}

    def slow_pull(message_ids):
        models = {m.metadata.message_id for m in grid.sent if "arrays" in m.content and m.metadata.dst_node_id in late}
        return pull([identifier for identifier in message_ids if identifier not in models])

    grid.pull_messages = slow_pull
    flower.rounds(strategy(), grid, record, 1)
    grid.pull_messages = pull
    entry = read_run(tmp_path / "state").rounds[-1]
    assert (entry.failed, entry.clients) == ((), ("partition-0", "partition-1"))
    assert entry.warmed == ("partition-2", "partition-3"), "they only report, when they come"
    flower.rounds(strategy(), grid, record, 1)
    assert grid.trained()[4:6] == [52, 53], "those two, before anything else"
    assert read_run(tmp_path / "state").rounds[-1].warmed == ("partition-2", "partition-3")
    with pytest.raises(InputError, match="warmup_wait"):
        PacedStrategy(FedAvg(), "moment-match", warmup="full", state=tmp_path / "state")


@pytest.mark.parametrize("options", [{"warmup_quota": 2}, {"warmup": "full", "warmup_wait": 0.5}])
def test_on_the_reported_clock_what_came_to_a_server_outlives_it(flower, tmp_path, options):
    """Restarted after every round: who was met beside the rounds is heard when its seconds have passed, as ever."""

    def rounds(folder, sittings):
        model = start(flower)
        for number in range(sittings):
            grid = flower.grid()
            for client in range(6):
                apps = [report_mod(features=lambda m, c: flower.rows(c.node_config["partition-id"]), delay=slow)]
                grid.add(50 + client, flower.app(apps, target=1.0 + client), **{"partition-id": client})
            strategy = PacedStrategy(FedAvg(), "moment-match", clock="reported", state=folder, seed=3, **options)
            model = flower.rounds(strategy, grid, model, 8 // sittings, first=1 + number)
        return (folder / "rounds.jsonl").read_bytes(), as_numpy(model)

    whole, model = rounds(tmp_path / "whole", 1)
    parts, again = rounds(tmp_path / "parts", 8)
    assert any(entry.heard for entry in read_run(tmp_path / "whole").rounds), "somebody is heard in a later round"
    assert parts == whole
    for key, array in model.items():
        np.testing.assert_array_equal(again[key], array)


def test_a_full_warmup_may_leave_the_model_as_it_is(flower, grid):
    """Ten clients only report; the inner strategy sees those that the scheme then chooses."""
    seen = []

    class Watching(FedAvg):
        def aggregate_train(self, server_round, replies):
            seen.extend(reply.metadata.src_node_id for reply in replies)
            return super().aggregate_train(server_round, replies)

    options = {"warmup": "full", "warmup_trains": False, "clock": "reported", "k": 3}
    strategy = PacedStrategy(Watching(), "delayhet-sampling", **options)
    assert flower.rounds(strategy, grid, start(flower), 1) is not None
    assert sorted(grid.trained()[:NODES]) == sorted(grid.nodes)
    assert sorted(grid.trained()[NODES:]) == sorted(seen)
    assert 1 <= len(seen) <= 3  # drawn with replacement
    assert strategy.coordinator.step == 1


def test_a_full_warmup_is_the_first_round(flower, grid):
    strategy = PacedStrategy(FedAdam(eta=0.1), "delayhet-submodular", warmup="full", clock="reported")
    result = as_numpy(flower.rounds(strategy, grid, start(flower), 1))
    assert len(grid.trained()) == NODES
    for key, expected in as_numpy(flower.rounds(FedAdam(eta=0.1), grid, start(flower), 1)).items():
        np.testing.assert_allclose(result[key], expected, rtol=1e-5)


def test_a_lazy_warmup_meets_a_quota_a_round(flower, grid):
    strategy = PacedStrategy(FedAvg(), "delayhet-submodular", warmup_quota=3, clock="reported")
    flower.rounds(strategy, grid, start(flower), 1)
    assert len(grid.trained()) == 3
    flower.rounds(strategy, grid, start(flower), 6, first=2)
    assert set(grid.trained()) == set(grid.nodes)


def test_schemes_that_compare_updates_get_sketches(flower, grid):
    strategy = PacedStrategy(
        FedAvg(), "optimal-client-sampling", k=3, norms="last", sketch=4, clock="reported", warmup="full"
    )
    flower.rounds(strategy, grid, start(flower), 2)
    assert strategy.coordinator.view().updates.shape == (NODES, 4)


def test_losses_are_asked_for_by_evaluation(flower, grid):
    strategy = PacedStrategy(FedAvg(), "power-of-choice", k=2, clock="reported")
    flower.rounds(strategy, grid, start(flower), 2)
    assert any(message.metadata.message_type == "evaluate" for message in grid.sent)
    assert strategy.coordinator.step == 2


def test_a_client_without_the_mod_answers_a_gradient_probe_by_training(flower):
    """Its model comes back whole, and the sketch is made by the server: the same numbers."""
    sketches = []
    for mods in ([], [report_mod()]):
        grid = flower.grid()
        for client in range(4):
            grid.add(30 + client, flower.app(mods, target=1.0 + client), name=f"node-{30 + client}")
        strategy = PacedStrategy(FedAvg(), "optimal-client-sampling", k=2, sketch=4, clock="reported", warmup="full")
        flower.rounds(strategy, grid, start(flower), 1)
        strategy.configure_train(2, start(flower), flower.config(), grid)
        asked = [message for message in grid.sent if "fedpace-gradient" in message.content["config"]]
        assert asked
        sketches.append(strategy.coordinator.view().updates)
    np.testing.assert_allclose(sketches[0], sketches[1], rtol=1e-6)
    assert sketches[0].shape == (4, 4)
    assert np.isfinite(sketches[0]).all()


def test_a_probe_leaves_the_round_as_it_is(flower, grid):
    """Who was asked and then chosen gets the message of the inner strategy, without the question."""
    strategy = PacedStrategy(FedAvg(), "optimal-client-sampling", k=3, clock="reported", warmup="full")
    flower.rounds(strategy, grid, start(flower), 1)
    before = len(grid.sent)
    assert flower.rounds(strategy, grid, start(flower), 1, first=2) is not None
    asked = ["fedpace-gradient" in message.content["config"] for message in grid.sent[before:]]
    assert asked == [True] * NODES + [False] * (len(asked) - NODES)
    assert len(asked) > NODES


def test_nobody_answering_a_probe_stops_nothing(flower, caplog):
    grid = flower.grid()

    def silent(message, context, call_next):
        if "fedpace-gradient" in message.content.config_records.get("config", {}):
            raise RuntimeError("no time for this")
        return call_next(message, context)

    for client in range(4):
        grid.add(10 + client, flower.app([silent, mod(flower)]), **{"partition-id": client})
    strategy = PacedStrategy(FedAvg(), "folb", k=2, clock="reported")
    with caplog.at_level(logging.WARNING, "flwr"):
        flower.rounds(strategy, grid, start(flower), 2)
    assert "failed in this round: RuntimeError('no time for this')" in caplog.text
    assert strategy.coordinator.step == 2


def test_label_histograms_are_asked_for_where_a_scheme_needs_them(flower):
    def fleet(**options):
        grid = flower.grid()
        for client in range(4):
            app = flower.app([report_mod(labels=lambda context: [3, context.node_config["partition-id"]], **options)])
            grid.add(10 + client, app, **{"partition-id": client})
        return grid

    strategy = PacedStrategy(FedAvg(), "fed-cbs", k=2, clock="reported")
    flower.rounds(strategy, fleet(), start(flower), 1)
    np.testing.assert_array_equal(strategy.coordinator.view().labels, [[3, 0], [3, 1], [3, 2], [3, 3]])
    strategy = PacedStrategy(FedAvg(), "random", k=2, clock="reported")
    flower.rounds(strategy, fleet(), start(flower), 1)
    assert strategy.coordinator.view().labels is None  # nobody asked, so nothing left the clients
    strategy = PacedStrategy(FedAvg(), "random", k=2, clock="reported", shares="samples")
    flower.rounds(strategy, fleet(samples=lambda context: 10.0), start(flower), 1)
    np.testing.assert_allclose(strategy.coordinator.view().share, np.full(4, 0.25))
    assert strategy.coordinator.view().labels is None


def test_who_does_not_say_what_cannot_wait_is_left_out(flower, caplog):
    grid = flower.grid()
    for client in range(4):
        samples = None if client == 2 else lambda context: 5.0
        grid.add(10 + client, flower.app([report_mod(samples=samples)], examples=5), **{"partition-id": client})
    strategy = PacedStrategy(FedAvg(), "random", k=3, clock="reported", shares="samples")
    with caplog.at_level(logging.WARNING, "flwr"):
        flower.rounds(strategy, grid, start(flower), 2)
    assert set(strategy.coordinator.clients) == {"partition-0", "partition-1", "partition-3"}
    assert "'partition-2' is not used: it did not say how many samples it holds" in caplog.text


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
    strategy = PacedStrategy(FedAvg(), selector, clock="reported", screen=0)
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
