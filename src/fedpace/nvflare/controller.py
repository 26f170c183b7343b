"""NVFlare's FedAvg controller with a Session inside: it chooses the clients, and knows what each weighs.

Three methods of the controller are replaced: `sample_clients` asks the session; `send_model` adds what the scheme wants
to know, the deadline and how many answers are enough; each answer is timed as it comes, and `_get_aggregated_result`
reports the round to the session before the aggregator averages. The rest is NVFlare's: persistors, filters, early
stopping, FedProx.
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
from nvflare.apis.fl_constant import FLMetaKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg

from fedpace.core.checks import at_least, one_of
from fedpace.core.errors import InputError
from fedpace.core.session import Session, Warmup
from fedpace.core.types import Need, Selection
from fedpace.core.waiting import round_end
from fedpace.hosting.host import Host, Settings, make_selector
from fedpace.hosting.memory import Answer, Memory
from fedpace.hosting.notes import Note, read_note
from fedpace.nvflare.aggregator import CohortAverage
from fedpace.nvflare.client import MOMENTS, NOTE, TARGETS

log = logging.getLogger("fedpace")

LOSS_KEYS = ("train_loss", "loss")
OFFERS = frozenset(Need) - {Need.LABELS}
REMEDIES = {
    Need.MOMENT: "give Reporter.meta the features",
    Need.LOSS: "put loss into the metrics of its answer",
}


class PacedFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg with fedpace's choice of clients and weights.

    Args:
        selector: a scheme's name.
        options: of the scheme, such as {"k": 10}.
        state: folder where every round is saved, and from which another job goes on; empty = nowhere.
        seed: names every random stream of the selection.
        warmup: how clients of which the scheme knows too little are met: `lazy` (a quota in each cohort) or `full` (one
            round with all of them, which leaves the shared model as it is).
        warmup_quota: see above.
        clock: `server`: time is this machine's, and deadlines are waited for. `reported`: time is what clients report,
            and nobody really waits.
        deadline: seconds that a cohort is waited for, whatever the scheme says; 0 = for ever. NVFlare takes whole ones.
        loss_key: metric with the client's training loss; empty = train_loss or loss.
        moments_every: ask a client for its feature moment again after so many selections; 0 = once.
        sketch: entries of an update's sketch, for schemes that compare updates.
        ignore_result_error: as NVFlare's; True = a client that fails has failed in this round, and training goes on.
        kwargs: of NVFlare's FedAvg; `num_rounds` counts all rounds, those before a restart too. `num_clients` says
            nothing here, and `aggregator` is taken.
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
        clock: Literal["server", "reported"] = "server",
        deadline: float = 0.0,
        loss_key: str = "",
        moments_every: int = 1,
        sketch: int = 256,
        ignore_result_error: bool | None = True,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("aggregator") is not None:
            raise InputError("PacedFedAvg aggregates with the cohort's weights itself: leave aggregator out")
        one_of(clock, ("server", "reported"), "clock")
        at_least(deadline, 0, "deadline")
        super().__init__(*args, ignore_result_error=ignore_result_error, **kwargs)
        # NVFlare writes a job's configuration from the attributes that are called as the arguments are.
        self.selector, self.options, self.state, self.seed = selector, options, state, seed
        self.warmup, self.warmup_quota, self.clock, self.deadline = warmup, warmup_quota, clock, deadline
        self.loss_key, self.moments_every, self.sketch = loss_key, moments_every, sketch
        make_selector(selector, options or {})  # so that a wrong name or option is refused before the job is sent
        self._host: Host
        self._answers: list[Answer] = []
        self._broken: set[str] = set()
        self._here: list[str] = []
        self._began = self._sent = time.monotonic()

    @property
    def session(self) -> Session:
        """The memory of the selection."""
        return self._host.session

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Go on where an earlier job stopped."""
        super().start_controller(fl_ctx)
        self.aggregator = CohortAverage()
        self._host = Host(
            make_selector(self.selector, self.options or {}),
            Settings(seed=self.seed, warmup=self.warmup, warmup_quota=self.warmup_quota),
            Memory(self.moments_every, self.sketch, REMEDIES, log),
            Path(self.state) if self.state else None,
            log,
            OFFERS,
        )
        done = self._host.done
        if self._host.saved is not None and self._host.saved.model is not None:
            self.info(f"fedpace: {done} rounds are saved in {self.state}: going on with round {done}")
            self.model = FLModel(params=self._host.saved.model)
        self.start_round = done
        self.num_rounds: int = max(0, self.num_rounds - done)
        self._began = time.monotonic() - self.session.now

    # -- a round ---------------------------------------------------------------------------------------------

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Choose among the clients that are connected; `num_clients` is the scheme's business."""
        self._here = [client.name for client in self.engine.get_clients()]
        self._host.join({name: Note() for name in self._here})
        if self._host.probe(now=self._time(), available=self._here) is not None:
            self.session.abandon()
            raise InputError(f"{self.selector} asks clients before it chooses, which this host cannot: use another")
        selection = self._host.select(now=self._time(), available=self._here)
        names = [str(name) for name in selection.clients]
        chosen = ", ".join(f"{name} {weight:.3g}" for name, weight in zip(names, selection.weights, strict=True))
        said = " (warm-up)" if selection.warmup else ""
        self.info(f"fedpace: {len(names)} of {len(self._here)} clients{said}: {chosen}")
        return names

    def send_model(self, *args: Any, data: FLModel, targets: list[str], **kwargs: Any) -> None:
        """Say what is wanted beside the model, and how long and for how many to wait."""
        selection = self._pending()
        self.aggregator.current = {key: np.array(value) for key, value in (data.params or {}).items()}
        self._answers, self._broken = [], set()
        wanted = self._host.wanted
        due = [name for name in targets if Need.MOMENT in wanted and self._host.moment_due(name)]
        data.meta = {**(data.meta or {}), NOTE: {MOMENTS: due, TARGETS: Need.TARGETS in wanted}}
        if self.clock == "server":
            deadline = self._deadline(selection)
            kwargs["timeout"] = 0 if math.isinf(deadline) else math.ceil(deadline)
            kwargs["min_responses"] = selection.enough or None
        self._sent = time.monotonic()
        super().send_model(*args, data=data, targets=targets, **kwargs)

    def _accept_train_result(
        self, client_name: str, result: Shareable, fl_ctx: FLContext, is_unknown_task: bool = False
    ) -> bool:
        if not is_unknown_task and result.get_return_code() not in (None, ReturnCode.OK):
            self._broken.add(client_name)
        return bool(super()._accept_train_result(client_name, result, fl_ctx, is_unknown_task))

    def _aggregate_one_result(self, result: FLModel) -> bool:
        """Time an answer as it comes, and read what is beside the model."""
        elapsed = time.monotonic() - self._sent
        name = str((result.meta or {}).get("client_name"))
        loss = self._loss(result)
        if not result.params or math.isinf(loss):
            self.warning(f"fedpace: {name} sent no model, or diverged: it counts as failed in this round")
            self._broken.add(name)
            return False
        try:
            note = read_note(result.meta.get(NOTE) or {})
        except (InputError, AttributeError, TypeError) as problem:
            self.warning(f"fedpace: the report of {name} is not used: {problem}")
            note = Note()
        self.aggregator.accept_model(result)
        self._answers.append(
            Answer(
                name,
                seconds=elapsed if math.isnan(note.seconds) else note.seconds,
                loss=loss,
                samples=_number(result.meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND)),
                note=note,
                trained=lambda: self.aggregator.trained(name),
            )
        )
        self._received_count += 1
        return True

    def _get_aggregated_result(self) -> FLModel:
        """Report the round to the session, average with the cohort's weights, and save both."""
        selection = self._pending()
        finished, late, seconds = self._settle(selection)
        self._host.observe(selection, finished, late, self.aggregator.current, self._time(seconds))
        weight = {str(name): float(value) for name, value in zip(selection.clients, selection.weights, strict=True)}
        settled = {answer.name for answer in finished}
        counted = {} if selection.warmup else {name: value for name, value in weight.items() if name in settled}
        self.aggregator.mode, self.aggregator.weights = selection.mode, counted
        self.aggregator.shared = self._host.share(self.aggregator.current)
        result = super()._get_aggregated_result()
        self._host.save(
            self.current_round + 1,
            selection,
            finished=settled,
            available=self._here,
            seconds=seconds,
            model=result.params,
        )
        self.aggregator.reset_stats()
        return result

    # -- inside ----------------------------------------------------------------------------------------------

    def _settle(self, selection: Selection) -> tuple[list[Answer], dict[str, float], float]:
        """Who made it, who was waited for in vain and for how long, and how long the round took."""
        order = {str(name): position for position, name in enumerate(selection.clients)}
        answers = sorted((answer for answer in self._answers if answer.name in order), key=lambda a: order[a.name])
        if self.clock == "reported":
            reported = np.array([answer.seconds for answer in answers])
            end = round_end(reported, self._deadline(selection), enough=selection.enough)
            late = {answer.name: end for answer in answers if answer.seconds > end}
            return [answer for answer in answers if answer.name not in late], late, end
        elapsed = time.monotonic() - self._sent
        missing = set(order) - {answer.name for answer in answers} - self._broken
        return answers, dict.fromkeys(missing, elapsed), elapsed

    def _time(self, passed: float = 0.0) -> float:
        """Seconds of the session: of this machine since the first start, or those reported."""
        if self.clock == "reported":
            return self.session.now + passed
        return max(self.session.now, time.monotonic() - self._began)

    def _deadline(self, selection: Selection) -> float:
        return min(selection.deadline, self.deadline or math.inf)

    def _pending(self) -> Selection:
        selection = self.session.pending
        if selection is None:
            raise InputError("no clients were chosen for this round: sample_clients comes first")
        return selection

    def _loss(self, result: FLModel) -> float:
        metrics = result.metrics or {}
        keys = (self.loss_key,) if self.loss_key else LOSS_KEYS
        return next((_number(metrics[key]) for key in keys if key in metrics), math.nan)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
