"""`nycmesh`: delays of a community radio network in a city, after section 3 and figure 1 of the DelayHet paper.

The paper uses node positions of NYC Mesh, ns-3's HybridBuildingsPropagationLossModel (urban, large city, 2160 MHz,
rooftops at 20 m), 16 dBm, and log-normal noise per round. It does not say how a loss becomes seconds. It publishes two
numbers: a tenth of the clients exceeds 1000 s, and a round with all clients takes about 1980 s. Our model is

    SNR = power + gain - loss - shadowing - noise
    rate = min(share * bandwidth * log2(1 + SNR / gap), top_rate)
    delay = min(compute + 2 * 8 * bytes / rate + log-normal(round_mu, round_sigma), cap)

Only `gain_db` and `cap` are calibrated, to those two numbers. `share`, `gap_db`, `noise_figure_db`, `shadowing_db`
(ns-3's default) and `compute` are plausible fixed values. The model size is always the 1.6 MB of the authors' MNIST
model, whatever is trained. With a few kilobytes, as in their Quadratic runs, no link would be slow, and the tail that
the paper shows there would disappear.

Positions: without `nodes`, they are drawn from six clusters fitted to the 885 sites of the real network (July 2024),
where several nodes on one roof are one site. With `nodes`, they come from a CSV file with columns x_m, y_m (metres east
and north of the server), height_m (0 or less = unknown, taken as 10 m) and optionally kind. As in the paper, hubs and
supernodes are not clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace._base.options import AtLeast, Between, Options
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
from fedpace.delays.propagation import Antennas, Rules, hybrid_loss

SERVER_HEIGHT = 180.0
"""Height in metres of the server, a supernode on a tower in lower Manhattan."""
UNKNOWN_HEIGHT = 10.0
HEIGHTS = (3.0, 180.0)
"""Range in metres to which drawn heights are clipped."""
NOT_CLIENTS = ("hub", "supernode")
THERMAL_DBM_HZ = -174.0

# share, metres east and north, their standard deviations and correlation, median height, sigma of its logarithm
CLUSTERS = np.array(
    [
        (0.225, 4550, -3150, 1030, 800, 0.20, 33.9, 0.28),
        (0.229, 1060, 910, 510, 610, 0.58, 31.4, 0.42),
        (0.034, 4730, 11530, 2560, 3100, 0.91, 47.7, 0.48),
        (0.205, 1400, -5420, 1710, 1610, 0.25, 32.9, 0.51),
        (0.106, 4560, 230, 1310, 2220, -0.35, 17.5, 0.70),
        (0.201, 7090, -1790, 760, 980, 0.21, 28.0, 0.22),
    ]
)


@dataclass(frozen=True)
class NycmeshDelays(Options):
    """Position -> path loss -> rate -> seconds; log-normal over rounds."""

    name: ClassVar[str] = "nycmesh"

    nodes: str = ""
    """CSV file with the positions; empty = draw from the fitted clusters."""
    model_bytes: Annotated[int, AtLeast(0)] = 1_600_000
    """Bytes sent in each direction; 0 = the size of the trained model."""
    rules: Rules = "ns-3"
    """Which formulas the path loss follows where ns-3 departs from the recommendations.

    The calibration is for ns-3. COST 231 is meant for antennas up to 10 m; taken literally for roofs at 30 m, it lowers
    the loss so much that no tail is left.
    """
    frequency_mhz: Positive = 2160.0
    rooftop: Positive = 20.0
    """Height of the rooftops in metres."""
    power_dbm: LogScale = 16.0
    gain_db: LogScale = 27.0
    """Gain of both antennas together. Calibrated."""
    noise_figure_db: LogScale = 7.0
    shadowing_db: Annotated[float, Between(0, 100)] = 7.0
    """Standard deviation over clients of the extra loss from buildings."""
    gap_db: LogScale = 6.0
    """Gap between the modulation and Shannon's bound."""
    bandwidth_hz: Positive = 20e6
    share: Annotated[float, Between(0, 1, "(]")] = 1 / 60
    """Part of the channel that each client gets."""
    top_rate: Positive = 2.048e6
    """Largest rate of a client in bits per second."""
    compute: NonNegative = 30.44
    """Training seconds per round."""
    round_mu: LogScale = 2.0
    """Mean of the logarithm of the random seconds added per round."""
    round_sigma: Sigma = 1.0
    """Standard deviation of that logarithm."""
    cap: Positive = 1980.0
    """Largest delay of a client in seconds. Calibrated."""

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients around one server."""
        own = check_model_bytes(model_bytes)
        size = self.model_bytes or own
        where = self.positions(clients, seed=seed)
        server = Antennas.outdoors(np.zeros(1), np.zeros(1), np.full(1, SERVER_HEIGHT))
        loss = hybrid_loss(
            server,
            Antennas.outdoors(where[:, 0], where[:, 1], where[:, 2]),
            frequency_mhz=self.frequency_mhz,
            rooftop=self.rooftop,
            rules=self.rules,
        )
        loss += self.shadowing_db * stream(seed, "delay", self.name, "shadow").standard_normal(len(where))
        with np.errstate(divide="ignore"):  # no signal: an infinite transfer time, which the cap limits
            seconds = self.compute + 2 * 8 * size / self.rate(loss)
        return MeanPlusLognormal(
            seconds,
            np.full(len(where), float(self.compute)),
            mu=self.round_mu,
            sigma=self.round_sigma,
            cap=self.cap,
            seed=seed,
            what=self.name,
        )

    def rate(self, loss_db: FloatArray) -> FloatArray:
        """Return the bits per second over links with the given loss."""
        noise = THERMAL_DBM_HZ + 10 * math.log10(self.bandwidth_hz) + self.noise_figure_db
        over_gap = self.power_dbm + self.gain_db - loss_db - noise - self.gap_db
        bits = np.log1p(10 ** (np.minimum(over_gap, 3000.0) / 10)) / math.log(2)
        return np.minimum(self.share * self.bandwidth_hz * bits, self.top_rate)

    def positions(self, clients: int, *, seed: int) -> FloatArray:
        """(clients, 3) metres east and north of the server, and above the ground."""
        clients = check_clients(clients)
        if self.nodes:
            sites = read_sites(self.nodes)
            return np.asarray(sites[deal_rows(len(sites), clients, seed=seed, key=self.name)])
        edges = np.cumsum(CLUSTERS[:-1, 0])
        cluster = np.searchsorted(edges, stream(seed, "delay", self.name, "cluster").random(clients))
        _, east, north, sd_east, sd_north, rho, height, sigma = (column[cluster] for column in CLUSTERS.T)
        a, b, c = (stream(seed, "delay", self.name, axis).standard_normal(clients) for axis in ("x", "y", "z"))
        places = np.empty((clients, 3))
        places[:, 0] = east + sd_east * a
        places[:, 1] = north + sd_north * (rho * a + np.sqrt(1 - rho**2) * b)
        places[:, 2] = np.clip(height * np.exp(sigma * c), *HEIGHTS)
        return places


def read_sites(file: str) -> FloatArray:
    """(n, 3) distinct client sites in a node file."""
    table = read_table(file, required=("x_m", "y_m", "height_m"), optional=("kind",))
    east, north, height = (table.numbers(column) for column in ("x_m", "y_m", "height_m"))
    places = np.column_stack([east, north, np.where(height > 0, height, UNKNOWN_HEIGHT)])
    client = (east != 0) | (north != 0)
    if "kind" in table:
        client &= ~np.isin(np.array(table.columns["kind"], dtype=np.str_), NOT_CLIENTS)
    if not client.any():
        raise InputError(f"{table.path}: expected nodes besides hubs and the server at (0, 0), but there are none")
    return np.unique(places[client], axis=0)
