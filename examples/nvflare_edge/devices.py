"""A simulated device: it fits a line to data of its own, and sends how far it moved the model."""

import hashlib

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_dict
from nvflare.edge.simulation.device_task_processor import DeviceTaskProcessor

TRUTH = np.linspace(-2.0, 2.0, 9).reshape(3, 3)
"""The weights that generated the data: the model should come close."""


class LineFitter(DeviceTaskProcessor):
    """Trains on data that depend on the device's id only, so that nothing is kept between tasks."""

    def setup(self, job):
        """Prepare for a job; nothing to do."""

    def shutdown(self):
        """Clean up; nothing to do."""

    def process_task(self, task):
        """Return the change of the model after a few steps of gradient descent."""
        model = {name: np.array(value) for name, value in from_dict(task.task_data).data.items()}
        seed = int.from_bytes(hashlib.sha256(self.device.device_id.encode()).digest()[:4], "little")
        rng = np.random.default_rng(seed)
        inputs = rng.normal(size=(30, 3))
        targets = inputs @ TRUTH + rng.normal(scale=0.1, size=(30, 3))
        change = {}
        for name, weights in model.items():
            trained = weights
            for _ in range(10):
                trained = trained - 0.1 * inputs.T @ (inputs @ trained - targets) / len(inputs)
            change[name] = (trained - weights).tolist()
        return DXO(data_kind=DataKind.WEIGHT_DIFF, data={"dict": change, "count": 1}).to_dict()
