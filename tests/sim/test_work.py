"""Tasks that train more or less than the configured local training: engines, virtual time, records, checks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import numpy as np
import pytest
import torch
from buffered import Buffered, quadratic_run
from hypothesis import given, settings
from hypothesis import strategies as st
from stacks import COUNTS, MODELS, federation, trainings

from fedpace import Cohort, Coordinator, Need, Stateless, make_selector
from fedpace._base.errors import InputError
from fedpace.core.tasks import Move
from fedpace.delays.base import compute_seconds
from fedpace.delays.synthetic import SyntheticDelays
from fedpace.delays.uniform import UniformDelays
from fedpace.models.builtin import Conv2, Linear, Softmax
from fedpace.records.run import parse_round, round_line
from fedpace.sim.checkpoint import Checkpoints
from fedpace.sim.engines.engine import Inline
from fedpace.sim.engines.processes import Processes
from fedpace.sim.numpy_trainer import NumpyTrainer
from fedpace.sim.reclock import reclock
from fedpace.sim.torch_trainer import TorchTrainer, Training
from fedpace.testing import check_policy, check_selector

WORK = st.lists(st.sampled_from([0.01, 0.25, 0.5, 1.0, 1.5, 2.0]), min_size=7, max_size=7)
CLIENTS = 6


@settings(max_examples=60, deadline=None, derandomize=True)
@given(counts=COUNTS, kind=MODELS, training=trainings(), work=WORK)
def test_unequal_work_side_by_side_is_the_loop_over_clients(counts, kind, training, work):
    model, classes = kind
    data = federation(counts, classes=classes)
    trainer, clients = TorchTrainer(data, model, training, seed=2), list(range(len(counts)))
    ours = NumpyTrainer(data, model, replace(training, arithmetic="numpy"), seed=2)
    work = work[: len(counts)]
    at_once = trainer.train_many(trainer.initial, clients, 3, work=work)
    in_numpy = ours.train_many(ours.initial, clients, 3, work=work)
    for client, amount, one, two in zip(clients, work, at_once, in_numpy, strict=True):
        alone = trainer.train_alone(trainer.initial, client, 3, work=amount)
        per_epoch = -(-counts[client] // (training.batch or counts[client]))
        assert one.steps == two.steps == alone.steps == max(1, round(amount * training.epochs * per_epoch))
        torch.testing.assert_close(one.parameters, alone.parameters, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(two.parameters, alone.parameters.numpy(), rtol=1e-3, atol=1e-4)
        assert one.loss == pytest.approx(alone.loss, rel=1e-4, abs=1e-6)
        assert two.loss == pytest.approx(alone.loss, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("classes", [None, 3])
def test_full_batches_with_unequal_work(classes):
    """All samples in every step: batches are gathered once, also where clients end at different steps."""
    data, model = federation([30, 17, 64, 5], classes=classes), Softmax() if classes else Linear()
    training, work = Training(epochs=4, batch=0, lr=0.05), [0.25, 2.0, 0.5, 1.0]
    torch_trainer = TorchTrainer(data, model, training, seed=1)
    numpy_trainer = NumpyTrainer(data, model, replace(training, arithmetic="numpy"), seed=1)
    clients = [0, 1, 2, 3]
    at_once = torch_trainer.train_many(torch_trainer.initial, clients, 0, work=work)
    in_numpy = numpy_trainer.train_many(numpy_trainer.initial, clients, 0, work=work)
    for client, amount, one, two in zip(clients, work, at_once, in_numpy, strict=True):
        alone = torch_trainer.train_alone(torch_trainer.initial, client, 0, work=amount)
        assert one.steps == two.steps == alone.steps == 4 * amount
        torch.testing.assert_close(one.parameters, alone.parameters, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(two.parameters, alone.parameters.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("trainer", [TorchTrainer, NumpyTrainer])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "scaffold"])
def test_half_the_work_of_two_epochs_is_one_epoch(trainer, algorithm):
    """Bit for bit, with the same draws, corrections included; and twice the work of one epoch is two."""
    data, clients = federation([30, 17, 64, 5]), [0, 1, 2, 3]
    arithmetic = "numpy" if trainer is NumpyTrainer else "torch"
    one, two = (
        trainer(data, Softmax(), Training(epochs=e, batch=8, algorithm=algorithm, arithmetic=arithmetic), seed=1)
        for e in (1, 2)
    )
    added = None if algorithm != "scaffold" else one.stack_rows([one.initial + 0.1] * 4)
    for left, right in (
        (one.train_many(one.initial, clients, 0, added), two.train_many(two.initial, clients, 0, added, [0.5] * 4)),
        (one.train_many(one.initial, clients, 0, added, [2.0] * 4), two.train_many(two.initial, clients, 0, added)),
        (one.train_many(one.initial, clients, 0, added, [1.0] * 4), one.train_many(one.initial, clients, 0, added)),
    ):
        for a, b in zip(left, right, strict=True):
            assert np.array_equal(np.asarray(a.parameters), np.asarray(b.parameters))
            assert (a.loss, a.steps) == (b.loss, b.steps)


def test_models_that_are_trained_one_by_one():
    data = federation([12, 9], width=1)
    images = replace(
        data,
        train=tuple(replace(s, inputs=np.tile(s.inputs[:, :1, None, None], (1, 1, 16, 16))) for s in data.train),
        test=replace(data.test, inputs=np.zeros((4, 1, 16, 16), np.float32)),
    )
    one, two = (TorchTrainer(images, Conv2((2, 2), hidden=4), Training(epochs=e, batch=4), seed=0) for e in (1, 2))
    for a, b in zip(
        one.train_many(one.initial, [0, 1], 0), two.train_many(two.initial, [0, 1], 0, work=[0.5, 0.5]), strict=True
    ):
        assert torch.equal(a.parameters, b.parameters)
        assert a.steps == b.steps == 3
    assert [r.steps for r in one.train_many(one.initial, [0, 1], 0, work=[0.01, 1.7])] == [1, 5]


def test_engines_agree():
    data = federation([30, 17, 64, 5])
    trainer = TorchTrainer(data, Softmax(), Training(epochs=2, batch=8), seed=1)
    asked = ([trainer.initial] * 3, [0, 2, 3], [5, 6, 7], None, [0.25, 1.0, 3.0])
    inline, processes = Inline(trainer), Processes(trainer, 1)
    try:
        for a, b in zip(inline.train_from(*asked), processes.train_from(*asked), strict=True):
            assert torch.equal(a.parameters, b.parameters)
            assert a.steps == b.steps
        for a, b in zip(
            inline.train(trainer.initial, [0, 2], 5, None, [0.5, 2.0]),
            processes.train(trainer.initial, [0, 2], 5, None, [0.5, 2.0]),
            strict=True,
        ):
            assert torch.equal(a.parameters, b.parameters)
    finally:
        processes.close()


@dataclass(frozen=True)
class Everybody(Stateless):
    """All clients; `work` of them each."""

    name: ClassVar[str] = "everybody"
    needs: ClassVar[frozenset] = frozenset()
    work: tuple[float, ...] | None = None

    def select(self, state, view, rng):
        amounts = None if self.work is None else np.array(self.work)
        return Cohort(view.candidates, np.full(view.clients, 1 / view.clients), work=amounts), None


@dataclass(frozen=True)
class BufferedWork(Buffered):
    """The buffer, with half the work for odd rows."""

    def decide(self, state, view, rng):
        move, state = super().decide(state, view, rng)
        return replace(move, work=np.where(move.start % 2, 0.5, 1.0)), state


def run(policy, **options):
    return quadratic_run(policy, SyntheticDelays(), clients=CLIENTS, **options)


def test_work_of_1_changes_nothing():
    plain, ones = (list(islice(run(Everybody(work)).rounds(), 4)) for work in (None, (1.0,) * CLIENTS))
    assert list(map(round_line, plain)) == list(map(round_line, ones))


def test_seconds_and_records_follow_the_work():
    work = (0.25, 1.0, 2.0, 0.5, 1.0, 0.1)
    one = run(Everybody(work))
    rounds = list(islice(one.rounds(), 3))
    for current in rounds[1:]:
        drawn, compute = one.time.delays.draw(current.number), compute_seconds(one.time.delays, current.number)
        assert current.seconds == pytest.approx((drawn - compute + np.array(work) * compute).max())
        assert current.facts["work"] == {"0": 0.25, "2": 2.0, "3": 0.5, "5": 0.1}
        assert parse_round(round_line(current)).facts["work"] == current.facts["work"]


def test_a_recorded_run_is_timed_again_with_its_work():
    policy = Everybody((0.25, 1.0, 2.0, 0.5, 1.0, 0.1))
    played, other = (quadratic_run(policy, delays, clients=CLIENTS) for delays in (SyntheticDelays(), UniformDelays()))
    again = reclock(islice(played.rounds(), 4), quadratic_run(policy, UniformDelays(), clients=CLIENTS).time)
    for one, two in zip(again, islice(other.rounds(), 4), strict=True):
        assert one == replace(two, by_speed=None)


def test_schemes_that_set_work_pass_the_contract():
    @dataclass(frozen=True)
    class Halves(Everybody):
        name: ClassVar[str] = "halves"

        def select(self, state, view, rng):
            rows = view.candidates
            return Cohort(rows, np.full(rows.size, 1 / rows.size), work=np.full(rows.size, 0.5)), None

    check_selector(Halves())
    check_policy(BufferedWork())


def test_without_rounds_and_after_a_checkpoint(tmp_path):
    whole = run(BufferedWork())
    expected = list(islice(whole.rounds(), 10))
    assert any("work" in current.facts for current in expected)
    assert all(set(current.facts.get("work", {}).values()) <= {0.5} for current in expected)
    first = run(BufferedWork())
    list(islice(first.rounds(), 4))
    assert {task.work for task in first.coordinator.tasks} == {0.5, 1.0}
    Checkpoints(tmp_path).save(first, wall_seconds=0.0)
    second = run(BufferedWork())
    Checkpoints(tmp_path).restore(second)
    assert list(islice(second.rounds(), 6)) == expected[4:]


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ((1.0,) * (CLIENTS - 1), "starts 6 clients but gives 5 amounts of work"),
        ((0.0,) + (1.0,) * (CLIENTS - 1), "0 times the usual work: it must be above 0"),
        ((np.nan,) + (1.0,) * (CLIENTS - 1), "must be finite"),
    ],
)
def test_bad_work(work, words):
    with pytest.raises(InputError, match=words):
        list(islice(run(Everybody(work)).rounds(), 2))


def test_a_host_that_trains_all_alike_refuses_other_work():
    """At its start if the scheme declares `sets_work`, and otherwise when it sets work for the first time."""
    words = "sets how much each client trains, but this host trains all clients alike"
    for offers in (None, [Need.DELAY]):
        with pytest.raises(InputError, match=f"fednova {words}"):
            Coordinator(make_selector("fednova"), offers=offers and [*offers])
        with pytest.raises(InputError, match=f"pace-async {words}"):
            Coordinator(make_selector("pace-async", work="adaptive"), offers=offers)
    Coordinator(make_selector("pace-async"))
    coordinator = Coordinator(Everybody((0.5, 1.0)))
    coordinator.join(range(2))
    with pytest.raises(InputError, match=words):
        coordinator.due(0.0)
    other = Coordinator(Everybody((0.5, 1.0)), offers=[Need.WORK])
    other.join(range(2))
    assert [task.work for task in other.due(0.0).tasks] == [0.5, 1.0]
    assert Move().work is None
