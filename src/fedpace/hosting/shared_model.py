"""The shared model of a server with named arrays, its server step, and the saving of the rule's state.

The server rule sees the parameters as one flat vector (`fedpace.core.server_rule`). Buffers (`sketch.is_buffer`) are
always the weighted mean of the clients' buffers, because an extrapolated variance could fall below 0; integers are
rounded. If a client's model lacks an array, or has it in another shape, the array that was sent to the client counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace.core.aggregation import Aggregator, Applied, Trained
from fedpace.core.server_rule import ServerRule
from fedpace.core.sums import Opener, SumAggregator, SumsApplied
from fedpace.core.tasks import Step
from fedpace.hosting.replies import Arrays, buffer_lengths, flat, is_buffer
from fedpace.numerics.parts import LARGE
from fedpace.trust.robust import RobustRule, make_robust

if TYPE_CHECKING:
    from fedpace.core.coordinator import Coordinator

ArraysValidation = Callable[[dict[str, NDArray[Any]]], Arrays]
"""Function: trains a model on the server's own data, and returns the trained model."""
ByTask = Mapping[int, Arrays]
"""Task id -> model."""

STATE = "server:"
"""Prefix of the names of saved arrays that belong to the server rule."""


def mean_buffers(before: Arrays, weighted: Iterable[tuple[float, Arrays]]) -> dict[str, NDArray[Any]]:
    """Return the weighted mean of the clients' buffers, by name; empty if no weight is above 0."""
    # Skip negative importance weights: they could make a variance negative.
    counted = [(weight, trained) for weight, trained in weighted if weight > 0]
    total = sum(weight for weight, _ in counted)
    found: dict[str, NDArray[Any]] = {}
    for key, array in before.items():
        if counted and is_buffer(key, np.asarray(array)):
            base = np.asarray(array, np.float64)
            mean = base + sum(weight / total * (_fitting(trained, key, base) - base) for weight, trained in counted)
            found[key] = _as_kind(mean, np.asarray(array))
    return found


def _as_kind(values: FloatArray, like: NDArray[Any]) -> NDArray[Any]:
    """Return the values in the type of `like`, rounded if it is an integer type."""
    return np.asarray(values if np.issubdtype(like.dtype, np.floating) else np.rint(values), dtype=like.dtype)


def _fitting(arrays: Arrays, key: str, otherwise: NDArray[Any]) -> FloatArray:
    """Return an array of a client's model; `otherwise` if it is missing or has another shape."""
    array = arrays.get(key, otherwise)
    return np.asarray(array if np.shape(array) == otherwise.shape else otherwise, dtype=np.float64)


class SharedModel:
    """The current model as named arrays, and the server rule that changes it.

    Args:
        arrays: name -> array of the model.
        rule: the server rule.
        robust: a robust rule, or its name, that replaces the weighted mean.
        validation: trains named arrays on the server's own data and returns the trained ones, for robust rules that
            compare updates with the server's own update.
        sums: whether the server sees only sums of updates (`apply_sums`).
    """

    def __init__(
        self,
        arrays: Arrays,
        rule: ServerRule[Any],
        *,
        robust: RobustRule | str | None = None,
        validation: ArraysValidation | None = None,
        sums: bool = False,
    ) -> None:
        self.rule = rule
        self.arrays: dict[str, NDArray[Any]] = {key: np.array(array) for key, array in arrays.items()}

        def trained(_: FloatArray) -> FloatArray:
            assert validation is not None
            return self._flat(validation(dict(self.arrays)))

        if sums:
            self.sums = SumAggregator(rule, self._zero)
            return
        self.aggregator = Aggregator(
            rule,
            self._zero,
            robust=make_robust(robust) if isinstance(robust, str) else robust,
            validation=None if validation is None else trained,
        )

    @property
    def state(self) -> Any:
        """The state of the server rule."""
        return self._made.state

    @property
    def _made(self) -> Aggregator | SumAggregator:
        return self.aggregator if hasattr(self, "aggregator") else self.sums

    def apply_sums(self, coordinator: Coordinator, step: Step, opener: Opener) -> SumsApplied:
        """Make a step from sums over the clients; afterwards `arrays` holds the new model."""
        applied = self.sums.apply(coordinator, step, self._flat(self.arrays), opener)
        if applied.moved:
            buffers: dict[str, NDArray[Any]] = {}
            if applied.buffers is not None:
                at = 0
                for key, array in self.arrays.items():
                    if is_buffer(key, array):
                        values = np.asarray(applied.buffers)[at : (at := at + array.size)]
                        buffers[key] = _as_kind(values.reshape(array.shape), array)
            self._put(np.asarray(applied.model), buffers)
        return applied

    def apply(
        self,
        coordinator: Coordinator,
        step: Step,
        trained: ByTask,
        sent: ByTask | None = None,
        steps: Mapping[int, float] | None = None,
        *,
        consume: bool = False,
    ) -> Applied:
        """Make the step that a coordinator reports as due; afterwards `arrays` holds the new model.

        The step validates, bounds and combines the updates, and then applies the server rule.

        Args:
            coordinator: the coordinator of the step; call its `stepped` afterwards.
            step: with the answers and their weights.
            trained: task id -> the model that its client trained.
            sent: task id -> the model that its client received; None = all received the current model.
            steps: task id -> number of local steps of its client, for rules that normalise by it; None = unknown.
            consume: remove the parameters from the dictionaries in `trained` as they are read, so that the server does
                not hold every answer twice.
        """
        answers = iter(self._answers(step, trained, sent, steps, consume=consume))  # holds none that was taken
        names = self._parameters()
        large = sum(self.arrays[key].size for key in names) > LARGE
        current = self._narrow(self.arrays, self.arrays, names) if large else self._flat(self.arrays)
        applied = self.aggregator.apply(coordinator, step, current, answers)
        if applied.moved:
            total = sum(weight for _, weight in applied.step.answers)
            average = applied.step.mode == "average" and total > 0
            weighted = [
                (
                    weight / total if average else weight,
                    self._buffers_clipped(trained, sent, task.id, applied.buffer_factors),
                )
                for task, weight in applied.step.answers
            ]
            self._put(applied.model, mean_buffers(self.arrays, weighted))
        return applied

    def bounded(
        self,
        coordinator: Coordinator,
        step: Step,
        trained: ByTask,
        sent: ByTask | None = None,
    ) -> tuple[Step, dict[int, dict[str, NDArray[Any]]]]:
        """Return a step and task id -> bounded model, for hosts with a framework that averages itself.

        Updates that are too long are clipped. With a robust rule, every model is replaced by the combined model. If the
        step's scale is below 1, all models are moved towards the current model.
        """
        answers = self._answers(step, trained, sent)
        before = {answer.task.id: answer.model for answer in answers}
        step, held, buffers = self.aggregator.bounded(coordinator, step, answers)
        models = {answer.task.id: answer.model for answer in held}
        if self.aggregator.robust is not None and held:
            combined = self.aggregator.combined(coordinator, step, self._flat(self.arrays), held)
            models = dict.fromkeys(models, combined)
        if step.scale != 1.0:
            current = self._flat(self.arrays)
            models = {task: current + step.scale * (vector - current) for task, vector in models.items()}
        found: dict[int, dict[str, NDArray[Any]]] = {}
        for task, vector in models.items():
            model = dict(self._buffers_clipped(trained, sent, task, buffers))
            found[task] = model if vector is before[task] else {**model, **self._named(vector)}
        return step, found

    def _answers(
        self,
        step: Step,
        trained: ByTask,
        sent: ByTask | None,
        steps: Mapping[int, float] | None = None,
        *,
        consume: bool = False,
    ) -> list[Trained]:
        answers, names = [], self._parameters()
        starts: dict[int, NDArray[Any]] = {}  # one vector for all clients that received the same model
        for task, _ in step.answers:
            start = self.arrays if sent is None else sent[task.id]
            if id(start) not in starts:
                starts[id(start)] = self._narrow(start, self.arrays, names)
            moved = {kind: lengths[0] for kind, lengths in buffer_lengths([(trained[task.id], start)]).items()}
            made = math.nan if steps is None else float(steps.get(task.id, math.nan))
            model = trained[task.id]
            answers.append(Trained(task, self._narrow(model, start, names), starts[id(start)], moved, made))
            if consume and isinstance(model, dict):
                for name in names:
                    model.pop(name, None)
        return answers

    def _buffers_clipped(self, trained: ByTask, sent: ByTask | None, task: int, factors: Mapping[int, float]) -> Arrays:
        """Return a client's model with the change of its buffers clipped by its factor in `factors`."""
        model = trained[task]
        if task not in factors:
            return model
        start = self.arrays if sent is None else sent[task]
        found = dict(model)
        for key in model.keys() & start.keys():
            like = np.asarray(start[key])
            if is_buffer(key, like):
                base = np.asarray(like, dtype=np.float64)
                found[key] = _as_kind(base + factors[task] * (_fitting(model, key, base) - base), like)
        return found

    def apply_to_average(self, averaged: Arrays, answers: Iterable[tuple[float, Arrays]]) -> dict[str, NDArray[Any]]:
        """Apply the server rule to an average that the framework has computed, and return the new model.

        Rules that need each client's update (`takes` holds `rows` or `sources`) cannot be used like this.

        Args:
            averaged: the averaged model; its buffers and new arrays are copied as they are.
            answers: (weight, trained model) of each client; some rules measure how far clients disagree.
        """
        trained = ((float(weight), self._flat(model)) for weight, model in answers)
        vector = self.aggregator.apply_to_average(self._flat(self.arrays), self._flat(averaged), trained)
        if vector is None:
            return self.arrays
        parameters = set(self._parameters())
        return self._put(vector, {key: np.asarray(array) for key, array in averaged.items() if key not in parameters})

    def _put(self, vector: FloatArray, others: Arrays) -> dict[str, NDArray[Any]]:
        """Set the current model from a flat vector of parameters and from other arrays, and return it."""
        after: dict[str, NDArray[Any]] = dict(self.arrays) | {key: np.array(array) for key, array in others.items()}
        after.update(self._named(vector))
        self.arrays = after
        return after

    def _named(self, vector: FloatArray) -> dict[str, NDArray[Any]]:
        """Return a flat vector of parameters as named arrays."""
        found: dict[str, NDArray[Any]] = {}
        start = 0
        for key in self._parameters():
            like = self.arrays[key]
            found[key] = np.asarray(vector[start : start + like.size].reshape(like.shape), dtype=like.dtype)
            start += like.size
        return found

    def _parameters(self) -> list[str]:
        """Return the names of the arrays that the server rule changes: all except buffers."""
        return [key for key, array in self.arrays.items() if not is_buffer(key, array)]

    def _flat(self, arrays: Arrays, otherwise: Arrays | None = None) -> FloatArray:
        """Return the parameters as one flat vector; missing arrays come from `otherwise` (None = the current model)."""
        names, like = self._parameters(), otherwise or self.arrays
        return flat({key: _fitting(arrays, key, np.asarray(like[key])) for key in names}, names)

    def _narrow(self, arrays: Arrays, like: Arrays, names: list[str]) -> NDArray[Any]:
        """Return `_flat` in single precision if that is exact, which halves the memory of the answers in a step."""
        kinds = {np.asarray(each[key]).dtype for key in names for each in (arrays, like) if key in each}
        if not kinds <= {np.dtype(np.float32), np.dtype(np.float16)}:
            return self._flat(arrays, like)
        found = np.empty(sum(np.asarray(self.arrays[key]).size for key in names), dtype=np.float32)
        start = 0
        for key in names:
            usual = np.asarray(like[key])
            array = np.asarray(arrays.get(key, usual))
            array = array if array.shape == usual.shape else usual
            found[start : start + array.size] = array.ravel()
            start += array.size
        return found

    def _zero(self) -> FloatArray:
        return np.zeros(sum(self.arrays[key].size for key in self._parameters()))

    # -- saving ----------------------------------------------------------------------------------------------

    def saved_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state of the server rule for saving: JSON values, and name -> array."""
        scalars, vectors = self._made.saved()
        return {"name": self.rule.name, "state": scalars}, {STATE + name: vector for name, vector in vectors.items()}

    def load_state(self, saved: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the result of `saved_state`; do nothing if another rule saved it."""
        if saved.get("name") != self.rule.name:
            return
        vectors = {name.removeprefix(STATE): vector for name, vector in arrays.items() if name.startswith(STATE)}
        # Stored rows are bytes, and vectors that the rule does not use are empty.
        whole = [vector for vector in vectors.values() if vector.dtype != np.uint8 and vector.shape != (0,)]
        if any(vector.shape[-1:] != self._zero().shape for vector in whole):
            raise InputError(f"the saved state of {self.rule.name} belongs to another model: use another folder")
        self._made.load(saved["state"], vectors)
