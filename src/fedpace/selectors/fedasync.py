"""No rounds and no buffer: every answer moves the model, the less the older it is.

Xie, Koyejo and Gupta, "Asynchronous Federated Optimization" (2019): FedAsync. So many clients are at work at any time;
who has answered is replaced at once by one drawn at random, which is given the current model. Every answer x_i is mixed
into the model as it comes, whole, however much the model has moved since it was sent:

    x <- (1 - a) x + a x_i,    a = alpha s(lag),    lag = steps made since the client received its model,

    s = 1 (constant), (1 + lag)^-power (polynomial), or 1 / (slope max(lag - tolerated, 0) + 1) (hinge).

Mixing is the server's rule `mixing`. A round of the records is a step, of one client.

Where we depart, and why: the authors' clients have a proximal term, which is the clients' business and not the
scheme's: algorithm = "fedprox" of [training], with mu = 0.005 as theirs. Where shares of clients differ, a is
multiplied by share x clients, 1 at the most, so that steps are towards the same objective as FedAvg's. The authors let
staleness be drawn at random up to 4 or 16; here it is what delays make it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from fedpace._base.checks import FloatArray, IntArray, at_least, finite, one_of, whole
from fedpace._base.errors import InputError
from fedpace.core.stepping import ServerStep
from fedpace.core.tasks import Move
from fedpace.core.types import Need, Stateless, View
from fedpace.selectors._buffered import buffered
from fedpace.server.mixing import Mixing

Discount = Literal["polynomial", "hinge", "constant"]


@dataclass(frozen=True)
class Fedasync(Stateless):
    """Every answer is mixed into the model as it comes.

    Args:
        alpha: what an answer to the current model counts for; the model keeps the rest.
        in_flight: clients at work at any time; 0 = all that can be reached.
        discount: how less an old answer counts.
        power: of `polynomial`: what 1 + lag is raised to.
        slope: of `hinge`: how fast answers lose beyond `tolerated`.
        tolerated: of `hinge`: the lag up to which answers count in full.
    """

    name: ClassVar[str] = "fedasync"
    needs: ClassVar[frozenset[Need]] = frozenset()
    rounds: ClassVar[bool] = False

    alpha: float = 0.6
    in_flight: int = 0
    discount: Discount = "polynomial"
    power: float = 0.5
    slope: float = 10.0
    tolerated: int = 4

    def __post_init__(self) -> None:
        """Raise InputError if an option is invalid."""
        if not 0 < self.alpha <= 1:
            raise InputError(f"alpha of fedasync must lie in (0, 1], but {self.alpha!r} came")
        whole(self.in_flight, 0, "in_flight of fedasync")
        one_of(self.discount, get_args(Discount), "discount of fedasync")
        for option in ("power", "slope"):
            at_least(getattr(self, option), 0, f"{option} of fedasync")
            finite(getattr(self, option), f"{option} of fedasync")
        whole(self.tolerated, 0, "tolerated of fedasync")

    @property
    def server(self) -> ServerStep[Any] | None:
        """The server step that this scheme uses by default; None = the plain average."""
        return Mixing()

    def decide(self, state: None, view: View, rng: np.random.Generator) -> tuple[Move, None]:
        """Mix the next answer in, and let somebody else take the place of whoever sent it."""
        return buffered(view, rng, buffer=1, in_flight=self.in_flight, weigh=self._weigh), None

    def _weigh(self, lag: IntArray, counted: FloatArray) -> FloatArray:
        return np.minimum(self.alpha * self.discounted(lag) * counted, 1.0)

    def discounted(self, lag: IntArray) -> FloatArray:
        """Return s(lag)."""
        if self.discount == "constant":
            return np.ones(lag.shape)
        if self.discount == "polynomial":
            return np.asarray((1.0 + lag) ** -self.power)
        return np.asarray(1.0 / (self.slope * np.maximum(lag - self.tolerated, 0) + 1.0))
