"""Train a model on a whole data set in one place: a sanity check of data, models and step sizes.

    python benchmarks/centralised.py mnist
    python benchmarks/centralised.py cifar10 --data DIR --seconds 600

Prints one JSON object; each epoch's test accuracy goes to standard error as it comes. The optimiser is that of the
experiments (SGD with momentum 0.9, batches of 100), its velocity starting anew with every epoch. `--seconds` ends the
training after the first epoch that passes the budget of CPU time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
import time
from typing import Any

import numpy as np
import torch

from fedpace._base import registry
from fedpace.data.federated import FederatedData, Samples
from fedpace.sim.torch_trainer import TorchTrainer, Training

ONE_CLIENT: dict[str, Any] = {"clients": 1, "partition": "iid"}
"""One client that holds everything."""
SETS: dict[str, tuple[dict[str, Any], str, dict[str, Any], dict[str, Any], int]] = {
    # data options, model, its options, training options, epochs
    "mnist": (ONE_CLIENT, "conv2", {}, {"lr": 0.01}, 4),
    "fashion-mnist": (ONE_CLIENT, "conv2", {}, {"lr": 0.01}, 5),
    "cifar10": (ONE_CLIENT, "resnet18", {"width": 16}, {"lr": 0.05, "weight_decay": 5e-4}, 10),
    "femnist": ({"clients": 0}, "conv2", {}, {"lr": 0.01}, 10),
    "shakespeare": ({"clients": 30}, "stacked-lstm", {}, {"lr": 0.1, "batch": 50}, 10),
}


def whole(data: FederatedData) -> FederatedData:
    """Return the data with all clients' samples in one client's hands."""
    inputs = np.concatenate([samples.inputs for samples in data.train])
    targets = np.concatenate([samples.targets for samples in data.train])
    return dataclasses.replace(data, train=(Samples(inputs, targets),), test_sizes=(len(data.test),))


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SETS)
    parser.add_argument("--data", default="", help="folder of parquet files (default: where fedpace looks)")
    parser.add_argument("--epochs", type=int, help="instead of the set's own number")
    parser.add_argument("--lr", type=float, help="instead of the set's own")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="CPU seconds of training (default: no end)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data_options, model, model_options, training, epochs = SETS[arguments.name]
    training = {"batch": 100, "momentum": 0.9, **training, "epochs": 1}
    if arguments.lr:
        training["lr"] = arguments.lr
    data = registry.datasets.make(arguments.name, folder=arguments.data, **data_options).build(seed=0)
    trainer = TorchTrainer(whole(data), registry.models.make(model, **model_options), Training(**training), seed=0)
    parameters, spent, wall, accuracy = trainer.initial, 0.0, 0.0, []
    for epoch in range(arguments.epochs or epochs):
        started = time.process_time(), time.perf_counter()
        parameters = trainer.train(parameters, 0, epoch).parameters
        spent += time.process_time() - started[0]
        wall += time.perf_counter() - started[1]
        accuracy.append(round(trainer.evaluate(parameters)[0], 4))
        print(f"epoch {epoch + 1}: {accuracy[-1]:.4f} after {spent:.0f} CPU s", file=sys.stderr, flush=True)
        if spent > arguments.seconds:
            break
    result = {
        "benchmark": "centralised",
        "data": arguments.name,
        "data_options": data_options,
        "train_samples": len(trainer.data.train[0]),
        "test_samples": len(data.test),
        "model": model,
        "model_options": model_options,
        "model_bytes": trainer.message_bytes,
        "training": training,
        "test_accuracy_by_epoch": accuracy,
        "cpu_seconds": round(spent, 1),
        "wall_seconds": round(wall, 1),
        "threads": 1,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
