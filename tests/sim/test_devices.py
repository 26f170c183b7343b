"""Where clients are trained: what `device` means here, what is put on the device, and what stays in main memory.

There is no GPU where these tests run. Torch's `meta` device, whose tensors have no values, shows that everything that a
model meets is on its device: an operation on two devices fails there as it does on a GPU.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fedpace
from fedpace._base.errors import InputError
from fedpace.data.digits import Digits
from fedpace.data.federated import FederatedData, Samples
from fedpace.models._modules import FeatureModel
from fedpace.models.builtin import Softmax
from fedpace.sim import flat, torch_trainer
from fedpace.sim.engines.engine import EngineOptions
from fedpace.sim.flat import resolve
from fedpace.sim.torch_trainer import TorchTrainer
from fedpace.sim.training import Training


class NormModel:
    """A model with buffers, dropout and a convolution."""

    name = "norm"

    def build(self, input_shape, outputs, *, generator):
        body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 5)
        )
        return FeatureModel(body, nn.Linear(5, outputs), chunk=8)


def images(clients=3, each=10):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * each, 1, 8, 8)).astype(np.float32)
    y = rng.integers(0, 10, clients * each)
    train = tuple(Samples(x[i * each : (i + 1) * each], y[i * each : (i + 1) * each]) for i in range(clients))
    return FederatedData("images", train, train[0], classes=10, metric="accuracy")


@pytest.fixture
def on_meta(monkeypatch):
    """Trainers compute on the meta device; numbers that are read from it are 1, vectors are 0."""
    monkeypatch.setattr(torch_trainer, "resolve", lambda device, *, worker=0: torch.device("meta"))
    monkeypatch.setattr(torch.Tensor, "item", lambda self: 1.0)
    monkeypatch.setattr(torch.Tensor, "__int__", lambda self: 1)
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: True)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: torch.zeros(self.shape, dtype=self.dtype))
    monkeypatch.setattr(torch.random, "fork_rng", lambda **_: flat.nullcontext())


def trainer(**options):
    return TorchTrainer(images(), NormModel(), Training(epochs=2, batch=4, **options), seed=0)


def test_models_gradients_and_data_are_on_the_device(on_meta):
    made = trainer()
    held = [*(each for pair in made._train for each in pair), *made._test, made._flat.parameters, made._flat.gradients]
    held += [*made._flat.module.parameters(), *made._flat.module.buffers()]
    assert {tensor.device.type for tensor in held} == {"meta"}
    assert made.to_native(np.ones(3)).device.type == "meta"
    assert made.initial.device.type == "cpu", "the shared model is in main memory"
    assert not made.stackable


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"algorithm": "fedprox"}, {"algorithm": "scaffold"}],
    ids=["sgd", "momentum", "fedprox", "scaffold"],
)
def test_a_client_trains_without_leaving_the_device(on_meta, options):
    made = trainer(**options)
    correction = torch.zeros_like(made.initial) if options.get("algorithm") == "scaffold" else None
    result = made.train(made.initial, 1, 0, correction)
    assert result.parameters.device.type == "cpu"
    assert result.steps == 6


def test_a_stray_tensor_would_be_noticed(on_meta):
    """What the tests above rely on."""
    made = trainer()
    with pytest.raises((RuntimeError, NotImplementedError)):
        made._flat.loss(torch.zeros(2, 1, 8, 8), made._train[0][1][:2]).backward()


def test_measurements_are_made_on_the_device(on_meta):
    made = trainer()
    assert made.local_losses(made.initial, [0, 1]) == [1.0, 1.0]
    assert made.local_losses(made.initial, [0], samples=3) == [1.0]
    assert made.gradient(made.initial, 2).device.type == "cpu"
    assert made.moment(made.initial, 0, targets=True).dtype == np.float64
    inputs, targets = made._train[0]
    assert made.correct(made.initial, inputs, targets).device.type == "cpu"


def test_workers_share_the_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [resolve("cuda", worker=worker).index for worker in range(4)] == [0, 1, 0, 1]
    assert [resolve("auto", worker=worker).index for worker in range(2)] == [0, 1]
    assert resolve("cuda:1", worker=0) == torch.device("cuda", 1)
    with pytest.raises(InputError, match="cuda:0 to cuda:1"):
        resolve("cuda:2")


def test_what_this_machine_lacks_is_refused(monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve("auto") == resolve(None) == torch.device("cpu")
    assert "device auto is cpu here" in caplog.text
    with pytest.raises(InputError, match="needs a GPU and a torch that was built for CUDA"):
        resolve("cuda:0")
    with pytest.raises(InputError, match="Apple GPU"):
        resolve("mps")
    with pytest.raises(InputError, match="device must be auto, cpu, cuda"):
        Training(device="gpu")
    with pytest.raises(InputError, match=r"numpy computes on the CPU.*--arithmetic torch"):
        Training(device="cuda", arithmetic="numpy")
    with pytest.raises(InputError, match="is for GPUs"):
        trainer(precision="bfloat16")
    with pytest.raises(InputError, match="precision of training must be"):
        Training(precision="int8")


def test_mixed_precision_is_that_of_the_passes_only(on_meta, monkeypatch):
    asked = []

    def autocast(kind, *, dtype):
        asked.append((kind, dtype))
        return flat.nullcontext()

    monkeypatch.setattr(flat.torch, "autocast", autocast)
    for precision, kind in {"bfloat16": torch.bfloat16, "float16": torch.float16}.items():
        made = trainer(precision=precision)
        made.train(made.initial, 0, 0)
        assert set(asked) == {("meta", kind)}
        assert made._flat.parameters.dtype == made._flat.gradients.dtype == torch.float32
        asked.clear()
    trainer(precision="float32").train(made.initial, 0, 0)
    assert not asked


def test_gradients_of_half_precision_are_scaled_back_or_skipped():
    made = trainer()
    made._flat.load(made.initial)
    inputs, targets = made._train[0]
    made._flat.loss(inputs, targets).backward()
    plain = made._flat.gradients.clone()
    made._flat.gradients.zero_()
    assert made._scaled_backward(made._flat.loss(inputs, targets), 1024.0) == 1024.0
    torch.testing.assert_close(made._flat.gradients, plain)
    assert made._scaled_backward(torch.inf * made._flat.loss(inputs, targets), 1024.0) == 512.0
    assert not made._flat.gradients.any()


@pytest.mark.parametrize(
    ("options", "gpus", "name", "workers"),
    [
        (EngineOptions(), 2, "processes", 2),
        (EngineOptions(), 1, "inline", 1),
        (EngineOptions("inline"), 2, "inline", 1),
        (EngineOptions("processes", workers=3), 2, "processes", 3),
        (EngineOptions(workers=4), 1, "processes", 4),
    ],
)
def test_one_process_per_gpu(options, gpus, name, workers):
    fake = SimpleNamespace(
        device_kind="cuda", device_name="cuda:0 (a GPU)", gpus=gpus, stackable=False, training=Training()
    )
    choice = options.choose(fake, 10)
    assert (choice.name, choice.workers, choice.facts()["device"]) == (name, workers, "cuda:0 (a GPU)")


def test_a_worker_process_knows_its_number(monkeypatch):
    from fedpace.sim.engines import worker

    seen = []
    made = TorchTrainer(Digits(clients=4).build(seed=0), Softmax(), Training(), seed=0)
    arrays, setup = worker.share(made, 2)
    monkeypatch.setattr(
        torch_trainer, "resolve", lambda device, *, worker=0: seen.append(worker) or torch.device("cpu")
    )
    worker.build_trainer(arrays, setup, worker=1)
    arrays.close()
    assert seen == [1]


def test_runs_say_where_they_were_trained():
    results = fedpace.compare(
        data=Digits(clients=6), model="softmax", schemes="random(k=2)", seeds=1, rounds=2, device="auto", progress=False
    )
    (record,) = results.records
    assert record.info.engine["device"] == str(resolve("auto"))
    assert record.info.experiment["training"]["device"] == "auto"
    usual, given = ([each.metric for each in record_of(device).rounds] for device in (None, "cpu"))
    assert usual == given


def record_of(device):
    results = fedpace.compare(
        data=Digits(clients=6), model="softmax", schemes="random(k=2)", seeds=1, rounds=2, device=device, progress=False
    )
    return results.records[0]


def test_the_device_is_only_where_torch_is():
    assert flat.FlatModel(FeatureModel(nn.Flatten(), nn.Linear(4, 2)), classification=True).device.type == "cpu"
