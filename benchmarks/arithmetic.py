"""What training a cohort costs with torch and with NumPy, as a ratio; prints one JSON object.

python benchmarks/arithmetic.py               # processor milliseconds, the median of 30 turns

The demo's clients and options. Turns alternate, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from threadpoolctl import threadpool_limits

from fedpace.data.digits import Digits
from fedpace.models.builtin import Mlp, Softmax
from fedpace.sim.trainers import Trainer, trainer_for
from fedpace.sim.training import Training

ARITHMETICS = ("torch", "numpy")
COHORTS = (10, 60)


def milliseconds(trainer: Trainer, clients: range) -> float:
    """Return what a round of these clients takes."""
    began = time.process_time()
    trainer.train_many(trainer.initial, clients, 0)
    return 1000 * (time.process_time() - began)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    threadpool_limits(limits=1)
    data = Digits(clients=60, alpha=2.0).build(seed=0)
    found = {}
    for model in (Softmax(), Mlp()):
        trainers = {
            name: trainer_for(data, model, Training(epochs=5, batch=16, lr=0.3, arithmetic=name), seed=0)  # type: ignore[arg-type]
            for name in ARITHMETICS
        }
        for cohort in COHORTS:
            taken: dict[str, list[float]] = {name: [] for name in ARITHMETICS}
            for _ in range(turns):
                for name, trainer in trainers.items():
                    taken[name].append(milliseconds(trainer, range(cohort)))
            medians = {name: statistics.median(values) for name, values in taken.items()}
            found[f"{model.name}, {cohort} clients"] = {
                **{name: round(value, 2) for name, value in medians.items()},
                "torch_over_numpy": round(medians["torch"] / medians["numpy"], 2),
            }
    print(json.dumps({"turns": turns, "processor_milliseconds": found}, indent=2))


if __name__ == "__main__":
    main()
