"""From Flower's replies to answers, and from the cohort's weights to what the inner strategy averages."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fedpace.core.errors import InputError
from fedpace.core.waiting import round_end
from fedpace.flower.wire import arrays_of, read_note
from fedpace.hosting.memory import Answer
from fedpace.hosting.notes import Note

log = logging.getLogger("flwr")

LOSS_KEYS = ("train_loss", "train-loss", "eval_loss", "eval-loss", "loss")


@dataclass(frozen=True, eq=False)
class Reply(Answer):
    """An answer that came in a Flower message."""

    message: Message


@dataclass(frozen=True)
class Waiting:
    """What the server knows of the round's time by its own clocks."""

    created: Mapping[str, float]
    """Name -> when its message was made, seconds since the epoch."""
    elapsed: float
    """Seconds between sending and the last reply."""


def read_answers(
    replies: Iterable[Message], nodes: Mapping[int, str], waiting: Waiting, *, weight_key: str, loss_key: str
) -> tuple[list[Reply], set[str]]:
    """Return the usable answers in order of arrival, and the names of those that said that they failed."""
    answers: list[Reply] = []
    broken: set[str] = set()
    for reply in replies:
        name = nodes.get(reply.metadata.src_node_id)
        if name is None:
            continue  # an error in the SuperLink's name: who it is about is known from who is missing
        if reply.has_error():
            broken.add(name)
            continue
        metrics = next(iter(reply.content.metric_records.values()), MetricRecord())
        loss = _loss(metrics, loss_key)
        if loss is not None and not math.isfinite(loss):
            log.warning("fedpace: client %r diverged (loss %s): it counts as failed in this round", name, loss)
            broken.add(name)
            continue
        note = _note(reply, name)
        seconds = note.seconds
        if math.isnan(seconds):
            # Without the mod: both machines' clocks, and never more than the server waited.
            seconds = min(max(0.0, reply.metadata.created_at - waiting.created[name]), waiting.elapsed)
        answers.append(
            Reply(
                name,
                seconds,
                loss=math.nan if loss is None else loss,
                samples=_samples(metrics, weight_key),
                note=note,
                trained=lambda reply=reply: arrays_of(reply),  # type: ignore[misc]
                message=reply,
            )
        )
    return answers, broken


def _note(reply: Message, name: str) -> Note:
    try:
        return read_note(reply)
    except InputError as problem:
        log.warning("fedpace: the report of client %r is not used: %s", name, problem)
        return Note()


def _loss(metrics: MetricRecord, key: str) -> float | None:
    for candidate in (key,) if key else LOSS_KEYS:
        value = metrics.get(candidate)
        if isinstance(value, int | float):
            return float(value)
    return None


def _samples(metrics: MetricRecord, key: str) -> float:
    value = metrics.get(key)
    usable = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    return float(value) if usable else math.nan  # type: ignore[arg-type]


def impose(replies: Sequence[Message], weights: Sequence[float], weight_key: str) -> None:
    """Write the cohort's weights where the inner strategy looks for the number of examples.

    Strategies divide by the sum. Relative to the largest, equal weights become 1 exactly, so that the quotients are
    those of plain FedAvg with equal counts, bit for bit; and signs cancel, where some or all weights are negative.
    """
    largest = max(weights, key=abs)
    for reply, weight in zip(replies, weights, strict=True):
        for metrics in reply.content.metric_records.values():
            metrics[weight_key] = float(weight / largest)


def as_average(
    replies: Sequence[Message], current: Mapping[str, NDArray[np.generic]], weights: Sequence[float]
) -> list[float]:
    """Delta mode, x + sum a_i (x_i - x), for a strategy that averages: return the weights to average with.

    Each of the k models x_i becomes x + k a_i (x_i - x), whose plain mean is just that, whatever the a_i sum to. Since
    it is done before the inner strategy sees the models, server optimisers act on the step that was meant.
    """
    for reply, weight in zip(replies, weights, strict=True):
        for key, record in reply.content.array_records.items():
            moved = {
                name: array.numpy()
                if name not in current
                else np.asarray(
                    current[name] + len(weights) * weight * (array.numpy() - current[name]),
                    dtype=_float(array.numpy()),
                )
                for name, array in record.items()
            }
            reply.content[key] = ArrayRecord({name: Array(np.asarray(value)) for name, value in moved.items()})
    return [1.0] * len(weights)


def _float(array: NDArray[np.generic]) -> np.dtype[np.generic]:
    return array.dtype if np.issubdtype(array.dtype, np.floating) else np.dtype(np.float64)


def arrive(answers: Sequence[Answer], deadline: float, enough: int) -> tuple[set[str], float]:
    """Who makes it by the reported seconds, and when the round ends: the virtual clock's rule, as in the simulator."""
    seconds = np.array([answer.seconds for answer in answers])
    end = round_end(seconds, deadline, enough=enough)
    return {answer.name for answer in answers if answer.seconds <= end}, end
