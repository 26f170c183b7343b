"""One path from a step's answers to the next model, for the simulator, every host and own servers.

    aggregator = Aggregator(rule, zero)                              # zero: makes float64 zeros of the model's length
    applied = aggregator.apply(coordinator, step, model, answers)    # the next model, and what was done to answers

`apply` measures the updates, bounds them (`fedpace.trust`), combines them by the weights or by a robust rule, lets the
server rule step, and tells the coordinator what it clipped or left out. Models are flat vectors: torch tensors in the
simulator, NumPy arrays elsewhere (`fedpace.core.stepping`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpace._base.checks import FloatArray, shortened
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.stepping import (
    Answers,
    Combine,
    Gather,
    ServerStep,
    Source,
    Vector,
    double,
    join_state,
    like,
    norm,
    split_state,
)
from fedpace.core.tasks import Step, Task
from fedpace.trust.robust import Combined, RobustRule

if TYPE_CHECKING:
    from fedpace.core.coordinator import Coordinator

Validation = Callable[[Vector], Vector]
"""Trains a model on the server's own validation set, as clients train on theirs, and returns the trained model."""
NO_VOTE = 1e-9
"""Weight that answers without weight have where a robust rule compares them: it must say whether to remember them."""
CENTER = "robust_center"
"""Name under which the last aggregate is saved."""


class Trained(NamedTuple):
    """One answer."""

    task: Task
    model: Vector
    """As the client trained it."""
    sent: Vector
    """As the client received it."""
    buffers: Mapping[str, float] = {}
    """How far the client moved what a model holds beside its parameters, by kind."""


class Applied(NamedTuple):
    """What became of a step."""

    model: Vector
    """The next model."""
    moved: bool
    """False: no answer counted, and the model is as it was."""
    step: Step
    """With the answers that counted, and the weights that they had."""
    buffer_factors: dict[int, float]
    """Task -> what its buffers' move is multiplied by, of the answers whose buffers moved too far."""


class Aggregator:
    """Makes the next model of a step's answers.

    Args:
        rule: the server rule.
        zero: returns zeros of the model's length, in double precision.
        robust: combines updates in place of the weighted mean; None = the weighted mean.
        validation: for a robust rule that needs the server's own update.
        streams: answers are trained as they are asked for, by clients of the host's own. Where nothing bounds them they
            are added up one by one, and not even looked at: a model that diverges is the host's to find.
    """

    def __init__(
        self,
        rule: ServerStep[Any],
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
        """The last robust aggregate, per unit of weight."""

    def apply(self, coordinator: Coordinator, step: Step, model: Vector, answers: Iterable[Trained]) -> Applied:
        """Return the next model.

        Args:
            coordinator: says what the answers weigh, and holds the bounds.
            step: that is due.
            model: the current one.
            answers: in the order of `step.answers`; they may be trained as they are asked for.
        """
        buffer_factors: dict[int, float] = {}
        if coordinator.ledger.trust.on or self.robust is not None or not self._streams:
            step, answers, buffer_factors = self.bounded(coordinator, step, answers)
        gathered = self._gathered(coordinator, step, model, answers)
        if gathered is None:
            return Applied(model, False, step, buffer_factors)
        if self.robust is not None:
            gathered = self._robustly(self.robust, coordinator, step, model, gathered)
        stepped, self.state = self.rule.apply(self.state, model, gathered)
        if step.scale != 1.0:  # those that answered have used up their weight
            stepped = double(model) + step.scale * (stepped - double(model))
        return Applied(stepped, True, step, buffer_factors)

    def bounded(
        self, coordinator: Coordinator, step: Step, answers: Iterable[Trained]
    ) -> tuple[Step, list[Trained], dict[int, float]]:
        """Return the step and its answers without those that are not finite, and with long updates clipped."""
        held = list(answers)
        step, factors, buffer_factors = coordinator.bound(step, held)
        left = {task.id for task, _ in step.answers}
        held = [answer for answer in held if answer.task.id in left]
        for place, (task, model, sent, _) in enumerate(held):
            if task.id in factors:
                clipped = double(sent) + factors[task.id] * (double(model) - sent)
                held[place] = held[place]._replace(model=clipped)
        return step, held, buffer_factors

    def combined(self, coordinator: Coordinator, step: Step, model: Vector, answers: Iterable[Trained]) -> Vector:
        """Return the model that a robust rule makes of answers, for hosts whose framework steps with it."""
        gathered = self._gathered(coordinator, step, model, answers)
        if gathered is None or self.robust is None:
            return model
        rows = np.array([np.asarray(row) for row in gathered.rows])
        combined = self._combine(self.robust, coordinator, step, model)(rows, gathered.weights)
        return double(model) + like(gathered.step, combined.step)

    def _gathered(
        self, coordinator: Coordinator, step: Step, model: Vector, answers: Iterable[Trained]
    ) -> Answers | None:
        robust = self.robust is not None
        gather = Gather(self.rule, self._zero(), mean=step.mode == "average" and step.fresh, keep=robust)
        # Only rules that see each update ask whose it is.
        share_of = coordinator.share_of() if robust or "rows" in self.rule.takes else None
        weights = {task.id: weight for task, weight in step.answers}
        for task, trained, sent, _ in answers:
            source = None if share_of is None else Source(task.client, task.step, share_of(task.client) or 0.0)
            # A mixture goes from the current model to where clients arrived, however old the model that they were sent.
            start = model if robust and "mixture" in self.rule.takes else sent
            gather.add(trained, start, weights[task.id], source)
        return gather.answers(step.number - 1, coordinator.flight.versions, share_of)

    # -- robust rules ----------------------------------------------------------------------------------------

    def _robustly(
        self, robust: RobustRule, coordinator: Coordinator, step: Step, model: Vector, answers: Answers
    ) -> Answers:
        """Return answers that a robust rule combines: now, or in the server rule, once it has corrected them."""
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
            mine = slice(len(step.answers))  # a rule that remembers clients adds rows of theirs behind
            agreement = None if trusted is None else cosines(rows[mine], trusted)
            coordinator.note_combined(step, combined.weights[mine] > 0, agreement)
            return combined

        return combine

    # -- saving ----------------------------------------------------------------------------------------------

    def saved(self) -> tuple[dict[str, Any], dict[str, Vector]]:
        """Return the state as scalars and vectors, each by its name."""
        scalars, vectors = split_state(self.state)
        return scalars, vectors if self.center is None else {**vectors, CENTER: like(self._zero(), self.center)}

    def load(self, scalars: Mapping[str, Any], vectors: Mapping[str, Vector]) -> None:
        """Take over what `saved` gave."""
        center = vectors.get(CENTER)
        self.center = None if center is None else np.array(center, dtype=np.float64)
        others = {name: vector for name, vector in vectors.items() if name != CENTER}
        self.state = join_state(self.rule.init(self._zero()), dict(scalars), others)


def check_robust(robust: RobustRule | None, validation: object | None) -> None:
    """Refuse a robust rule whose validation set is missing, and a validation set that nothing uses."""
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


def cosines(updates: FloatArray, trusted: FloatArray) -> FloatArray:
    """(k,) cosine of each update with the server's own; NaN where either is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        lengths = np.linalg.norm(updates, axis=1) * float(np.linalg.norm(trusted))
        return np.asarray(updates @ trusted / lengths)


def update_length(answer: Trained) -> float:
    """Return the Euclidean length of an update; infinity where it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        length = norm(double(answer.model) - answer.sent)
    return length if math.isfinite(length) else math.inf
