"""The shared model of a server that keeps named arrays: its versions, its server step, and both on disk.

Floating arrays are one flat vector to the rule (`fedpace.core.stepping`). Counters, arrays of integers such as a batch
norm's, are no direction to step along: they become the weighted mean of what the clients sent, rounded, and neither
lengthened nor carried on. What a client left out, or sent in another shape, is as it was sent to the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpace.core.checks import FloatArray
from fedpace.core.errors import InputError
from fedpace.core.stepping import Answers, Gather, ServerStep, join_state, split_state
from fedpace.core.types import Mode
from fedpace.hosting.sketch import Arrays

STATE = "server:"
"""Begins the names of saved arrays that belong to the server step."""


class SharedModel:
    """The current model, and how it moves.

    Args:
        arrays: the model by names.
        rule: the server step.
    """

    def __init__(self, arrays: Arrays, rule: ServerStep[Any]) -> None:
        self.rule = rule
        self.arrays: dict[str, NDArray[Any]] = {key: np.array(array) for key, array in arrays.items()}
        self.state: Any = rule.init(self._zero())

    def step(
        self, answers: Iterable[tuple[float, Arrays]], mode: Mode = "average", *, sent: Arrays | None = None
    ) -> dict[str, NDArray[Any]]:
        """Take one step, and return the new model. Nobody whose answer counts leaves it as it is.

        Args:
            answers: (weight, trained model) of each client. In mode `average` who failed leaves its weight to them.
            mode: of the cohort.
            sent: the model that they were trained from, where it is not the current one.
        """
        weighted = [(float(weight), trained) for weight, trained in answers]
        if mode == "average":
            total = sum(weight for weight, _ in weighted)
            weighted = [(weight / total, trained) for weight, trained in weighted] if total > 0 else []
        before = self.arrays if sent is None else sent
        base = self._flat(before)
        gather = Gather(self.rule, self._zero(), mean=mode == "average" and sent is None)
        for weight, trained in weighted:
            gather.add(self._flat(trained, before), base, weight)
        combined = gather.answers()
        return self.arrays if combined is None else self._move(combined, self._counters(weighted, before))

    def carry_on(self, averaged: Arrays, answers: Iterable[tuple[float, Arrays]]) -> dict[str, NDArray[Any]]:
        """Take the step that others averaged, and return the new model.

        Args:
            averaged: what they made of the current model; arrays that are new to it are taken over.
            answers: what they averaged, as for `step`: some rules look at how far clients disagree.
        """
        current = self._flat(self.arrays)
        gather = Gather(self.rule, self._zero(), mean=False)
        weighted = [(float(weight), trained) for weight, trained in answers]
        total = sum(weight for weight, _ in weighted)
        for weight, trained in weighted:
            gather.add(self._flat(trained), current, weight / total if total else weight)
        combined = gather.answers()
        if combined is None:
            return self.arrays
        step = self._flat(averaged) - current
        mean = current + step if self.rule.takes & {"models", "mixture"} else None
        whole = Answers(step, combined.weights, mean, combined.mean_square, combined.rows)
        counters = {key: np.asarray(array) for key, array in averaged.items() if key not in self._floating()}
        return self._move(whole, counters)

    def _move(self, answers: Answers, others: Arrays) -> dict[str, NDArray[Any]]:
        vector, self.state = self.rule.apply(self.state, self._flat(self.arrays), answers)
        after: dict[str, NDArray[Any]] = dict(self.arrays) | {key: np.array(array) for key, array in others.items()}
        start = 0
        for key in self._floating():
            like = self.arrays[key]
            after[key] = np.asarray(vector[start : start + like.size].reshape(like.shape), dtype=like.dtype)
            start += like.size
        self.arrays = after
        return after

    def _counters(self, weighted: list[tuple[float, Arrays]], before: Arrays) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {}
        for key, array in before.items():
            if np.issubdtype(array.dtype, np.integer):
                base = array.astype(np.float64)
                moved = base + sum(
                    weight * (np.asarray(t.get(key, array), np.float64) - base) for weight, t in weighted
                )
                found[key] = np.asarray(np.rint(moved), dtype=array.dtype)
        return found

    def _floating(self) -> list[str]:
        return [key for key, array in self.arrays.items() if np.issubdtype(array.dtype, np.floating)]

    def _flat(self, arrays: Arrays, otherwise: Arrays | None = None) -> FloatArray:
        """Return the floating arrays as one vector; who lacks one has it as it was sent."""
        parts = []
        for key in self._floating():
            like = (otherwise or self.arrays)[key]
            array = arrays.get(key, like)
            parts.append(np.asarray(array if np.shape(array) == like.shape else like, dtype=np.float64).ravel())
        return np.concatenate(parts) if parts else np.zeros(0)

    def _zero(self) -> FloatArray:
        return np.zeros(sum(self.arrays[key].size for key in self._floating()))

    # -- saving ----------------------------------------------------------------------------------------------

    def saved_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return what to keep beside the arrays: as JSON, and as arrays of their own."""
        scalars, vectors = split_state(self.state)
        return {"name": self.rule.name, "state": scalars}, {STATE + name: vector for name, vector in vectors.items()}

    def load_state(self, saved: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `saved_state` gave; another rule starts anew."""
        if saved.get("name") != self.rule.name:
            return
        vectors = {name.removeprefix(STATE): vector for name, vector in arrays.items() if name.startswith(STATE)}
        if any(vector.shape[-1:] != self._zero().shape for vector in vectors.values()):
            raise InputError(f"the saved state of {self.rule.name} belongs to another model: start anew")
        self.state = join_state(self.state, dict(saved["state"]), vectors)
