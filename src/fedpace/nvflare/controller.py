"""`PacedFedAvg`, NVFlare's FedAvg controller with fedpace's selection and weights.

FedAvg calls `send_model` once per round. Here it runs the whole round: it broadcasts the coordinator's tasks and
returns when the model can step. `_get_aggregated_result` then applies the step. Persistors, filters, early stopping and
FedProx work as in NVFlare.

`BroadcastTransport` sends the tasks. Tasks that start together are one broadcast, and so are probes. A script that
checks `Reporter.asked` answers a probe without training. Other scripts train, and their loss or their update is the
answer: correct, but slower. Results arrive on NVFlare's threads and wait in a queue for the controller's thread.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.controller_spec import Task as BroadcastTask
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.weighted_aggregation_helper import filter_aggregatable_metrics
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.fedavg import FedAvg

from fedpace._base.checks import LARGEST, one_of
from fedpace._base.errors import InputError
from fedpace.core.aggregation import check_robust
from fedpace.core.coordinator import Coordinator
from fedpace.core.settings import Settings
from fedpace.core.tasks import Step, Task
from fedpace.core.types import Need
from fedpace.hosting.live_server import Clock, Host, Server, live_settings, make_selector, make_server
from fedpace.hosting.replies import Note, Raw, Reply
from fedpace.hosting.reply_loop import FORGET_SECONDS
from fedpace.nvflare.client import MOMENTS, NOTE, PROBE, SEED, TARGETS, WIDTH, WORK
from fedpace.tracking import make_trackers
from fedpace.trust.robust import make_robust

TASKS = "tasks"
"""In the server's note: client name -> id of the coordinator's task."""


class AbortedError(Exception):
    """The NVFlare job was aborted during a round."""


class BroadcastTransport:
    """Tasks in flight and the queue of results.

    Args:
        broadcast: sends a model to the clients with these names.
        aborted: returns whether the job was aborted.
        sketch: width and seed of the sketches of steps.
        unpack: takes a client's result apart, in the controller's thread; None = as it came.
    """

    def __init__(
        self,
        broadcast: Callable[[FLModel, list[str]], None],
        aborted: Callable[[], bool],
        sketch: tuple[int, int],
        unpack: Callable[[FLModel], Raw] | None = None,
    ) -> None:
        self._broadcast, self._aborted, self._unpack = broadcast, aborted, unpack or unpacked
        self._projection = {WIDTH: sketch[0], SEED: str(sketch[1])}
        self._came: queue.Queue[tuple[int, Callable[[], Raw] | str]] = queue.Queue()
        self._settled: set[int] = set()
        self._model = FLModel(params={})

    def on(self, model: FLModel) -> BroadcastTransport:
        """Use this model for the next round."""
        self._model = model
        return self

    # -- the controller's thread -----------------------------------------------------------------------------

    def send(self, tasks: Sequence[Task]) -> None:
        """Broadcast the model with a note that lists the tasks and the server's questions."""
        probe = {PROBE: tasks[0].probe, **self._projection} if tasks[0].kind == "probe" else {}
        due = [str(task.client) for task in tasks if Need.MOMENT in task.facts]
        targets = any(Need.TARGETS in task.facts for task in tasks)
        ids = {str(task.client): task.id for task in tasks}
        work = {str(task.client): float(task.work) for task in tasks if task.work != 1}
        probe = {**probe, WORK: work} if work else probe
        self._model.meta = {**(self._model.meta or {}), NOTE: {MOMENTS: due, TARGETS: targets, TASKS: ids, **probe}}
        self._broadcast(self._model, list(ids))

    def collect(self) -> Iterator[tuple[int, Callable[[], Raw] | str]]:
        """Yield (task id, function that unpacks the result), or (task id, reason of the failure)."""
        while not self._came.empty():
            yield self._came.get()

    def wait(self, seconds: float) -> None:
        """Wait for a result, at most `seconds`; raise `AbortedError` if the job was aborted."""
        if self._aborted():
            raise AbortedError
        try:
            first = self._came.get(timeout=max(seconds, 0.001))
        except queue.Empty:
            return
        self._came.put(first)

    # -- NVFlare's threads -----------------------------------------------------------------------------------

    def answered(self, result: FLModel) -> bool:
        """Queue a client's result; NVFlare calls this."""
        meta = result.meta or {}
        number = meta["props"][NOTE][TASKS][meta["client_name"]]
        self._settled.add(number)
        self._came.put((number, partial(self._unpack, result)))
        return True

    def ended(self, meta: Any, names: Iterable[str], why: str) -> None:
        """Mark the tasks of these clients as failed, unless they have been answered."""
        for name, number in meta[NOTE][TASKS].items():
            if name in set(names) and number not in self._settled:
                self._settled.add(number)
                self._came.put((number, why))


def unpacked(result: FLModel) -> Raw:
    """Return a client's result as a reply."""
    meta = result.meta or {}
    return Raw(
        note=meta.get(NOTE) or {},
        metrics=result.metrics or {},
        samples=meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND),
        steps=meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND),
        model=result.params or None,
        is_step=result.params_type == ParamsType.DIFF,
        carrier=result,
    )


log = logging.getLogger("fedpace")

REMEDIES = {
    Need.MOMENT: "give Reporter.meta the features",
    Need.LOSS: "put loss into the metrics of its answer",
}
SERVER = ("clock", "sketch", "loss_key", "forget_seconds")
"""Arguments that are passed to `Server` unchanged."""
HOST = Host("nvflare", log, REMEDIES, frozenset(Need) - {Need.LABELS, Need.WORK})


class PacedFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg with fedpace's selection of clients and weights.

    Args:
        selector: a scheme's name.
        options: options of the scheme, such as {"k": 10}.
        state: folder in which every round is saved and recorded (`fedpace report` reads it), and from which another job
            continues; empty = save nothing.
        settings: fields of `fedpace.Settings`, which may also be given as keyword arguments, such as `seed=1`. A
            deadline of 0 means no limit. By default all sites train in the first round, which ends when half of them
            have answered.
        clock: `server`: seconds are measured by the server, from sending a task to receiving its result. `reported`:
            seconds are those that clients report, and the server does not really wait.
        loss_key: metric with the client's training loss; empty = train_loss or loss.
        sketch: entries of an update's sketch, for schemes that compare updates.
        robust: name of a Byzantine-robust rule, see docs/trust.md; empty = the weighted mean.
        validation: path of a function, "package.module:name", that trains a model on the server's own data; it takes
            and returns named arrays. For the robust rules `fltrust` and `zeno`.
        forget_seconds: forget sites that were not connected for this long.
        server: name of the server step; empty = the one that the scheme asks for.
        accepts_work: whether clients train as much as `Reporter.local_steps` says. Schemes that set work need it.
        track: names of experiment trackers, such as "mlflow,otel", see docs/howto/track.md; empty = none.
        ignore_result_error: as in NVFlare; True = training continues when a client fails in a round.
        kwargs: arguments of NVFlare's FedAvg. `num_rounds` counts all rounds, including those before a restart.
            `num_clients` has no effect, and `aggregator` is not allowed.
    """

    def __init__(
        self,
        *args: Any,
        selector: str = "pace",
        options: dict[str, Any] | None = None,
        state: str = "",
        settings: dict[str, Any] | None = None,
        clock: Clock = "server",
        loss_key: str = "",
        sketch: int = 256,
        robust: str = "",
        validation: str = "",
        forget_seconds: float = FORGET_SECONDS,
        server: str = "",
        accepts_work: bool = False,
        track: str = "",
        ignore_result_error: bool | None = True,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("aggregator") is not None:
            raise InputError("PacedFedAvg aggregates with the cohort's weights itself: leave aggregator out")
        names = {field.name for field in fields(Settings)}
        settings = (settings or {}) | {name: kwargs.pop(name) for name in list(kwargs) if name in names}
        one_of(clock, ("server", "reported"), "clock")
        super().__init__(*args, ignore_result_error=ignore_result_error, **kwargs)
        # NVFlare writes a job's configuration from the attributes with the names of the arguments.
        self.selector, self.options, self.state, self.settings = selector, options, state, settings or None
        self.clock, self.loss_key, self.sketch, self.server = clock, loss_key, sketch, server
        self.forget_seconds, self.robust, self.validation, self.track = forget_seconds, robust, validation, track
        self.accepts_work = accepts_work
        # Check names and options before the job is submitted.
        self._check_scheme(make_selector(selector, options or {}))
        make_server(server or None)
        make_trackers(track or None)
        check_robust(make_robust(robust) if robust else None, validation)
        self._settings()
        self._server: Server
        self._transport: BroadcastTransport
        self._broadcasts: list[BroadcastTask] = []
        self._step: Step | None = None

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator: it holds the known clients and the state of the scheme."""
        return self._server.coordinator

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Create the server, and continue where an earlier job with the same `state` stopped."""
        super().start_controller(fl_ctx)
        self._server = Server(
            make_selector(self.selector, self.options or {}),
            self._settings(),
            HOST.accepting(work=self.accepts_work),
            folder=Path(self.state) if self.state else None,
            rule=make_server(self.server or None),
            robust=self.robust or None,
            track=self.track or None,
            validation=_function(self.validation) if self.validation else None,
            encrypted=self.encrypted,
            **{name: getattr(self, name) for name in SERVER},
        )
        sketch = self.sketch, self._settings().seed
        self._transport = BroadcastTransport(
            self._broadcast, lambda: self.abort_signal.triggered, sketch, self._unpacked
        )
        done = self.coordinator.step
        if self._server.saved is not None:
            self.info(f"fedpace: {done} rounds are saved in {self.state}: continuing with round {done}")
            self.model = FLModel(params=dict(self._server.saved.model))
        self.start_round = done
        self.num_rounds: int = max(0, self.num_rounds - done)

    def run(self) -> None:
        """Train, and record in the state folder how the job ended."""
        with self._server.run_context():
            super().run()

    # -- a round ---------------------------------------------------------------------------------------------

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Return all connected clients; the scheme selects among them later, and `num_clients` has no effect."""
        connected = [client.name for client in self.engine.get_clients()]
        self._server.membership.update({name: Note(name=name) for name in connected})
        return connected

    def send_model(self, *args: Any, data: FLModel, targets: list[str], **kwargs: Any) -> None:
        """Run the whole round: broadcast tasks and wait until the model can step."""
        self._server.share(data.params or {})
        try:
            self._step = self._server.next_step(self._transport.on(data), targets)
        except AbortedError:
            return  # FedAvg asks for standing tasks next, and sees the abort signal
        flight = self.coordinator.task_table.tasks
        awaited = [task for task in self._broadcasts if flight.keys() & set(_note(task)[TASKS].values())]
        for task in self._broadcasts:
            if task not in awaited:
                self.cancel_task(task)
        self._broadcasts = awaited

    def get_num_standing_tasks(self) -> int:
        """Return 1 if the job was aborted, else 0: `send_model` returns after the round, even with tasks in flight."""
        return int(self.abort_signal.triggered)

    def _get_aggregated_result(self) -> FLModel:
        """Apply the step with the cohort's weights; NVFlare's averaging would multiply them by the number of steps."""
        step, self._step = self._step, None
        shared = self._server.shared
        answers = [] if step is None else self._server.answers(step)
        if step is not None:
            moved = self._apply(step)
            self._server.stepped(step, shared.arrays, moved=moved, extra=self._extra)
        result = FLModel(
            params_type=ParamsType.FULL,
            params=shared.arrays,
            metrics=mean_metrics([(weight, reply) for weight, _, reply in answers]),
            current_round=self.current_round,
            meta={"nr_aggregated": len(answers), "current_round": self.current_round},
        )
        self._set_metrics_aggregation_info(result)
        return result

    # -- what EncryptedFedAvg replaces ---------------------------------------------------------------------------------

    encrypted = False
    """Whether sites encrypt their updates, so that the server cannot read them."""

    def _check_scheme(self, scheme: Any) -> None:
        """Raise InputError if this controller cannot run the scheme."""
        Coordinator(scheme, offers=HOST.accepting(work=self.accepts_work).offers)

    def _apply(self, step: Step) -> bool:
        """Make a step, and return whether the shared model changed."""
        return self._server.apply(step)

    def _unpacked(self, result: FLModel) -> Raw:
        """Return a site's result as a reply; an exception is a failure of the site."""
        return unpacked(result)

    @property
    def _extra(self) -> dict[str, Any]:
        """What is saved with each round, as JSON values."""
        return {}

    # -- tasks and results -----------------------------------------------------------------------------------

    def _broadcast(self, data: FLModel, targets: list[str]) -> None:
        super().send_model(task_name=self.task_name, data=data, targets=targets, callback=self._transport.answered)

    def _prepare_task(self, *args: Any, **kwargs: Any) -> BroadcastTask:
        task = super()._prepare_task(*args, **kwargs)
        task.task_done_cb = self._task_done
        self._broadcasts.append(task)
        return task

    def _process_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        code = client_task.result.get_return_code()
        super()._process_result(client_task, fl_ctx)
        meta = client_task.task.props[AppConstants.META_DATA]
        self._transport.ended(meta, [client_task.client.name], f"it answered with {code}")

    def _task_done(self, task: BroadcastTask, fl_ctx: FLContext) -> None:
        """Report the clients that did not answer before the task ended, because they are dead."""
        self._transport.ended(
            task.props[AppConstants.META_DATA], _note(task)[TASKS], f"its task {task.completion_status}"
        )

    def _settings(self) -> Settings:
        given = {name: value for name, value in (self.settings or {}).items() if (name, value) != ("deadline", 0)}
        return live_settings(given, {})


def _function(path: str) -> Any:
    """Import a function by its path "package.module:name", because a job's configuration holds only text."""
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as cause:
        raise InputError(f"validation should name a function as 'package.module:name', but {path!r} came") from cause
    if not callable(found):
        raise InputError(f"validation should name a function, but {path!r} is a {type(found).__name__}")
    return found


def _note(task: BroadcastTask) -> Mapping[str, Any]:
    note: Mapping[str, Any] = task.props[AppConstants.META_DATA][NOTE]
    return note


def mean_metrics(answers: list[tuple[float, Reply]]) -> dict[str, float] | None:
    """Return the weighted means of the metrics that all clients reported, for NVFlare's stop conditions."""
    tables = [(w, filter_aggregatable_metrics(reply.carrier.metrics or {})) for w, reply in answers if w > 0]
    if not tables:
        return None
    total = sum(weight for weight, _ in tables)
    numbers = [
        {key for key, value in table.items() if isinstance(value, int | float) and abs(value) < LARGEST}
        for _, table in tables
    ]
    shared = set.intersection(*numbers)
    return {key: sum(weight * float(table[key]) for weight, table in tables) / total for key in sorted(shared)}
