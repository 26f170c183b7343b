"""MLflow: one MLflow run per run, in the MLflow experiment with the name of the experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedpace.tracking._base import Entry, Sink, TrackedRun, Tracker

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
        return _Run(self, run)


class _Run:
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
