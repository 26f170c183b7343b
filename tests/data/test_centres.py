"""Natural federations in a folder: what is read from each layout, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedpace
from fedpace._base.errors import InputError
from fedpace.cli import app
from fedpace.data.centres import Centres
from fedpace.data.table import Table
from fedpace.sim.training import Training

HEAD = ("age", "sex", "ill")


def rows(count: int, seed: int) -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(seed)
    ages = rng.integers(20, 90, count)
    return [(int(age), str(rng.choice(["f", "m"])), "yes" if age > 50 + 4 * seed else "no") for age in ages]


def write(path: Path, found: list[tuple[Any, ...]], head: tuple[str, ...] = HEAD) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *found])


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    for number, name in enumerate(("basel", "como", "lyon")):
        write(tmp_path / "heart" / name / "train.csv", rows(30, number))
        write(tmp_path / "heart" / name / "test.csv", rows(9 + number, 10 + number))
    return tmp_path / "heart"


def arrays(folder: Path, name: str, count: int, seed: int, **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 2, 3))
    np.savez(folder / f"{name}.npz", **{"X": X, "y": (X[:, 0, 0] > 0).astype(int), **more})


def test_sub_folders_give_each_centre_its_own_training_and_test_rows(tables: Path) -> None:
    data = Centres(str(tables), target="ill").build(seed=0)
    assert (data.name, data.names, data.classes, data.metric) == ("heart", ("basel", "como", "lyon"), 2, "accuracy")
    assert [len(client) for client in data.train] == [30, 30, 30]
    assert data.test_sizes == (9, 10, 11)
    said = [row[2] == "yes" for number in range(3) for row in rows(9 + number, 10 + number)]
    np.testing.assert_array_equal(data.test.targets, np.array(said, dtype=np.int64))


def test_a_folder_of_tables_is_what_one_table_with_a_column_of_centres_is(tables: Path, tmp_path: Path) -> None:
    whole = []
    for number, name in enumerate(("basel", "como", "lyon")):
        whole += [(name, "train", *row) for row in rows(30, number)]
        whole += [(name, "test", *row) for row in rows(9 + number, 10 + number)]
    write(tmp_path / "whole.csv", whole, ("centre", "part", *HEAD))
    split = Centres(str(tables), target="ill").build(seed=5)
    joint = Table(str(tmp_path / "whole.csv"), "centre", "ill", split="part").build(seed=5)
    for one, other in zip((*split.train, split.test), (*joint.train, joint.test), strict=True):
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.targets, other.targets)


def test_files_without_test_rows_hold_some_out_for_each_seed(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        write(tmp_path / "f" / f"{name}.csv", rows(40, number))
    first, second = (Centres(str(tmp_path / "f"), target="ill", test_fraction=0.25).build(seed=seed) for seed in (0, 1))
    assert first.test_sizes == second.test_sizes == (10, 10)
    assert not np.array_equal(first.test.inputs, second.test.inputs)


def test_a_column_may_say_which_rows_are_tested(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        given = [(*row, "test" if at < 4 else "train") for at, row in enumerate(rows(20, number))]
        write(tmp_path / "f" / f"{name}.csv", given, (*HEAD, "part"))
    data = Centres(str(tmp_path / "f"), target="ill", split="part").build(seed=0)
    assert data.test_sizes == (4, 4)
    assert data.input_shape == (2,)


def test_arrays_keep_their_shape_and_bytes_become_shares(tmp_path: Path) -> None:
    arrays(tmp_path / "f", "a", 12, 0, X_test=np.ones((3, 2, 3)), y_test=np.array([0, 1, 1]))
    X = np.full((5, 2, 3), 51, dtype=np.uint8)
    arrays(tmp_path / "f", "b", 5, 1, X=X, X_test=X[:1], y_test=np.array([1]))
    data = Centres(str(tmp_path / "f")).build(seed=0)
    assert (data.input_shape, data.classes, data.test_sizes, data.names) == ((2, 3), 2, (3, 1), ("a", "b"))
    np.testing.assert_allclose(data.train[1].inputs, 0.2)
    assert Centres(str(tmp_path / "f")).metric == "accuracy"


def test_arrays_in_sub_folders_and_one_centre_alone(tmp_path: Path) -> None:
    arrays(tmp_path / "f" / "a", "train", 8, 0, y=np.linspace(0, 1, 8))
    arrays(tmp_path / "f" / "a", "test", 4, 1, y=np.linspace(0, 1, 4))
    data = Centres(str(tmp_path / "f")).build(seed=0)
    assert (data.classes, data.metric, data.test_sizes) == (None, "loss", (4,))


def test_names_in_arrays_are_numbered_over_all_centres(tmp_path: Path) -> None:
    arrays(tmp_path / "f", "a", 4, 0, y=np.array(["b", "b", "c", "c"]))
    arrays(tmp_path / "f", "b", 4, 0, y=np.array(["a", "a", "b", "c"]))
    data = Centres(str(tmp_path / "f"), test_fraction=0.25).build(seed=0)
    assert data.classes == 3
    assert {int(label) for label in data.train[0].targets} <= {1, 2}


REFUSED = [
    (lambda f: None, "expected a folder with one file or sub-folder per centre"),
    (lambda f: f.mkdir(), "expected one CSV, parquet or npz file per centre"),
    (lambda f: write(f / "a.csv", rows(9, 0)), "target of centres is missing: name the column"),
    (
        lambda f: (
            [write(f / "a" / f"{part}.csv", rows(9, 0)) for part in ("train", "test")],
            write(f / "b.csv", rows(9, 0)),
        ),
        "give all or none",
    ),
    (lambda f: (write(f / "a.csv", rows(9, 0)), arrays(f, "b", 9, 0)), "are of different kinds"),
    (lambda f: (write(f / "a.csv", rows(9, 0)), arrays(f, "a", 9, 0)), "two centres are called 'a'"),
    (lambda f: (f.mkdir(), (f / "a.npz").write_bytes(b"PK nonsense")), "expected arrays saved by numpy.savez"),
    (lambda f: arrays(f, "a", 3, 0, y=np.zeros(2)), "must have as many rows"),
    (lambda f: (f.mkdir(), np.savez(f / "a.npz", Z=np.zeros(2))), "expected an array X, but it has Z"),
    (lambda f: arrays(f, "a", 2, 0, y=np.array([{}, {}], dtype=object)), "cannot be read: Object arrays"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_cannot_be_read_is_refused_with_what_to_do(make: Any, words: str, tmp_path: Path) -> None:
    make(tmp_path / "f")
    with pytest.raises(InputError, match=words):
        Centres(str(tmp_path / "f")).build(seed=0)


def test_errors_name_the_file_and_the_row(tables: Path) -> None:
    write(tables / "como" / "test.csv", [(50, "f", "yes"), ("", "m", "no")])
    with pytest.raises(InputError, match=r"como/test.csv, column 'age', row 3: the cell is empty"):
        Centres(str(tables), target="ill").build(seed=0)
    write(tables / "como" / "test.csv", [("fifty", "f", "yes"), ("sixty", "m", "no")])
    with pytest.raises(InputError, match=r"como/test.csv, column 'age', row 2: expected a number as in .*basel"):
        Centres(str(tables), target="ill").build(seed=0)
    write(tables / "como" / "test.csv", [(50, "yes")], ("age", "ill"))
    with pytest.raises(InputError, match=r"has a column 'sex', but .*como/test.csv has none"):
        Centres(str(tables), target="ill").build(seed=0)


def test_from_toml_the_command_line_and_python(tables: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text(
        'name = "heart"\nseeds = 1\ndata = { name = "centres", path = "heart", target = "ill" }\n'
        'model = { name = "softmax" }\ndelays = { name = "lognormal" }\n'
        'training = { arithmetic = "numpy" }\nstop = { max_rounds = 3 }\nselectors = [{ name = "random", k = 2 }]\n'
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # the folder is found beside the file
    planned = CliRunner().invoke(app, ["compare", str(tmp_path / "x.toml"), "--dry-run"], catch_exceptions=False)
    assert planned.exit_code == 0
    arguments = ["data", "show", "centres", "-o", f"path={tables}", "-o", "target=ill", "--json"]
    shown = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert (shown["clients"], shown["train"], shown["test"]) == (3, 90, 30)
    named = f"centres(path={tables}, target=ill)"
    training = Training(arithmetic="numpy")
    results = fedpace.compare(
        data=named, model="softmax", schemes="random(k=2)", training=training, seeds=1, rounds=2, progress=False
    )
    assert results.records[0].info.names == ("basel", "como", "lyon")
