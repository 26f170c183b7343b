"""Tables of one's own: what is read, how columns become numbers, who is tested on what, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpace.__main__ import main
from fedpace._base.errors import InputError
from fedpace.data.table import Table
from fedpace.delays.csv_files import read_table
from fedpace.records.run import read_run

HEAD = ("clinic", "age", "visits", "sex", "ward", "returned")


def write(path: Path, rows: list[tuple[Any, ...]], head: tuple[str, ...] = HEAD) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])
    return str(path)


def clinics(clients: int = 6, rows: int = 20, *, seed: int = 0) -> list[tuple[Any, ...]]:
    """Rows in which older people return, more so in some clinics."""
    rng = np.random.default_rng(seed)
    found: list[tuple[Any, ...]] = []
    for _ in range(rows):
        for clinic in range(clients):
            age, visits = rng.integers(20, 90), rng.integers(0, 9)
            returned = age + 3 * visits + 5 * clinic + 8 * rng.standard_normal() > 75
            sex, ward = rng.choice(["f", "m"]), int(rng.choice([101, 205, 307]))
            found.append((f"clinic {clinic}", age, visits, sex, ward, "yes" if returned else "no"))
    return found


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write(tmp_path / "visits.csv", clinics())


def table(path: str, **options: Any) -> Table:
    return Table(**{"path": path, "client": "clinic", "target": "returned", **options})


# -- what comes out ----------------------------------------------------------------------------------------


def test_a_client_holds_its_own_rows_and_every_row_is_used_once(path: str) -> None:
    data = table(path, features=("age", "visits")).build(seed=3)
    assert (data.clients, data.classes, data.metric, data.name) == (6, 2, "accuracy", "visits")
    assert data.test_sizes == (4,) * 6
    assert [len(client) for client in data.train] == [16] * 6
    _, *rows = csv.reader(Path(path).read_text(encoding="utf-8").splitlines())
    for number, client in enumerate(data.train):
        own = [row for row in rows if row[0] == f"clinic {number}"]
        part = slice(4 * number, 4 * number + 4)
        classes = np.concatenate([client.targets, data.test.targets[part]])
        assert sorted(classes) == sorted(int(row[5] == "yes") for row in own)


def test_numbers_have_mean_0_and_deviation_1_over_the_training_rows(path: str) -> None:
    data = table(path, features=("age", "visits")).build(seed=0)
    inputs = np.concatenate([client.inputs for client in data.train])
    np.testing.assert_allclose(inputs.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(inputs.std(axis=0), 1, atol=1e-6)


def test_words_become_a_column_each_but_the_first_and_so_do_numbers_that_are_names(path: str) -> None:
    words = table(path, features=("sex",)).build(seed=0)
    assert words.input_shape == (1,)
    assert set(np.unique(words.test.inputs)) <= {0.0, 1.0}
    assert table(path).build(seed=0).input_shape == (4,), "age, visits, m, and ward as a number"
    assert table(path, categories=("ward",)).build(seed=0).input_shape == (5,), "two of the three wards"


def test_regression_is_on_the_scale_of_the_targets_own_variance(path: str) -> None:
    data = table(path, target="age", features=("visits", "sex")).build(seed=0)
    assert (data.classes, data.metric, data.loss_scale, data.outputs) == (None, "loss", 2.0, 1)
    targets = np.concatenate([client.targets for client in data.train])
    assert np.mean(targets**2) == pytest.approx(1.0, abs=1e-5), "always saying the mean scores 2 x 1/2 = 1"


def test_class_numbers_and_flags_are_classes(tmp_path: Path) -> None:
    rows = [("a" if n % 2 else "b", n / 7, n % 3, "true" if n % 5 else "false") for n in range(40)]
    place = write(tmp_path / "marks.csv", rows, ("who", "x", "mark", "ok"))
    marks = Table(place, "who", "mark", features=("x",), task="classification")
    assert marks.build(seed=0).classes == 3
    assert Table(place, "who", "mark", features=("x",), task="regression").metric == "loss"
    assert Table(place, "who", "ok", features=("x",)).build(seed=0).classes == 2


def test_parquet_and_csv_give_the_same(path: str, tmp_path: Path) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    other = str(tmp_path / "visits.parquet")
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(path), other)
    for one, two in zip(table(path).build(seed=1).train, table(other).build(seed=1).train, strict=True):
        np.testing.assert_array_equal(one.inputs, two.inputs)
        np.testing.assert_array_equal(one.targets, two.targets)


def test_seeds_draw_other_test_rows_and_clients(path: str) -> None:
    config = table(path, clients=3)
    one, again, other = (config.build(seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.test.inputs, again.test.inputs)
    assert not np.array_equal(one.test.inputs, other.test.inputs)
    assert one.clients == 3


def test_clients_with_too_few_rows_are_left_out(tmp_path: Path) -> None:
    place = write(tmp_path / "few.csv", [*clinics(), ("lonely", 30, 1, "f", 101, "no")])
    assert table(place).build(seed=0).clients == 6


def test_a_column_may_say_what_is_tested_on(tmp_path: Path) -> None:
    rows = [(*row, "Test" if place % 4 == 0 else "train") for place, row in enumerate(clinics(5, 20))]
    place = write(tmp_path / "split.csv", rows, (*HEAD, "part"))
    data = table(place, split="part").build(seed=0)
    assert data.test_sizes == (5,) * 5
    assert data.input_shape == (4,), "the split is no feature"


def test_empty_cells_are_dropped_or_filled_when_asked(tmp_path: Path) -> None:
    rows = clinics()
    rows[0] = (rows[0][0], "", *rows[0][2:])
    rows[7] = (*rows[7][:3], "NA", *rows[7][4:])
    place = write(tmp_path / "gaps.csv", rows)
    with pytest.raises(InputError, match=r"column 'age', row 2: the cell is empty, 1 of the 120 in this column: say"):
        table(place).build(seed=0)
    assert sum(len(client) for client in table(place, missing="drop").build(seed=0).train) + 24 == 118
    filled = table(place, missing="fill").build(seed=0)
    assert sum(len(client) for client in filled.train) + len(filled.test) == 120
    assert filled.input_shape == (5,), "sex now has a column for each word: neither is one of its own"


def test_a_file_that_changes_is_read_again(path: str) -> None:
    before = table(path).build(seed=0).clients
    write(Path(path), clinics(9))
    assert (before, table(path).build(seed=0).clients) == (6, 9)


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"client": "clinik"}, r"no column 'clinik'. Did you mean 'clinic'\? It has clinic, age"),
        ({"target": "back"}, "no column 'back'"),
        ({"features": ("age", "height")}, "no column 'height'"),
        ({"features": ("age", "returned")}, "'returned', which has another part to play"),
        ({"categories": ("returned",)}, "'returned' is none"),
        ({"features": ("age",), "categories": ("ward",)}, "'ward', which is not among the features"),
        ({"task": "regression"}, "regression needs a target of numbers, but words such as 'no'"),
        ({"target": "visits"}, r"whole numbers 0, 1, 2, 3, 4, ... could be classes or amounts"),
        ({"clients": 7}, "7 clients were asked for, but 6 of the 6"),
        ({"min_samples": 21}, "but 0 of the 6 in column 'clinic' have min_samples = 21"),
        ({"split": "sex"}, "a split says train or test, but f, m came"),
        ({"categories": ("age",), "max_categories": 10}, "different words are more than max_categories = 10"),
        ({"target": "age", "task": "classification", "max_categories": 10}, "more classes than max_categories"),
        ({"path": "nowhere.csv"}, "no such file"),
        ({"test_fraction": 1.0}, "test_fraction"),
        ({"task": "guess"}, "task of table must be one of"),
        ({"missing": "ignore"}, "missing of table must be one of"),
    ],
)
def test_mistakes_get_a_sentence(path: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        table(**{"path": path, **options}).build(seed=0)


@pytest.mark.parametrize(
    ("column", "cell", "says"),
    [
        (1, "forty", "column 'age', row 12: expected a number as in 99% of the column, but 'forty' came"),
        (1, "inf", "column 'age', row 12: expected a finite number"),
        (5, "", "column 'returned', row 12: the cell is empty"),
        (0, "", "column 'clinic', row 12: the cell is empty"),
    ],
)
def test_a_wrong_cell_is_named(tmp_path: Path, column: int, cell: str, says: str) -> None:
    rows = [list(row) for row in clinics()]
    rows[10][column] = cell
    place = write(tmp_path / "wrong.csv", [tuple(row) for row in rows])
    with pytest.raises(InputError, match=says):
        table(place).build(seed=0)


def test_one_word_among_many_numbers_is_never_said_to_be_none(tmp_path: Path) -> None:
    rows = [list(row) for row in clinics()] * 4
    rows[10][1] = "forty"
    with pytest.raises(InputError, match="expected a number as in 99% of the column, but 'forty' came"):
        table(write(tmp_path / "long.csv", [tuple(row) for row in rows])).build(seed=0)


def test_names_may_mix_numbers_and_words(tmp_path: Path) -> None:
    rows = [(*row[:4], "X1" if place == 10 else row[4], row[5]) for place, row in enumerate(clinics())]
    place = write(tmp_path / "wards.csv", rows)
    with pytest.raises(InputError, match="list the column under `categories`"):
        table(place).build(seed=0)
    assert table(place, categories=("ward",)).build(seed=0).input_shape == (6,)


def test_dates_and_broken_files_are_refused(path: str, tmp_path: Path) -> None:
    rows = [(*row[:4], f"2026-01-{1 + n % 28:02d}", row[5]) for n, row in enumerate(clinics())]
    with pytest.raises(InputError, match="expected numbers or words, but dates or times came: name it in `leave_out`"):
        table(write(tmp_path / "dates.csv", rows)).build(seed=0)
    ragged = tmp_path / "ragged.csv"
    ragged.write_text("clinic,age,returned\na,1,yes\nb,2\n")
    with pytest.raises(InputError, match="expected a CSV file with a header, but it cannot be read"):
        table(str(ragged)).build(seed=0)
    fake = tmp_path / "fake.parquet"
    fake.write_text("no parquet")
    with pytest.raises(InputError, match="expected a parquet file"):
        table(str(fake)).build(seed=0)
    twice = tmp_path / "twice.csv"
    twice.write_text("clinic,age,age,returned\na,1,1,yes\n")
    with pytest.raises(InputError, match="two columns are called 'age'"):
        table(str(twice)).build(seed=0)
    with pytest.raises(InputError, match="at least one row"):
        table(write(tmp_path / "empty.csv", [])).build(seed=0)


# -- end to end --------------------------------------------------------------------------------------------


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """Run the command line as a user does; return what it exits with."""
    monkeypatch.setattr("sys.argv", ["fedpace", *arguments])
    with pytest.raises(SystemExit) as ending:
        main()
    return ending.value.code or 0


EXAMPLE = Path(__file__).parents[2] / "examples" / "own_table"


def test_the_example_leads_from_a_csv_to_a_page_with_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = (EXAMPLE / "visits.toml").read_text(encoding="utf-8")
    assert experiment.count("\n") == 8, "eight lines, as the document says"
    document = (EXAMPLE.parents[1] / "docs" / "own-tables.md").read_text(encoding="utf-8")
    assert f"```toml\n{experiment}```" in document
    monkeypatch.chdir(EXAMPLE)
    out = tmp_path / "visits"
    assert call(monkeypatch, "compare", "visits.toml", "--seeds", "1", "--out", str(out), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["label"] for row in found["schemes"]} == {"random", "fed-cs", "pace"}
    assert "visits" in (out / "report.html").read_text(encoding="utf-8")


def test_runs_are_reported_elsewhere_and_without_the_table(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.toml").write_text(
        """name = "short"
data = { name = "table", path = "visits.csv", client = "clinic", target = "returned" }
model = { name = "softmax" }
delays = { name = "constant" }
stop = { target = 0.99, max_rounds = 2 }
selectors = [{ name = "random", k = 2 }]
"""
    )
    assert call(monkeypatch, "compare", "short.toml", "--out", "out", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    Path(path).unlink()
    monkeypatch.chdir(tmp_path.parent)
    assert call(monkeypatch, "report", str(tmp_path / "out"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["schemes"] == made["schemes"]


def test_regression_learns_and_a_mistake_in_the_table_ends_with_one_line(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = tmp_path / "ages.toml"
    experiment.write_text(
        f'''name = "ages"
data = {{ name = "table", path = "{path}", client = "clinic", target = "age", features = ["returned", "visits"] }}
model = {{ name = "linear", bias = true }}
delays = {{ name = "devices" }}
training = {{ lr = 0.1 }}
stop = {{ max_rounds = 8 }}
selectors = [{{ name = "random", k = 3 }}, {{ name = "pace" }}]
'''
    )
    assert call(monkeypatch, "compare", str(experiment), "--out", str(tmp_path / "out"), "--json") == 0
    capsys.readouterr()
    tested = table(path, target="age", features=("returned", "visits")).build(seed=0).test.targets
    for label in ("random", "pace"):
        first, *_, last = read_run(tmp_path / "out" / label / "seed-0").rounds
        assert first.metric is not None
        assert last.metric is not None
        assert first.metric == pytest.approx(np.mean(tested**2)), "the initial model says the mean: 1 - R^2"
        assert last.metric < 0.75 * first.metric, "who returns is old"
    experiment.write_text(experiment.read_text().replace('"visits"]', '"visit"]'))
    assert call(monkeypatch, "compare", str(experiment), "--out", str(tmp_path / "other")) != 0
    assert "no column 'visit'. Did you mean 'visits'?" in " ".join(capsys.readouterr().err.split())


def test_a_file_with_semicolons_says_so(path: str, tmp_path: Path) -> None:
    other = tmp_path / "semicolons.csv"
    other.write_text(Path(path).read_text(encoding="utf-8").replace(",", ";"), encoding="utf-8")
    with pytest.raises(InputError, match="separated by semicolons: write it with commas"):
        table(str(other)).build(seed=0)
    with pytest.raises(InputError, match="separated by semicolons"):
        read_table(str(other))


def test_columns_are_left_out_by_name(path: str) -> None:
    chosen = table(path, features=("age", "visits")).build(seed=0)
    others = table(path, leave_out=("sex", "ward")).build(seed=0)
    assert np.array_equal(others.test.inputs, chosen.test.inputs)
    with pytest.raises(InputError, match=r"no column 'sxe'. Did you mean 'sex'"):
        table(path, leave_out=("sxe",)).build(seed=0)
    with pytest.raises(InputError, match="leave_out of table may not name the column 'clinic', which is needed"):
        table(path, leave_out=("clinic",))
    with pytest.raises(InputError, match="give one of them"):
        table(path, features=("age",), leave_out=("sex",))


def test_clients_keep_their_names(path: str) -> None:
    data = table(path).build(seed=0)
    assert data.names == tuple(f"clinic {number}" for number in range(6))
    few = table(path, clients=3).build(seed=1)
    assert few.names is not None
    _, *rows = csv.reader(Path(path).read_text(encoding="utf-8").splitlines())
    for name, client in zip(few.names, few.train, strict=True):
        assert len(client) == 16
        assert name in {row[0] for row in rows}


def test_a_list_is_written_with_commas_on_the_command_line(path: str) -> None:
    """A shell takes away the quotes of TOML's lists."""
    from typer.testing import CliRunner

    from fedpace.cli import app

    asked = ["data", "show", "table", "-o", f"path={path}", "-o", "client=clinic", "-o", "target=returned"]
    shown = CliRunner().invoke(app, [*asked, "-o", "features=age, visits", "--json"], catch_exceptions=False).stdout
    other = CliRunner().invoke(app, [*asked, "-o", "leave_out=sex,ward", "--json"], catch_exceptions=False).stdout
    first, second = json.loads(shown), json.loads(other)
    assert first.pop("options")["features"] == ["age", "visits"]
    assert second.pop("options")["leave_out"] == ["sex", "ward"]
    assert first == second
