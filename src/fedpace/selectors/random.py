"""Random selection, in three variants that the literature calls by one name.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017); Li et al.,
"On the Convergence of FedAvg on Non-IID Data" (ICLR 2020), schemes I and II; Bonawitz et al., "Towards Federated
Learning at Scale: System Design" (MLSys 2019), section 4.2, for over-selection.

The DelayHet paper says only "samples clients uniformly". Our default is the common reading.

Over-selection is the usual remedy for stragglers in production systems: the server asks more clients than it wants, and
the round ends with the first answers. It favours fast clients, so that their data count for more. Bonawitz et al.
accept this bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fedpace._base.errors import InputError
from fedpace._base.options import FINITE, AtLeast, Between
from fedpace.core.rounds import cohort_size, draw_multiset, over_asked
from fedpace.core.server_rule import ServerRule
from fedpace.core.types import Cohort, Stateless, View
from fedpace.selectors._drawing import share_weights
from fedpace.server.fedexp import Fedexp
from fedpace.server.nesterov import Nesterov


@dataclass(frozen=True)
class Random(Stateless):
    """Clients drawn at random.

    Args:
        k: clients in a cohort; 0 = all clients that can be reached (full participation).
        variant: `uniform-wor`: k distinct clients, all equally likely, weighted by their shares scaled to sum to 1
            (biased if shares differ, but the common default). `md`: k draws with replacement by share, weight = times
            drawn / k; unbiased. `uniform-unbiased`: k distinct clients, all equally likely, in delta mode with weight
            share x clients / k; unbiased, but the weights need not sum to 1.
        fedexp_exponent: exponent of FedExP's factor, which lengthens steps when clients disagree
            (`fedpace.server._step_length`). 1 is FedExP with random cohorts, a fair baseline for `pace`.
        momentum: use Nesterov momentum (`fedpace.server._step_length`), also as a baseline for `pace`.
        overcommit: clients asked per client wanted; the round ends after k answers. Bonawitz et al. ask 1.3. Only with
            `uniform-wor`: the weights of the other variants are valid for all drawn clients, not for the fastest of
            them.
    """

    name: ClassVar[str] = "random"

    k: Annotated[int, AtLeast(1, zero="take all clients that can be reached")] = 10
    variant: Literal["uniform-wor", "md", "uniform-unbiased"] = "uniform-wor"
    fedexp_exponent: Annotated[float, Between(0, 1)] = 0.0
    momentum: bool = False
    overcommit: Annotated[float, AtLeast(1), FINITE] = 1.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid, or if two do not go together."""
        super().__post_init__()
        if self.overcommit > 1 and self.variant != "uniform-wor":
            raise InputError(
                f"random has overcommit = {self.overcommit} with variant {self.variant!r}, whose weights are for all "
                "who are drawn: set overcommit = 1, or variant = 'uniform-wor'"
            )
        if (self.fedexp_exponent or self.momentum) and self.variant == "uniform-unbiased":
            raise InputError(
                "random has neither fedexp_exponent nor momentum with variant 'uniform-unbiased': only an average can "
                "be lengthened or carried on"
            )

    @property
    def server(self) -> ServerRule[Any] | None:
        """The default server rule of this scheme; None = plain averaging."""
        if self.momentum:
            return Nesterov(self.fedexp_exponent)
        return Fedexp(self.fedexp_exponent) if self.fedexp_exponent else None

    @property
    def ignores_delays(self) -> bool:
        """Whether delays cannot influence training: False with over-selection, which takes the first answers."""
        return self.overcommit == 1

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Draw the cohort, and return it."""
        rows = view.candidates
        size = cohort_size(self.k, view, self.name) if self.k else rows.size
        if self.variant == "md":
            # Draws with replacement: k draws are possible even if fewer clients are reachable.
            clients, weights = draw_multiset(rows, share_weights(view, rows), self.k or size, rng)
            return Cohort(clients, weights), None
        asked = over_asked(size, self.overcommit, rows.size)
        clients = np.sort(rng.choice(rows, size=asked, replace=False))
        if self.variant == "uniform-unbiased":
            return Cohort(clients, view.share[clients] * rows.size / size, mode="delta"), None
        return Cohort(clients, share_weights(view, clients), quorum=size if asked > size else 0), None
