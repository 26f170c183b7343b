"""Partitions of the real Flower Datasets, from files on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedpace
from fedpace._base.errors import InputError
from fedpace.cli import app
from fedpace.data.flwr_datasets import FlwrDatasets, from_federated
from fedpace.sim.training import Training

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["HF_HUB_OFFLINE"] = "1"
pytest.importorskip("flwr_datasets", reason="`make test-flwr-datasets` installs it")
pytestmark = [pytest.mark.flwr_datasets, pytest.mark.filterwarnings("ignore")]

DIRICHLET = "dirichlet(num_partitions=4, partition_by=label, alpha=0.5, min_partition_size=2)"


def table(count: int, seed: int) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 2))
    owner = [f"w{number}" for number in rng.integers(0, 3, count)]
    return {
        "a": x[:, 0].tolist(),
        "b": x[:, 1].tolist(),
        "owner": owner,
        "label": (x[:, 0] > 0).astype(int).tolist(),
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    place = tmp_path / "mine"
    place.mkdir()
    for split, count, seed in (("train", 90, 0), ("test", 30, 1)):
        datasets.Dataset.from_dict(table(count, seed)).to_parquet(str(place / f"{split}-0.parquet"))
    return place


def config(folder: Path, partitioner: str = DIRICHLET, **options: Any) -> FlwrDatasets:
    return FlwrDatasets(**{"path": str(folder), "partitioner": partitioner, "inputs": ("a", "b"), **options})


def test_clients_hold_the_rows_that_the_partitioner_gives_them(folder: Path) -> None:
    from datasets import load_dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    data = config(folder).build(seed=7)
    maker = DirichletPartitioner(4, "label", 0.5, min_partition_size=2, seed=7)
    maker.dataset = load_dataset("parquet", data_files={"train": str(folder / "train-0.parquet")})["train"]
    for client, samples in enumerate(data.train):
        theirs = maker.load_partition(client)
        np.testing.assert_allclose(samples.inputs, np.stack([theirs["a"][:], theirs["b"][:]], axis=1), rtol=1e-6)
        np.testing.assert_array_equal(samples.targets, theirs["label"][:])
    assert (len(data.test), data.classes, data.metric, data.test_sizes, data.name) == (30, 2, "accuracy", None, "mine")


def test_the_seed_of_the_run_draws_the_partition_unless_one_is_given(folder: Path) -> None:
    sizes = [[len(each) for each in config(folder).build(seed=seed).train] for seed in (0, 1)]
    assert sizes[0] != sizes[1]
    fixed = DIRICHLET.replace(")", ", seed=3)")
    sizes = [[len(each) for each in config(folder, fixed).build(seed=seed).train] for seed in (0, 1)]
    assert sizes[0] == sizes[1]


def test_natural_ids_name_the_clients(folder: Path) -> None:
    data = config(folder, "natural-id(partition_by=owner)").build(seed=0)
    assert sorted(data.names or ()) == ["w0", "w1", "w2"]
    assert sum(len(each) for each in data.train) == 90


def test_without_a_test_split_every_client_holds_rows_out(folder: Path) -> None:
    (folder / "test-0.parquet").unlink()
    data = config(folder, "iid(num_partitions=3)", test_fraction=0.1).build(seed=0)
    assert (data.test_sizes, [len(each) for each in data.train]) == ((3, 3, 3), [27, 27, 27])


def test_a_saved_data_set_of_images(folder: Path, tmp_path: Path) -> None:
    import datasets

    pixels = [np.full((4, 5), 10 * number, dtype=np.uint8) for number in range(20)]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = datasets.Dataset.from_dict({"image": pixels, "label": [number % 2 for number in range(20)]}, features=kinds)
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tmp_path / "saved"))
    data = FlwrDatasets(str(tmp_path / "saved"), "iid(num_partitions=2)").build(seed=0)
    assert (data.input_shape, data.classes) == ((1, 4, 5), 2)
    np.testing.assert_allclose(data.test.inputs[:, 0, 0, 0], np.arange(20) * 10 / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": "nowhere"}, "there is no such file or folder"),
        ({"partitioner": "dirichlt(num_partitions=4)"}, "no partitioner 'dirichlt'. Did you mean"),
        ({"partitioner": "iid(parts=4)"}, "Its options: num_partitions"),
        ({"partitioner": "natural-id(partition_by=town)"}, "cannot split these rows"),
        ({"target": "labl"}, "has no column 'labl'. Did you mean 'label'"),
        ({"inputs": ("owner",)}, "expected images, numbers or lists"),
        ({"train": "training"}, "has no split 'training': it has"),
    ],
)
def test_mistakes_are_refused_with_what_to_do(folder: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        config(folder, **change).build(seed=0)


def test_from_toml_the_command_line_and_python(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from flwr_datasets import FederatedDataset

    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text(
        'name = "x"\nseeds = 1\nmodel = { name = "softmax" }\ndelays = { name = "lognormal" }\n'
        f'data = {{ name = "flwr-datasets", path = "mine", inputs = ["a", "b"], partitioner = "{DIRICHLET}" }}\n'
        'training = { arithmetic = "numpy" }\nstop = { max_rounds = 3 }\n'
        'selectors = [{ name = "random", k = 2 }]\n'
    )
    assert CliRunner().invoke(app, ["compare", "x.toml", "--dry-run"], catch_exceptions=False).exit_code == 0
    options = ["-o", "path=mine", "-o", "inputs=a,b", "-o", f"partitioner={DIRICHLET}"]
    shown = CliRunner().invoke(app, ["data", "show", "flwr-datasets", *options, "--json"])
    assert json.loads(shown.stdout)["clients"] == 4
    files = {split: str(folder / f"{split}-0.parquet") for split in ("train", "test")}
    theirs = FederatedDataset(dataset="parquet", data_files=files, partitioners={"train": 3}, seed=0)
    data = from_federated(theirs, inputs=["a", "b"])
    assert (data.clients, data.samples, data.test_samples) == (3, 90, 30)
    training = Training(arithmetic="numpy")
    results = fedpace.compare(
        data=data, model="softmax", schemes="random(k=2)", training=training, seeds=1, rounds=2, progress=False
    )
    assert len(results.records) == 1
