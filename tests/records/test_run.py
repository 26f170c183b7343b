"""Run folders: one seed is one sequence of bytes, crashes lose a round at most, mistakes leave nothing behind."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tiny import TABLE

from fedpace._base.errors import InputError
from fedpace.config import parse_experiment
from fedpace.records.run import Round, RunInfo, find_runs, plain, read_run, round_line
from fedpace.records.writer import RunWriter, commit, versions
from fedpace.runner import run_all, run_one

SCHEMES = [*TABLE["selectors"], {"name": "delayhet-sampling", "k": 2}]


def experiment(**changes):
    return parse_experiment(TABLE | {"selectors": SCHEMES} | changes, "test")


def info(**changes):
    fields = {
        "label": "toy",
        "selector": "random",
        "options": {"k": 3},
        "seed": 0,
        "metric": "accuracy",
        "direction": "up",
        "target": 0.9,
        "experiment": {"name": "toy"},
    }
    return RunInfo(**(fields | changes))


def a_round(number, metric=0.5, **changes):
    return Round(
        number, 10.0 * number, 10.0, 0.0, metric, 1.0, **({"clients": (1, 2), "weights": (0.5, 0.5)} | changes)
    )


# -- what is written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", range(3))
def test_one_seed_is_one_sequence_of_bytes(tmp_path, position):
    chosen = experiment()
    scheme = chosen.schemes[position]
    one = run_one(chosen, scheme, 7, tmp_path / "one")
    two = run_one(chosen, scheme, 7, tmp_path / "two")
    other = run_one(chosen, scheme, 8, tmp_path / "other")
    first, second, third = ((tmp_path / name / "rounds.jsonl").read_bytes() for name in ("one", "two", "other"))
    assert first == second
    assert first != third
    assert len(first.splitlines()) == len(one.rounds) == 4
    assert one.rounds == two.rounds != other.rounds
    assert not np.isnan([current.metric for current in one.rounds]).any()


def test_what_was_run_is_written_down(tmp_path):
    chosen = experiment(stop={"max_rounds": 3, "target": -1.0})
    record = run_one(chosen, chosen.schemes[1], 7, tmp_path)
    raw = json.loads((tmp_path / "run.json").read_text())
    assert raw["format"] == 1
    assert (raw["label"], raw["selector"], raw["seed"]) == ("submodular", "delayhet-submodular", 7)
    assert raw["options"] == dataclasses.asdict(chosen.schemes[1].selector)
    assert (raw["metric"], raw["direction"], raw["target"]) == ("loss", "down", -1.0)
    assert raw["experiment"]["training"]["lr"] == 0.05
    assert raw["experiment"]["training"]["momentum"] == 0.0, "defaults are written out"
    assert [scheme["name"] for scheme in raw["experiment"]["selectors"]] == [
        "random",
        "delayhet-submodular",
        "delayhet-sampling",
    ]
    assert len(raw["expected_delays"]) == 5
    assert {"python", "platform", "fedpace", "numpy", "torch"} <= set(raw["versions"])
    assert raw["status"] == "finished"
    assert raw["wall_seconds"] >= 0
    assert raw["started"].endswith("+00:00")
    assert record.info.expected_delays == tuple(raw["expected_delays"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "rounds.jsonl", "run.json"]


def test_how_a_run_ended(tmp_path):
    chosen = experiment(stop={"max_rounds": 3, "target": 1e9})
    record = run_one(chosen, chosen.schemes[0], 0, tmp_path / "reached")
    assert record.info.status == "reached"
    assert record.reached == record.rounds[0]
    chosen = experiment(training={"epochs": 5, "batch": 0, "lr": 1e30})
    record = run_one(chosen, chosen.schemes[0], 0, tmp_path / "diverged")
    assert record.info.status == "diverged"
    assert "lower lr" in record.info.message
    assert record.reached is None


def test_all_runs_seeds_outermost(tmp_path):
    chosen = experiment(stop={"max_rounds": 1})
    seen = []
    records = run_all(chosen, tmp_path, lambda job, current: seen.append((job.seed, job.scheme.label, current.number)))
    assert [(r.info.seed, r.info.label) for r in records] == [
        (seed, label) for seed in (0, 1) for label in ("random", "submodular", "delayhet-sampling")
    ]
    assert seen[:3] == [(0, "random", 0), (0, "random", 1), (0, "submodular", 0)]
    assert (tmp_path / "submodular" / "seed-1" / "run.json").exists()
    found = find_runs(tmp_path)
    assert len(found) == 6
    assert [(r.info.seed, r.info.label) for r in found] == [(r.info.seed, r.info.label) for r in records]
    by_run = {(record.info.label, record.info.seed): record.rounds for record in found}
    assert by_run == {(record.info.label, record.info.seed): record.rounds for record in records}


def test_rounds_are_on_disk_as_they_happen(tmp_path):
    with RunWriter(tmp_path, info()) as writer:
        assert read_run(tmp_path).info.status == "running"
        for number in range(3):
            writer.add(a_round(number))
            assert len(read_run(tmp_path).rounds) == number + 1
        writer.finish("finished")
    assert read_run(tmp_path).info.status == "finished"


def test_rounds_come_back_as_they_were(tmp_path):
    rounds = (
        a_round(0, clients=(), weights=()),
        a_round(1, facts={"B_S": 0.5, "word": "yes", "none": None, "flag": True}, objective=1.25, failed=(2,)),
        a_round(2, mode="delta", train_loss=0.3, predicted_seconds=4.5, status='odd "status"\nä'),
    )
    with RunWriter(tmp_path, info()) as writer:
        for current in rounds:
            writer.add(current)
    assert read_run(tmp_path).rounds == rounds


def test_a_round_is_one_line_of_strict_json():
    line = round_line(
        a_round(1, objective=math.inf, facts={"x": np.float64(math.nan), "k": np.int64(3)}, status="a\nb")
    )
    assert "\n" not in line
    raw = json.loads(line, parse_constant=lambda text: pytest.fail(text))
    assert raw["objective"] is None
    assert raw["facts"] == {"x": None, "k": 3}


def test_plain():
    assert plain({1: (np.float32(0.5), [np.bool_(True)], -math.inf)}) == {"1": [0.5, [True], None]}


# -- crashes and mistakes ----------------------------------------------------------------------------------


def written(folder, count=3, status="finished"):
    with RunWriter(folder, info()) as writer:
        for number in range(count):
            writer.add(a_round(number))
        writer.finish(status)
    return folder / "rounds.jsonl"


def test_half_a_line_at_the_end_is_ignored(tmp_path):
    path = written(tmp_path, status="interrupted")
    whole = path.read_bytes()
    for cut in (1, 5, 40):
        path.write_bytes(whole[:-cut])
        assert len(read_run(tmp_path).rounds) == 2


@pytest.mark.parametrize("damage", [b"not json", b"[1, 2]", b"3", b'{"number": 1}', b'{"no": 1}', b"", b"\xff\xfe"])
def test_a_damaged_line_is_named(tmp_path, damage):
    path = written(tmp_path, status="interrupted")
    lines = path.read_bytes().split(b"\n")
    lines[1] = damage
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(InputError, match=r"line 2 of .*rounds\.jsonl is not a round"):
        read_run(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": 2}', "null"])
def test_another_format(tmp_path, content):
    written(tmp_path)
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json is not a run of format 1"):
        read_run(tmp_path)


def test_a_damaged_info(tmp_path):
    written(tmp_path)
    path = tmp_path / "run.json"
    raw = json.loads(path.read_text())
    for change in ({"extra": 1}, {"expected_delays": 3}):
        path.write_text(json.dumps(raw | change))
        with pytest.raises(InputError, match=r"run\.json is damaged"):
            read_run(tmp_path)
    del raw["expected_delays"]
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r"run\.json is damaged: 'expected_delays'"):
        read_run(tmp_path)


def test_a_run_without_rounds_yet(tmp_path):
    written(tmp_path, status="running").unlink()
    assert read_run(tmp_path).rounds == ()


def test_a_run_is_never_overwritten(tmp_path):
    path = written(tmp_path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="holds a run already: choose another folder, or remove it first"):
        RunWriter(tmp_path, info())
    assert path.read_bytes() == before


def test_an_error_before_the_first_round_leaves_nothing(tmp_path):
    folder = tmp_path / "a" / "b" / "c"

    def refuse():
        with RunWriter(folder, info()) as writer:
            writer.add(a_round(0))
            raise InputError("refused")

    with pytest.raises(InputError, match="refused"):
        refuse()
    assert list(tmp_path.iterdir()) == []


def test_an_error_before_the_first_round_leaves_what_was_there_before(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("keep")
    with pytest.raises(InputError), RunWriter(folder, info()):
        raise InputError("refused")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("error", "message"), [(InputError("later"), "later"), (KeyboardInterrupt(), "KeyboardInterrupt")], ids=repr
)
def test_an_error_later_on_keeps_the_rounds(tmp_path, error, message):
    def crash():
        with RunWriter(tmp_path, info()) as writer:
            writer.add(a_round(0))
            writer.add(a_round(1))
            raise error

    with pytest.raises(type(error)):
        crash()
    record = read_run(tmp_path)
    assert record.info.status == "interrupted"
    assert record.info.message == message
    assert len(record.rounds) == 2


def test_an_interruption_before_the_first_round_is_kept_as_such(tmp_path):
    def crash():
        with RunWriter(tmp_path, info()):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crash()
    assert read_run(tmp_path).info.status == "interrupted"


def test_a_scheme_that_cannot_choose_leaves_nothing(tmp_path):
    """Infeasible in the first round: an error of ours, after the folder was made."""
    chosen = experiment(
        data={"name": "quadratic", "clients": 6, "samples": 2, "test_samples": 2, "dimension": 5},
        selectors=[{"name": "delayhet-submodular", "max_clients": 1, "ridge": 0.0}],
        clock={"charge_warmup": False},  # a charged warm-up trains, and is kept
    )
    with pytest.raises(Exception, match="no set is feasible"):
        run_one(chosen, chosen.schemes[0], 0, tmp_path / "runs" / "one")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"cannot write .*file"), RunWriter(tmp_path / "file" / "run", info()):
        pass
    assert (tmp_path / "file").read_text() == "x"
    with pytest.raises(InputError, match=r"cannot write a run into .*: .*too long"):
        RunWriter(tmp_path / ("x" * 300) / "seed-0", info())


# -- finding -----------------------------------------------------------------------------------------------


def test_no_runs(tmp_path):
    with pytest.raises(InputError, match=r"expected runs below .* \(folders with a run\.json\), but there are none"):
        find_runs(tmp_path)
    with pytest.raises(InputError, match="but there is no such folder"):
        find_runs(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("direction", "target", "number"), [("up", 0.5, 1), ("up", 0.95, None), ("down", 0.2, 0), ("up", None, None)]
)
def test_the_round_that_reached_the_target(tmp_path, direction, target, number):
    with RunWriter(tmp_path, info(direction=direction, target=target)) as writer:
        for position, metric in enumerate((0.1, 0.5, 0.9)):
            writer.add(a_round(position, metric))
    found = read_run(tmp_path).reached
    assert (None if found is None else found.number) == number


# -- provenance --------------------------------------------------------------------------------------------


def test_versions():
    assert versions()["numpy"] == np.__version__


def test_the_commit_of_the_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() is None
    people = [f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
    environment = dict.fromkeys(people, "toy")
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", *command], check=True, cwd=tmp_path, env=os.environ | environment)
    clean = commit()
    assert len(clean) == 40
    Path("file").write_text("x")
    assert commit() == clean, "files that git does not know do not count"
    subprocess.run(["git", "add", "file"], check=True, cwd=tmp_path)
    assert commit() == clean + "+"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit() == clean + "?", "without git, whether anything was changed is not known"
