"""Random selection, in the three variants that the literature calls by one name.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017);
Li et al., "On the Convergence of FedAvg on Non-IID Data" (ICLR 2020), schemes I and II.

The paper that fedpace starts from says only "samples clients uniformly"; our default is the common reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedpace.core.checks import between, one_of, whole
from fedpace.core.errors import InputError
from fedpace.core.stepping import ServerStep
from fedpace.core.types import Cohort, Need, Stateless, View
from fedpace.selectors._cohorts import cohort_size, draw_multiset
from fedpace.selectors._drawing import share_weights
from fedpace.server.fedexp import FedExP
from fedpace.server.nesterov import Nesterov

VARIANTS = ("uniform-wor", "md", "uniform-unbiased")


@dataclass(frozen=True)
class Random(Stateless):
    """Clients drawn at random.

    Args:
        k: clients in a cohort.
        variant: `uniform-wor`: k distinct clients, each as likely; they weigh as their shares do among themselves
            (biased where shares differ, but the common default). `md`: k draws with replacement by share, weight =
            times drawn / k; unbiased. `uniform-unbiased`: k distinct clients, each as likely, in delta mode with
            weight share x clients / k; unbiased, but the weights need not sum to 1.
        extrapolate: power of the factor by which the cohort's disagreement lets the step be lengthened
            (`fedpace.core.extrapolation`): 1 is FedExP with random cohorts, which `pace` must be compared with.
        momentum: carry steps on from round to round (`fedpace.core.acceleration`), for the same reason.
    """

    name: ClassVar[str] = "random"
    needs: ClassVar[frozenset[Need]] = frozenset()
    timeless: ClassVar[bool] = True

    k: int = 10
    variant: Literal["uniform-wor", "md", "uniform-unbiased"] = "uniform-wor"
    extrapolate: float = 0.0
    momentum: bool = False

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        whole(self.k, 1, "k of random")
        one_of(self.variant, VARIANTS, "variant of random")
        between(self.extrapolate, 0, 1, "extrapolate of random")
        if (self.extrapolate or self.momentum) and self.variant == "uniform-unbiased":
            raise InputError(
                "random has neither extrapolate nor momentum with variant 'uniform-unbiased': only an average can be "
                "lengthened or carried on"
            )

    @property
    def server(self) -> ServerStep[Any] | None:
        """How the server steps, unless it is told otherwise."""
        if self.momentum:
            return Nesterov(self.extrapolate)
        return FedExP(self.extrapolate) if self.extrapolate else None

    def select(self, state: None, view: View, rng: np.random.Generator) -> tuple[Cohort, None]:
        """Draw the cohort."""
        size = cohort_size(self.k, view, self.name)
        rows = view.candidates
        if self.variant == "md":
            # Draws with replacement: k of them are possible however few clients are reachable.
            clients, weights = draw_multiset(rows, share_weights(view, rows), self.k, rng)
            return Cohort(clients, weights), None
        clients = np.sort(rng.choice(rows, size=size, replace=False))
        if self.variant == "uniform-unbiased":
            return Cohort(clients, view.share[clients] * rows.size / size, mode="delta"), None
        return Cohort(clients, share_weights(view, clients)), None
