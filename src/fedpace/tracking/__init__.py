"""Experiment trackers: MLflow, Weights & Biases, TensorBoard and OpenTelemetry.

    fedpace compare --track mlflow                                      # on the command line
    fedpace.compare(clients, test, model, track="mlflow")               # in Python
    PacedServer("pace-async", track=["wandb", "otel"])                  # on Flower
    with fedpace.Tracking("tensorboard", "my server") as tracking:      # in your own server
        tracking.log(step, {"loss": 0.3})

Other packages register trackers with an entry point in the group `fedpace.trackers`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Protocol

from fedpace._base import registry
from fedpace._base.errors import InputError, MissingExtraError
from fedpace._base.files import json_bytes, read_json, write_atomically
from fedpace._base.options import Options
from fedpace._base.registry import parse_named, split_list
from fedpace.core.types import ClientId, configuration
from fedpace.records.run import TRACKING, Round, RunInfo


class Entry(NamedTuple):
    """The values of one round."""

    number: int
    """Number of the round, or of the server's step."""
    time: float
    """Unix time in seconds at which the round was recorded."""
    values: Mapping[str, float]


@dataclass(frozen=True)
class TrackedRun:
    """The description of a run that a tracker shows."""

    name: str
    """Name of the run, such as `pace-async, seed 0`."""
    experiment: str
    """Name of the experiment, which groups runs."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Options of the run."""
    key: str | None = None
    """What the sink returned as `key` when this run was first tracked; None for a new run."""


class Sink(Protocol):
    """Receives the values of one run. All calls come from one thread, which is not that of the training."""

    @property
    def key(self) -> str:
        """Text by which the tracker finds this run again after it was resumed."""

    def log(self, entries: Sequence[Entry]) -> None:
        """Record rounds, in order."""

    def close(self, status: str) -> None:
        """End the run: `reached`, `finished`, `diverged` or `interrupted`."""


@dataclass(frozen=True)
class Tracker(Options):
    """Options of a tracker. A subclass is a frozen dataclass with a `name` and the method `open`."""

    name: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules that must be installed."""
    extra: ClassVar[str] = ""
    """The extra of fedpace that installs them."""

    def __post_init__(self) -> None:
        """Raise if an option is invalid or if a module is missing, before a run begins."""
        super().__post_init__()
        for module in self.needs:
            if not _installed(module):
                raise MissingExtraError(f"the tracker {self.name}", self.extra, module)

    @abstractmethod
    def open(self, run: TrackedRun) -> Sink:
        """Start to track a run, or continue if `run.key` is set."""


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def values_of(current: Round, metric: str = "accuracy") -> dict[str, float]:
    """Return the values of a round; values that are not known are left out."""
    failed: set[ClientId] = set(current.failed)
    found: dict[str, float | None] = {
        "loss": current.loss,
        metric: current.metric,
        "train_loss": current.train_loss,
        "clock_seconds": current.clock,
        "round_seconds": current.seconds,
        "overhead_seconds": current.overhead,
        "clients": len(current.clients),
        "failed_clients": len(failed),
        "client_seconds": current.work,
        "wasted_tasks": current.wasted,
        "bytes_down": current.bytes_down,
        "bytes_up": current.bytes_up,
        "step_factor": current.step_factor,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def described(info: RunInfo) -> TrackedRun:
    """Return the description of a recorded run."""
    config = {
        "scheme": info.selector,
        "seed": info.seed,
        "target": info.target,
        "options": info.options,
        "server": info.server,
        "robust": info.robust,
        "experiment": {name: value for name, value in info.experiment.items() if name not in ("selectors", "track")},
        "versions": info.versions,
        "commit": info.commit,
    }
    return TrackedRun(f"{info.label}, seed {info.seed}", str(info.experiment.get("name", "fedpace")), flat(config))


def flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested options as one table with names such as `training.lr`; options that are None are left out."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        elif value is not None:
            found[f"{before}{name}"] = value
    return found


log = logging.getLogger("fedpace.tracking")

MOST_WAITING = 10_000
"""Rounds that may wait for a slow tracker; further rounds are not tracked until it has caught up."""
MOST_FAILURES = 3
"""Failures in a row after which a tracker is given up for the rest of the run."""
PATIENCE = 30.0
"""Seconds that the end of a run waits for a slow tracker."""

Given = str | Tracker | Mapping[str, Any]
"""A tracker as users write it: `mlflow`, `mlflow(uri=...)`, an object or a table."""


def make_trackers(given: Given | Iterable[Given] | None, what: str = "track") -> tuple[Tracker, ...]:
    """Return the trackers that a user named; a missing package raises an error that says how to install it."""
    if given is None:
        return ()
    if isinstance(given, str | Mapping | Tracker):
        given = [given]
    if not isinstance(given, Iterable):
        raise InputError(f"{what} must name trackers ({', '.join(registry.trackers.names())}), but {given!r} came")
    found: list[Tracker] = []
    for entry in given:
        if isinstance(entry, str):
            found += [_made(parse_named(name, what), what) for name in split_list(entry, what)]
        else:
            found.append(_made(entry, what) if isinstance(entry, Mapping) else _checked(entry, what))
    return tuple(found)


def _made(table: Mapping[str, Any], what: str) -> Tracker:
    options = dict(table)
    if "name" not in options:
        raise InputError(f"{what} lacks the name of a tracker; known: {', '.join(registry.trackers.names())}")
    tracker: Tracker = registry.trackers.make(options.pop("name"), **options)
    return tracker


def _checked(tracker: Any, what: str) -> Tracker:
    if not (callable(getattr(tracker, "open", None)) and isinstance(getattr(tracker, "name", None), str)):
        raise InputError(f"{what} takes names of trackers or objects with a name and `open`, but {tracker!r} came")
    made: Tracker = tracker
    return made


class Tracking:
    """Tracks one run with any number of trackers.

    A tracker that fails logs a warning, and the run continues. Values are sent by one thread per tracker.

    Args:
        track: trackers, as names (`"mlflow"`, `"mlflow,wandb"`, `"mlflow(uri=http://host:5000)"`) or objects.
        run: description of the run, or its name.
        folder: folder of the run. `tracking.json` in it lets a resumed run continue in the tracker; None = not.
        config: options of the run to show, if `run` is a name.
    """

    def __init__(
        self,
        track: Given | Iterable[Given] | None,
        run: TrackedRun | str,
        folder: Path | None = None,
        *,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        described = TrackedRun(run, "fedpace", dict(config or {})) if isinstance(run, str) else run
        trackers = make_trackers(track)
        keys = _Keys(None if folder is None or not trackers else folder / TRACKING)
        self._workers = [_Sender(tracker, described, keys) for tracker in trackers]

    def log(self, number: int, values: Mapping[str, float]) -> None:
        """Send the values of a round or step to all trackers; this returns at once."""
        entry = Entry(number, time.time(), {name: float(value) for name, value in values.items()})
        for worker in self._workers:
            worker.put(entry)

    def add(self, current: Round, metric: str = "accuracy") -> None:
        """Send the record of a round to all trackers."""
        if self._workers:
            self.log(current.number, values_of(current, metric))

    def close(self, status: str = "finished") -> None:
        """End the run in all trackers, and wait up to 30 seconds for values that are not sent yet."""
        workers, self._workers = self._workers, []
        until = time.monotonic() + PATIENCE
        for worker in workers:
            worker.finish(status)
        for worker in workers:
            worker.join(until)

    def __enter__(self) -> Tracking:
        """Return this object; the end of the `with` block ends the run."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run; after an error its status is `interrupted`."""
        self.close("finished" if error is None else "interrupted")


class _Keys:
    """The file `tracking.json` of a run: tracker -> the key by which it finds the run again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        if path is not None and path.exists():
            found = read_json(path)
            if isinstance(found, dict):
                self._known = {name: key for name, key in found.items() if isinstance(key, str)}

    def get(self, name: str) -> str | None:
        return self._known.get(name)

    def set(self, name: str, key: str) -> None:
        with self._lock:
            if self._known.get(name) != key:
                self._known[name] = key
                if self._path is not None and self._path.parent.exists():
                    write_atomically(self._path, json_bytes(self._known))


class _Sender:
    """One thread that sends values to one tracker."""

    def __init__(self, tracker: Tracker, run: TrackedRun, keys: _Keys) -> None:
        self._tracker = tracker
        # Two trackers of the same kind, such as two MLflow servers, must not share a key.
        self._name = tracker.name + "".join(f" {name}={value}" for name, value in sorted(_options(tracker).items()))
        self._run = replace(run, key=keys.get(self._name))
        self._keys = keys
        self._queue: queue.Queue[Entry | str] = queue.Queue(MOST_WAITING)
        self._given_up = threading.Event()
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name=f"tracking with {tracker.name}", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        if self._given_up.is_set():
            return
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._dropped += 1
            if self._dropped == 1:
                self._warn(f"it is behind by {MOST_WAITING} rounds, and does not get the next ones")

    def finish(self, status: str) -> None:
        if not self._given_up.is_set():
            try:
                self._queue.put(status, timeout=PATIENCE)
            except queue.Full:
                self._given_up.set()

    def join(self, until: float) -> None:
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._given_up.set()
            self._warn(f"it did not end within {PATIENCE:g} seconds, so its last values may be missing")

    def _work(self) -> None:
        try:
            sink = self._tracker.open(self._run)
            self._keys.set(self._name, sink.key)
        except Exception as cause:
            self._give_up(cause)
            return
        self._send_all(sink)

    def _send_all(self, sink: Sink) -> None:
        failures = 0
        while not self._given_up.is_set():
            entries, status = self._next()
            try:
                if entries:
                    sink.log(entries)
                    failures = 0
            except Exception as cause:
                failures += 1
                if failures >= MOST_FAILURES:
                    self._give_up(cause)
                elif failures == 1:
                    self._warn(f"values of {len(entries)} rounds are lost ({_said(cause)})")
            if status is not None:
                try:
                    sink.close(status)
                except Exception as cause:
                    self._warn(f"it did not end the run ({_said(cause)})")
                return

    def _next(self) -> tuple[list[Entry], str | None]:
        """Wait for values, and return all that have come: a slow tracker gets several rounds at once."""
        entries: list[Entry] = []
        item = self._queue.get()
        while not isinstance(item, str):
            entries.append(item)
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return entries, None
        return entries, item

    def _give_up(self, cause: Exception) -> None:
        self._given_up.set()
        self._warn(f"the rest of the run is not tracked ({_said(cause)})")

    def _warn(self, what: str) -> None:
        log.warning("fedpace: %s: tracking with %s: %s. Training continues", self._run.name, self._tracker.name, what)


def _options(tracker: Tracker) -> dict[str, Any]:
    try:
        return configuration(tracker)
    except TypeError:  # an object of the user that is not a dataclass
        return {}


def _said(cause: Exception) -> str:
    """Return an exception as one short line."""
    text = " ".join(str(cause).split())
    return f"{type(cause).__name__}: {text[:300]}"


__all__ = ["Entry", "Sink", "TrackedRun", "Tracker", "Tracking", "described", "flat", "make_trackers", "values_of"]
