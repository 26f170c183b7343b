"""A server that is stopped and started again, and what its folder tells."""

from __future__ import annotations

import dataclasses
import json
import os

import numpy as np
import pytest
from flower_fleet import fleet
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg

from fedpace._base.errors import InputError
from fedpace.flower import PacedServer, PacedStrategy
from fedpace.hosting.state_folder import StateFolder
from fedpace.records.run import read_run
from fedpace.report.comparison import summarise
from fedpace.report.page import render_page
from fedpace.report.summary import sentences


def start(flower):
    return flower.arrays([0.0, 0.5, 1.0])


def test_a_restarted_server_goes_on_where_it_was(flower, tmp_path):
    def strategy(folder):
        return PacedStrategy(
            FedAdam(eta=0.1),
            "delayhet-sampling",
            k=3,
            seed=4,
            warmup="full",
            warmup_wait=1.0,
            clock="reported",
            state=folder,
        )

    whole = strategy(tmp_path / "whole").start(fleet(flower), start(flower), num_rounds=6)
    strategy(tmp_path / "parts").start(fleet(flower), start(flower), num_rounds=3)
    # Flower gives every node another id when it starts again.
    second = strategy(tmp_path / "parts")
    assert second.coordinator.step == 3
    assert second.coordinator.now > 0
    seen = []
    result = second.start(
        fleet(flower, offset=7000), start(flower), num_rounds=6, evaluate_fn=lambda number, _: seen.append(number)
    )
    assert seen == [3, 4, 5, 6]
    assert sorted(result.train_metrics_clientapp) == [4, 5, 6]
    np.testing.assert_allclose(result.arrays["w0"].numpy(), whole.arrays["w0"].numpy(), rtol=1e-5)
    diaries = [
        [json.loads(line) for line in (tmp_path / part / "rounds.jsonl").read_text().splitlines()]
        for part in ("whole", "parts")
    ]
    for one, other in zip(*diaries, strict=True):
        assert (one["clients"], one["weights"], one["clock"]) == (other["clients"], other["weights"], other["clock"])
    finished = strategy(tmp_path / "parts").start(fleet(flower), start(flower), num_rounds=6)
    np.testing.assert_array_equal(finished.arrays["w0"].numpy(), result.arrays["w0"].numpy())
    assert not list(tmp_path.rglob("*.pkl"))
    assert len(list((tmp_path / "parts").glob("session-*"))) == 1


@pytest.mark.parametrize("metric", ["accuracy", "loss", None])
def test_the_folder_is_a_run_that_reports_read(flower, tmp_path, metric):
    evaluate = None if metric is None else lambda number, arrays: MetricRecord({metric: 0.1 * (1 + number)})
    inner = FedAvg(fraction_evaluate=0.0)
    strategy = PacedStrategy(inner, "delayhet-submodular", clock="reported", warmup_wait=1.0, state=tmp_path)
    strategy.start(fleet(flower), start(flower), num_rounds=3, evaluate_fn=evaluate)
    run = read_run(tmp_path)
    assert [entry.number for entry in run.rounds] == [0, 1, 2, 3]
    assert (run.info.status, run.info.selector) == ("finished", "delayhet-submodular")
    assert [entry.metric for entry in run.rounds] == (
        [None] * 4 if metric is None else pytest.approx([0.1, 0.2, 0.3, 0.4])
    )
    assert run.info.direction == ("down" if metric == "loss" else "up")
    last = run.rounds[-1]
    assert set(last.facts["reasons"]) >= set(last.clients)
    comparison = summarise([run])
    assert comparison.clock == "virtual time", "clients said how long they took"
    assert comparison["delayhet-submodular"].clients_per_round == np.mean([len(r.clients) for r in run.rounds[1:]])


def test_a_line_that_a_crash_kept_out_of_the_diary_is_added(flower, tmp_path):
    def strategy():
        return PacedStrategy(FedAvg(), "random", k=3, clock="reported", state=tmp_path)

    record = flower.rounds(strategy(), fleet(flower), start(flower), 2)
    diary = tmp_path / "rounds.jsonl"
    whole = diary.read_bytes()
    diary.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    flower.rounds(strategy(), fleet(flower), record, 1, first=3)
    assert diary.read_bytes().startswith(whole)
    assert [entry.number for entry in read_run(tmp_path).rounds] == [0, 1, 2, 3]
    diary.write_bytes(whole.splitlines(keepends=True)[0])
    with pytest.raises(InputError, match="holds 1 rounds, but the state beside it is that after round 3"):
        strategy()


def test_a_servers_own_seconds_are_not_called_virtual(flower, tmp_path):
    strategy = PacedStrategy(FedAvg(), "random", k=3, state=tmp_path)
    evaluate = {"evaluate_fn": lambda number, arrays: MetricRecord({"accuracy": 0.1 * (1 + number)})}
    strategy.start(fleet(flower), start(flower), num_rounds=3, **evaluate)
    run = read_run(tmp_path)
    aimed = dataclasses.replace(run, info=dataclasses.replace(run.info, target=0.3, hold=1))
    comparison = summarise([aimed])
    assert comparison.clock == "real time"
    assert "of real time" in " ".join(sentences(comparison))
    assert "virtual" not in render_page([aimed], comparison, title="", plotly="")


@pytest.mark.parametrize("rounds", [True, False])
def test_a_server_killed_at_the_very_end_has_its_last_round_recorded(flower, tmp_path, monkeypatch, rounds):
    """Saved, but neither evaluated nor written: the server that comes back has nothing else to do."""

    def server():
        options = {"clock": "reported", "state": tmp_path}
        return PacedStrategy(FedAvg(), "random", k=3, **options) if rounds else PacedServer("fedbuff", **options)

    def evaluate(number, arrays):
        if number == 3 and not seen.count(3):
            seen.append(3)
            raise KeyboardInterrupt
        seen.append(number)
        return MetricRecord({"accuracy": 0.1 * number})

    def killed(folder, status=""):
        os.close(folder._writer._file)
        folder._lock.release()

    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(StateFolder, "close", killed)
        with pytest.raises(KeyboardInterrupt):
            server().start(fleet(flower), start(flower), num_rounds=3, evaluate_fn=evaluate)
    assert (tmp_path / "rounds.jsonl").read_bytes().count(b"\n") == 3, "the last one is not there"
    server().start(fleet(flower), start(flower), num_rounds=3, evaluate_fn=evaluate)
    run = read_run(tmp_path)
    assert [entry.metric for entry in run.rounds] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert run.info.status == "finished"
    # And one that was killed when all was written, but for how it ended.
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"finished"', '"running"'))
    server().start(fleet(flower), start(flower), num_rounds=3, evaluate_fn=evaluate)
    assert read_run(tmp_path).info.status == "finished"
    assert seen == [0, 1, 2, 3, 3], "nothing is evaluated twice"


def test_a_crash_between_the_two_files_leaves_the_round_before(flower, tmp_path, monkeypatch):
    from fedpace.hosting import state_folder

    def strategy():
        return PacedStrategy(FedAvg(), "random", k=3, clock="reported", state=tmp_path)

    first = strategy()
    record = flower.rounds(first, fleet(flower), start(flower), 2)
    monkeypatch.setattr(state_folder, "json_bytes", lambda index: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        flower.rounds(first, fleet(flower), record, 1, first=3)
    first._server.files._lock.release()  # as the end of its process does
    restored = strategy()
    assert restored.coordinator.step == 2
    np.testing.assert_array_equal(restored._arrays["w0"].numpy(), record["w0"].numpy())


def test_another_scheme_seed_or_strategy_does_not_take_over(flower, tmp_path):
    flower.rounds(PacedStrategy(FedAdam(), "random", k=3, state=tmp_path), fleet(flower), start(flower), 1)
    with pytest.raises(InputError, match="give the same") as refused:
        PacedStrategy(FedAdam(), "random", k=4, state=tmp_path)
    with pytest.raises(InputError, match="seed = 0"):
        PacedStrategy(FedAdam(), "random", k=3, seed=1, state=tmp_path)
    with pytest.raises(InputError, match="another strategy") as other:
        PacedStrategy(FedAvg(), "random", k=3, state=tmp_path)
    # Who was refused does not hold the folder, although the errors are still there.
    PacedStrategy(FedAdam(), "random", k=3, state=tmp_path).close()
    assert refused.tb is not other.tb
