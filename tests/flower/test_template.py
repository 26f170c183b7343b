"""The app of Flower's own template becomes asynchronous by the change in examples/flower_template, for real."""

from __future__ import annotations

import os
import string
import subprocess
import sys
from pathlib import Path

import pytest
from federations import Federation, diary, wait_for
from flower_wheels import unpacked_wheel

pytestmark = [pytest.mark.flower, pytest.mark.slow]

CHANGE = Path(__file__).resolve().parents[2] / "examples" / "flower_template" / "asynchronous.diff"
TEMPLATE = "1.21.0"
"""The last versions that carry their templates with them are of these days; later ones fetch the same app."""
NAMES = {
    "project_name": "my-app",
    "package_name": "my-app",
    "import_name": "my_app",
    "framework_str": "PyTorch",
    "username": "somebody",
}

DATASETS = '''
import torch


class FederatedDataset:
    """Made-up images of CIFAR's size: bright ones are of the second class."""

    def __init__(self, dataset, partitioners):
        pass

    def load_partition(self, number):
        generator = torch.Generator().manual_seed(number)
        labels = torch.randint(2, (40,), generator=generator)
        images = torch.randn(40, 3, 32, 32, generator=generator) + labels[:, None, None, None]
        self.items = [{"img": image, "label": int(label)} for image, label in zip(images, labels)]
        return self

    def train_test_split(self, test_size, seed):
        return self

    def with_transform(self, transform):
        return {"train": self.items[:32], "test": self.items[32:]}
'''
TRANSFORMS = "Compose = ToTensor = Normalize = lambda *arguments: None\n"
PARTITIONER = "IidPartitioner = lambda num_partitions: None\n"


def made(folder):
    """What `flwr new` makes for PyTorch."""
    templates = unpacked_wheel(TEMPLATE, folder) / "flwr" / "cli" / "new" / "templates" / "app"
    files = {
        "pyproject.toml": "pyproject.pytorch_msg_api.toml.tpl",
        "my_app/__init__.py": "code/__init__.pytorch_msg_api.py.tpl",
        "my_app/client_app.py": "code/client.pytorch_msg_api.py.tpl",
        "my_app/server_app.py": "code/server.pytorch_msg_api.py.tpl",
        "my_app/task.py": "code/task.pytorch_msg_api.py.tpl",
    }
    app = folder / "my-app"
    for name, template in files.items():
        text = string.Template((templates / template).read_text(encoding="utf-8")).substitute(NAMES)
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text, encoding="utf-8")
    return app


def stubs(folder):
    """What the template loads CIFAR-10 with, which needs a network."""
    files = {
        "flwr_datasets/__init__.py": DATASETS,
        "flwr_datasets/partitioner.py": PARTITIONER,
        "torchvision/__init__.py": "",
        "torchvision/transforms.py": TRANSFORMS,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_the_change_is_at_most_ten_lines():
    lines = CHANGE.read_text(encoding="utf-8").splitlines()
    added = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
    taken = [line for line in lines if line.startswith("-") and not line.startswith("---")]
    assert max(len(added), len(taken)) <= 10


def test_the_template_without_rounds(tmp_path):
    app, state = made(tmp_path), tmp_path / "state"
    patch = subprocess.run(["patch", "-p1", "-i", str(CHANGE)], cwd=app, capture_output=True, text=True, check=False)
    assert patch.returncode == 0, patch.stdout + patch.stderr
    server = app / "my_app" / "server_app.py"
    server.write_text(server.read_text(encoding="utf-8").replace("/var/tmp/my-app", str(state)), encoding="utf-8")
    with Federation(tmp_path / "federation", app=app) as federation:
        path = [str(stubs(tmp_path / "stubs")), *filter(None, sys.path)]
        federation.environment["PYTHONPATH"] = os.pathsep.join(path)
        federation.superlink()
        for partition in range(2):
            federation.supernode(partition, 2)
        run = federation.launch(num_server_rounds=3)
        # The last thing that the template does.
        wait_for(lambda: list(federation.folder.rglob("final_model.pt")), federation, run)
    rounds = diary(state)
    assert [entry.number for entry in rounds] == [1, 2, 3]
    assert {name for entry in rounds for name in entry.clients} == {"partition-0", "partition-1"}
    assert not any(entry.failed for entry in rounds)
