"""The options of private training: what the server sees of updates, and the noise that protects each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, Above, AtLeast, Between, Options
from fedpace.core.settings import MINIMUM, Aggregation

NOISE = ("delta", "clip", "releases", "mechanism", "bands")
"""Options that have no effect without an epsilon."""


@dataclass(frozen=True)
class TrainingPrivacy(Options):
    """What the server sees of the clients' updates.

    Args:
        aggregation: `individual`: every update. `sums`: only sums over groups of clients, as under secure aggregation.
        minimum: fewest clients in a sum.
        protocol: what adds the updates up. `aggregator`: a trusted process, which keeps the memory of the clients for
            schemes such as `pace-async`. `masks`: the clients themselves, as under SecAgg+; they keep their own memory,
            and a simulation charges two vectors down and two up per task.
        round_trips: messages that a client and the server exchange for a sum, beyond a plain upload: key exchange,
            shares, unmasking. A simulation charges `trip_seconds` for each.
        trip_seconds: seconds per such exchange.
        client_bytes: bytes that the protocol adds to each upload, such as keys and shares.
        epsilon: differential privacy of each client over the whole run; 0 = no noise. A client whose budget is spent
            gets no task any more.
        delta: probability with which epsilon may be exceeded.
        clip: longest update; clients scale longer ones down to it.
        releases: number of sums, with the largest weight in each, after which a client has spent its budget. More
            releases need more noise in each.
        mechanism: `gaussian`: independent noise in each sum (DP-FedAvg). `ftrl`: noise that later noise takes back
            (DP-FTRL), which is better where clients take part often; see `fedpace.core.budget`.
        bands: with `ftrl`, steps over which noise is taken back. Clients that take part again within so many steps
            spend more.
    """

    options_of: ClassVar[str] = "privacy"

    aggregation: Aggregation = "individual"
    minimum: Annotated[int, AtLeast(1)] = MINIMUM
    protocol: Literal["aggregator", "masks"] = "aggregator"
    round_trips: Annotated[int, AtLeast(0)] = 0
    trip_seconds: Annotated[float, AtLeast(0), FINITE] = 0.0
    client_bytes: Annotated[int, AtLeast(0)] = 0
    epsilon: Annotated[float, AtLeast(0), FINITE] = 0.0
    delta: Annotated[float, Between(0, 0.5, "(]")] = 1e-5
    clip: Annotated[float, Above(0), FINITE] = 1.0
    releases: Annotated[int, AtLeast(1)] = 100
    mechanism: Literal["gaussian", "ftrl"] = "gaussian"
    bands: Annotated[int, AtLeast(2)] = 8

    def __post_init__(self) -> None:
        """Raise InputError if noise is wanted where the server sees single updates, or without an epsilon."""
        super().__post_init__()
        if self.epsilon and self.aggregation != "sums":
            raise InputError(
                "epsilon of privacy adds noise to sums, but the server sees single updates: set aggregation = 'sums'"
            )
        if self.bands != type(self).bands and self.mechanism != "ftrl":
            raise InputError("bands of privacy belongs to mechanism = 'ftrl': set the mechanism, or leave bands out")
        changed = " and ".join(name for name in NOISE if getattr(self, name) != getattr(type(self), name))
        if changed and not self.epsilon:
            raise InputError(
                f"{changed} of privacy has no effect without noise, which needs an epsilon above 0: set epsilon, or "
                f"leave {changed} out"
            )

    @property
    def sums(self) -> bool:
        """Whether the server sees sums only."""
        return self.aggregation == "sums"

    @property
    def opening_seconds(self) -> float:
        """Seconds that the protocol takes in each step."""
        return self.round_trips * self.trip_seconds if self.sums else 0.0
