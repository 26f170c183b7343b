"""Random selection, in the three variants that the literature calls by one name.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017);
Li et al., "On the Convergence of FedAvg on Non-IID Data" (ICLR 2020), schemes I and II;
Bonawitz et al., "Towards Federated Learning at Scale: System Design" (MLSys 2019), section 4.2, for over-selection.

The paper that fedpace starts from says only "samples clients uniformly"; our default is the common reading.

Over-selection is what production systems do about stragglers: more clients are asked than are wanted, and the round
goes on with the first that answer. It favours the fast, whose data then count for more: a bias that the authors accept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedpace._base.checks import at_least, between, finite, one_of, whole
from fedpace._base.errors import InputError
from fedpace.core.cohorts import cohort_size, draw_multiset, over_asked
from fedpace.core.stepping import ServerStep
from fedpace.core.types import Cohort, Need, Stateless, View
from fedpace.selectors._drawing import share_weights
from fedpace.server.fedexp import Fedexp
from fedpace.server.nesterov import Nesterov

VARIANTS = ("uniform-wor", "md", "uniform-unbiased")


@dataclass(frozen=True)
class Random(Stateless):
    """Clients drawn at random.

    Args:
        k: clients in a cohort; 0 = all that can be reached.
        variant: `uniform-wor`: k distinct clients, each as likely; they weigh as their shares do among themselves
            (biased where shares differ, but the common default). `md`: k draws with replacement by share, weight =
            times drawn / k; unbiased. `uniform-unbiased`: k distinct clients, each as likely, in delta mode with
            weight share x clients / k; unbiased, but the weights need not sum to 1.
        fedexp_exponent: power of the factor by which the cohort's disagreement lets the step be lengthened
            (`fedpace.core.extrapolation`): 1 is FedExP with random cohorts, which `pace` must be compared with.
        momentum: carry steps on from round to round (`fedpace.core.acceleration`), for the same reason.
        overcommit: clients asked for each one wanted; the round ends when k of them have answered. The authors ask 1.3.
            Only with `uniform-wor`: the others' weights are for those drawn, not for the fastest of them.
    """

    name: ClassVar[str] = "random"
    renamed: ClassVar[Mapping[str, str]] = {"extrapolate": "fedexp_exponent"}
    """Former names of options: older experiments and records still use them."""
    needs: ClassVar[frozenset[Need]] = frozenset()

    k: int = 10
    variant: Literal["uniform-wor", "md", "uniform-unbiased"] = "uniform-wor"
    fedexp_exponent: float = 0.0
    momentum: bool = False
    overcommit: float = 1.0

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        whole(self.k, 0, "k of random")
        at_least(self.overcommit, 1, "overcommit of random")
        finite(self.overcommit, "overcommit of random")
        one_of(self.variant, VARIANTS, "variant of random")
        between(self.fedexp_exponent, 0, 1, "fedexp_exponent of random")
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
    def server(self) -> ServerStep[Any] | None:
        """The server step that this scheme uses by default; None = the plain average."""
        if self.momentum:
            return Nesterov(self.fedexp_exponent)
        return Fedexp(self.fedexp_exponent) if self.fedexp_exponent else None

    @property
    def ignores_delays(self) -> bool:
        """Whether delays cannot change what is trained: not where the first to answer are taken."""
        return self.overcommit == 1

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Draw the cohort."""
        rows = view.candidates
        size = cohort_size(self.k, view, self.name) if self.k else rows.size
        if self.variant == "md":
            # Draws with replacement: k of them are possible however few clients are reachable.
            clients, weights = draw_multiset(rows, share_weights(view, rows), self.k or size, rng)
            return Cohort(clients, weights), None
        asked = over_asked(size, self.overcommit, rows.size)
        clients = np.sort(rng.choice(rows, size=asked, replace=False))
        if self.variant == "uniform-unbiased":
            return Cohort(clients, view.share[clients] * rows.size / size, mode="delta"), None
        return Cohort(clients, share_weights(view, clients), quorum=size if asked > size else 0), None
