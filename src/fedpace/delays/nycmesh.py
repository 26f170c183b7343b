"""`nycmesh`: delays of a community radio network in a city, after the paper's section 3 and figure 1.

The paper takes node positions of NYC Mesh, ns-3's HybridBuildingsPropagationLossModel (urban, large city, 2160 MHz,
rooftops at 20 m), 16 dBm, and a log-normal part each round. It does not say how a loss becomes seconds; it publishes
two numbers: a tenth of the clients above 1000 s, and about 1980 s for a round with everybody. Our chain is

    SNR = power + gain - loss - shadowing - noise
    rate = min(share * bandwidth * log2(1 + SNR / gap), top_rate)
    delay = min(compute + 2 * 8 * bytes / rate + log-normal(round_mu, round_sigma), cap)

Calibrated to those two numbers, and to nothing else: `gain_db` and `cap`. `share`, `gap_db`, `noise_figure_db`,
`shadowing_db` (ns-3's default) and `compute` are plausible figures held fixed meanwhile. The size is the 1.6 MB of
the authors' MNIST model, whatever is trained: with a few kilobytes, as in their Quadratic runs, no link is slow and
the tail that the paper shows there would be gone.

Positions: without `nodes`, from six clusters fitted to the 885 sites of the real network (July 2024); several nodes
on one roof are one site. With `nodes`, from a CSV file with columns x_m, y_m (metres east and north of the server),
height_m (0 or less = unknown, taken as 10 m) and, where there is one, kind: hubs and supernodes are not clients, as
in the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np

from fedpace._base.checks import FloatArray, one_of
from fedpace._base.errors import InputError
from fedpace._base.rng import stream
from fedpace.core.types import DelayModel
from fedpace.delays.base import WIDEST, MeanPlusLognormal, count_of, dealt, number, size_of
from fedpace.delays.hybrid import Places, hybrid_loss
from fedpace.delays.propagation import Rules
from fedpace.delays.tables import read_table

SERVER_HEIGHT = 180.0
"""Metres: the supernode on a tower in lower Manhattan."""
UNKNOWN_HEIGHT = 10.0
HEIGHTS = (3.0, 180.0)
"""Metres between which the fitted heights are kept."""
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
class NycmeshDelays:
    """Position -> path loss -> rate -> seconds; log-normal over rounds."""

    name: ClassVar[str] = "nycmesh"

    nodes: str = ""
    """CSV file with the positions; empty = drawn from the fitted clusters."""
    model_bytes: int = 1_600_000
    """Bytes to send each way; 0 = the trained model's own."""
    rules: Rules = "ns-3"
    """Whom the path loss follows where ns-3 departs from the recommendations.

    The calibration is for ns-3: COST 231 to the letter is meant for antennas up to 10 m, and on roofs at 30 m it takes
    so much off the loss that no tail is left.
    """
    frequency_mhz: float = 2160.0
    rooftop: float = 20.0
    """Metres."""
    power_dbm: float = 16.0
    gain_db: float = 27.0
    """Both antennas together. Calibrated."""
    noise_figure_db: float = 7.0
    shadowing_db: float = 7.0
    """Standard deviation over the clients of the loss that buildings add."""
    gap_db: float = 6.0
    """How far the modulation stays behind Shannon's bound."""
    bandwidth_hz: float = 20e6
    share: float = 1 / 60
    """Part of the channel that one client gets."""
    top_rate: float = 2.048e6
    """Bits a second that no client exceeds."""
    compute: float = 30.44
    """Seconds of training."""
    round_mu: float = 2.0
    """Mean of the logarithm of the seconds that a round adds."""
    round_sigma: float = 1.0
    """Standard deviation of the same logarithm."""
    cap: float = 1980.0
    """Seconds after which a round ends for everybody. Calibrated."""

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        one_of(self.rules, get_args(Rules), "rules")
        if not isinstance(self.nodes, str):
            raise InputError(f"nodes must be the path of a CSV file or empty, but {self.nodes!r} came")
        size_of(self.model_bytes)
        for option in ("power_dbm", "gain_db", "noise_figure_db", "gap_db", "round_mu"):
            number(getattr(self, option), option, low=-300.0, high=300.0)
        for option in ("frequency_mhz", "rooftop", "bandwidth_hz", "top_rate", "cap"):
            number(getattr(self, option), option, low=0.0, above=True)
        number(self.share, "share", low=0.0, high=1.0, above=True)
        number(self.shadowing_db, "shadowing_db", low=0.0, high=100.0)
        number(self.compute, "compute", low=0.0)
        number(self.round_sigma, "round_sigma", low=0.0, high=WIDEST)

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients around one server."""
        own = size_of(model_bytes)
        size = self.model_bytes or own
        where = self.positions(clients, seed=seed)
        server = Places.outdoors(np.zeros(1), np.zeros(1), np.full(1, SERVER_HEIGHT))
        loss = hybrid_loss(
            server,
            Places.outdoors(where[:, 0], where[:, 1], where[:, 2]),
            frequency_mhz=self.frequency_mhz,
            rooftop=self.rooftop,
            rules=self.rules,
        )
        loss += self.shadowing_db * stream(seed, "delay", self.name, "shadow").standard_normal(len(where))
        with np.errstate(divide="ignore"):  # no signal: an endless transfer, which the cap ends
            seconds = self.compute + 2 * 8 * size / self.rate(loss)
        return MeanPlusLognormal(
            seconds, mu=self.round_mu, sigma=self.round_sigma, cap=self.cap, seed=seed, what=self.name
        )

    def rate(self, loss_db: FloatArray) -> FloatArray:
        """Bits a second over links with the given loss."""
        noise = THERMAL_DBM_HZ + 10 * math.log10(self.bandwidth_hz) + self.noise_figure_db
        over_gap = self.power_dbm + self.gain_db - loss_db - noise - self.gap_db
        bits = np.log1p(10 ** (np.minimum(over_gap, 3000.0) / 10)) / math.log(2)
        return np.minimum(self.share * self.bandwidth_hz * bits, self.top_rate)

    def positions(self, clients: int, *, seed: int) -> FloatArray:
        """(clients, 3) metres east and north of the server, and above the ground."""
        clients = count_of(clients)
        if self.nodes:
            sites = read_sites(self.nodes)
            return np.asarray(sites[dealt(len(sites), clients, seed=seed, key=self.name)])
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
    """(n, 3) distinct sites of the clients in a node file."""
    table = read_table(file, required=("x_m", "y_m", "height_m"), optional=("kind",))
    east, north, height = (table.numbers(column) for column in ("x_m", "y_m", "height_m"))
    places = np.column_stack([east, north, np.where(height > 0, height, UNKNOWN_HEIGHT)])
    client = (east != 0) | (north != 0)
    if "kind" in table:
        client &= ~np.isin(np.array(table.columns["kind"], dtype=np.str_), NOT_CLIENTS)
    if not client.any():
        raise InputError(f"{table.path}: expected nodes besides hubs and the server at (0, 0), but there are none")
    return np.unique(places[client], axis=0)
