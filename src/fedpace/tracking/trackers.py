"""The built-in trackers.

- `mlflow`: one MLflow run per run, in the MLflow experiment with the name of the experiment.
- `otel`: OpenTelemetry, the last value of every quantity as a gauge `fedpace.NAME`, and the number of rounds as a
  counter. If the program has set a meter provider, it decides where metrics go; otherwise they are sent to an OTLP
  endpoint over HTTP.
- `tensorboard`: one folder of event files per run; `tensorboard --logdir tensorboard` shows them.
- `wandb`: one W&B run per run; offline if no key is known, so that it never asks for one.
"""

from __future__ import annotations

import logging
import netrc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlparse

from fedpace._base.options import FINITE, Above
from fedpace.tracking import Entry, Sink, TrackedRun, Tracker

STATUS = {"diverged": "FAILED", "interrupted": "KILLED"}
"""MLflow's word for a status; all others are FINISHED."""
BATCH, PARAMS, LONGEST = 1000, 100, 500
"""Most metrics and parameters of one request, and most characters of a parameter: MLflow's limits."""


@dataclass(frozen=True)
class Mlflow(Tracker):
    """MLflow, at a server or in a local database.

    Args:
        uri: tracking server, such as `http://host:5000` or `sqlite:///mlflow.db`; empty = `MLFLOW_TRACKING_URI`, or
            MLflow's default.
        experiment: name of the MLflow experiment; empty = the name of the experiment.
    """

    name: ClassVar[str] = "mlflow"
    needs: ClassVar[tuple[str, ...]] = ("mlflow",)
    extra: ClassVar[str] = "mlflow"

    uri: str = ""
    experiment: str = ""

    def open(self, run: TrackedRun) -> Sink:
        """Create the run with its options as parameters, or continue it."""
        return _MlflowSink(self, run)


class _MlflowSink:
    def __init__(self, tracker: Mlflow, run: TrackedRun) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=tracker.uri or None)
        if run.key is not None:
            self.key = run.key
            self._client.update_run(self.key, status="RUNNING")
            return
        named = tracker.experiment or run.experiment
        found = self._client.get_experiment_by_name(named)
        experiment = self._client.create_experiment(named) if found is None else found.experiment_id
        made = self._client.create_run(experiment, run_name=run.name, tags={"mlflow.source.name": "fedpace"})
        self.key = str(made.info.run_id)
        params = [Param(_allowed(name), str(value)[:LONGEST]) for name, value in run.config.items()]
        for start in range(0, len(params), PARAMS):
            self._client.log_batch(self.key, params=params[start : start + PARAMS])

    def log(self, entries: Sequence[Entry]) -> None:
        from mlflow.entities import Metric

        metrics: list[Any] = [
            Metric(_allowed(name), value, int(1000 * entry.time), entry.number)
            for entry in entries
            for name, value in entry.values.items()
        ]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self.key, metrics=metrics[start : start + BATCH])

    def close(self, status: str) -> None:
        self._client.set_tag(self.key, "fedpace.status", status)
        self._client.set_terminated(self.key, STATUS.get(status, "FINISHED"))


def _allowed(name: str) -> str:
    """Return a name in which every character is one that MLflow takes."""
    return "".join(sign if sign.isalnum() or sign in "_-. /" else "_" for sign in name)


UNITS = {"seconds": "s", "bytes_down": "By", "bytes_up": "By"}


@dataclass(frozen=True)
class Otel(Tracker):
    """OpenTelemetry metrics, with the attributes `fedpace.run` and `fedpace.experiment`.

    Args:
        endpoint: URL of the collector's metrics, such as `http://host:4318/v1/metrics`; empty =
            `OTEL_EXPORTER_OTLP_ENDPOINT`, or localhost. Not used if the program has set a meter provider.
        every: seconds between two exports.
    """

    name: ClassVar[str] = "otel"
    needs: ClassVar[tuple[str, ...]] = ("opentelemetry.sdk.metrics", "opentelemetry.exporter.otlp.proto.http")
    extra: ClassVar[str] = "otel"

    endpoint: str = ""
    every: Annotated[float, Above(0), FINITE] = 10.0

    def open(self, run: TrackedRun) -> Sink:
        """Create the instruments; OpenTelemetry itself has no runs, so `key` is the name of the run."""
        return _OtelSink(self, run)


class _OtelSink:
    def __init__(self, tracker: Otel, run: TrackedRun) -> None:
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider

        self.key = run.name
        self._provider: Any = metrics.get_meter_provider()
        self._ours = not isinstance(self._provider, MeterProvider)
        if self._ours:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

            exporter = OTLPMetricExporter(endpoint=tracker.endpoint or None)
            reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1000 * tracker.every)
            self._provider = MeterProvider([reader])
        self._meter = self._provider.get_meter("fedpace")
        self._rounds = self._meter.create_counter("fedpace.rounds", unit="{round}", description="rounds or steps made")
        self._gauges: dict[str, Any] = {}
        self._attributes = {
            "fedpace.run": run.name,
            "fedpace.experiment": run.experiment,
            "fedpace.scheme": str(run.config.get("scheme", "")),
        }

    def log(self, entries: Sequence[Entry]) -> None:
        self._rounds.add(sum(entry.number > 0 for entry in entries), self._attributes)
        latest = {name: value for entry in entries for name, value in entry.values.items()}
        for name, value in latest.items():
            if name not in self._gauges:
                unit = UNITS.get(name, UNITS["seconds"] if name.endswith("_seconds") else "")
                self._gauges[name] = self._meter.create_gauge(f"fedpace.{name}", unit=unit)
            self._gauges[name].set(value, self._attributes)

    def close(self, status: str) -> None:
        if self._ours:
            self._provider.shutdown()
        else:
            self._provider.force_flush()


@dataclass(frozen=True)
class Tensorboard(Tracker):
    """TensorBoard's event files.

    Args:
        folder: the log folder, for `tensorboard --logdir`. Runs are written into folders below it.
    """

    name: ClassVar[str] = "tensorboard"
    needs: ClassVar[tuple[str, ...]] = ("tensorboard",)
    extra: ClassVar[str] = "tensorboard"

    folder: str = "tensorboard"

    def open(self, run: TrackedRun) -> Sink:
        """Create the run's folder with its options as a text, or continue in it."""
        return _TensorboardSink(self, run)


class _TensorboardSink:
    def __init__(self, tracker: Tensorboard, run: TrackedRun) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = Path(tracker.folder) / _folder_name(run.experiment) / _folder_name(run.name)
        self.key = run.key or str(folder.resolve() / f"{datetime.now():%Y%m%d-%H%M%S-%f}")
        self._writer = EventFileWriter(self.key, flush_secs=10)
        if run.key is None:
            table = "\n".join(["|option|value|", "|-|-|", *(f"|{name}|{value}|" for name, value in run.config.items())])
            one = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
            text = TensorProto(dtype="DT_STRING", string_val=[table.encode()], tensor_shape=one)
            described = Summary.Value(tag="options", metadata=create_summary_metadata("options", None), tensor=text)
            self._add(0, None, Summary(value=[described]))

    def log(self, entries: Sequence[Entry]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for entry in entries:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in entry.values.items()]
            self._add(entry.number, entry.time, Summary(value=values))
        self._writer.flush()

    def close(self, status: str) -> None:
        self._writer.close()

    def _add(self, step: int, time: float | None, summary: object) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        event = Event(step=step, summary=summary)
        event.wall_time = datetime.now().timestamp() if time is None else time
        self._writer.add_event(event)


def _folder_name(text: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in text).strip("._") or "run"


log = logging.getLogger("fedpace.tracking")


@dataclass(frozen=True)
class Wandb(Tracker):
    """Weights & Biases.

    Args:
        project: W&B project.
        entity: W&B user or team; empty = your default.
        mode: `online` or `offline`; empty = `WANDB_MODE`, or online if a key is known, and offline otherwise.
        folder: folder in which W&B creates its folder `wandb`; empty = `WANDB_DIR`, or the current folder.
    """

    name: ClassVar[str] = "wandb"
    needs: ClassVar[tuple[str, ...]] = ("wandb",)
    extra: ClassVar[str] = "wandb"

    project: str = "fedpace"
    entity: str = ""
    mode: Literal["", "online", "offline"] = ""
    folder: str = ""

    def open(self, run: TrackedRun) -> Sink:
        """Start the run with its options as configuration, or continue it."""
        return _WandbSink(self, run)


class _WandbSink:
    def __init__(self, tracker: Wandb, run: TrackedRun) -> None:
        import wandb

        mode: Any = tracker.mode or os.environ.get("WANDB_MODE") or ("online" if _key_known() else "offline")
        if mode == "offline" and not tracker.mode:
            log.warning("fedpace: tracking with wandb offline; `wandb sync` uploads the runs in the folder wandb")
        self._run = wandb.init(
            project=tracker.project,
            entity=tracker.entity or None,
            name=run.name,
            group=run.experiment,
            config=dict(run.config),
            dir=tracker.folder or None,
            mode=mode,
            id=run.key,
            resume="allow" if run.key else None,
            reinit="create_new",  # several runs of a comparison may be open at once
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.key = str(self._run.id)

    def log(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._run.log(dict(entry.values), step=entry.number)

    def close(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=1 if status in ("diverged", "interrupted") else 0)


def _key_known() -> bool:
    """Whether W&B can log in without asking: a key is in the environment or in ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
