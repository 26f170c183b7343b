"""What choosing costs the server in one round: the paper's procedure, step by step, beside ours on the same numbers.

Fleets have the paper's numbers of clients and features. Features are drawn as the paper's Quadratic draws them, with a
batch of 100 per client: what the steps cost depends on sizes, hardly on values. The paper's way to the heterogeneity,
a spectral norm of a d x d matrix for each pair, is timed on some pairs and multiplied by how many there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.rng import stream
from fedpace.core.types import View
from fedpace.delays.synthetic import SyntheticDelays
from fedpace.moments import MomentBank
from fedpace.numerics.heterogeneity import whiten
from fedpace.report.numbers import digits
from fedpace.report.tables import Cell, ReportTable
from fedpace.reproduce.columns import RESCALED
from fedpace.reproduce.paper import PAPER
from fedpace.reproduce.tables import headings
from fedpace.selectors.approx_opt_sampling import ApproxOptSampling
from fedpace.selectors.delayhet_sampling import DelayhetSampling
from fedpace.selectors.delayhet_submodular import DelayhetSubmodular

FLEETS = {"quadratic": (100, 500), "rotated-cifar10": (50, 512), "shakespeare": (100, 100)}
"""Clients and features. CIFAR-10's are those of ResNet18's last layer; the other two are stated in the paper."""
ROWS = 100
PAIRS = 12
ITERATIONS = 100
"""Of trust-constr: the paper does not say."""
STEPS = ("feature-heterogeneity", "delayhet-submodular", "delayhet-sampling", "approx-opt-sampling")


def measure(*, tiny: bool = False) -> dict[str, Any]:
    """Return CPU seconds of each step, by data set; `tiny` has fleets of a few clients."""
    found: dict[str, Any] = {}
    for name, (clients, features) in FLEETS.items():
        size = (6, 5) if tiny else (clients, features)
        found[name] = {"clients": size[0], "features": size[1], **_measured(*size)}
    return found


def _measured(clients: int, features: int) -> dict[str, float]:
    factors = _factors(clients, features)
    pairwise = _pair_by_pair(factors)
    bank = MomentBank(clients)
    for row, factor in enumerate(factors):
        bank.put(row, factor)
    ours = _seconds(lambda: bank.heterogeneity(ridge=0.0))
    view = View(
        step=0,
        now=0.0,
        available=np.ones(clients, dtype=bool),
        share=np.full(clients, 1 / clients),
        loss=np.full(clients, np.nan),
        loss_step=np.full(clients, -1),
        participations=np.zeros(clients, dtype=np.int64),
        delay=SyntheticDelays().build(clients, model_bytes=4 * features, seed=0).expected(),
        moments=bank,
    )
    rng = stream(0, "reproduce", "overhead")
    k = min(10, clients)
    schemes: dict[str, Any] = {
        "delayhet-submodular": DelayhetSubmodular(solver="min-norm", target_heterogeneity=RESCALED, ridge=0.0),
        "exact": DelayhetSubmodular(target_heterogeneity=RESCALED, ridge=0.0),
        "delayhet-sampling": DelayhetSampling(k=k, max_iter=ITERATIONS, ridge=0.0),
        "approx-opt-sampling": ApproxOptSampling(k=k, solver="trust-constr", max_iter=ITERATIONS),
        "approx-opt-sampling, exact": ApproxOptSampling(k=k),
    }
    chosen = {label: _seconds(partial(scheme.select, None, view, rng)) for label, scheme in schemes.items()}
    return {"feature-heterogeneity, pair by pair": pairwise, "feature-heterogeneity": ours, **chosen}


def _factors(clients: int, features: int) -> list[FloatArray]:
    rng = stream(0, "reproduce", "features", clients, features)
    scales = np.sqrt(rng.uniform(1, 10, (clients, features)))
    return [rng.standard_normal((ROWS, features)) * own / np.sqrt(ROWS) for own in scales]


def _pair_by_pair(factors: list[FloatArray]) -> float:
    """Return the seconds of all pairs as the paper describes them: the largest singular value of (A_i - A_j) A^-1."""
    clients = len(factors)
    inverse = whiten(factors, np.full(clients, 1 / clients)).inverse
    first, second = np.triu_indices(clients, 1)
    some = stream(0, "reproduce", "pairs").choice(len(first), min(PAIRS, len(first)), replace=False)

    def work() -> None:
        for i, j in zip(first[some], second[some], strict=True):
            difference = factors[i].T @ factors[i] - factors[j].T @ factors[j]
            np.linalg.norm(difference @ inverse, 2)

    return _seconds(work) / len(some) * len(first)


def _seconds(work: Callable[[], Any]) -> float:
    """Return CPU seconds: other programs on the machine do not count."""
    began = time.process_time()
    work()
    return round(time.process_time() - began, 4)


def table(measured: Mapping[str, Any]) -> ReportTable:
    """Return the overhead beside the paper's."""
    printed = PAPER.tables["table3"]["server_overhead_seconds_one_round"]
    rows = []
    for name, found in measured.items():
        cells = []
        for step in STEPS:
            other = {"feature-heterogeneity": "feature-heterogeneity, pair by pair"}.get(step, step)
            ours = {"delayhet-submodular": "exact", "approx-opt-sampling": "approx-opt-sampling, exact"}.get(step, step)
            said = f"paper {digits(float(printed[name][step]))}"
            same = "" if ours == other else f"its procedure {digits(found[other])}"
            cells.append(Cell(digits(found[ours]), same, published=said))
        before = found["feature-heterogeneity, pair by pair"] + found["delayhet-submodular"]
        after = found["feature-heterogeneity"] + found["exact"]
        rows.append(
            (
                Cell(name),
                Cell(f"{found['clients']}, {found['features']}"),
                *cells,
                Cell(f"{before / max(after, 1e-9):.0f}x"),
            )
        )
    return ReportTable(
        "Server overhead: seconds in the first round",
        headings("Data set", "m, d", "Heterogeneity", "Submodular", "Sampling", "ApproxOpt", "Submodular, all of it"),
        tuple(rows),
        (
            "CPU seconds of one core here, a GPU and 12 cores in the paper. First line: ours; then the paper's "
            "procedure as we run it: the norms of all pairs one by one (timed on 12 pairs), min-norm, trust-constr "
            f"({ITERATIONS} iterations; the paper does not say). The last column: its procedure over ours.",
        ),
    )
