"""What training costs beside time: clients' work, tasks wasted, bytes, and how well the slow clients are served."""

from __future__ import annotations

import dataclasses
from itertools import islice

import numpy as np
import pytest
import torch

from fedpace import Coordinator, Outcome, Settings, make_selector
from fedpace.data.digits import Digits
from fedpace.data.quadratic import Quadratic
from fedpace.delays.availability import Availability
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Linear, Mlp, Softmax
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import MAX_GROUP_SAMPLES, Fleet, Simulation, SpeedGroups
from fedpace.sim.torch_trainer import TorchTrainer
from fedpace.sim.training import Training

CLIENTS = 12


def simulation(name, **changes):
    options = {"k": 4} if "k" in type(make_selector(name)).__dataclass_fields__ else {}
    return Simulation(
        Quadratic(clients=CLIENTS, samples=20, test_samples=10, dimension=4),
        Linear(),
        LognormalDelays(),
        make_selector(name, **options),
        training=Training(lr=0.01, epochs=1, batch=0, sketch=16),
        seed=1,
        **{"clock": Clock(charge_warmup=True), **changes},
    )


class Witness:
    """Counts tasks from outside: when each was launched, and when it was heard of or given up."""

    def __init__(self, watched: Simulation) -> None:
        launch, advance, coordinator = watched._launch, watched.coordinator.advance, watched.coordinator
        self.spans: list[tuple[float, float]] = []
        open_since: dict[int, float] = {}

        def look(now: float) -> None:
            for task in [task for task in open_since if task not in coordinator.task_table.tasks]:
                self.spans.append((open_since.pop(task), now))

        def launched(due, tick):
            launch(due, tick)
            open_since.update({task.id: watched.time.now for task in due.tasks})

        def advanced(now):
            look(coordinator.now)
            advance(now)
            look(coordinator.now)

        watched._launch, coordinator.advance = launched, advanced
        self.open = open_since

    def work(self, until: float) -> float:
        """Client-seconds up to an instant."""
        return sum(end - began for began, end in self.spans) + sum(until - began for began in self.open.values())


@pytest.mark.parametrize("name", ["random", "pace", "oort", "refl", "fedbuff", "pace-async", "power-of-choice"])
def test_work_is_the_time_that_clients_spend_on_tasks(name):
    watched = simulation(
        name,
        clock=Clock(charge_warmup=True, probe_fraction=0.2),
        availability=Availability(crash=0.15),
    )
    witness = Witness(watched)
    total = 0.0
    for current in islice(watched.rounds(), 12):
        total += current.work
        assert total == pytest.approx(witness.work(current.clock), rel=1e-9)
    assert total > 0


def test_a_round_by_hand():
    watched = simulation("random")
    first, second = islice(watched.rounds(), 2)
    took = watched.time.delays_at(1)[list(second.clients)]
    assert (first.work, first.wasted, first.bytes_down, first.bytes_up) == (0.0, 0, 0, 0)
    assert second.work == pytest.approx(took.sum())
    size = watched.trainer.message_bytes
    assert (second.wasted, second.bytes_down, second.bytes_up) == (0, 4 * size, 4 * size)


def test_nobody_works_past_the_deadline():
    clock = Clock(deadline=8.0)
    watched = simulation("random", clock=clock)
    for current in islice(watched.rounds(), 1, 8):
        assert current.work <= len(current.clients) * current.seconds + 1e-9
        assert current.wasted == len(current.failed)
        answered = len(current.clients) - len(current.failed)
        assert current.bytes_up == answered * watched.trainer.message_bytes
    assert any(current.wasted for current in islice(simulation("random", clock=clock).rounds(), 8))


def test_a_warm_up_that_is_free_on_the_clock_is_work_all_the_same():
    measuring = Fleet(warmup_trains=False, warmup_wait=1.0)
    free, charged = (
        list(islice(simulation("moment-match", fleet=measuring, clock=Clock(charge_warmup=on)).rounds(), 3))
        for on in (False, True)
    )
    assert free[1].warmed == charged[1].warmed != ()
    assert free[1].clock < charged[1].clock
    assert free[1].work == pytest.approx(charged[1].work)


def test_moments_are_sent_too():
    watched = simulation("moment-match", fleet=Fleet(warmup_trains=False))
    _, first, second = islice(watched.rounds(), 3)
    size = watched.trainer.message_bytes
    assert first.bytes_down == (len(first.warmed) + len(first.clients)) * size
    assert first.bytes_up > len(first.clients) * size
    assert second.bytes_down == len(second.clients) * size


def test_clients_that_crash_waste_their_tasks_without_rounds_too():
    watched = simulation("fedbuff", availability=Availability(crash=0.3))
    rounds = list(islice(watched.rounds(), 30))
    assert sum(current.wasted for current in rounds) == sum(len(current.failed) for current in rounds) > 0


def test_what_clients_that_leave_were_doing_is_wasted():
    coordinator = Coordinator(make_selector("random", k=3), Settings(seed=0))
    coordinator.join(["a", "b", "c"])
    tasks = coordinator.due(0.0).tasks
    coordinator.receive(tasks[0].id, Outcome(tasks[0].client, seconds=2.0), 2.0)
    coordinator.leave([tasks[1].client])
    coordinator.receive(tasks[2].id, Outcome(tasks[2].client, seconds=5.0), 5.0)
    assert coordinator.due(5.0).step is not None
    turn = coordinator.stepped(5.0)
    assert (turn.work, turn.wasted, turn.sent, turn.returned) == (3 * 2.0 + 1 * 3.0, 1, 3, 2)


def test_what_was_abandoned_is_not_forgotten():
    coordinator = Coordinator(make_selector("random", k=3), Settings(seed=0))
    coordinator.join(["a", "b", "c"])
    coordinator.due(0.0)
    coordinator.advance(4.0)
    coordinator.abandon()
    for task in coordinator.due(4.0).tasks:
        coordinator.receive(task.id, Outcome(task.client, seconds=1.0), 5.0)
    coordinator.due(5.0)
    turn = coordinator.stepped(5.0)
    assert (turn.work, turn.wasted, turn.sent, turn.returned) == (3 * 4.0 + 3 * 1.0, 3, 6, 3)


def test_costs_go_on_after_a_restart(tmp_path):
    coordinator = Coordinator(make_selector("random", k=2), Settings(seed=0))
    coordinator.join(["a", "b", "c"])
    tasks = coordinator.due(0.0).tasks
    coordinator.receive(tasks[0].id, Outcome(tasks[0].client, seconds=1.0), 1.0)
    coordinator.save(tmp_path / "saved")
    again = Coordinator.restore(tmp_path / "saved")
    again.receive(tasks[1].id, Outcome(tasks[1].client, seconds=3.0), 3.0)
    again.due(3.0)
    assert again.stepped(3.0).work == 4.0


def test_each_tenth_is_judged_on_its_own_data():
    trainer = TorchTrainer(Digits(clients=20).build(seed=0), Softmax(), Training(), seed=0)
    delays = np.arange(20.0)[::-1]  # the last clients are the fastest
    parameters = trainer.train(trainer.initial, 19, 0).parameters
    found = SpeedGroups(trainer, delays).evaluate(parameters)
    assert len(found) == 10
    for group, metric in enumerate(found):
        clients = [19 - 2 * group, 18 - 2 * group]
        module = trainer._flat.module
        rights, total = 0, 0
        for client in clients:
            samples = trainer.data.train[client]
            with torch.no_grad():
                rights += int((module(torch.from_numpy(samples.inputs)).argmax(1).numpy() == samples.targets).sum())
            total += len(samples)
        assert total <= MAX_GROUP_SAMPLES
        assert metric == pytest.approx(rights / total, abs=1e-6)


@pytest.mark.parametrize("model", [Softmax(), Mlp()])
def test_groups_judged_together_are_judged_as_each_alone(model):
    trainer = TorchTrainer(Digits(clients=30).build(seed=1), model, Training(), seed=0)
    speeds = SpeedGroups(trainer, np.arange(30.0))
    parameters = trainer.train(trainer.initial, 3, 0).parameters
    alone = tuple(round(metric, 6) for metric in trainer.metrics_on(parameters, speeds._samples))
    assert speeds._all_groups is not None
    assert speeds.evaluate(parameters) == alone


def test_large_groups_are_sampled_and_small_fleets_have_fewer():
    data = Quadratic(clients=3, samples=MAX_GROUP_SAMPLES + 50, test_samples=10, dimension=4).build(seed=0)
    trainer = TorchTrainer(data, Linear(), Training(), seed=0)
    speeds = SpeedGroups(trainer, np.array([3.0, 1.0, 2.0]))
    assert [len(targets) for _, targets in speeds._samples] == [MAX_GROUP_SAMPLES] * 3
    slowest = {row.tobytes() for row in data.train[0].inputs}
    assert all(row.numpy().tobytes() in slowest for row in speeds._samples[-1][0])


def test_a_clients_own_test_data_are_used_where_they_are_known():
    data = Quadratic(clients=4, samples=20, test_samples=10, dimension=4).build(seed=0)
    owned = dataclasses.replace(data, test_sizes=(16, 0, 12, 12))
    trainer = TorchTrainer(owned, Linear(), Training(), seed=0)
    samples = SpeedGroups(trainer, np.array([2.0, 1.0, 3.0, 4.0]))._samples
    starts = {1: slice(0, 16), 2: slice(16, 28), 3: slice(28, 40)}
    for group, part in starts.items():
        assert np.array_equal(samples[group][0].numpy(), owned.test.inputs[part])
    assert np.array_equal(samples[0][0].numpy(), owned.train[1].inputs)  # it has none


def test_rounds_that_are_not_evaluated_judge_nobody():
    rounds = list(islice(simulation("random").rounds(lambda number, clock: number % 2 == 0), 5))
    assert [current.by_speed is None for current in rounds] == [False, True, False, True, False]


def test_an_answer_that_a_step_is_given_is_not_wasted_whatever_it_weighs():
    rounds = list(islice(simulation("pace-async").rounds(), 12))
    assert any(weight == 0 for current in rounds for weight in current.weights)  # late: only remembered
    assert sum(current.wasted for current in rounds) == 0
