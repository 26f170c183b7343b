"""Engines: the same answers wherever they come from, workers that die, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedpace._base.errors import InputError, OrderError
from fedpace._base.rng import stream
from fedpace.data.federated import FederatedData, Samples
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Conv2, Mlp
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular
from fedpace.sim.engines.engine import EngineOptions, Inline, WorkerLostError, cores
from fedpace.sim.engines.processes import RETRIES, Processes
from fedpace.sim.engines.worker import SharedArrays
from fedpace.sim.rounds import Simulation
from fedpace.sim.torch_trainer import DivergedError, TorchTrainer, Training

SMALL = Conv2(channels=(2, 3), hidden=6)


@dataclass(frozen=True)
class Pictures:
    """Small images over clients of different sizes."""

    name: ClassVar[str] = "pictures"
    metric: ClassVar[str] = "accuracy"

    counts: tuple[int, ...] = (7, 3, 12, 5, 9)

    def build(self, *, seed: int) -> FederatedData:
        rng = stream(seed, "pictures")

        def draw(count: int) -> Samples:
            return Samples(rng.random((count, 1, 16, 16), dtype=np.float32), rng.integers(0, 4, count))

        train = tuple(draw(count) for count in self.counts)
        return FederatedData("pictures", train, draw(1100), classes=4, metric="accuracy")


def trainer(model=SMALL, **options):
    options = {"epochs": 2, "batch": 4, "lr": 0.1, "momentum": 0.9} | options
    return TorchTrainer(Pictures().build(seed=0), model, Training(**options), seed=3)


@pytest.fixture
def engine():
    """Engines that end with the test."""
    opened = []

    def make(coach, workers=2):
        opened.append(Processes(coach, workers))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.mark.parametrize("model", [SMALL, Mlp(hidden=5)], ids=["one by one", "stacked"])
@pytest.mark.parametrize("options", [{}, {"algorithm": "fedprox", "mu": 0.3}, {"batch": 0}], ids=str)
def test_versions_are_trained_together_as_they_are_apart(engine, model, options):
    """A client may come twice, in two of its turns."""
    coach = trainer(model, **options)
    versions = [coach.initial, coach.initial * 0.9, coach.initial + 0.01]
    clients, turns, given = [4, 0, 2, 4, 1, 3], [0, 3, 1, 2, 0, 0], [0, 1, 2, 1, 0, 2]
    corrections = lambda client: torch.full_like(coach.initial, 1e-3 * client)  # noqa: E731
    engines = [Inline(coach), *([] if options else [engine(coach)])]
    for added in (None, corrections):
        expected = [
            coach.train(versions[version], client, turn, None if added is None else added(client))
            for client, turn, version in zip(clients, turns, given, strict=True)
        ]
        found = [
            list(one.train_from([versions[version] for version in given], clients, turns, added)) for one in engines
        ]
        for alone, together, elsewhere in zip(expected, found[0], found[-1], strict=True):
            torch.testing.assert_close(together.parameters, alone.parameters, rtol=1e-4, atol=1e-6)
            assert together.loss == pytest.approx(alone.loss, rel=1e-5)
            assert (together.steps, together.loss) == (elsewhere.steps, elsewhere.loss)
            assert torch.equal(together.parameters, elsewhere.parameters)
    assert list(Inline(coach).train_from([], [], [])) == []


def everything(one, coach):
    """All that an engine can be asked for."""
    clients = [4, 0, 2, 1, 3]
    rows = torch.randn(5, coach.initial.numel(), generator=torch.Generator().manual_seed(1))
    trained = [
        *one.train(coach.initial, clients, 7),
        *one.train(coach.initial, clients, 7, lambda client: rows[client]),
    ]
    return (
        [result.parameters for result in trained] + list(one.gradients(coach.initial, clients)),
        [(result.loss, result.steps) for result in trained],
        one.local_losses(coach.initial, clients),
        one.local_losses(coach.initial, clients, samples=2, step=1),
        [factor.tolist() for factor in one.moments(coach.initial, clients)],
        one.evaluate(coach.initial),
    )


@pytest.mark.parametrize(
    ("model", "workers"), [(SMALL, 1), (SMALL, 3), (Mlp(hidden=5), 2)], ids=["one worker", "three workers", "stacked"]
)
def test_engines_agree_to_the_last_bit(model, workers, engine):
    coach = trainer(model)
    tensors, *plain = everything(Inline(coach), coach)
    others, *theirs = everything(engine(coach, workers), coach)
    assert all(map(torch.equal, tensors, others))
    assert plain == theirs


def test_threads_change_nothing():
    coach = trainer()
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append([result.parameters for result in Inline(coach).train(coach.initial, range(5), 0)])
            assert torch.get_num_threads() == threads, "what it was before"
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *found))


def simulation(options):
    return Simulation(
        Pictures(),
        SMALL,
        LognormalDelays(),
        DelayhetSubmodular(ridge=1.0),
        training=Training(epochs=1, batch=4, lr=0.1),
        engine=options,
        seed=2,
    )


def test_a_run_is_the_same_in_every_engine():
    runs = []
    for name in ("inline", "processes"):
        rounds = simulation(EngineOptions(name, workers=2)).rounds()
        runs.append(list(islice(rounds, 3)))
        rounds.close()
    assert runs[0] == runs[1]


# -- workers that die --------------------------------------------------------------------------------------


def test_a_worker_killed_in_mid_round_changes_nothing(engine):
    coach = trainer(epochs=30)
    expected = [result.parameters for result in Inline(coach).train(coach.initial, range(5), 0)]
    one = engine(coach)
    one.evaluate(coach.initial)
    victims = [worker._process.pid for worker in one._pool._workers]
    os.kill(victims[1], signal.SIGSTOP)  # so that its work is left when it dies
    answers = one.train(coach.initial, range(5), 0)
    found = [next(answers).parameters]
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    found += [result.parameters for result in answers]
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    others = {worker._process.pid for worker in one._pool._workers if worker._process is not None}
    assert others - set(victims), "others took their place"


def test_workers_that_die_again_and_again_are_an_error(engine):
    """Every worker is killed as soon as it is there."""
    coach = trainer()
    one = engine(coach, workers=1)
    one.evaluate(coach.initial)
    killed, stop = set(), threading.Event()

    def kill():
        while not stop.is_set():
            process = one._pool._workers[0]._process
            if process is not None and process.pid not in killed:
                killed.add(process.pid)
                os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(WorkerLostError, match=f"{RETRIES + 1} worker processes died, one after the other, over "):
            list(one.train(coach.initial, [2], 0))
    finally:
        stop.set()
        killer.join()
    assert len(killed) > RETRIES
    assert one.evaluate(coach.initial) == coach.evaluate(coach.initial), "the engine itself goes on"


def test_what_a_task_raises_is_raised_here_in_its_turn(engine):
    coach = trainer(lr=1e30, epochs=3)
    one = engine(coach)
    with pytest.raises(DivergedError, match=r"client 3 diverged in round 6 "):
        list(one.train(coach.initial, [3, 1], 5))
    assert len(one.local_losses(coach.initial, [0, 1])) == 2, "and the engine goes on"


def test_one_call_at_a_time(engine):
    coach = trainer(epochs=20)
    one = engine(coach)
    answers = one.train(coach.initial, range(5), 0)
    next(answers)
    with pytest.raises(OrderError, match="an engine answers one call at a time"):
        one.evaluate(coach.initial)


# -- nothing left behind -----------------------------------------------------------------------------------


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_closing_ends_the_workers_and_an_engine_may_be_used_again(engine):
    coach = trainer()
    one = engine(coach)
    first = one.evaluate(coach.initial)
    pids = [worker._process.pid for worker in one._pool._workers]
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    one.close()
    assert not any(map(alive, pids))
    assert len(list(Path("/proc/self/fd").iterdir())) < open_before
    one.close()
    assert one.evaluate(coach.initial) == first


def test_a_run_that_is_left_closes_its_engine():
    one = simulation(EngineOptions("processes", workers=1))
    rounds = one.rounds()
    next(rounds)
    (worker,) = one.engine._pool._workers
    pid = worker._process.pid
    rounds.close()
    assert not alive(pid)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(end, tmp_path):
    script = tmp_path / "left.py"
    script.write_text(
        textwrap.dedent(f"""
        import importlib.util, sys, time
        spec = importlib.util.spec_from_file_location("engines_under_test", {str(Path(__file__))!r})
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        coach = module.trainer()
        engine = module.Processes(coach, 1)
        engine.evaluate(coach.initial)
        print(engine._pool._workers[0]._process.pid, flush=True)
        time.sleep(600)
        """)
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # A shell starts background jobs with Ctrl-C ignored, and whatever they start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        worker = int(process.stdout.readline())
        process.send_signal(end)
        try:
            process.wait(timeout=120)
        finally:
            process.kill()
    for _ in range(1000):
        if not alive(worker):
            break
        time.sleep(0.01)
    assert not alive(worker)


def test_shared_arrays_are_shared_and_have_no_name():
    arrays = SharedArrays.create({"a": ((2, 3), np.float32), "b": ((5,), np.int64), "c": ((0,), np.float32)})
    again = SharedArrays(os.dup(arrays.file), arrays.places)
    arrays["a"][1, 2] = 7.0
    assert again["a"][1, 2] == 7.0
    assert again["b"].tolist() == [0] * 5
    assert again["c"].shape == (0,)
    assert all(place.offset % 64 == 0 for place in arrays.places.values())
    arrays.close()
    again["b"][0] = 3
    assert arrays["b"][0] == 3, "the memory lives on while it is used"
    again.close()


# -- choosing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "model", "cohort", "name", "workers"),
    [
        (EngineOptions(), Mlp(), 10, "inline", 1),
        (EngineOptions(workers=3), SMALL, 10, "processes", 3),
        (EngineOptions(workers=3), SMALL, None, "processes", 3),
        (EngineOptions(workers=3), SMALL, 1, "inline", 1),
        (EngineOptions(workers=1), SMALL, 10, "inline", 1),
        (EngineOptions("inline", workers=3), SMALL, 10, "inline", 1),
        (EngineOptions("processes"), Mlp(), 10, "processes", cores()),
    ],
)
def test_the_choice(options, model, cohort, name, workers):
    choice = options.choose(trainer(model), cohort)
    assert (choice.name, choice.workers) == (name, workers)
    assert choice.facts() == {"name": name, "workers": workers, "why": choice.why, "device": "cpu"}
    assert choice.why
    assert choice.build(trainer(model)).name == name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "threads"}, "engine"),
        ({"workers": -1}, "workers of the engine must be at least 0"),
        ({"ray_address": "auto"}, "a Ray address is for engine ray, but the engine is auto"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InputError, match=words):
        EngineOptions(**options)


def test_a_model_of_the_main_script_is_refused():
    """A worker could not import it."""
    homeless = type("Homeless", (Conv2,), {"__module__": "__main__"})(channels=(2, 3), hidden=6)
    with pytest.raises(InputError, match="Homeless is defined in the script that runs"):
        Processes(trainer(homeless), 1)
