"""`PacedFedAvg`, NVFlare's FedAvg controller with fedpace's selection and weights.

FedAvg calls `send_model` once per round. Here it runs the whole round: it broadcasts the coordinator's tasks and
returns when the model can step. `_get_aggregated_result` then applies the step. Persistors, filters, early stopping and
FedProx work as in NVFlare.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.weighted_aggregation_helper import filter_aggregatable_metrics
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.fedavg import FedAvg

from fedpace._base.checks import LARGEST, at_least, one_of
from fedpace._base.errors import InputError
from fedpace.core.aggregation import check_robust
from fedpace.core.coordinator import Coordinator
from fedpace.core.roster import Settings, Warmup
from fedpace.core.tasks import Step
from fedpace.core.types import Need
from fedpace.hosting.presence import FORGET
from fedpace.hosting.replies import Note, Reply
from fedpace.hosting.schemes import make_selector, make_server
from fedpace.hosting.server import Clock, Host, Server
from fedpace.nvflare.client import NOTE
from fedpace.nvflare.transport import TASKS, AbortedError, Broadcasts
from fedpace.trust.limits import CLIP, WEIGHT_RATE
from fedpace.trust.robust import make_robust

log = logging.getLogger("fedpace")

REMEDIES = {
    Need.MOMENT: "give Reporter.meta the features",
    Need.LOSS: "put loss into the metrics of its answer",
}
SETTINGS = (
    "seed",
    "warmup",
    "warmup_quota",
    "warmup_wait",
    "warmup_trains",
    "moments_every",
    "trust",
    "clip",
    "weight_rate",
)
SERVER = ("clock", "sketch", "loss_key", "forget_seconds")
"""Arguments that are passed to `Server` unchanged, as those in `SETTINGS` are to `Settings`."""
HOST = Host("nvflare", log, REMEDIES, frozenset(Need) - {Need.LABELS})


class PacedFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg with fedpace's selection of clients and weights.

    Args:
        selector: a scheme's name.
        options: options of the scheme, such as {"k": 10}.
        state: folder in which every round is saved and recorded (`fedpace report` reads it), and from which another job
            continues; empty = save nothing.
        seed, warmup, warmup_quota, warmup_wait, warmup_trains, moments_every: as in `fedpace.Settings`.
        clock: `server`: seconds are measured by the server, from sending a task to receiving its result. `reported`:
            seconds are those that clients report, and the server does not really wait.
        deadline: most seconds to wait for a cohort, under every scheme; 0 = no limit.
        loss_key: metric with the client's training loss; empty = train_loss or loss.
        sketch: entries of an update's sketch, for schemes that compare updates.
        trust: whether to bound the influence of each client, see docs/trust.md.
        clip: clip updates longer than this many times the reference length of the fleet; 0 = never.
        weight_rate: most weight of one client over time, as a multiple of its share of the objective; 0 = any.
        robust: name of a Byzantine-robust rule, see docs/trust.md; empty = the weighted mean.
        validation: path of a function, "package.module:name", that trains a model on the server's own data; it takes
            and returns named arrays. For the robust rules `fltrust` and `zeno`.
        forget_seconds: forget sites that were not connected for this long.
        server: name of the server step; empty = the one that the scheme asks for.
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
        seed: int = 0,
        warmup: Warmup = "lazy",
        warmup_quota: int = 5,
        warmup_wait: float = 1.0,
        warmup_trains: bool = True,
        clock: Clock = "server",
        deadline: float = 0.0,
        loss_key: str = "",
        moments_every: int = 1,
        sketch: int = 256,
        trust: bool = True,
        clip: float = CLIP,
        weight_rate: float = WEIGHT_RATE,
        robust: str = "",
        validation: str = "",
        forget_seconds: float = FORGET,
        server: str = "",
        ignore_result_error: bool | None = True,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("aggregator") is not None:
            raise InputError("PacedFedAvg aggregates with the cohort's weights itself: leave aggregator out")
        at_least(deadline, 0, "deadline")
        one_of(clock, ("server", "reported"), "clock")
        super().__init__(*args, ignore_result_error=ignore_result_error, **kwargs)
        # NVFlare writes a job's configuration from the attributes with the names of the arguments.
        self.selector, self.options, self.state, self.seed = selector, options, state, seed
        self.warmup, self.warmup_quota, self.warmup_wait = warmup, warmup_quota, warmup_wait
        self.warmup_trains, self.clock, self.deadline, self.loss_key = warmup_trains, clock, deadline, loss_key
        self.moments_every, self.sketch, self.server = moments_every, sketch, server
        self.trust, self.clip, self.weight_rate, self.forget_seconds = trust, clip, weight_rate, forget_seconds
        self.robust, self.validation = robust, validation
        # Check names and options before the job is submitted.
        make_selector(selector, options or {})
        make_server(server or None)
        check_robust(make_robust(robust) if robust else None, validation)
        self._settings()
        self._server: Server
        self._tasks: Broadcasts
        self._standing: list[Task] = []
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
            HOST,
            folder=Path(self.state) if self.state else None,
            rule=make_server(self.server or None),
            robust=self.robust or None,
            validation=_function(self.validation) if self.validation else None,
            **{name: getattr(self, name) for name in SERVER},
        )
        self._tasks = Broadcasts(self._broadcast, lambda: self.abort_signal.triggered, (self.sketch, self.seed))
        done = self.coordinator.step
        if self._server.saved is not None:
            self.info(f"fedpace: {done} rounds are saved in {self.state}: going on with round {done}")
            self.model = FLModel(params=dict(self._server.saved.model))
        self.start_round = done
        self.num_rounds: int = max(0, self.num_rounds - done)

    def run(self) -> None:
        """Train, and record in the state folder how the job ended."""
        with self._server.sitting():
            super().run()

    # -- a round ---------------------------------------------------------------------------------------------

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Return all connected clients; the scheme selects among them later, and `num_clients` has no effect."""
        connected = [client.name for client in self.engine.get_clients()]
        self._server.presence.update({name: Note(name=name) for name in connected})
        return connected

    def send_model(self, *args: Any, data: FLModel, targets: list[str], **kwargs: Any) -> None:
        """Run the whole round: broadcast tasks and wait until the model can step."""
        self._server.share(data.params or {})
        try:
            self._step = self._server.next_step(self._tasks.on(data), targets)
        except AbortedError:
            return  # FedAvg asks for standing tasks next, and sees the abort signal
        flight = self.coordinator.flight.tasks
        awaited = [task for task in self._standing if flight.keys() & set(_note(task)[TASKS].values())]
        for task in self._standing:
            if task not in awaited:
                self.cancel_task(task)
        self._standing = awaited

    def get_num_standing_tasks(self) -> int:
        """Return 1 if the job was aborted, else 0: `send_model` returns after the round, even with tasks in flight."""
        return int(self.abort_signal.triggered)

    def _get_aggregated_result(self) -> FLModel:
        """Apply the step with the cohort's weights; NVFlare's averaging would multiply them by the number of steps."""
        step, self._step = self._step, None
        shared = self._server.shared
        answers = [] if step is None else self._server.answers(step)
        if step is not None:
            moved = self._server.take(step)
            self._server.stepped(step, shared.arrays, moved=moved)
        result = FLModel(
            params_type=ParamsType.FULL,
            params=shared.arrays,
            metrics=mean_metrics([(weight, reply) for weight, _, reply in answers]),
            current_round=self.current_round,
            meta={"nr_aggregated": len(answers), "current_round": self.current_round},
        )
        self._set_metrics_aggregation_info(result)
        return result

    # -- tasks and results -----------------------------------------------------------------------------------

    def _broadcast(self, data: FLModel, targets: list[str]) -> None:
        super().send_model(task_name=self.task_name, data=data, targets=targets, callback=self._tasks.answered)

    def _prepare_task(self, *args: Any, **kwargs: Any) -> Task:
        task = super()._prepare_task(*args, **kwargs)
        task.task_done_cb = self._task_done
        self._standing.append(task)
        return task

    def _process_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        code = client_task.result.get_return_code()
        super()._process_result(client_task, fl_ctx)
        meta = client_task.task.props[AppConstants.META_DATA]
        self._tasks.ended(meta, [client_task.client.name], f"it answered with {code}")

    def _task_done(self, task: Task, fl_ctx: FLContext) -> None:
        """Report the clients that did not answer before the task ended, because they are dead."""
        self._tasks.ended(task.props[AppConstants.META_DATA], _note(task)[TASKS], f"its task {task.completion_status}")

    def _settings(self) -> Settings:
        return Settings(deadline=self.deadline or math.inf, **{name: getattr(self, name) for name in SETTINGS})


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


def _note(task: Task) -> Mapping[str, Any]:
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
