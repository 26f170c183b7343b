"""What the adapter computes, without a federation: the average, the note, and what a job's configuration keeps."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.job_config.api import FedJob

from fedpace.core.errors import FedpaceError, InputError
from fedpace.hosting.notes import read_note
from fedpace.hosting.shared_model import SharedModel
from fedpace.nvflare import PacedFedAvg, Privacy, Reporter
from fedpace.nvflare.aggregator import CohortAverage
from fedpace.nvflare.client import MOMENTS, NOTE, TARGETS
from fedpace.server.fedexp import Fedexp
from fedpace.server.nesterov import Nesterov

CURRENT = {"w": np.array([1.0, 2.0], np.float32), "count": np.array(4)}


def average(weights, mode="average", *, kind=ParamsType.FULL, metrics=None):
    aggregator = CohortAverage()
    aggregator.current, aggregator.mode, aggregator.weights = dict(CURRENT), mode, weights
    for number, name in enumerate(("a", "b", "c"), start=1):
        shift = {"w": np.full(2, number, np.float32), "count": np.array(number)}
        params = shift if kind == ParamsType.DIFF else {key: CURRENT[key] + step for key, step in shift.items()}
        # NVFlare's own averaging would multiply by this.
        meta = {"client_name": name, "NUM_STEPS_CURRENT_ROUND": 10**number}
        aggregator.accept_model(FLModel(params_type=kind, params=params, metrics=metrics, meta=meta))
    return aggregator.aggregate_model()


@pytest.mark.parametrize("kind", [ParamsType.FULL, ParamsType.DIFF])
@pytest.mark.parametrize(
    ("weights", "mode", "step"),
    [
        ({"a": 0.5, "b": 0.5}, "average", 1.5),
        ({"a": 0.2, "c": 0.2}, "average", 2.0),  # b failed, and left its weight to the others
        ({"a": 0.25, "b": 0.25}, "delta", 0.75),
        ({"a": -0.5, "b": 0.25}, "delta", 0.0),
        ({}, "average", 0.0),
    ],
)
def test_weights_are_exact_whatever_the_number_of_steps(weights, mode, step, kind):
    result = average(weights, mode, kind=kind).params
    np.testing.assert_allclose(result["w"], CURRENT["w"] + step)
    assert result["count"] == np.rint(4 + step), "counters stay whole"
    assert result["count"].dtype == CURRENT["count"].dtype
    assert result["w"].dtype == np.float32


def test_an_extrapolated_average():
    aggregator = CohortAverage()
    aggregator.current, aggregator.weights = {"w": np.zeros(2)}, {"a": 0.5, "b": 0.5}
    aggregator.shared = SharedModel(aggregator.current, Fedexp())
    for name, step in (("a", [3.0, 4.0]), ("b", [-3.0, 1.0])):
        aggregator.accept_model(FLModel(params={"w": np.array(step)}, meta={"client_name": name}))
    factor = (25.0 + 10.0) / 2 / (2 * 2.5**2)
    assert factor > 1
    np.testing.assert_allclose(aggregator.aggregate_model().params["w"], factor * np.array([0.0, 2.5]))


def test_an_average_that_is_carried_on():
    aggregator = CohortAverage()
    aggregator.shared, model = SharedModel({"w": np.zeros(1)}, Nesterov(power=0.0)), np.zeros(1)
    models = []
    for _ in range(3):
        aggregator.current, aggregator.weights = {"w": model}, {"a": 0.5, "b": 0.5}
        for name in ("a", "b"):
            aggregator.accept_model(FLModel(params={"w": model + 1.0}, meta={"client_name": name}))
        model = aggregator.aggregate_model().params["w"]
        models.append(float(model[0]))
    # Steps of 1; leads of 0, then 1/4 of a move of 1, then 2/5 of a move of 1.25.
    assert models == pytest.approx([1.0, 2.25, 3.75])


def test_metrics_that_everybody_reports_are_averaged():
    result = average({"a": 0.5, "b": 1.5}, metrics={"accuracy": 0.5, "words": "x"})
    assert result.metrics == {"accuracy": 0.5}


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
    settings = {"selector": "flanp", "seed": 7, "warmup": "full", "warmup_quota": 3, "clock": "reported"}
    settings |= {"deadline": 9.5, "loss_key": "l", "moments_every": 2, "sketch": 8, "state": "/somewhere"}
    job.to_server(PacedFedAvg(**settings, num_rounds=4, persistor_id=""))
    job.export_job(str(tmp_path))
    config = next(tmp_path.rglob("config_fed_server.*"))
    written = json.loads(config.read_text())["workflows"][0]["args"]
    assert settings.items() <= written.items()
    assert written["num_rounds"] == 4
    assert written["ignore_result_error"] is True


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"selector": "randon"}, "Did you mean"),
        ({"options": {"clients": 3}, "selector": "random"}, "clients"),
        ({"aggregator": CohortAverage()}, "aggregator"),
        ({"clock": "wall"}, "clock"),
        ({"deadline": -1.0}, "deadline"),
    ],
)
def test_what_cannot_work_is_refused_before_the_job_is_sent(arguments, problem):
    with pytest.raises((FedpaceError, TypeError), match=problem):
        PacedFedAvg(**arguments)


def test_a_broken_note_is_refused():
    with pytest.raises(InputError):
        read_note({"seconds": "soon"})
