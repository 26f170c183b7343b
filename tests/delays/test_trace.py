from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedpace._base.errors import InputError, MissingExtraError
from fedpace.delays.trace import TraceDelays

GOOD = "client,step,seconds\n0,0,10\n1,0,20\n0,1,30\n1,1,40\n"


@pytest.fixture
def trace(tmp_path: Path):
    def write(text: str, **options: str) -> TraceDelays:
        file = tmp_path / "trace.csv"
        file.write_text(text)
        return TraceDelays(file=str(file), **options)

    return write


def test_steps_means_and_the_round_trip_to_the_start(trace) -> None:
    model = trace(GOOD).build(2, model_bytes=0, seed=0)
    np.testing.assert_array_equal(model.draw(0), [10, 20])
    np.testing.assert_array_equal(model.draw(1), [30, 40])
    np.testing.assert_array_equal(model.draw(2), [10, 20])
    np.testing.assert_array_equal(model.expected(), [20, 30])
    with pytest.raises(ValueError, match="read-only"):
        model.draw(0)[0] = 1


def test_rows_in_any_order_and_other_columns(trace) -> None:
    model = trace("note,seconds,step,client\na,40,1,1\nb,20,0,1\nc,30,1,0\nd,10,0,0\n").read(2)
    np.testing.assert_array_equal(model.draw(1), [30, 40])


def test_the_seed_changes_nothing(trace) -> None:
    config = trace(GOOD)
    one, other = (config.build(2, model_bytes=0, seed=seed).draw(1) for seed in (0, 1))
    np.testing.assert_array_equal(one, other)


def test_absent_clients_have_their_mean_and_say_so(trace) -> None:
    text = "client,step,seconds,available\n0,0,10,1\n1,0,20,1\n0,1,,0\n1,1,40,true\n0,2,30,yes\n1,2,60,0\n"
    model = trace(text).read(2)
    np.testing.assert_array_equal(model.draw(1), [20, 40])
    np.testing.assert_array_equal(model.available(1), [False, True])
    np.testing.assert_array_equal(model.available(5), [True, False])
    np.testing.assert_array_equal(model.expected(), [20, 40])
    assert not model.crashes(0).any()
    draws = np.mean([model.draw(step) for step in range(3)], axis=0)
    np.testing.assert_allclose(draws, model.expected())


def test_a_gap_may_be_held(trace) -> None:
    text = "client,step,seconds\n0,0,10\n0,1,11\n0,2,12\n0,3,13\n1,1,21\n1,3,23\n"
    model = trace(text, gaps="hold").read(2)
    np.testing.assert_array_equal([model.draw(step)[1] for step in range(4)], [21, 21, 21, 23])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,step,seconds\n0,0,10\n1,0,20\n0,1,30\n", r"column 'step': client 1 has no row for step 1"),
        ("client,step,seconds\n0,0,10\n0,1,20\n", r"client 1 has no row at all"),
        ("client,step,seconds\n0,0,10\n2,0,20\n", r"row 3, column 'client': client 2 is unknown: there are 2"),
        ("client,step,seconds\n0,0,10\n1,0,-20\n", r"row 3, column 'seconds': .* above 0, but '-20' came"),
        ("client,step,seconds\n0,0,nan\n1,0,20\n", r"row 2, column 'seconds': .*'nan' came"),
        ("client,step,seconds\n0,0,0\n1,0,20\n", r"row 2, column 'seconds': .*'0' came"),
        ("client,step,seconds\n0,0,\n1,0,20\n", r"row 2, column 'seconds': .*'' came"),
        ("client,step,seconds\n0,0,1\n1,0.5,20\n", r"row 3, column 'step': expected a whole number"),
        ("client,step,seconds\nphone,0,1\n", r"row 2, column 'client': expected a whole number"),
        (
            "client,step,seconds\n0,0,1\n1,0,2\n0,0,3\n",
            r"row 4, column 'step': client 0 has a second row for step 0; .* row 2",
        ),
        ("client,step,seconds,available\n0,0,1,maybe\n", r"row 2, column 'available': .*'maybe' came"),
        ("client,step,seconds,available\n0,0,1,1\n1,0,,0\n", r"client 1 has no seconds in any step"),
        ("client,step\n0,0\n", r"trace.csv: column 'seconds' is missing"),
        ("client,step,seconds\n0,0,1\n1,100000000,2\n", r"leave most of 2 clients x 100000001 steps empty"),
    ],
)
def test_bad_traces(trace, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        trace(text).build(2, model_bytes=0, seed=0)


def test_bad_options() -> None:
    with pytest.raises(InputError, match="gaps of trace must be one of"):
        TraceDelays(gaps="ignore")
    with pytest.raises(InputError, match="needs a file"):
        TraceDelays().build(2, model_bytes=0, seed=0)
    with pytest.raises(InputError, match="there is no such file"):
        TraceDelays(file="none.csv").build(2, model_bytes=0, seed=0)
    with pytest.raises(InputError, match=r"number of clients|at least one client"):
        TraceDelays(file="none.csv").build(0, model_bytes=0, seed=0)


def test_parquet_says_the_same(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "trace.parquet"
    columns = {"client": [0, 1, 0, 1], "step": [0, 0, 1, 1], "seconds": [10.0, 20.0, None, 40.0]}
    table = {**columns, "available": [True, True, False, True]}
    parquet.write_table(pyarrow.table(table), file)
    model = TraceDelays(file=str(file)).read(2)
    np.testing.assert_array_equal(model.draw(1), [10, 40])
    np.testing.assert_array_equal(model.available(1), [False, True])
    parquet.write_table(pyarrow.table(columns), file)
    with pytest.raises(InputError, match=r"trace.parquet, row 3, column 'seconds': .*None came"):
        TraceDelays(file=str(file)).read(2)
    file.write_bytes(b"not parquet")
    with pytest.raises(InputError, match=r"expected a parquet file"):
        TraceDelays(file=str(file)).read(2)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "trace.parquet"
    file.write_bytes(b"x")
    with pytest.raises(MissingExtraError, match=r"fedpace\[data\]"):
        TraceDelays(file=str(file)).read(2)


def test_a_csv_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(b"client,step,seconds\n\xff\xfe\x00,1,2\n")
    with pytest.raises(InputError, match="expected a CSV file in UTF-8"):
        TraceDelays(file=str(file)).read(2)
