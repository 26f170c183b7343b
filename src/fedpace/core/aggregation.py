"""Aggregation for all hosts: from the answers of a step to the next model.

    aggregator = Aggregator(rule, zero)                              # zero: makes float64 zeros of the model's length
    applied = aggregator.apply(coordinator, step, model, answers)    # the next model, and the changes to answers

`apply` measures and bounds the updates (`fedpace.trust`), combines them by weights or by a robust rule, and applies the
server rule. It tells the coordinator what it clipped or left out. Models are flat vectors: torch tensors in the
simulator, NumPy arrays elsewhere (`fedpace.core.server_rule`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpace._base.checks import FloatArray, shortened
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.server_rule import (
    Answers,
    Combine,
    Gather,
    ServerRule,
    Source,
    Vector,
    double,
    join_state,
    like,
    split_state,
)
from fedpace.core.tasks import Step, Task
from fedpace.trust.robust import Combined, RobustRule

if TYPE_CHECKING:
    from fedpace.core.coordinator import Coordinator

Validation = Callable[[Vector], Vector]
"""Function: trains a model on the server's validation set, as clients train on their data, and returns the result."""
NO_VOTE = 1e-9
"""Added to all weights for a robust rule, so that it also judges answers of weight 0, which some rules remember."""
CENTER = "robust_center"
"""Name of the last robust aggregate in the saved state."""


class Trained(NamedTuple):
    """The answer to one training task."""

    task: Task
    model: Vector
    """The model after the client's training."""
    sent: Vector
    """The model that the client received."""
    buffers: Mapping[str, float] = {}
    """Kind of buffer -> how far the client moved the buffers (model state beside the parameters)."""
    steps: float = math.nan
    """Number of local steps that the client made; NaN = unknown."""


class Applied(NamedTuple):
    """The result of `Aggregator.apply`."""

    model: Vector
    """The next model."""
    moved: bool
    """False = no answer had weight, and the model is unchanged."""
    step: Step
    """The step with the answers that were not refused, and their weights."""
    buffer_factors: dict[int, float]
    """Task id -> clip factor for the change of its buffers, for buffers that moved too far."""


class Aggregator:
    """Aggregates the answers of each step into the next model.

    Args:
        rule: the server rule.
        zero: returns zeros of the model's length, in double precision.
        robust: robust rule that replaces the weighted mean; None = the weighted mean.
        validation: trains on the server's own data, for a robust rule that needs the server's update.
        streams: True = add up answers as they arrive, if trust and robust rules are off. Nothing is checked then: the
            host must detect models that diverge.
    """

    def __init__(
        self,
        rule: ServerRule[Any],
        zero: Callable[[], Vector],
        *,
        robust: RobustRule | None = None,
        validation: Validation | None = None,
        streams: bool = False,
    ) -> None:
        check_robust(robust, validation)
        self.rule, self.robust, self._streams = rule, robust, streams
        self._zero, self._validation = zero, validation
        self.state: Any = rule.init(zero())
        self.center: FloatArray | None = None
        """The last robust aggregate, divided by the sum of the weights."""

    def apply(self, coordinator: Coordinator, step: Step, model: Vector, answers: Iterable[Trained]) -> Applied:
        """Return the next model and the changes made to the answers.

        Args:
            coordinator: holds the clients' shares and the bounds.
            step: the step that is due.
            model: the current model.
            answers: in the order of `step.answers`; a lazy iterable may train each model when it is needed.
        """
        buffer_factors: dict[int, float] = {}
        if coordinator.ledger.trust.on or self.robust is not None or not self._streams:
            step, held, buffer_factors = self.bounded(coordinator, step, answers)
            answers = _drained(held)
        gathered = self._gathered(coordinator, step, model, answers)
        if gathered is None:
            return Applied(model, False, step, buffer_factors)
        if self.robust is not None:
            gathered = self._robustly(self.robust, coordinator, step, model, gathered)
        stepped, self.state = self.rule.apply(self.state, model, gathered)
        if step.scale != 1.0:  # all clients in the step reached their weight caps
            stepped = double(model) + step.scale * (stepped - double(model))
        return Applied(stepped, True, step, buffer_factors)

    def bounded(
        self, coordinator: Coordinator, step: Step, answers: Iterable[Trained]
    ) -> tuple[Step, list[Trained], dict[int, float]]:
        """Return the step and its answers, without answers that are not finite and with long updates clipped.

        The third result is task id -> clip factor for buffers that moved too far.
        """
        held = list(answers)
        step, factors, buffer_factors = coordinator.bound(step, held)
        left = {task.id for task, _ in step.answers}
        held = [answer for answer in held if answer.task.id in left]
        for place, (task, model, sent, *_) in enumerate(held):
            if task.id in factors:
                clipped = double(sent) + factors[task.id] * (double(model) - sent)
                held[place] = held[place]._replace(model=clipped)
        return step, held, buffer_factors

    def combined(self, coordinator: Coordinator, step: Step, model: Vector, answers: Iterable[Trained]) -> Vector:
        """Return the model that the robust rule makes of the answers, for hosts with their own server step."""
        gathered = self._gathered(coordinator, step, model, answers)
        if gathered is None or self.robust is None:
            return model
        rows = np.array([np.asarray(row) for row in gathered.rows])
        combined = self._combine(self.robust, coordinator, step, model)(rows, gathered.weights)
        return double(model) + like(gathered.step, combined.step)

    def apply_to_average(
        self, model: Vector, averaged: Vector, answers: Iterable[tuple[float, Vector]]
    ) -> Vector | None:
        """Return the model that the server rule makes of an average of a framework; None if all weights are 0.

        Args:
            model: the current model.
            averaged: the average.
            answers: (weight, trained model) of each client; some rules measure how far clients disagree.
        """
        gather = Gather(self.rule, self._zero(), mean=False)
        weighted = list(answers)
        total = sum(weight for weight, _ in weighted)
        for weight, trained in weighted:
            gather.add(trained, model, weight / total if total else weight)
        if (gathered := gather.answers()) is None:
            return None
        update = averaged - model
        mean = model + update if self.rule.takes & {"models", "mixture"} else None
        answered = Answers(update, gathered.weights, mean, gathered.mean_square)
        stepped, self.state = self.rule.apply(self.state, model, answered)
        return stepped

    def _gathered(
        self, coordinator: Coordinator, step: Step, model: Vector, answers: Iterable[Trained]
    ) -> Answers | None:
        robust = self.robust is not None
        gather = Gather(self.rule, self._zero(), mean=step.mode == "average" and step.fresh, keep=robust)
        named = robust or bool({"rows", "sources"} & self.rule.takes)
        share_of = coordinator.share_of() if named else None
        weights = {task.id: weight for task, weight in step.answers}
        shares = {} if share_of is None else {task.id: share_of(task.client) or 0.0 for task, _ in step.answers}
        for task, trained, sent, _, steps in answers:
            source = None
            if named:
                source = Source(task.client, task.step, shares[task.id], task.work, steps)
            # For a mixture, updates start at the current model, even if the client received an older version.
            start = model if robust and "mixture" in self.rule.takes else sent
            gather.add(trained, start, weights[task.id], source)
        gathered = gather.answers(step.number - 1, coordinator.task_table.versions, share_of)
        if gathered is None:
            return None
        return replace(gathered, facts=step.facts, clients=len(coordinator.ledger))

    # -- robust rules ----------------------------------------------------------------------------------------

    def _robustly(
        self, robust: RobustRule, coordinator: Coordinator, step: Step, model: Vector, answers: Answers
    ) -> Answers:
        """Return the answers combined by the robust rule; a server rule that takes `corrected` combines them later."""
        combine = self._combine(robust, coordinator, step, model)
        if "corrected" in self.rule.takes:
            return replace(answers, combine=combine)
        rows = np.array([np.asarray(row) for row in answers.rows])
        combined = combine(rows, answers.weights)
        update = like(answers.step, combined.step)
        total, wanted = float(combined.weights.sum()), float(answers.weights.sum())
        weights = combined.weights * (wanted / total) if total > 0 else combined.weights
        square = float(weights @ np.einsum("ij,ij->i", rows, rows))
        average = wanted * double(model) + update if "mixture" in self.rule.takes else None
        return replace(answers, step=update, mean_square=square, average=average, weights=weights)

    def _combine(self, robust: RobustRule, coordinator: Coordinator, step: Step, model: Vector) -> Combine:
        trusted = None
        if robust.validates and self._validation is not None:
            trusted = np.asarray(double(self._validation(model)) - double(model), dtype=np.float64)
        rng = stream(coordinator.settings.seed, "robust", step.number)

        def combine(rows: FloatArray, weights: FloatArray) -> Combined:
            center = np.zeros(rows.shape[1]) if self.center is None else self.center
            combined = robust.combine(rows, weights + NO_VOTE, center=center, trusted=trusted, rng=rng)
            self.center = combined.step / float(weights.sum())
            mine = slice(len(step.answers))  # server rules with a memory append remembered updates
            coordinator.note_combined(step, combined.weights[mine] > 0, judged=robust.validates)
            return combined

        return combine

    # -- saving ----------------------------------------------------------------------------------------------

    def saved(self) -> tuple[dict[str, Any], dict[str, Vector]]:
        """Return the state as name -> scalar and name -> vector, for saving."""
        scalars, vectors = split_state(self.state)
        return scalars, vectors if self.center is None else {**vectors, CENTER: like(self._zero(), self.center)}

    def load(self, scalars: Mapping[str, Any], vectors: Mapping[str, Vector]) -> None:
        """Restore the state from the result of `saved`."""
        center = vectors.get(CENTER)
        self.center = None if center is None else np.array(center, dtype=np.float64)
        others = {name: vector for name, vector in vectors.items() if name != CENTER}
        self.state = join_state(self.rule.init(self._zero()), dict(scalars), others)


def _drained(answers: list[Trained]) -> Iterator[Trained]:
    """Yield the answers, and let go of each: one that is added up is freed, unless the rule keeps it."""
    answers.reverse()
    while answers:
        yield answers.pop()


def check_robust(robust: RobustRule | None, validation: object | None) -> None:
    """Raise InputError if a robust rule lacks its validation set, or if no rule uses the given validation set."""
    if robust is not None and not (hasattr(robust, "combine") and hasattr(robust, "validates")):
        raise InputError(f"robust must be a robust rule or the name of one, but {shortened(robust)} came")
    if robust is not None and robust.validates and not validation:
        raise InputError(
            f"{robust.name} compares updates with one that the server trains on its own data, but there are none: give "
            "it a validation set (validation), or use a rule without one, such as trimmed-mean"
        )
    if validation and (robust is None or not robust.validates):
        why = "there is no robust rule" if robust is None else f"{robust.name} does not use it"
        raise InputError(
            f"there is a validation set, but {why}: take the robust rule fltrust or zeno, or leave validation out"
        )
