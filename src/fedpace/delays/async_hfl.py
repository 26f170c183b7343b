"""`async-hfl`: the delays of Async-HFL (IoTDI 2023), earlier work of the DelayHet authors.

Each client has seconds on its best link plus seconds of compute. The authors describe compute as log-normal(4, 3) + 30
s, capped at 15,000 s. The long tail comes from compute, not from the ns-3 links. Their 184 published values spread
less: the logarithm of compute - 30 s has mean 4.08 and standard deviation 2.12, which are our defaults. With them, the
median delay is 163 s and 10 % exceed 1000 s; the table has 161 s and 12 %. `compute_sigma = 3.0` gives the described
form, with 17 %.

With `table`, delays come from a CSV file with columns link_s and compute_s. These delays differ from the later paper,
whose full rounds take 1980 s instead of hours; `nycmesh` models the later paper. The model size does not change the
seconds, which are used as measured. Departure: the log-normal noise per round is from the later paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.options import Options
from fedpace._base.rng import stream
from fedpace.core.types import DelayModel
from fedpace.delays.base import (
    LogScale,
    MeanPlusLognormal,
    NonNegative,
    Positive,
    Sigma,
    check_clients,
    check_model_bytes,
    deal_rows,
)
from fedpace.delays.csv_files import read_table

LINK_QUANTILES = np.array([51.5, 52.4, 53.8, 55.3, 56.7, 62.9, 64.1, 79.1, 79.1, 109.1, 109.1])
"""Seconds on the best link: minimum, deciles and maximum of the published table."""


@dataclass(frozen=True)
class AsyncHflDelays(Options):
    """Link seconds plus long-tailed compute; log-normal over rounds."""

    name: ClassVar[str] = "async-hfl"

    table: str = ""
    """CSV file with link_s and compute_s; empty = draw from the fitted distributions."""
    compute_mu: LogScale = 4.08
    """Mean of the logarithm of the compute seconds above the floor."""
    compute_sigma: Sigma = 2.12
    """Standard deviation of that logarithm."""
    compute_floor: NonNegative = 30.0
    """Smallest compute seconds of a client."""
    compute_cap: Positive = 15_000.0
    """Largest compute seconds of a client."""
    round_mu: LogScale = 2.0
    """Mean of the logarithm of the random seconds added per round."""
    round_sigma: Sigma = 1.0
    """Standard deviation of that logarithm."""
    cap: Positive = 1e6
    """Largest delay in seconds; the default has no effect."""

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients; the size of the model has no effect."""
        clients = check_clients(clients)
        check_model_bytes(model_bytes)
        link, compute = self._from_table(clients, seed) if self.table else self._drawn(clients, seed)
        return MeanPlusLognormal(
            link + compute, compute, mu=self.round_mu, sigma=self.round_sigma, cap=self.cap, seed=seed, what=self.name
        )

    def _drawn(self, clients: int, seed: int) -> tuple[FloatArray, FloatArray]:
        uniform = stream(seed, "delay", self.name, "link").random(clients)
        link = np.interp(uniform, np.linspace(0, 1, LINK_QUANTILES.size), LINK_QUANTILES)
        normal = stream(seed, "delay", self.name, "compute").standard_normal(clients)
        tail = np.exp(np.minimum(self.compute_mu + self.compute_sigma * normal, 700.0))
        return np.asarray(link), np.minimum(self.compute_floor + tail, self.compute_cap)

    def _from_table(self, clients: int, seed: int) -> tuple[FloatArray, FloatArray]:
        table = read_table(self.table, required=("link_s", "compute_s"))
        link, compute = table.numbers("link_s", low=0.0), table.numbers("compute_s", low=0.0)
        rows = deal_rows(link.size, clients, seed=seed, key=self.name)
        return link[rows], compute[rows]
