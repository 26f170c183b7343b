"""The cohort's weights, exactly: NVFlare's own averaging multiplies them by the number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import filter_aggregatable_metrics

from fedpace.core.types import Mode, Selection
from fedpace.hosting.steps import Steps

Arrays = dict[str, NDArray[Any]]


class CohortAverage(ModelAggregator):  # type: ignore[misc]
    """Keeps the answers of a round, and combines those that count, in the cohort's order."""

    def __init__(self) -> None:
        super().__init__()
        self.current: Arrays = {}
        """The model that was sent."""
        self.weights: dict[str, float] = {}
        """Name -> weight of those that count, in the cohort's order."""
        self.mode: Mode = "average"
        self.selection: Selection | None = None
        """What the cohort asks for beside its weights."""
        self.steps = Steps()
        self._models: dict[str, FLModel] = {}

    def accept_model(self, model: FLModel) -> None:
        """Keep an answer until the round has ended: only then is it known who was in time."""
        self._models[str(model.meta["client_name"])] = model

    def reset_stats(self) -> None:
        """Forget the answers."""
        self._models = {}
        self.weights = {}

    def trained(self, name: str) -> Arrays:
        """Return the model that a client made, whether it sent the whole or the difference."""
        model = self._models[name]
        sent = {key: np.asarray(array) for key, array in model.params.items()}
        if model.params_type == ParamsType.DIFF:
            return {key: self.current[key] + array for key, array in sent.items()}
        return sent

    def aggregate_model(self) -> FLModel:
        """Return sum a_i x_i / sum a_i, or x + sum a_i (x_i - x) in delta mode; the model as it was for nobody."""
        counted = {name: weight for name, weight in self.weights.items() if name in self._models}
        models = {name: self.trained(name) for name in counted}
        factor = 1.0
        if self.selection is not None and counted:
            weighted = ((counted[name], model) for name, model in models.items())
            factor = self.steps.factor(self.current, weighted, self.selection)
        result = combine(self.current, models, counted, self.mode, factor)
        if self.selection is not None and self.selection.momentum and counted:
            result = self.steps.carry_on(self.current, result)
        return FLModel(params_type=ParamsType.FULL, params=result, metrics=self._metrics(counted))

    def _metrics(self, weights: Mapping[str, float]) -> dict[str, float] | None:
        """Return the weighted means of those metrics that everybody reported: what stop conditions look at."""
        tables = [
            (weight, filter_aggregatable_metrics(self._models[name].metrics or {}))
            for name, weight in weights.items()
            if weight > 0
        ]
        if not tables:
            return None
        total = sum(weight for weight, _ in tables)
        shared = set.intersection(*(set(table) for _, table in tables))
        return {key: sum(weight * float(table[key]) for weight, table in tables) / total for key in sorted(shared)}


def combine(
    current: Mapping[str, NDArray[Any]],
    models: Mapping[str, Mapping[str, NDArray[Any]]],
    weights: Mapping[str, float],
    mode: Mode,
    factor: float = 1.0,
) -> Arrays:
    """Return the next model, summed in double precision, its step `factor` times as long.

    Where a client left an array out, its step there is 0.
    """
    total = sum(weights.values())
    if not weights or (mode == "average" and total <= 0):
        return {key: np.array(array) for key, array in current.items()}
    scale = 1.0 if mode == "delta" else 1.0 / total
    result: Arrays = {}
    for key, before in current.items():
        start = np.asarray(before, dtype=np.float64)
        step = np.zeros_like(start)
        for name, weight in weights.items():
            if key in models[name]:
                step += scale * weight * (np.asarray(models[name][key], dtype=np.float64) - start)
        dtype = before.dtype if np.issubdtype(before.dtype, np.floating) else np.float64
        result[key] = np.asarray(start + factor * step, dtype=dtype)
    return result
