"""The cohort's weights, exactly: NVFlare's own averaging multiplies them by the number of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import filter_aggregatable_metrics

from fedpace.core.types import Mode
from fedpace.hosting.shared_model import SharedModel
from fedpace.server.average import Average

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
        self.shared = SharedModel({}, Average())
        """How the model moves."""
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
        """Step with the answers that count; nobody's leave the model as it was."""
        counted = {name: weight for name, weight in self.weights.items() if name in self._models}
        answers = [(weight, self.trained(name)) for name, weight in counted.items()]
        self.shared.arrays = {key: np.asarray(array) for key, array in self.current.items()}
        result = self.shared.step(answers, self.mode)
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
