"""Every tracker gets what the records hold: each is read back with its own tools, from real local stores."""

from __future__ import annotations

import json
import math
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import fedpace
from fedpace.config import Overrides, load_experiment
from fedpace.records.run import TRACKING, find_runs
from fedpace.runner import Execution, resume, run_one
from fedpace.tracking import TrackedRun, values_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of the trackers' own packages

SCHEMES = ["random(k=3)", "pace"]
ROUNDS = 3


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of our own as the current one: trackers create folders there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no netrc"))
    return tmp_path


def compared(track, **more):
    results = fedpace.compare(
        data="digits",
        model="softmax",
        schemes=SCHEMES,
        seeds=1,
        rounds=ROUNDS,
        training=fedpace.Training(arithmetic="numpy"),
        track=track,
        out="out",
        progress=False,
        **more,
    )
    return {f"{run.info.label}, seed 0": run for run in results.records}


def recorded(run):
    """Name -> {round: value} of a recorded run."""
    found = {}
    for current in run.rounds:
        for name, value in values_of(current).items():
            found.setdefault(name, {})[current.number] = value
    return found


def mlflow_runs(uri):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    (experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
    assert experiment.name == "own data"
    return client, {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def check_mlflow(uri, runs):
    client, found = mlflow_runs(uri)
    assert found.keys() == runs.keys()
    for name, run in runs.items():
        tracked = found[name]
        for metric, values in recorded(run).items():
            history = client.get_metric_history(tracked.info.run_id, metric)
            assert {point.step: point.value for point in history} == pytest.approx(values)
        assert tracked.info.status == "FINISHED"
        assert tracked.data.params["scheme"] == run.info.selector
        assert tracked.data.params["experiment.data.name"] == "digits"
        assert tracked.data.tags["fedpace.status"] == run.info.status


@pytest.mark.mlflow
def test_mlflow_in_its_default_place_a_local_database(here):
    """In the environment of `make test-mlflow` or with the extra alone, as users have it."""
    pytest.importorskip("mlflow")
    check_mlflow(f"sqlite:///{here}/mlflow.db", compared("mlflow"))


@pytest.fixture
def server(here):
    """The address of a real MLflow server, which ends with the test."""
    pytest.importorskip("mlflow")
    pytest.importorskip("flask", reason="mlflow-skinny has no server: `make test-mlflow` installs one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{here}/server.db",
        "--artifacts-destination",
        str(here / "artifacts"),
    ]
    with Path("server.log").open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as started:
        try:
            until = time.monotonic() + 120
            while True:
                try:
                    urllib.request.urlopen(f"{uri}/health", timeout=5).close()
                    break
                except OSError:
                    assert started.poll() is None, Path("server.log").read_text()[-2000:]
                    assert time.monotonic() < until
                    time.sleep(0.5)
            yield uri
        finally:
            started.terminate()


@pytest.mark.mlflow
@pytest.mark.slow
def test_simulated_runs_on_an_mlflow_server(server):
    check_mlflow(server, compared(f'mlflow(uri="{server}")'))


@pytest.mark.mlflow
@pytest.mark.slow
def test_a_server_of_ones_own_on_an_mlflow_server(server, monkeypatch):
    """The address may come from MLflow's own variable."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    session = fedpace.Session(fedpace.make_selector("random", k=2), warmup="lazy")
    session.join(["a", "b", "c"])
    with fedpace.Tracking("mlflow", TrackedRun("mine", "own data", {"lr": 0.1})) as tracking:
        for number in range(3):
            chosen = session.select().clients
            session.observe([fedpace.Outcome(client, seconds=1.0) for client in chosen])
            tracking.log(number, {"clients": len(chosen), "loss": 1 / (1 + number)})
    client, found = mlflow_runs(server)
    tracked = found["mine"]
    losses = {point.step: point.value for point in client.get_metric_history(tracked.info.run_id, "loss")}
    assert losses == pytest.approx({number: 1 / (1 + number) for number in range(3)})
    assert tracked.data.metrics["clients"] == 2
    assert (tracked.info.status, tracked.data.params["lr"]) == ("FINISHED", "0.1")


def wandb_records(path):
    """The records of a `.wandb` file, which has the format of LevelDB's log: blocks of 32 KiB, records cut at them."""
    data, place, record = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield record
            record = b""


def test_wandb_offline(here, caplog):
    """Without a key, W&B records offline and says so; its own reader finds every value."""
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    runs = compared("wandb")
    assert "wandb sync" in caplog.text
    found = {}
    for path in here.glob("wandb/offline-run-*/*.wandb"):
        name, history = "", {}
        for data in wandb_records(path):
            record = wandb_internal_pb2.Record.FromString(data)
            name = record.run.display_name or name
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for key, value in items.items():
                if not key.startswith("_"):
                    history.setdefault(key, {})[record.history.step.num] = value
        found[name] = history
    assert found.keys() == runs.keys()
    for name, run in runs.items():
        for metric, values in recorded(run).items():
            assert found[name][metric] == pytest.approx(values)


def test_tensorboard_event_files(here):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runs = compared("tensorboard(folder=events)")
    for run in runs.values():
        (folder,) = here.glob(
            f"events/own_data/{run.info.label.replace('(', '_').replace(')', '_').replace('=', '_')}*/*"
        )
        events = EventAccumulator(str(folder)).Reload()
        for metric, values in recorded(run).items():
            assert {event.step: event.value for event in events.Scalars(metric)} == pytest.approx(values, rel=1e-6)
        (options,) = events.Tensors("options")
        assert b"|scheme|" in options.tensor_proto.string_val[0]


def test_opentelemetry_with_the_programs_own_provider(here, monkeypatch):
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    runs = compared("otel")
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    found[metric.name, point.attributes["fedpace.run"]] = point.value
    for name, run in runs.items():
        assert found["fedpace.rounds", name] == ROUNDS
        for metric, values in recorded(run).items():
            assert found[f"fedpace.{metric}", name] == pytest.approx(values[max(values)])


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(here):
    """A run that is interrupted after two rounds and resumed has each round once, in one MLflow run."""
    pytest.importorskip("mlflow")
    uri = f"sqlite:///{here}/mlflow.db"
    changes = Overrides(max_rounds=5, track=[f'mlflow(uri="{uri}", experiment="own data")'])
    experiment, folder = load_experiment(None, changes), Path("out")

    def interrupt(job, current):
        if current.number == 2:
            raise KeyboardInterrupt

    # Without checkpoints, the resumed run computes the first rounds again; they must not be tracked twice.
    execution = Execution(checkpoint_every=math.inf)
    with pytest.raises(KeyboardInterrupt):
        run_one(experiment, experiment.schemes[0], 0, folder, interrupt, execution=execution)
    client, found = mlflow_runs(uri)
    (tracked,) = found.values()
    assert tracked.info.status == "KILLED"
    assert json.loads((folder / TRACKING).read_text()).popitem()[1] == tracked.info.run_id
    resume(folder, execution=execution)
    (run,) = find_runs(folder)
    client, found = mlflow_runs(uri)
    (tracked,) = found.values()
    assert tracked.info.status == "FINISHED"
    points = client.get_metric_history(tracked.info.run_id, "clock_seconds")
    assert sorted((point.step, point.value) for point in points) == [(now.number, now.clock) for now in run.rounds]


def test_an_own_server_tracks_what_it_logs(here):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with fedpace.Tracking("tensorboard", TrackedRun("mine", "servers", {"lr": 0.1})) as tracking:
        for step in range(4):
            tracking.log(step, {"loss": 1 / (1 + step)})
    (folder,) = here.glob("tensorboard/servers/mine/*")
    events = EventAccumulator(str(folder)).Reload().Scalars("loss")
    assert [(event.step, event.value) for event in events] == [
        (step, pytest.approx(1 / (1 + step))) for step in range(4)
    ]
