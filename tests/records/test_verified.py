"""A run that has ended is what it ended with, or it is not read."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from typer.testing import CliRunner

from fedpace._base.errors import FedpaceError, InputError
from fedpace.cli import app
from fedpace.records.run import Round, RunInfo, find_runs, read_run
from fedpace.records.writer import RunWriter, commit, harmless
from fedpace.runner import single

INFO = RunInfo("random", "random", {}, 0, "accuracy", "up", 0.9, {})


def written(folder, rounds=4, status="reached"):
    with RunWriter(folder, INFO) as writer:
        for number in range(rounds):
            writer.add(Round(number, float(number), 1.0, 0.0, 0.5 + 0.1 * number, 1.0))
        writer.finish(status)
    return folder / "rounds.jsonl"


def cut(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def change(path):
    path.write_text(path.read_text().replace('"metric":0.5', '"metric":0.95'))


@pytest.mark.parametrize("damage", [cut, change, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_finished_run_that_was_changed_is_refused(tmp_path, damage):
    path = written(tmp_path / "run")
    assert len(read_run(tmp_path / "run").rounds) == 4
    damage(path)
    with pytest.raises(InputError, match="not what the run ended with"):
        read_run(tmp_path / "run")
    with pytest.raises(InputError, match="not what the run ended with"):
        find_runs(tmp_path)


def test_an_interrupted_run_may_lack_its_last_line(tmp_path):
    cut(written(tmp_path / "run", status="interrupted"))
    assert len(read_run(tmp_path / "run").rounds) == 3


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def spoiled(key, value):
    def damage(path):
        lines = lines_of(path)
        lines[2] = json.dumps({**json.loads(lines[2]), key: value}).encode() + b"\n"
        path.write_bytes(b"".join(lines))

    return damage


def without_the_middle(path):
    path.write_bytes(b"".join(line for place, line in enumerate(lines_of(path)) if place != 1))


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "damage",
    [
        without_the_middle,
        a_pipe,
        lambda path: os.truncate(path, 2**43),
        *(spoiled("metric", value) for value in ("0.99", [1], True, 1e400)),
        *(spoiled("clock", value) for value in (None, "3")),
        spoiled("number", 9),
        spoiled("clients", [1, 2]),
        spoiled("facts", [1]),
    ],
)
def test_an_interrupted_run_is_not_believed_either(tmp_path, damage):
    damage(written(tmp_path / "run", status="interrupted"))
    with pytest.raises(InputError, match=r"rounds\.jsonl"):
        find_runs(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("target", "0.9"), ("direction", "sideways"), ("experiment", 5), ("seed", 1.5), ("hold", None), ("options", [1]),
     ("expected_delays", "abc"), ("label", None), ("looks", 3)],
)  # fmt: skip
def test_what_was_run_must_be_of_the_types_that_readers_trust(tmp_path, key, value):
    written(tmp_path / "run")
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps(info | {key: value}))
    with pytest.raises(InputError, match="damaged"):
        read_run(tmp_path / "run")


def test_records_of_before_are_read(tmp_path):
    cut(written(tmp_path / "run"))
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    del info["rounds"], info["digest"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(info))
    assert len(read_run(tmp_path / "run").rounds) == 3


def test_resume_does_not_call_a_cut_run_finished(tmp_path):
    runner = CliRunner()
    table = tmp_path / "e.toml"
    table.write_text(
        'name = "e"\nseeds = 1\n[data]\nname = "quadratic"\nclients = 6\nsamples = 10\ntest_samples = 5\n'
        'dimension = 4\n[model]\nname = "linear"\n[delays]\nname = "lognormal"\n[stop]\nmax_rounds = 3\n'
        '[[selectors]]\nname = "random"\nk = 2\n'
    )
    out = tmp_path / "out"
    assert runner.invoke(app, ["compare", str(table), "--out", str(out)]).exit_code == 0
    cut(next(out.rglob("rounds.jsonl")))
    for command in ("resume", "report"):
        result = runner.invoke(app, [command, str(out)])
        assert result.exit_code != 0
        assert "not what the run ended with" in " ".join(f"{result.output} {result.exception}".split())


# -- what is written beside the runs ---------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["report.html", "comparison.json", "Report.HTML", "x.png"])
def test_a_scheme_cannot_take_the_name_of_a_file(label):
    from fedpace.config import parse_experiment

    table = {
        "name": "e",
        "data": {"name": "digits"},
        "model": {"name": "softmax"},
        "delays": {"name": "lognormal"},
        "selectors": [{"name": "random", "label": label}],
    }
    with pytest.raises(InputError, match="name of a file"):
        parse_experiment(table, "test")


def test_overwriting_on_a_read_only_mount_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    written(tmp_path / "run")

    def read_only(self, missing_ok=False):
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr("pathlib.Path.unlink", read_only)
    with pytest.raises(FedpaceError, match="Read-only"):
        single.clear_folder(tmp_path)


# -- git -----------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    folder = tmp_path / "checkout"
    folder.mkdir()
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}

    def git(*arguments):
        done = subprocess.run(
            ["git", *arguments], cwd=folder, env={**os.environ, **who}, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    (folder / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "one")
    monkeypatch.chdir(folder)
    return folder, git


def test_the_commit_is_read_and_changes_are_marked(checkout):
    folder, git = checkout
    head = git("rev-parse", "HEAD")
    assert commit() == head
    (folder / "file").write_text("two, longer")
    assert commit() == head + "+"
    git("checkout", "-q", "file")
    git("pack-refs", "--all")
    (folder / "below").mkdir()
    os.chdir(folder / "below")
    assert commit() == head
    git("checkout", "-q", "--detach")
    assert commit() == head


@pytest.mark.parametrize(
    ("key", "attributes"), [("core.fsmonitor", ""), ("filter.evil.clean", "* filter=evil"), ("diff.evil.textconv", "")]
)
def test_a_planted_program_is_not_run(checkout, key, attributes):
    folder, git = checkout
    head = git("rev-parse", "HEAD")
    trap, mark = folder / "trap.sh", folder / "sprung"
    trap.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    trap.chmod(0o755)
    git("config", key, str(trap))
    (folder / ".gitattributes").write_text(attributes)
    (folder / "file").write_text("six")
    mark.unlink(missing_ok=True)
    assert commit() == head + "?"
    assert not mark.exists()


@pytest.mark.parametrize(
    "text",
    ['[include]\n\tpath = x', '[filter "a"]\n\tclean = x', "[core]\n\tfsmonitor = x", "[core] fsmonitor = x",
     '[includeIf "gitdir:x"]\n\tpath = y', "[CORE]\n\tFSMonitor = x"],
)  # fmt: skip
def test_what_names_a_program_is_not_harmless(text):
    assert not harmless(text)


def test_what_every_clone_has_is_harmless():
    assert harmless(
        '[core]\n\trepositoryformatversion = 0\n\tbare = false\n[remote "origin"]\n\turl = https://x/y\n\tfetch = '
        '+refs/heads/*:refs/remotes/origin/*\n[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n'
    )
