"""A simulation that was saved and restored goes on as if nothing had happened, bit for bit, whatever the scheme."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import safetensors.numpy
import torch
from resuming import check_resumes
from safetensors.torch import load_file

from fedpace import make_selector
from fedpace._base import registry
from fedpace._base.errors import InputError
from fedpace.core.server_rule import Stack
from fedpace.data.digits import Digits
from fedpace.data.quadratic import Quadratic
from fedpace.delays.availability import Availability
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Linear, Mlp, Softmax
from fedpace.runner import SharedData
from fedpace.sim.checkpoint import Checkpoints, _safetensors, save_model
from fedpace.sim.clock import Clock
from fedpace.sim.rounds import Fleet, Simulation
from fedpace.sim.torch_trainer import Training

DIGITS = SharedData(Digits(clients=12))
QUADRATIC = Quadratic(clients=6, samples=8, test_samples=6, dimension=4)


def selector(name):
    fields = registry.selectors[name].__dataclass_fields__
    few = {"k": 4, "target_heterogeneity": 0.5, "max_iter": 8}
    return make_selector(name, **{option: value for option, value in few.items() if option in fields})


def restored_after(make, folder, rounds, more):
    """Play `rounds`, save, restore into a new simulation; return what each plays on."""
    first = make()
    list(islice(first.rounds(), rounds + 1))
    Checkpoints(folder).save(first, wall_seconds=1.5)
    second = make()
    found = Checkpoints(folder).restore(second)
    assert (found.round, found.wall_seconds) == (rounds, 1.5)
    expected, came = list(islice(first.rounds(), more)), list(islice(second.rounds(), more))
    assert torch.equal(first.parameters, second.parameters)
    return expected, came


@pytest.mark.parametrize("name", registry.selectors.names())
def test_every_scheme_goes_on_bit_for_bit(name, tmp_path):
    def make():
        return Simulation(
            DIGITS,
            Softmax(),
            LognormalDelays(jitter=0.3),
            selector(name),
            training=Training(epochs=1, lr=0.1, sketch=16),
            fleet=Fleet(delays="observed"),
            availability=Availability(on=4.0, off=1.0, crash=0.1),
            clock=Clock(charge_warmup=True, probe_fraction=0.1),
            seed=3,
        )

    rounds = 1 if name in {"malenia", "ringleader"} else 3  # their rounds take hundreds of answers
    expected, came = restored_after(make, tmp_path, rounds, rounds)
    assert [current.number for current in came] == list(range(rounds + 1, 2 * rounds + 1))
    assert came == expected


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (Linear(), {"training": Training(epochs=2, batch=0, lr=0.02, algorithm="scaffold")}),
        (Linear(), {"fleet": Fleet(warmup="lazy", warmup_quota=2)}),
        (Linear(), {"availability": Availability(on=1.0, off=9.0)}),
        (Mlp(hidden=3), {}),
    ],
    ids=["scaffold", "lazy", "away", "moving features"],
)
@pytest.mark.parametrize("name", ["delayhet-submodular", "divfl"])
def test_everything_the_loop_remembers_is_kept(model, options, name, tmp_path):
    chosen = make_selector(name, **({"target_heterogeneity": 0.5} if name == "delayhet-submodular" else {"k": 2}))
    options = {"training": Training(epochs=1, batch=0, lr=0.02)} | options

    def make():
        return Simulation(QUADRATIC, model, LognormalDelays(), chosen, seed=1, **options)

    expected, came = restored_after(make, tmp_path, 4, 4)
    assert came == expected


@pytest.mark.parametrize("done", [3, 4, 8])
def test_variates_of_stragglers_in_hand_are_kept(done, tmp_path):
    """Saving computes the reports of answers in hand, and with SCAFFOLD these change the control variates."""

    def make():
        return Simulation(
            Quadratic(clients=14, samples=20, test_samples=10, dimension=8),
            Linear(),
            LognormalDelays(),
            make_selector("delayhet-submodular", ridge=10.0),
            training=Training(lr=0.01, epochs=1, algorithm="scaffold"),
            fleet=Fleet(warmup_wait=0.25),
            clock=Clock(charge_warmup=True),
            seed=3,
        )

    assert check_resumes(tmp_path, make, done, total=12), "nobody was at work"


def a_simulation(model=None):
    training = Training(epochs=1, batch=0, lr=0.02)
    return Simulation(QUADRATIC, model or Linear(), LognormalDelays(), make_selector("random", k=2), training=training)


def test_the_newest_replaces_the_one_before(tmp_path):
    simulation, checkpoints = a_simulation(), Checkpoints(tmp_path)
    rounds = simulation.rounds()
    for number in range(3):
        next(rounds)
        if number:
            checkpoints.save(simulation, wall_seconds=0.0)
            assert [path.name for path in tmp_path.iterdir()] == [f"checkpoint-{number}"]
    checkpoints.clear()
    assert list(tmp_path.iterdir()) == []
    assert checkpoints.restore(a_simulation()) is None


def test_what_a_killed_process_left_is_ignored_and_removed(tmp_path):
    simulation, checkpoints = a_simulation(), Checkpoints(tmp_path)
    list(islice(simulation.rounds(), 3))
    checkpoints.save(simulation, wall_seconds=0.0)
    (tmp_path / f".checkpoint-3.{'0' * 16}").mkdir()
    assert checkpoints.restore(a_simulation()).round == 2
    checkpoints.save(simulation, wall_seconds=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    simulation = a_simulation()
    list(islice(simulation.rounds(), 2))
    Checkpoints(tmp_path).save(simulation, wall_seconds=0.0)
    with pytest.raises(InputError, match="holds another model than this run's"):
        Checkpoints(tmp_path).restore(a_simulation(Mlp(hidden=3)))
    (tmp_path / "checkpoint-1" / "tensors.safetensors").write_bytes(b"junk")
    with pytest.raises(InputError, match=r"is damaged .*: remove it, and the run starts anew"):
        Checkpoints(tmp_path).restore(a_simulation())


def test_how_often(tmp_path):
    simulation = a_simulation()
    list(islice(simulation.rounds(), 2))
    always, never, cheap = (Checkpoints(tmp_path, every=every) for every in (0.0, float("inf"), None))
    assert [always.save_if_due(simulation, wall_seconds=0.0) for _ in range(3)] == [True] * 3
    assert not never.save_if_due(simulation, wall_seconds=0.0)
    assert cheap.save_if_due(simulation, wall_seconds=0.0)
    cheap._spent = 1e9
    assert not cheap.save_if_due(simulation, wall_seconds=0.0), "they have cost more than their share"
    with pytest.raises(InputError, match="must be at least 0, but -1 came"):
        Checkpoints(tmp_path, every=-1)


def test_the_model_has_names(tmp_path):
    simulation = a_simulation(Mlp(hidden=3))
    save_model(simulation, tmp_path / "model.safetensors")
    tensors = load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == simulation.parameters.numel()
    assert {tuple(tensor.shape) for tensor in tensors.values()} >= {(3, 4)}


@pytest.mark.parametrize("name", ["pace", "pace-async"])
@pytest.mark.parametrize("options", [{"memory": "4bit"}, {"memory": "8bit"}, {"memory_gib": 4 * 4 * 650 / 2**30}])
def test_a_memory_in_few_bits_goes_on_bit_for_bit(name, options, tmp_path):
    """The last: `auto` with room for 4 of 12 clients in single precision."""

    def make():
        return Simulation(
            DIGITS,
            Softmax(),
            LognormalDelays(jitter=0.3),
            make_selector(name, **options),
            training=Training(epochs=1, lr=0.1, sketch=16),
            seed=3,
        )

    expected, came = restored_after(make, tmp_path, 4, 3)
    assert came == expected


def test_rounds_tell_how_clients_are_remembered_and_who_was_forgotten():
    room = 5 * 374 / 2**30  # 5 clients of 650 parameters in 4 bits
    simulation = Simulation(
        DIGITS, Softmax(), LognormalDelays(jitter=0.3), make_selector("pace-async", memory_gib=room), seed=3
    )
    rounds = list(islice(simulation.rounds(), 8))
    assert "in 4 bits per value" in rounds[1].facts["memory"]
    assert all("memory" not in each.facts for each in rounds[2:]), "it is said once"
    forgotten = {client for each in rounds for client in each.facts.get("forgotten", [])}
    assert forgotten <= {str(client) for client in range(12)}
    assert len(forgotten) > 3
    assert simulation.aggregator.state.remembered == 5


def test_tensors_are_written_row_by_row_in_the_safetensors_format():
    rows = tuple(np.full(5, number, np.uint8) for number in range(3))
    stack = Stack(np.zeros((0, 5)), rows)
    written = {"rows": stack, "none": Stack(np.zeros((0, 5))), "x": np.arange(4.0), "y": np.ones((2, 3), np.float32)}
    content = b"".join(bytes(chunk) if isinstance(chunk, bytes) else chunk.tobytes() for chunk in _safetensors(written))
    read = safetensors.numpy.load(content)
    assert read.keys() == written.keys()
    for name, array in written.items():
        np.testing.assert_array_equal(read[name], np.asarray(array))
        assert read[name].dtype == array.dtype
