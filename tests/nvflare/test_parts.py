"""The transport without a federation: answers, failures, warm-ups, and what a job's configuration keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.job_config.api import FedJob

import fedpace
from fedpace._base.errors import FedpaceError, InputError
from fedpace.core.settings import Settings
from fedpace.hosting.live_server import LIVE_DEFAULTS, Server
from fedpace.hosting.replies import Note, Reply, read_note
from fedpace.nvflare import PacedFedAvg, Privacy, Reporter
from fedpace.nvflare.client import MOMENTS, NOTE, TARGETS
from fedpace.nvflare.controller import HOST, BroadcastTransport, mean_metrics
from fedpace.server.nesterov import Nesterov

CURRENT = {"w": np.array([1.0, 2.0], np.float32), "count": np.array(4)}


class Fixed(fedpace.core.types.Stateless):
    """Always the same cohort."""

    name = "fixed"
    needs = frozenset()

    def __init__(self, weights, mode="average"):
        self.weights, self.mode = weights, mode

    def select(self, state, view, rng):
        return fedpace.Cohort(np.arange(len(self.weights)), np.array(self.weights), mode=self.mode), None


def one_round(scheme, site, *, rule=None, rounds=1, clock="server", **settings):
    """Run rounds as the controller does, with sites that answer as soon as they are asked."""
    server = Server(scheme, Settings(**settings), HOST, rule=rule, clock=clock)

    def broadcast(model, targets):
        for name in targets:
            result = site(name, model)
            if result is None:
                tasks.ended(model.meta, [name], "it answered with EXECUTION_EXCEPTION")
                continue
            result.meta = {**(result.meta or {}), "client_name": name, "props": model.meta}
            tasks.answered(result)

    tasks = BroadcastTransport(broadcast, lambda: False, (8, 0))
    server.membership.update({name: Note(name=name) for name in ("site-1", "site-2", "site-3")})
    model = CURRENT
    for _ in range(rounds):
        shared = server.share(model)
        step = server.next_step(tasks.on(FLModel(params=dict(model))), server.coordinator.clients)
        answers = server.answers(step)
        moved = server.apply(step)
        model = shared.arrays
        server.stepped(step, model, moved=moved)
    return model, answers, server


def shifted(name, model, kind=ParamsType.FULL, **meta):
    """Site i moves everything by i."""
    number = int(name[-1])
    shift = {"w": np.full(2, number, np.float32), "count": np.array(number)}
    params = shift if kind == ParamsType.DIFF else {key: model.params[key] + step for key, step in shift.items()}
    # NVFlare's own averaging would multiply by this.
    return FLModel(params_type=kind, params=params, metrics=meta, meta={"NUM_STEPS_CURRENT_ROUND": 10**number})


@pytest.mark.parametrize("kind", [ParamsType.FULL, ParamsType.DIFF])
@pytest.mark.parametrize(
    ("weights", "mode", "failing", "step"),
    [
        ([0.5, 0.5], "average", (), 1.5),
        ([0.2, 0.6, 0.2], "average", ("site-2",), 2.0),  # who fails leaves its weight to the others
        ([0.25, 0.25], "delta", (), 0.75),
        ([-0.5, 0.25], "delta", (), 0.0),
        ([1.0], "average", ("site-1",), 0.0),
    ],
)
def test_weights_are_exact_whatever_the_number_of_steps(weights, mode, failing, step, kind):
    def site(name, model):
        return None if name in failing else shifted(name, model, kind)

    result, _, _ = one_round(Fixed(weights, mode), site)
    np.testing.assert_allclose(result["w"], CURRENT["w"] + step)
    sent = [(weight, 5 + i) for i, weight in enumerate(weights) if weight > 0 and f"site-{i + 1}" not in failing]
    mean = sum(w * count for w, count in sent) / sum(w for w, _ in sent) if sent else 4
    assert result["count"] == np.rint(mean), "counters are averaged, and stay whole"
    assert result["count"].dtype == CURRENT["count"].dtype
    assert result["w"].dtype == np.float32


def test_an_average_that_is_carried_on():
    def site(name, model):
        return FLModel(params={"w": model.params["w"] + 1.0, "count": model.params["count"]})

    result, _, _ = one_round(Fixed([0.5, 0.5]), site, rule=Nesterov(power=0.0), rounds=3)
    # Steps of 1; leads of 0, then 1/4 of a move of 1, then 2/5 of a move of 1.25.
    np.testing.assert_allclose(result["w"], CURRENT["w"] + 3.75)


@pytest.mark.parametrize("kind", [ParamsType.FULL, ParamsType.DIFF])
def test_without_rounds_every_two_answers_make_a_step(kind):
    """Sites begin anew as soon as they answer; the slowest one's answers are to models of several steps ago."""
    seconds, steps = {"site-1": 1.0, "site-2": 1.7, "site-3": 7.9}, 8
    expected, number, hand, lags = 0.0, 0, [], []
    working = [(took, site, 0.0, 0) for site, took in seconds.items()]
    while number < steps:  # the same, of one number
        working.sort()
        now, site, base, version = working.pop(0)
        hand.append((0.3 * (int(site[-1]) - base), number - version))
        if len(hand) == 2:
            expected += sum((1 + lag) ** -0.5 / 2 * move for move, lag in hand)
            number, lags, hand = number + 1, [*lags, *(lag for _, lag in hand)], []
        working.append((now + seconds[site], site, expected, number))
    assert max(lags) > 2

    def site(name, model):
        base = np.zeros(2) + model.params["w"] - CURRENT["w"]
        move = 0.3 * (int(name[-1]) - base)
        params = {"w": move if kind == ParamsType.DIFF else model.params["w"] + move, "count": np.array(0)}
        return FLModel(params_type=kind, params=params, meta={NOTE: {"seconds": seconds[name]}})

    scheme = fedpace.make_selector("fedbuff", buffer=2)
    model, _, server = one_round(scheme, site, rounds=steps, clock="reported")
    np.testing.assert_allclose(model["w"], CURRENT["w"] + expected, rtol=1e-5)
    assert server.coordinator.task_table.flying == 3, "everybody is at work"


def test_a_warmup_waits_for_a_part_and_hears_the_others_later():
    """Site 3 answers the first round's task in the third round."""
    kept = []

    def broadcast(model, targets):
        for name in targets:
            result = shifted(name, model, loss=1.0)
            result.meta |= {"client_name": name, "props": model.meta}
            kept.append(result) if name == "site-3" and not kept else tasks.answered(result)

    tasks = BroadcastTransport(broadcast, lambda: False, (8, 0))
    settings = Settings(warmup="full", warmup_wait=0.5, warmup_trains=True)
    server = Server(fedpace.make_selector("oort", k=2), settings, HOST)
    server.membership.update({name: Note(name=name) for name in ("site-1", "site-2", "site-3")})
    model, moved = CURRENT, []
    for number in range(3):
        if number == 2:
            tasks.answered(kept[0])
        shared = server.share(model)
        step = server.next_step(tasks.on(FLModel(params=dict(model))), server.coordinator.clients)
        server.apply(step)
        model = shared.arrays
        moved.append(server.stepped(step, model, moved=True))
    assert [set(entry.clients) for entry in moved[:2]] == [{"site-1", "site-2"}, {"site-1", "site-2"}]
    assert moved[0].failed == ()
    assert moved[2].heard == ("site-3",)


@pytest.mark.parametrize(
    "lie",
    [
        {"params": {"w": np.ones(2)}},
        {"params": {"w": np.ones(2), "count": np.array(1), "more": np.ones(2)}},
        {"params": {"w": np.array(1.0), "count": np.array(1)}, "params_type": ParamsType.DIFF},
        {"params": {"w": np.array([np.nan, 1]), "count": np.array(1)}},
        {"params": {"w": ["a", "b"], "count": np.array(1)}},
        {"params": {"more": np.ones(2)}, "params_type": ParamsType.DIFF},
        {"metrics": {"loss": [1.0]}},
        {"metrics": {"loss": float("nan")}},
        {"meta": {NOTE: ["seconds"]}},
        {"meta": {NOTE: {"seconds": "soon"}}},
        {"meta": {NOTE: {"moment": b"123", "shape": [0, 65536]}}},
    ],
)
def test_a_wrong_answer_is_a_failure_of_that_site_alone(lie):
    good = {key: value + 1 for key, value in CURRENT.items()}

    def site(name, model):
        return FLModel(**({"params": good} | lie if name == "site-2" else {"params": good}))

    result, answers, server = one_round(Fixed([0.5, 0.5]), site)
    assert len(answers) == 1
    np.testing.assert_allclose(result["w"], CURRENT["w"] + 1)
    assert server.coordinator.ledger.columns["failures"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("scheme", ["folb", "power-of-choice"])
@pytest.mark.parametrize("heeds", [True, False])
def test_a_scheme_asks_before_it_chooses(scheme, heeds):
    """A script that does not look at the question trains, and what comes of it is the answer."""
    asked, reporter = [], Reporter()

    def site(name, model):
        question = reporter.asked(model)
        asked.append(question)
        if not question or not heeds:
            return shifted(name, model, loss=float(name[-1]))
        number = int(name[-1])
        return reporter.answer(
            model, loss=float(number), step={"w": np.full(2, number, np.float32), "count": np.array(number)}
        )

    _, _, server = one_round(fedpace.make_selector(scheme, k=2), site, rounds=2)
    kind = {"folb": "gradient", "power-of-choice": "loss"}[scheme]
    assert asked.count(kind) >= 2
    assert set(asked) == {kind, ""}
    view = server.coordinator.view()
    if kind == "loss":
        np.testing.assert_array_equal(view.loss, [1, 2, 3])
    else:
        # Sketches are linear and seeded: those of clients that moved alike, only further, are multiples.
        known = np.flatnonzero(np.isfinite(view.updates).all(axis=1))
        assert known.size >= 2
        np.testing.assert_allclose(
            view.updates[known] / (known + 1)[:, None],
            view.updates[[known[0]] * known.size] / (known[0] + 1),
            rtol=1e-6,
        )


def test_a_question_must_be_answered_with_what_was_asked():
    asked = FLModel(
        params={"w": np.zeros(2)}, meta={NOTE: {"probe": "gradient", "sketch_width": 4, "sketch_seed": "0"}}
    )
    with pytest.raises(InputError, match="the step should be finite"):
        Reporter().answer(asked, step={"w": np.zeros(3)})
    with pytest.raises(InputError, match="given none"):
        Reporter().answer(FLModel(params={}, meta={NOTE: {"probe": "loss"}}))


def test_metrics_that_everybody_reports_are_averaged():
    tables = ({"accuracy": 0.5, "words": "x"}, {"accuracy": 0.9, "words": "x", "own": 1.0})
    replies = [Reply(Note(), 0.0, 1.0, {}, FLModel(params={"w": 1}, metrics=table)) for table in tables]
    assert mean_metrics([(0.5, replies[0]), (1.5, replies[1])]) == {"accuracy": pytest.approx(0.8)}


def test_metrics_that_are_no_numbers_are_left_out():
    tables = ({"accuracy": 0.5, "loss": 1.0}, {"accuracy": float("nan"), "loss": 2.0})
    replies = [Reply(Note(), 0.0, 1.0, {}, FLModel(params={"w": 1}, metrics=table)) for table in tables]
    assert mean_metrics([(0.5, replies[0]), (0.5, replies[1])]) == {"loss": 1.5}


def received(**asked):
    return FLModel(params={}, meta={"site_name": "site-1", NOTE: asked})


ROWS = np.arange(12.0).reshape(4, 3)


def test_a_moment_is_made_only_when_it_is_due():
    reporter = Reporter()
    assert reporter.meta(received(), features=lambda: 1 / 0) == {NOTE: {}}
    assert reporter.meta(received(**{MOMENTS: ["site-2"]}), features=ROWS) == {NOTE: {}}
    note = read_note(reporter.meta(received(**{MOMENTS: ["site-1"]}), seconds=3.0, features=lambda: ROWS)[NOTE])
    assert note.seconds == 3.0
    np.testing.assert_allclose(note.moment.T @ note.moment, ROWS.T @ ROWS / 4, rtol=1e-5)


def test_targets_ride_along_where_the_scheme_wants_them():
    ask = received(**{MOMENTS: ["site-1"], TARGETS: True})
    note = read_note(Reporter().meta(ask, features=ROWS, targets=np.eye(4))[NOTE])
    rows = np.hstack([ROWS, np.eye(4)])
    np.testing.assert_allclose(note.moment.T @ note.moment, rows.T @ rows / 4, rtol=1e-4, atol=1e-5)


def test_privacy_keeps_its_budget():
    reporter = Reporter(privacy=Privacy(1.0, 1e-5, clip=1.0, releases=2))
    ask = received(**{MOMENTS: ["site-1"]})
    notes = [read_note(reporter.meta(ask, features=ROWS)[NOTE]) for _ in range(3)]
    assert [note.moment is None for note in notes] == [False, False, True]
    assert not np.array_equal(notes[0].moment, notes[1].moment)


def test_the_clients_own_clock_runs_from_started():
    reporter = Reporter()
    reporter.started()
    assert read_note(reporter.meta(received())[NOTE]).seconds >= 0


def test_a_job_keeps_every_setting(tmp_path):
    """NVFlare writes the controller's arguments from its attributes: what it cannot find there is lost."""
    import json

    job = FedJob(name="kept", min_clients=1)
    settings = {"seed": 7, "warmup": "lazy", "warmup_quota": 3, "deadline": 9.5, "moments_every": 2, "trust": False}
    arguments = {"selector": "flanp", "clock": "reported", "loss_key": "l", "sketch": 8, "state": "/somewhere"}
    arguments |= {"server": "fedadam", "forget_seconds": 60.0}
    controller = PacedFedAvg(**arguments, **settings, num_rounds=4, persistor_id="")
    job.to_server(controller)
    job.export_job(str(tmp_path))
    config = next(tmp_path.rglob("config_fed_server.*"))
    written = json.loads(config.read_text())["workflows"][0]["args"]
    assert (arguments | {"settings": settings}).items() <= written.items()
    assert PacedFedAvg(**written)._settings() == controller._settings()
    assert written["num_rounds"] == 4
    assert written["ignore_result_error"] is True


def test_settings_are_those_of_every_live_server_unless_given():
    assert PacedFedAvg()._settings() == LIVE_DEFAULTS
    assert PacedFedAvg(deadline=0.0)._settings() == LIVE_DEFAULTS, "0 = no limit, since JSON has no infinity"
    assert PacedFedAvg(trust=False)._settings() == replace(LIVE_DEFAULTS, trust=False)
    assert PacedFedAvg(settings={"seed": 3}, trust=False)._settings() == replace(LIVE_DEFAULTS, seed=3, trust=False)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"selector": "randon"}, "Did you mean"),
        ({"options": {"clients": 3}, "selector": "random"}, "clients"),
        ({"aggregator": object()}, "aggregator"),
        ({"options": {"kk": 3}, "selector": "random"}, "Did you mean 'k'"),
        ({"server": "fedadm"}, "Did you mean"),
        ({"warmup_wait": 2.0}, "warmup_wait"),
        ({"clock": "wall"}, "clock"),
        ({"deadline": -1.0}, "deadline"),
        ({"settings": {"sed": 1}}, "Did you mean 'seed'"),
    ],
)
def test_what_cannot_work_is_refused_before_the_job_is_sent(arguments, problem):
    with pytest.raises(FedpaceError, match=problem):
        PacedFedAvg(**arguments)
