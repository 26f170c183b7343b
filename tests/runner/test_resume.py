"""Runs that were stopped at any instant, resumed: the bytes of a run that never was."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tiny import TABLE

from fedpace._base.errors import InputError, StorageError
from fedpace.config import parse_experiment
from fedpace.records.run import read_run
from fedpace.records.writer import RunWriter
from fedpace.runner import Execution, Job, check_folder, clear_folder, resume, run_all, run_job, run_one

ROOT = Path(__file__).parents[2]
EVERY_ROUND = Execution(checkpoint_every=0.0)
NEVER = Execution(checkpoint_every=float("inf"))


def experiment(**changes):
    return parse_experiment(TABLE | {"stop": {"max_rounds": 5}} | changes, "test")


def a_job(folder, **changes):
    chosen = experiment(**changes)
    return Job(chosen, chosen.schemes[1], 3, folder)


def stopping_after(number, error=KeyboardInterrupt):
    def watch(job, current):
        if current.number == number:
            raise error

    return watch


def stop(job, number, execution=EVERY_ROUND):
    with pytest.raises(KeyboardInterrupt):
        run_job(job, execution, stopping_after(number))


def outcome(folder):
    return [(folder / name).read_bytes() for name in ("rounds.jsonl", "model.safetensors")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_job(a_job(folder), NEVER)
    return outcome(folder)


@pytest.mark.parametrize("number", [0, 3, 7])
def test_a_run_that_is_stopped_while_its_target_is_being_held(tmp_path, number):
    """What was met before the run was stopped must still count: it ends where it would have, for the same reason."""
    stops = {"target": 0.8, "hold": 4, "max_rounds": 60}
    run_job(a_job(tmp_path / "whole", stop=stops), NEVER)
    once = read_run(tmp_path / "whole")
    assert once.info.status == "reached"
    assert once.crossed.number < once.rounds[-1].number, "it went on until the hold was known"
    assert once.info.hold_every == pytest.approx(float(np.median(once.info.expected_delays)))
    job = a_job(tmp_path / "stopped", stop=stops)
    stop(job, min(once.crossed.number + number, once.rounds[-1].number - 1))
    run_job(job, EVERY_ROUND)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")
    assert read_run(tmp_path / "stopped").reached == once.reached


# -- killed ------------------------------------------------------------------------------------------------


def faults(*arguments):
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "faults.py", *arguments],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_killed_at_random_instants():
    """Every scheme once, those without rounds included: in the simulator, and as servers."""
    found = faults("--kinds", "inline,server", "--trials", "10", "--rounds", "6")
    assert found["killed"] == found["identical"] == found["trials"] == 10


@pytest.mark.slow
def test_killed_at_many_random_instants():
    found = faults("--trials", "32")
    assert found["killed"] == found["identical"] == found["trials"] == 32
    assert found["from_a_checkpoint"] > 0


@pytest.mark.slow
def test_killed_before_every_single_write():
    found = faults("--every-write", "--kinds", "inline,server", "--rounds", "2")
    assert found["identical"] == found["trials"]
    assert found["killed"] == found["trials"] - 10, "one run of each scheme was left to end"
    assert found["in_a_checkpoint"] > 4


def test_what_the_documents_say_of_kills():
    found = json.loads((ROOT / "benchmarks" / "faults.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "appendix" / "speed.md").read_text(encoding="utf-8")
    for run in found:
        assert run["identical"] == run["trials"]
        assert f"{run['identical']} of {run['trials']}" in text
    assert found[0]["killed"] == found[0]["trials"] == 100
    assert {name.split(":")[0].split(",")[0] for name in found[0]["of"]} == {"inline", "processes", "server", "flower"}
    for kinds in (("inline", "processes"), ("server",), ("flower",)):
        counts = [int(said.split()[2]) for name, said in found[0]["of"].items() if name.startswith(kinds)]
        assert f"{sum(counts)} of {sum(counts)}" in text


# -- stopped -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("execution", [EVERY_ROUND, NEVER], ids=["checkpoints", "none"])
@pytest.mark.parametrize("number", [0, 1, 3, 5])
def test_a_stopped_run_goes_on(tmp_path, whole, execution, number):
    job = a_job(tmp_path / "run")
    stop(job, number, execution)
    before = read_run(job.folder)
    assert (before.info.status, len(before.rounds)) == ("interrupted", number + 1)
    (record,) = resume(job.folder)
    assert outcome(job.folder) == whole
    assert (record.info.status, record.info.message, record.info.sittings) == ("finished", "", 2)
    assert record.info.wall_seconds >= before.info.wall_seconds
    assert sorted(path.name for path in job.folder.iterdir()) == ["model.safetensors", "rounds.jsonl", "run.json"]


def test_stopped_again_and_again(tmp_path, whole):
    job = a_job(tmp_path / "run")
    for number in (1, 2, 4):
        stop(job, number)
    (record,) = resume(job.folder)
    assert outcome(job.folder) == whole
    assert record.info.sittings == 4


def test_half_a_line_and_half_a_file_are_no_obstacle(tmp_path, whole):
    job = a_job(tmp_path / "run")
    stop(job, 3)
    with (job.folder / "rounds.jsonl").open("ab") as file:
        file.write(b'{"number":4,"clo')
    (job.folder / f".run.json.{'a' * 16}").write_text("{")
    resume(job.folder)
    assert outcome(job.folder) == whole
    assert len(list(job.folder.iterdir())) == 3


def test_a_finished_run_is_left_alone(tmp_path):
    job = a_job(tmp_path / "run")
    run_job(job)
    before = {path: path.stat().st_mtime_ns for path in job.folder.iterdir()}
    (record,) = resume(job.folder)
    assert record.info.sittings == 1
    assert {path: path.stat().st_mtime_ns for path in job.folder.iterdir()} == before


def test_rounds_that_come_out_otherwise_are_an_error(tmp_path):
    job = a_job(tmp_path / "run")
    stop(job, 3, NEVER)
    path = job.folder / "rounds.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"mode":"average"', b'"mode":"delta"', 1))
    before = path.read_bytes()
    with pytest.raises(InputError, match="round 0 came out otherwise than it is recorded"):
        resume(job.folder)
    assert path.read_bytes() == before


def test_records_that_are_shorter_than_the_checkpoint_are_an_error(tmp_path):
    job = a_job(tmp_path / "run")
    stop(job, 3)
    path = job.folder / "rounds.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(InputError, match=r"should hold 3 rounds, .* but it holds 1"):
        resume(job.folder)


def test_one_run_has_one_writer(tmp_path):
    job = a_job(tmp_path / "run")
    stop(job, 1)
    with (
        RunWriter.resume(job.folder, rounds=0),
        pytest.raises(InputError, match="is being written by another process"),
    ):
        resume(job.folder)


def test_diverged_runs_have_ended(tmp_path):
    job = a_job(tmp_path / "run", training={"epochs": 9, "batch": 0, "lr": 1e30})
    (record,) = run_job(job)
    assert record.info.status == "diverged"
    assert not (job.folder / "model.safetensors").exists()
    assert resume(job.folder) == [record]


def test_nothing_to_resume(tmp_path):
    with pytest.raises(InputError, match="expected a run to resume in"):
        resume(tmp_path)


def test_the_final_model_is_kept_on_demand(tmp_path):
    chosen = experiment()
    run_one(chosen, chosen.schemes[0], 0, tmp_path / "run", execution=Execution(keep_model=False))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["rounds.jsonl", "run.json"]


# -- comparisons -------------------------------------------------------------------------------------------


def test_a_comparison_goes_on_with_runs_begun_and_not_begun(tmp_path):
    whole = run_all(experiment(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_all(experiment(), tmp_path / "half", lambda job, r: stopping_after(2)(job, r) if job.seed else None)
    assert len(list((tmp_path / "half").rglob("run.json"))) == 3
    records = resume(tmp_path / "half")
    assert [(r.info.label, r.info.seed, r.rounds) for r in records] == [
        (r.info.label, r.info.seed, r.rounds) for r in whole
    ]
    assert {r.info.status for r in records} == {"finished"}
    assert resume(tmp_path / "half") == records


def test_what_is_ours_can_be_overwritten(tmp_path):
    job = a_job(tmp_path / "run")
    stop(job, 2)
    (job.folder / f".checkpoint-3.{'0' * 16}").mkdir()
    (job.folder / f".checkpoint-3.{'0' * 16}" / f".state.json.{'1' * 16}").write_text("{")
    check_folder(tmp_path, overwrite=True)
    clear_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []
    stop(job, 2)
    (job.folder / "state.json").write_text("not in a checkpoint")
    with pytest.raises(InputError, match=r"files that are not fedpace's, such as .*state\.json"):
        check_folder(tmp_path, overwrite=True)


# -- full disks --------------------------------------------------------------------------------------------


@pytest.fixture
def disk_limit():
    """Makes writes beyond so many bytes of a file fail, as on a full disk; until the end of the test."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("execution", "victim"), [(EVERY_ROUND, "checkpoint-2"), (NEVER, r"rounds\.jsonl")], ids=["checkpoint", "round"]
)
def test_a_write_that_fails_keeps_what_was_recorded(tmp_path, whole, disk_limit, execution, victim):
    job = a_job(tmp_path / "run")

    def fill(job, current):
        if current.number == 2:
            disk_limit(100 if execution is EVERY_ROUND else (job.folder / "rounds.jsonl").stat().st_size + 10)

    with pytest.raises(StorageError, match=rf"cannot write .*{victim}: .*What was recorded before is intact"):
        run_job(job, execution, fill)
    assert len(read_run(job.folder).rounds) == 3
    assert (job.folder / "rounds.jsonl").read_bytes().endswith(b"}\n"), "half a round is taken back"
    assert not [path.name for path in job.folder.iterdir() if path.name.startswith(".")]
    disk_limit(None)
    resume(job.folder)
    assert outcome(job.folder) == whole


@pytest.mark.parametrize("victim", ["run.json", "state.json", "session.json", "tensors.safetensors", "rounds.jsonl"])
def test_a_full_disk_is_a_sentence_wherever_it_is_noticed(tmp_path, whole, monkeypatch, victim):
    job, opened, pwrite = a_job(tmp_path / "run"), Path.open, os.pwrite
    stop(job, 2)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fails(path, *arguments, **options):
        return full() if path.name.startswith(f".{victim}.") else opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fails)
    monkeypatch.setattr(os, "pwrite", full if victim == "rounds.jsonl" else pwrite)
    with pytest.raises(StorageError, match=r"cannot write .*: No space left.*is intact: make room, and go on"):
        run_job(job, EVERY_ROUND)
    monkeypatch.undo()
    resume(job.folder)
    assert outcome(job.folder) == whole


def test_a_full_disk_before_the_first_round(tmp_path, monkeypatch):
    opened = Path.open

    def fails(path, *arguments, **options):
        if path.name.startswith(".run.json."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fails)
    with pytest.raises(StorageError, match=r"No space left.*make room"):
        run_job(a_job(tmp_path / "run"), NEVER)


# -- edited records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("execution", "said"), [(EVERY_ROUND, "is not what was recorded"), (NEVER, "was edited")])
def test_a_metric_that_was_edited_is_noticed(tmp_path, whole, execution, said):
    job = a_job(tmp_path / "run")
    stop(job, 3, execution)
    path = job.folder / "rounds.jsonl"
    content = path.read_bytes()
    lines = [json.loads(line) for line in content.splitlines()]
    lines[1]["metric"] += 0.5
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    with pytest.raises(InputError, match=rf"(?s)line 2 of .*rounds\.jsonl.*{said}"):
        run_job(job, execution)
    path.write_bytes(content)
    resume(job.folder)
    assert outcome(job.folder) == whole


# -- SIGTERM -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_command_that_is_terminated_says_that_it_was_interrupted(tmp_path, jobs):
    toml = tmp_path / "long.toml"
    toml.write_text(
        'name = "long"\nseeds = 2\n[data]\nname = "quadratic"\nclients = 5\nsamples = 6\ntest_samples = 5\n'
        'dimension = 3\n[model]\nname = "linear"\n[delays]\nname = "lognormal"\n[training]\nepochs = 1\nbatch = 0\n'
        'lr = 0.05\n[stop]\nmax_rounds = 1000000\n[[selectors]]\nname = "random"\nk = 2\n'
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "fedpace", "compare", str(toml), "--out", str(out), "--jobs", jobs]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        until = time.monotonic() + 120
        while not any(path.stat().st_size > 5000 for path in out.rglob("rounds.jsonl")) and time.monotonic() < until:
            time.sleep(0.1)
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "fedpace resume" in errors
    assert {read_run(path.parent).info.status for path in out.rglob("run.json")} == {"interrupted"}


# -- really full disks -------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_that_is_really_full(tmp_path, whole):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        job = a_job(disk / "run")
        with pytest.raises(StorageError, match=os.strerror(errno.ENOSPC)):
            run_job(job, EVERY_ROUND)
        assert read_run(job.folder).rounds
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        resume(job.folder)
        assert outcome(job.folder) == whole
    finally:
        subprocess.run(["umount", str(disk)], check=True)
