"""The command line, run for real on tiny experiments: what is printed where, what is written, and what is left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from tiny import TINY

import fedpace
from fedpace._base import registry
from fedpace.records.run import find_runs, read_run


def strict(text):
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def everything(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# -- compare -------------------------------------------------------------------------------------------------

RUNS = [
    f"{label}/seed-{seed}/{name}"
    for label in ("random", "submodular")
    for seed in (0, 1)
    for name in ("model.safetensors", "rounds.jsonl", "run.json")
]


def test_compare_prints_a_table_and_writes_the_reports(call, tiny, tmp_path):
    out = tmp_path / "out"
    code, printed, errors = call("compare", tiny, "--out", out)
    assert (code, errors) == (0, "")
    assert everything(out) == sorted(["comparison.json", "plan.json", "report.html", "report.png", *RUNS])
    assert "tiny: quadratic with linear under lognormal delays; random, submodular; 2 seeds; into" in printed
    assert "[4/4] submodular, seed 1: 3 rounds, ended at" in printed
    for name in ("random", "submodular", "report.html", "report.png", "comparison.json"):
        assert name in printed
    comparison = strict((out / "comparison.json").read_text())
    assert comparison
    page = (out / "report.html").read_text()
    assert page.startswith("<!doctype html>") or page.startswith("<!DOCTYPE html>")
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")


def test_compare_as_json_is_one_object_and_nothing_else(call, tiny, tmp_path):
    code, printed, errors = call("compare", tiny, "--out", tmp_path / "out", "--device", "auto", "--json")
    assert code == 0
    found = strict(printed)
    assert found.pop("folder") == str(tmp_path / "out")
    assert found.pop("devices") == ["cpu"], "where clients were trained"
    assert errors == ""
    assert found == strict((tmp_path / "out" / "comparison.json").read_text())


def test_compare_takes_overrides(call, tiny, tmp_path):
    out = tmp_path / "out"
    options = ["--selectors", "submodular, delayhet-sampling", "--seeds", 1, "--max-rounds", 2, "--delays", "constant"]
    tiny.write_text(TINY.replace("clients = 5", "clients = 12"))
    code, said, _ = call("compare", tiny, "--out", out, "--target", "1e-9", "--device", "auto", *options)
    assert code == 0
    assert "Clients were trained on cpu." in said
    runs = find_runs(out)
    assert sorted((run.info.label, run.info.seed) for run in runs) == [("delayhet-sampling", 0), ("submodular", 0)]
    for run in runs:
        assert len(run.rounds) == 3
        assert run.info.target == 1e-9
        assert run.info.experiment["delays"]["name"] == "constant"


def test_runs_go_into_a_folder_of_their_own(call, tiny, tmp_path):
    assert call("compare", tiny, "--seeds", 1, "--rounds", 1)[0] == 0  # as --max-rounds
    (folder,) = (tmp_path / "home" / "runs").iterdir()
    assert folder.name.startswith("tiny-")


def test_the_same_command_gives_the_same_rounds(call, tiny, tmp_path):
    for name in ("one", "two"):
        assert call("run", tiny, "--out", tmp_path / name, "--json")[0] == 0
    one, two = ((tmp_path / name / "rounds.jsonl").read_bytes() for name in ("one", "two"))
    assert one == two


# -- run and report ------------------------------------------------------------------------------------------


def test_run(call, tiny, tmp_path):
    out = tmp_path / "out"
    code, printed, errors = call("run", tiny, "--selector", "submodular", "--seed", 5, "--out", out)
    assert (code, errors) == (0, "")
    assert "submodular, seed 5: finished after 3 rounds and " in printed
    assert f"Recorded in {out}" in printed
    assert everything(out) == ["model.safetensors", "rounds.jsonl", "run.json"]
    assert read_run(out).info.seed == 5


def test_run_takes_the_first_scheme_unless_told(call, tiny, tmp_path):
    code, printed, errors = call("run", tiny, "--out", tmp_path / "out", "--json")
    assert (code, errors) == (0, "")
    found = strict(printed)
    assert found["label"] == "random"
    assert (found["seed"], found["rounds"], found["status"], found["target"]) == (0, 3, "finished", None)
    assert found["virtual_seconds"] > 0
    assert found["loss"] > 0


def test_report_builds_everything_anew(call, tiny, tmp_path):
    out = tmp_path / "out"
    call("compare", tiny, "--out", out)
    before = (out / "comparison.json").read_bytes()
    for name in ("comparison.json", "report.html", "report.png"):
        (out / name).unlink()
    code, printed, errors = call("report", out)
    assert (code, errors) == (0, "")
    assert "submodular" in printed
    assert (out / "comparison.json").read_bytes() == before
    assert (out / "report.html").exists()
    assert (out / "report.png").exists()
    code, printed, _ = call("report", out, "--json")
    assert strict(printed)["folder"] == str(out)


def test_report_of_one_run(call, tiny, tmp_path):
    call("run", tiny, "--out", tmp_path / "out")
    assert call("report", tmp_path / "out")[0] == 0


# -- resuming and several delay models -----------------------------------------------------------------------


def interrupt(folder):
    """Make a finished run look as if it had been stopped before its last round."""
    raw = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(raw | {"status": "interrupted"}))
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(b"".join(lines[:-1]))


def test_resume_of_a_comparison(call, tiny, tmp_path):
    out = tmp_path / "out"
    call("compare", tiny, "--out", out)
    names = [name for name in everything(out) if name.endswith((".jsonl", "comparison.json", ".safetensors"))]
    before = {name: (out / name).read_bytes() for name in names}
    interrupt(out / "random" / "seed-1")
    shutil.rmtree(out / "submodular" / "seed-1")
    (out / "comparison.json").unlink()
    code, printed, errors = call("resume", out)
    assert (code, errors) == (0, "")
    assert f"{out}: 4 runs, 2 finished already, 2 to go" in printed
    assert "[2/2] submodular, seed 1: 3 rounds, ended at" in printed
    assert {name: (out / name).read_bytes() for name in names} == before
    code, printed, errors = call("resume", out)
    assert (code, errors) == (0, "")
    assert f"{out}: 4 runs, all finished already" in printed


def test_resume_of_a_run(call, tiny, tmp_path):
    out = tmp_path / "out"
    call("run", tiny, "--out", out)
    before = (out / "rounds.jsonl").read_bytes()
    interrupt(out)
    code, printed, errors = call("resume", out, "--json")
    assert (code, errors) == (0, "")
    assert (strict(printed)["status"], strict(printed)["rounds"]) == ("finished", 3)
    assert (out / "rounds.jsonl").read_bytes() == before
    assert "1 run, all finished already" in call("resume", out)[1]


def test_resume_of_a_folder_above_comparisons(call, tiny, tmp_path):
    """Two comparisons share the labels of their schemes: their runs must not be mixed, nor a report of both written."""
    one, two = tmp_path / "runs" / "one", tmp_path / "runs" / "two"
    call("compare", tiny, "--out", one, "--seeds", 1)
    interrupt(one / "random" / "seed-0")
    code, printed, _ = call("resume", tmp_path / "runs")
    assert (code, len(find_runs(one))) == (0, 2)
    assert f"{one}: 2 runs, 1 finished already, 1 to go" in " ".join(printed.split())
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["one"]
    call("compare", tiny, "--out", two, "--seeds", 1)
    code, _, errors = call("resume", tmp_path / "runs")
    assert code == 2
    assert "holds 2 comparisons; resume one of them:" in errors
    assert f"fedpace resume {two}" in errors


def test_resume_of_nothing(call, tmp_path):
    code, _, errors = call("resume", tmp_path / "nowhere")
    assert code == 2
    assert errors.startswith("error: expected a run to resume in")


def test_compare_under_several_delay_models(call, tiny, tmp_path):
    out = tmp_path / "out"
    options = ["--delays", "uniform, lognormal", "--seeds", 1, "--target", "1e9"]
    code, printed, errors = call("compare", tiny, "--out", out, *options)
    assert (code, errors) == (0, "")
    assert "under uniform, lognormal delays" in printed
    assert "2 delay models" in printed
    assert "[4/4] " in printed
    assert {path.name for path in out.iterdir()} == {"uniform", "lognormal", "plan.json", "comparison.json"}
    assert (out / "lognormal" / "report.html").exists()
    content = strict((out / "comparison.json").read_text())
    assert list(content["delays"]) == ["uniform", "lognormal"]
    assert read_run(out / "lognormal" / "random" / "seed-0").info.clocked_from == "uniform"
    assert read_run(out / "lognormal" / "submodular" / "seed-0").info.clocked_from is None
    assert strict(call("report", out, "--json")[1]) == {"folder": str(out), "devices": ["cpu"], **content}
    assert call("compare", tiny, "--delays", "uniform,uniform")[0] == 2


def test_evaluate_every(call, tiny, tmp_path):
    assert call("run", tiny, "--evaluate-every", 2, "--out", tmp_path / "out")[0] == 0
    rounds = read_run(tmp_path / "out").rounds
    assert [current.number for current in rounds if current.metric is not None] == [0, 2, 3]


# -- list ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["selectors", "delays", "datasets", "models"])
def test_list(call, kind):
    code, printed, errors = call("list", kind)
    assert (code, errors) == (0, "")
    names = getattr(registry, kind).names()
    for name in names:
        assert name in printed
    code, printed, errors = call("list", kind, "--json")
    assert (code, errors) == (0, "")
    entries = strict(printed)[kind]
    assert [entry["name"] for entry in entries] == names
    for entry in entries:
        assert entry["summary"]
        assert isinstance(entry["options"], dict)
        assert ("needs" in entry) == (kind == "selectors")


def test_list_shows_needs_and_defaults(call):
    entries = {entry["name"]: entry for entry in strict(call("list", "--json")[1])["selectors"]}
    plain = {"k": 10, "variant": "uniform-wor", "fedexp_exponent": 0.0, "momentum": False, "overcommit": 1.0}
    assert entries["random"]["options"] == plain
    assert entries["random"]["needs"] == []
    assert entries["delayhet-submodular"]["needs"] == ["delays", "feature moments"]


def test_list_of_something_else(call):
    code, printed, errors = call("list", "clients")
    assert code == 2
    assert printed == ""
    assert "selectors, delays, datasets" in errors


# -- the command itself --------------------------------------------------------------------------------------


def test_version(call):
    assert call("--version") == (0, fedpace.__version__ + "\n", "")


def test_help(call):
    code, printed, _ = call("--help")
    assert code == 0
    for command in ("compare", "run", "resume", "report", "list"):
        assert command in printed


def test_unknown_options_are_refused(call, tiny):
    code, printed, errors = call("compare", tiny, "--fast")
    assert code == 2
    assert printed == ""
    assert "--fast" in errors


def test_as_a_module(tmp_path):
    """The one test that starts a process: the entry point, with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-m", "fedpace", "run", "nowhere.toml"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: expected an experiment in nowhere.toml, but there is no such file\n"
    assert list(tmp_path.iterdir()) == []


def test_a_refused_experiment_overwrites_nothing(call, tiny, tmp_path):
    out = tmp_path / "out"
    assert call("compare", tiny, "--out", out, "--seeds", 1)[0] == 0
    before = {name: (out / name).read_bytes() for name in everything(out)}
    tiny.write_text(tiny.read_text() + '\n[[selectors]]\nname = "random"\nlabel = "too many"\nk = 999\n')
    assert call("compare", tiny, "--out", out, "--overwrite")[0] == 2
    assert call("run", tiny, "--selector", "too many", "--out", out, "--overwrite")[0] == 2
    assert {name: (out / name).read_bytes() for name in everything(out)} == before


def test_the_engine_is_recorded_and_changes_no_round(call, tiny, tmp_path):
    rounds = set()
    for engine, chosen in (("auto", "inline"), ("processes", "processes")):
        folder = tmp_path / engine
        call("run", tiny, "--engine", engine, "--workers", "1", "--out", folder, "--json")
        info = json.loads((folder / "run.json").read_text())
        assert (info["engine"]["name"], info["engine"]["workers"]) == (chosen, 1)
        rounds.add((folder / "rounds.jsonl").read_bytes())
    assert len(rounds) == 1


def test_two_runs_that_begin_within_a_second_have_folders_of_their_own(tmp_path):
    from fedpace.cli.commands import _unused

    folder = tmp_path / "digits-20300101-000000"
    assert _unused(folder) == folder
    folder.mkdir()
    assert _unused(folder).name == "digits-20300101-000000-2"
