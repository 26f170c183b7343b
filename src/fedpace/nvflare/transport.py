"""`Broadcasts` sends the coordinator's tasks as NVFlare broadcasts and unpacks the results.

Tasks that start together are one broadcast, and so are probes. A script that checks `Reporter.asked` answers a probe
without training. Other scripts train, and their loss or their update is the answer: correct, but slower. Results arrive
on NVFlare's threads and wait in a queue for the controller's thread.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedpace.core.tasks import Task
from fedpace.core.types import Need
from fedpace.hosting.replies import Raw
from fedpace.nvflare.client import MOMENTS, NOTE, PROBE, SEED, TARGETS, WIDTH

TASKS = "tasks"
"""In the server's note: client name -> id of the coordinator's task."""


class AbortedError(Exception):
    """The NVFlare job was aborted during a round."""


class Broadcasts:
    """Tasks in flight and the queue of results.

    Args:
        broadcast: sends a model to the clients with these names.
        aborted: returns whether the job was aborted.
        sketch: width and seed of the sketches of steps.
    """

    def __init__(
        self,
        broadcast: Callable[[FLModel, list[str]], None],
        aborted: Callable[[], bool],
        sketch: tuple[int, int],
    ) -> None:
        self._broadcast, self._aborted = broadcast, aborted
        self._projection = {WIDTH: sketch[0], SEED: str(sketch[1])}
        self._came: queue.Queue[tuple[int, Callable[[], Raw] | str]] = queue.Queue()
        self._settled: set[int] = set()
        self._model = FLModel(params={})

    def on(self, model: FLModel) -> Broadcasts:
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
        self._came.put((number, partial(_unpack, result)))
        return True

    def ended(self, meta: Any, names: Iterable[str], why: str) -> None:
        """Mark the tasks of these clients as failed, unless they have been answered."""
        for name, number in meta[NOTE][TASKS].items():
            if name in set(names) and number not in self._settled:
                self._settled.add(number)
                self._came.put((number, why))


def _unpack(result: FLModel) -> Raw:
    meta = result.meta or {}
    return Raw(
        note=meta.get(NOTE) or {},
        metrics=result.metrics or {},
        samples=meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND),
        model=result.params or None,
        is_step=result.params_type == ParamsType.DIFF,
        carrier=result,
    )
