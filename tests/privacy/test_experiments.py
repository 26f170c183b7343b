"""Sums and noise in experiments, on the command line, and in runs that are resumed."""

from __future__ import annotations

import json

import pytest
from resuming import check_resumes
from tiny import TABLE
from typer.testing import CliRunner

from fedpace import Coordinator, Settings, TrainingPrivacy, make_selector
from fedpace._base.errors import InputError
from fedpace.cli import app
from fedpace.config import Overrides, parse_experiment
from fedpace.data.digits import Digits
from fedpace.delays.lognormal import LognormalDelays
from fedpace.models.builtin import Softmax
from fedpace.sim.rounds import Simulation
from fedpace.sim.training import Training


def simulation(scheme, privacy, *, clients=14, jitter=0.5, **options):
    return Simulation(
        Digits(clients=clients, alpha=0.5),
        Softmax(),
        LognormalDelays(jitter=jitter),
        make_selector(scheme, **options),
        training=Training(epochs=1, batch=32, lr=0.2),
        privacy=privacy,
        seed=907,
    )


@pytest.mark.parametrize(
    ("scheme", "options", "privacy"),
    [
        ("pace-async", {}, TrainingPrivacy("sums", minimum=4, round_trips=3, trip_seconds=5.0)),
        ("fedbuff", {"buffer": 5}, TrainingPrivacy("sums", minimum=4, epsilon=5.0, clip=0.1, releases=30)),
    ],
    ids=["memory", "noise"],
)
def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path, scheme, options, privacy):
    if privacy.epsilon:
        pytest.importorskip("dp_accounting")
    assert check_resumes(tmp_path, lambda: simulation(scheme, privacy, **options), 6, total=10)


def test_a_coordinator_with_sums_is_saved_and_restored(tmp_path):
    coordinator = Coordinator(make_selector("fedbuff"), Settings(aggregation="sums", minimum=5))
    coordinator.join(range(20))
    coordinator.due(0.0)
    coordinator.save(tmp_path)
    found = Coordinator.restore(tmp_path)
    assert found.sums
    assert found.settings.minimum == 5


def test_protocol_costs_are_on_the_clock_and_in_the_bytes():
    options = {"k": 6}
    plain = list(zip(range(4), simulation("random", None, **options).rounds(), strict=False))
    free = list(
        zip(range(4), simulation("random", TrainingPrivacy("sums", minimum=4), **options).rounds(), strict=False)
    )
    charged = TrainingPrivacy("sums", minimum=4, round_trips=3, trip_seconds=0.5, client_bytes=1000)
    costly = list(zip(range(4), simulation("random", charged, **options).rounds(), strict=False))
    for (number, one), (_, other), (_, third) in zip(plain, free, costly, strict=True):
        assert other.clock == one.clock
        assert other.metric == pytest.approx(one.metric, abs=0.02)
        assert third.clock == pytest.approx(one.clock + 1.5 * number)
        if number:
            assert third.bytes_up == one.bytes_up + 6 * 1000
    memory = next(r for n, r in zip(range(4), simulation("pace-async", charged).rounds(), strict=False) if n == 3)
    assert memory.bytes_down % (2 * simulation("pace-async", None).trainer.message_bytes) == 0


# -- experiments ---------------------------------------------------------------------------------------------------


def test_an_experiment_names_its_privacy_and_is_read_back():
    table = {**TABLE, "privacy": {"aggregation": "sums", "minimum": 2}}
    found = parse_experiment(table, "here")
    assert found.privacy == TrainingPrivacy("sums", minimum=2)
    assert parse_experiment(found.as_table(), "there").privacy == found.privacy
    assert "privacy" not in parse_experiment(TABLE, "here").as_table()
    with pytest.raises(InputError, match=r"here, \[privacy\].*minimum.*at least 1"):
        parse_experiment({**TABLE, "privacy": {"minimum": 0}}, "here")
    with pytest.raises(InputError, match=r"has no option|has no key"):
        parse_experiment({**TABLE, "privacy": {"minimun": 3}}, "here")


def test_options_change_the_privacy_of_an_experiment():
    secure = parse_experiment(TABLE, "here", Overrides(secure=True, minimum=3)).privacy
    assert (secure.aggregation, secure.minimum, secure.epsilon) == ("sums", 3, 0.0)
    noisy = parse_experiment(TABLE, "here", Overrides(dp={"epsilon": 3.0})).privacy
    assert (noisy.aggregation, noisy.epsilon) == ("sums", 3.0)
    open_again = {**TABLE, "privacy": {"aggregation": "sums"}}
    assert not parse_experiment(open_again, "here", Overrides(secure=False)).privacy.sums
    with pytest.raises(InputError, match=r"--dp.*epsilon"):
        parse_experiment(TABLE, "here", Overrides(dp={"epsilon": -1.0}))


@pytest.mark.parametrize("noise", [{"clip": 0.5}, {"epsilon": 0}, {"epsilon": 0.0, "clip": 1.0}])
def test_noise_needs_an_epsilon(noise):
    with pytest.raises(InputError, match=r"--dp.*epsilon above 0"):
        parse_experiment(TABLE, "here", Overrides(dp=noise))
    stated = {**TABLE, "privacy": {"aggregation": "sums", "epsilon": 3.0}}
    assert parse_experiment(stated, "here", Overrides(dp={"clip": 0.5})).privacy.epsilon == 3.0
    with pytest.raises(InputError, match=r"here, \[privacy\].*clip.*epsilon above 0"):
        parse_experiment({**TABLE, "privacy": {"aggregation": "sums", "clip": 0.5}}, "here")


def test_a_minimum_needs_sums():
    for secure in (None, False):
        with pytest.raises(InputError, match=r"--minimum.*add --secure"):
            parse_experiment(TABLE, "here", Overrides(secure=secure, minimum=5))
    stated = {**TABLE, "privacy": {"aggregation": "sums"}}
    assert parse_experiment(stated, "here", Overrides(minimum=5)).privacy.minimum == 5
    assert parse_experiment(TABLE, "here", Overrides(minimum=5, dp={"epsilon": 3.0})).privacy.minimum == 5


def test_pace_does_not_end_rounds_that_no_sum_could_open():
    """Its deadline alone would end rounds before the eighth answer, and all of their work would be lost."""
    rounds = simulation("pace", TrainingPrivacy("sums", minimum=8), clients=30, jitter=1.0).rounds()
    played = [found for _, found in zip(range(13), rounds, strict=False)][1:]
    assert any(found.failed for found in played), "some rounds end at a deadline"
    assert all(len(set(found.clients) - set(found.failed)) >= 8 for found in played)


def test_robust_rules_scaffold_and_small_fleets_are_refused():
    from fedpace import make_robust

    privacy = TrainingPrivacy("sums", minimum=4)
    with pytest.raises(InputError, match="compares single updates"):
        Simulation(
            Digits(clients=14),
            Softmax(),
            LognormalDelays(),
            make_selector("random", k=5),
            robust=make_robust("median"),
            privacy=privacy,
        )
    with pytest.raises(InputError, match=r"scaffold.*use algorithm = 'fedavg'"):
        Simulation(
            Digits(clients=14),
            Softmax(),
            LognormalDelays(),
            make_selector("random", k=5),
            training=Training(algorithm="scaffold"),
            privacy=privacy,
        )


def test_the_command_line_runs_with_sums(tmp_path):
    out = tmp_path / "runs"
    asked = ["--secure", "--minimum", "4", "--selectors", "pace-async,random(k=5)", "--arithmetic", "numpy"]
    short = ["--seeds", "1", "--rounds", "3", "--out", str(out)]
    result = CliRunner().invoke(app, ["compare", *asked, *short], catch_exceptions=False)
    assert result.exit_code == 0
    assert "the server saw sums over at least 4 clients" in " ".join(result.stdout.split())
    servers = {json.loads(path.read_text())["server"]["name"] for path in out.rglob("run.json")}
    assert servers == {"client-memory", "average"}
    refused = CliRunner().invoke(app, ["compare", "--secure", "--selectors", "divfl", *short[:4]])
    assert refused.exit_code != 0
    assert "aggregation = 'sums'" in str(refused.exception)
