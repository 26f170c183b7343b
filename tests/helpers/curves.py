"""The metric of runs over virtual seconds, as a curve of the report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpace.records.run import RunRecord
from fedpace.report.figures import Curve, merged


def metric_over_time(runs: Sequence[RunRecord]) -> Curve | None:
    return merged(runs, lambda run: np.array([each.clock for each in run.rounds], dtype=np.float64))
