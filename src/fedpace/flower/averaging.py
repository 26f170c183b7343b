"""Prepares clients' replies for the inner Flower strategy: training answers (`messages`) and evaluations."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord
from numpy.typing import NDArray

from fedpace.core.types import Mode
from fedpace.flower.wire import record
from fedpace.hosting.replies import Reply, short
from fedpace.hosting.shared_model import mean_buffers
from fedpace.hosting.sketch import Arrays

log = logging.getLogger("flwr")

Weighed = tuple[float, Arrays, Reply]
"""Weight of an answer, model that was sent to its client, and the reply."""


def messages(
    answers: Sequence[Weighed], current: Arrays, mode: Mode, *, weight_key: str, array_key: str
) -> tuple[list[Message], list[float], list[Arrays]]:
    """Return replies that an averaging strategy can aggregate, their weights, and their models.

    In delta mode the new model is x + sum a_i (x_i - x). Each of the k models becomes x + k a_i (x_i - x). The plain
    mean of these is the new model, whatever the a_i sum to. The inner strategy sees only the changed models, so server
    optimisers act on the intended step. Buffers become their weighted mean, because a variance must not be
    extrapolated.

    Strategies divide weights by their sum. Here weights are first divided by the largest. So equal weights become
    exactly 1, and the result equals plain FedAvg with equal counts bit for bit.
    """
    weights = [weight for weight, _, _ in answers]
    models: list[Arrays] = [reply.model or {} for _, _, reply in answers]
    if mode == "delta":
        means = mean_buffers(current, zip(weights, models, strict=True))
        models = [_moved(current, m, len(answers) * weight) | means for weight, m in zip(weights, models, strict=True)]
        weights = [1.0] * len(weights)
    largest = max(weights, key=abs)
    shown = _common([_metrics(reply.carrier) for _, _, reply in answers])
    replies = []
    for (_, _, reply), model, weight, metrics in zip(answers, models, weights, shown, strict=True):
        message: Message = reply.carrier
        for key in (*message.content.array_records, *message.content.metric_records):
            del message.content[key]
        message.content[array_key] = record(model)
        message.content["metrics"] = MetricRecord({**metrics, weight_key: float(weight / largest)})
        replies.append(message)
    return replies, weights, models


def evaluations(replies: Iterable[Message], *, weight_key: str) -> list[Message]:
    """Return the evaluation replies that a strategy can average.

    Replies with an error or without a positive weight are left out, and only metrics that all others share are kept.
    """
    usable: list[tuple[Message, dict[str, Any]]] = []
    for reply in replies:
        found = {} if reply.has_error() else _metrics(reply)
        weight = found.get(weight_key)
        if reply.has_error():
            why = str(reply.error.reason or "an error")
        elif isinstance(weight, int | float) and 0 < weight < math.inf:
            usable.append((reply, found))
            continue
        else:
            why = f"its {weight_key} should be a number above 0, but {weight!r} came"
        log.warning("fedpace: the evaluation of node %d is left out: %s", reply.metadata.src_node_id, short(why))
    shown = _common([found for _, found in usable]) if usable else []
    for (reply, _), metrics in zip(usable, shown, strict=True):
        for key in list(reply.content.metric_records):
            del reply.content[key]
        reply.content["metrics"] = MetricRecord(metrics)
    return [reply for reply, _ in usable]


def _moved(current: Arrays, trained: Arrays, weight: float) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for name, array in trained.items():
        base = np.asarray(current[name], dtype=np.float64)
        kind = array.dtype if np.issubdtype(array.dtype, np.floating) else base.dtype
        found[name] = np.asarray(base + weight * (np.asarray(array, np.float64) - base), dtype=kind)
    return found


def _metrics(message: Message) -> dict[str, Any]:
    return dict(next(iter(message.content.metric_records.values()), MetricRecord()).items())


def _common(tables: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the metrics that all tables have in the same type: otherwise Flower's strategies reject the whole round."""
    kinds = [{(key, _kind(value)) for key, value in table.items()} for table in tables]
    shared = {key for key, kind in set.intersection(*kinds) if kind >= 0}
    return [{key: value for key, value in table.items() if key in shared} for table in tables]


def _kind(value: Any) -> int:
    """Return 0 for a finite number, the length of a list of finite numbers, and -1 for anything else."""
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(number, int | float) and np.isfinite(number) for number in numbers):
        return -1
    return len(value) if isinstance(value, list) else 0
