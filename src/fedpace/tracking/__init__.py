"""Experiment trackers: MLflow, Weights & Biases, TensorBoard and OpenTelemetry.

    fedpace compare --track mlflow                                      # on the command line
    fedpace.compare(clients, test, model, track="mlflow")               # in Python
    PacedServer("pace-async", track=["wandb", "otel"])                  # on Flower
    with fedpace.Tracking("tensorboard", "my server") as tracking:      # in your own server
        tracking.log(step, {"loss": 0.3})

Other packages register trackers with an entry point in the group `fedpace.trackers`.
"""

from fedpace.tracking._base import Entry, Sink, TrackedRun, Tracker
from fedpace.tracking._values import described, flat, values_of
from fedpace.tracking._worker import Tracking, make_trackers

__all__ = ["Entry", "Sink", "TrackedRun", "Tracker", "Tracking", "described", "flat", "make_trackers", "values_of"]
