"""The command line where something is wrong: one line that says what, and nothing is lost or left behind."""

from __future__ import annotations

import errno
import json
import os

import pytest
from tiny import TINY

from fedpace.records.run import find_runs


def strict(text):
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def everything(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# -- overwriting ---------------------------------------------------------------------------------------------


def test_runs_are_overwritten_only_on_demand(call, tiny, tmp_path):
    out = tmp_path / "out"
    call("compare", tiny, "--out", out, "--seeds", 1)
    before = {name: (out / name).read_bytes() for name in everything(out)}
    code, _, errors = call("run", tiny, "--out", out)
    assert code == 2
    assert errors == f"error: {out} holds runs already: give another folder, or overwrite them (--overwrite)\n"
    assert {name: (out / name).read_bytes() for name in everything(out)} == before
    assert call("run", tiny, "--out", out, "--overwrite")[0] == 0
    assert len(find_runs(out)) == 1, "the runs that were there are gone"


def test_reports_of_another_question_are_overwritten_too(call, tiny, tmp_path):
    out = tmp_path / "out"
    call("compare", tiny, "--out", out, "--seeds", 1)
    assert call("report", out, "--target", 0.5, "--at", 2)[0] == 0
    assert any("-target-0.5" in name for name in map(str, everything(out)))
    assert call("run", tiny, "--out", out, "--overwrite")[0] == 0
    assert not any("-target-0.5" in name for name in map(str, everything(out)))


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_a_folder_of_somebody_else_is_left_alone(call, tiny, tmp_path, overwrite):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years")
    code, _, errors = call("compare", tiny, "--out", out, *overwrite)
    assert code == 2
    foreign = out / "thesis.tex"
    assert errors == f"error: {out} holds files that are not fedpace's, such as {foreign}: give another folder\n"
    assert (out / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize("place", ["thesis.tex", "runs/notes.txt", "runs/x/seed-0.txt"])
def test_files_beside_runs_are_never_overwritten(call, tiny, tmp_path, place):
    out = tmp_path / "out"
    assert call("run", tiny, "--out", out / "runs" / "x")[0] == 0
    (out / place).write_text("years")
    before = everything(out)
    assert call("run", tiny, "--out", out, "--overwrite")[0] == 2
    assert everything(out) == before


def test_a_folder_that_cannot_be_written_to_is_said_to_need_another(call, tiny, tmp_path, monkeypatch):
    def refuse(path, content):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("fedpace.runner.jobs.write_atomically", refuse)
    code, _, errors = call("compare", tiny, "--out", tmp_path / "out", "--seeds", 1)
    assert code == 2
    why = f"cannot write {tmp_path / 'out' / 'plan.json'}: {os.strerror(errno.EROFS)}"
    assert errors == f"error: {why}. Nothing was recorded yet: give another folder with --out\n"


def test_a_mistake_in_the_last_scheme_shows_before_the_first_runs(call, tiny, tmp_path):
    tiny.write_text(tiny.read_text() + '\n[[selectors]]\nname = "random"\nlabel = "too many"\nk = 999\n')
    code, _, errors = call("compare", tiny, "--out", tmp_path / "out")
    assert code == 2
    assert "k = 999" in errors
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_is_taken(call, tiny, tmp_path):
    (tmp_path / "out").mkdir()
    assert call("run", tiny, "--out", tmp_path / "out")[0] == 0


# -- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (("lr = 0.05", "rate = 0.05"), [], "[training] has no key 'rate'."),
        (("k = 2", 'k = "2"'), [], "number 1: k is '2', but it should be a whole number"),
        (('name = "random"', 'name = "randm"'), [], "there is no scheme 'randm'. Did you mean 'random'?"),
        (("seeds = 2", "seeds = [1,"), [], "tiny.toml is not TOML"),
        (("k = 2", "k = 6"), [], "random is asked for k = 6 clients, but there are only 5"),
        (("clients = 5", "clients = 0"), [], "clients of quadratic must be at least 1, but 0 came"),
        (("", ""), ["--selectors", ","], "--selectors names no scheme"),
        (("", ""), ["--seeds", "0"], "--seeds must be at least 1, but 0 came"),
        (("", ""), ["--delays", "none"], "there is no delay model 'none'"),
        (("", ""), ["--max-rounds", "0"], "max_rounds of stop must be at least 1"),
        (("", ""), ["--rounds", "0"], "max_rounds of stop must be at least 1"),
        (
            ('label = "submodular"', 'label = "submodular"\nmax_clients = 1\nridge = 0.0'),
            ["--selectors", "submodular", "--free-warmup"],  # a charged one trains, and is kept
            "no set is feasible",
        ),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(call, tiny, tmp_path, change, options, words):
    tiny.write_text(TINY.replace(*change, 1))
    code, printed, errors = call("compare", tiny, *options, "--json")
    assert code == 2
    assert printed == ""
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert words in errors
    assert everything(tmp_path) == ["tiny.toml"]
    assert list((tmp_path / "home").iterdir()) == []


def test_a_missing_experiment(call, tmp_path):
    code, _, errors = call("compare", tmp_path / "none.toml")
    assert code == 2
    assert errors == f"error: expected an experiment in {tmp_path / 'none.toml'}, but there is no such file\n"
    assert "for the scheme of that name say --selectors pace" in call("compare", "pace")[2]
    (tmp_path / "mine.toml").touch()
    assert call("compare", tmp_path / "mine")[2].endswith(f"no such file. Did you mean {tmp_path / 'mine.toml'}?\n")


def test_a_report_of_nothing(call, tmp_path):
    code, _, errors = call("report", tmp_path / "nowhere")
    assert code == 2
    assert errors.startswith("error: expected runs below")
    assert not (tmp_path / "nowhere").exists()


def test_a_bad_seed(call, tiny):
    assert call("run", tiny, "--seed", "-1")[::2] == (2, "error: --seed must be at least 0, but -1 came\n")


@pytest.mark.parametrize("below", ["file", "file/deeper"])
def test_an_out_that_is_a_file(call, tiny, tmp_path, below):
    (tmp_path / "file").write_text("x")
    code, _, errors = call("run", tiny, "--out", tmp_path / below)
    assert code == 2
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert (tmp_path / "file").read_text() == "x"


def test_divergence_is_a_result(call, tiny, tmp_path):
    tiny.write_text(TINY.replace("lr = 0.05", "lr = 1e30").replace("epochs = 1", "epochs = 9"))
    code, printed, errors = call("compare", tiny, "--out", tmp_path / "out")
    assert (code, errors) == (0, "")
    assert "diverged" in printed
    assert {run.info.status for run in find_runs(tmp_path / "out")} == {"diverged"}
