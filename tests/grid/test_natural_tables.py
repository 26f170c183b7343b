"""Tables with natural clients as tasks of `benchmarks/time_to_target.py`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedpace._base.errors import InputError


@pytest.fixture
def tables(grid):
    return grid.tables


@pytest.fixture
def folder(tmp_path):
    """Three schools, of which one is too small; one row lacks its score."""
    lines = ["school,age,sex,score,mark"]
    for school, rows in (("a", 10), ("b", 20), ("c", 3)):
        lines += [f"{school},{8 + i % 5},{'girl' if i % 2 else 'boy'},{50 + i},{1 + i % 3}" for i in range(rows)]
    lines.append("a,9,girl,,1")
    (tmp_path / "schools.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    listing = {
        "scores": {"file": "schools.csv", "client": "school", "target": "score", "features": ["age", "sex"]},
        "marks": {
            "file": "schools.csv",
            "client": "school",
            "target": "mark",
            "features": ["age", "sex"],
            "categories": ["age"],
            "kind": "softmax",
            "cap": 15,
        },
    }
    (tmp_path / "tables.json").write_text(json.dumps(listing), encoding="utf-8")
    return tmp_path


def test_clients_are_those_of_the_table_and_no_row_is_trained_on_and_tested(tables, folder):
    scores, marks = tables.tasks(folder)
    data = scores.data.build(seed=3)
    assert [len(client) for client in data.train] == [8, 16]
    assert data.test_sizes == (2, 4)
    assert data.classes is None
    targets = np.concatenate([*(client.targets for client in data.train), data.test.targets])
    assert (targets.mean(), targets.std()) == (pytest.approx(0, abs=1e-6), pytest.approx(1, abs=1e-5))
    inputs = np.concatenate([*(client.inputs for client in data.train), data.test.inputs])
    assert inputs.shape == (30, 2), "two words are one column"
    rows = {(f"{a:.4f}", f"{t:.4f}") for a, t in zip(inputs[:, 0], targets, strict=True)}
    assert len(rows) == 20, "the scores of a are among those of b: all rows are there, each once per school"
    classes = marks.data.build(seed=3)
    assert (classes.classes, classes.input_shape, classes.train[1].targets.dtype) == (3, (5,), np.int64)
    assert [len(client) for client in classes.train] == [8, 12]


def test_targets_are_parts_of_the_initial_excess(tables, folder):
    targets = tables.tasks(folder)[0].targets([1.0, *[0.5] * 20])
    assert targets == {"easy": pytest.approx(0.55), "hard": pytest.approx(0.51)}


def test_what_is_missing_is_said(tables, folder):
    with pytest.raises(InputError, match=r"expected .*tables\.json"):
        tables.tasks(folder / "nowhere")
    path = str(folder / "schools.csv")
    with pytest.raises(InputError, match="no column 'pupil': it has school, age"):
        tables.Table(path, "school", "score", ("pupil",)).build(seed=0)
    with pytest.raises(InputError, match=r"no client of .* has the 50 rows"):
        tables.Table(path, "school", "score", ("age",), least=50).build(seed=0)
