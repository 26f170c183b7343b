"""`Reporter`, for the client's training script: it writes fedpace's note into the meta of the answer.

NVFlare transports the meta unchanged.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from nvflare.app_common.abstract.fl_model import FLModel

from fedpace._base.checks import at_least, whole
from fedpace._base.errors import FedpaceError, InputError
from fedpace.hosting.replies import Privacy, UpdateSketch, moment_rows, pack_update, packed_moment, steps_of_work

NOTE = "fedpace"
"""Key of fedpace's note in a model's meta, in both directions."""
MOMENTS = "moments_of"
"""In the server's note: names of the clients that must send their moment."""
TARGETS = "targets"
"""In the server's note: True = send joint moments of features and targets."""
PROBE = "probe"
"""In the server's note: `loss` or `gradient` = answer this probe and do not train."""
WORK = "work"
"""In the server's note: client name -> how much to train, as a multiple of the usual local training."""
WIDTH, SEED = "sketch_width", "sketch_seed"
"""With a `gradient` probe: width and seed of the sketch."""

log = logging.getLogger("fedpace")

Rows = ArrayLike | Callable[[], ArrayLike]


class Reporter:
    """Writes the notes of one client; create one per run of the training script.

    Args:
        max_rank: leading directions of the moment that are sent.
        privacy: options of differential privacy; None = the exact moment is sent. Releases are counted per object.
    """

    def __init__(self, *, max_rank: int = 16, privacy: Privacy | None = None) -> None:
        at_least(max_rank, 1, "max_rank of Reporter")
        self._max_rank = max_rank
        self._privacy = privacy
        self._releases = 0
        self._start = math.nan

    def started(self) -> None:
        """Start the client's clock: call it when the model has been received."""
        self._start = time.perf_counter()

    def meta(
        self,
        received: FLModel,
        *,
        seconds: float | None = None,
        features: Rows | None = None,
        targets: Rows | None = None,
    ) -> dict[str, Any]:
        """Return entries to add to the meta of the answer.

        Args:
            received: the server's model; its meta holds the server's questions.
            seconds: seconds that the client took; None = the time since `started`, or the server's measurement if
                `started` was not called.
            features: (n, d) rows of last-layer inputs at the received model, with a 1 appended if the layer has a
                bias; or a function that returns them, called only if the server asks.
            targets: (n, c) targets of these rows, one-hot for classes; or a function that returns them.
        """
        taken = time.perf_counter() - self._start if seconds is None else float(seconds)
        computed = time.perf_counter() - self._start
        note: dict[str, Any] = {} if math.isnan(taken) else {"seconds": taken}
        note |= {} if math.isnan(computed) else {"compute": computed}
        if features is not None and self._due(received):
            note |= self._moment(features, targets if _asked(received).get(TARGETS) else None)
        return {NOTE: note}

    def asked(self, received: FLModel) -> str:
        """Return the kind of probe in the server's message, `loss` or `gradient`; empty = train as usual."""
        return str(_asked(received).get(PROBE, ""))

    def local_steps(self, received: FLModel, usual: int) -> int:
        """Return how many local steps to make, if the scheme sets work; `usual` is the client's usual number.

        Put the result into the meta of the answer as `NUM_STEPS_CURRENT_ROUND`, as NVFlare's clients do.
        """
        whole(usual, 1, "the usual number of local steps")
        name = (received.meta or {}).get("site_name")
        return steps_of_work(_asked(received).get(WORK, {}).get(name), usual)

    def answer(
        self, received: FLModel, *, loss: float = math.nan, step: Mapping[str, ArrayLike] | None = None
    ) -> FLModel:
        """Return the answer to a probe, if `asked` returned one.

        Args:
            received: the server's model.
            loss: for a `loss` probe, the loss of the received model on the client's data.
            step: for a `gradient` probe, one step from the received model, name -> array, equal to minus the learning
                rate times the gradient. Only a sketch of it leaves the client.
        """
        asked = _asked(received)
        note: dict[str, Any] = {}
        if asked.get(PROBE) == "gradient":
            sketch = UpdateSketch(_arrays(received.params or {}), int(asked[WIDTH]), seed=int(asked[SEED]))
            found = None if step is None else sketch.of_step(_arrays(step))
            if found is None:
                raise InputError("the step should be finite, with the arrays of the received model in their shapes")
            note = pack_update(found)
        elif math.isnan(loss):
            raise InputError("the server asked for the loss of its model, but Reporter.answer was given none")
        return FLModel(metrics={} if math.isnan(loss) else {"loss": float(loss)}, meta={NOTE: note})

    def _due(self, received: FLModel) -> bool:
        name = (received.meta or {}).get("site_name")
        budget = self._privacy is None or self._releases < self._privacy.releases
        return budget and name in _asked(received).get(MOMENTS, ())

    def _moment(self, features: Rows, targets: Rows | None) -> dict[str, Any]:
        try:
            rows = moment_rows(_made(features), None if targets is None else _made(targets))
            self._releases += 1
            return packed_moment(rows, self._max_rank, self._privacy)
        except FedpaceError as problem:
            log.warning("fedpace: no feature moment is sent: %s", problem)
            return {}


def _asked(received: FLModel) -> dict[str, Any]:
    asked = (received.meta or {}).get(NOTE)
    return asked if isinstance(asked, dict) else {}


def _arrays(given: Mapping[str, ArrayLike]) -> dict[str, NDArray[Any]]:
    return {key: np.asarray(array) for key, array in given.items()}


def _made(rows: Rows) -> ArrayLike:
    return np.asarray(rows() if callable(rows) else rows)
