"""The contract between a host (simulator, Flower, your server), the coordinator and a selector; start here.

    delays + data sketches -> View -> select -> Cohort (clients, weights) -> train -> Report -> observe -> next View

Selectors name clients by rows: row i of every array in a View is the same client. Hosts use their own client ids; the
coordinator translates. All messages are frozen and their arrays are read-only, so a selector cannot change a View, and
a View does not change later.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from fedpace._base.checks import FloatArray
from fedpace._base.errors import InputError
from fedpace.core.accumulators import Accumulator
from fedpace.core.messages import (
    ClientId,
    Cohort,
    Diagnostics,
    Mode,
    Need,
    Outcome,
    Probe,
    ProbeKind,
    ProbeRequest,
    Selection,
    Table,
)
from fedpace.core.view import InFlight, Report, View

if TYPE_CHECKING:
    from fedpace.core.stepping import ServerStep

__all__ = [
    "ClientId",
    "Cohort",
    "DelayConfig",
    "DelayModel",
    "Described",
    "Diagnostics",
    "InFlight",
    "Mode",
    "Need",
    "Outcome",
    "Probe",
    "ProbeKind",
    "ProbeRequest",
    "Report",
    "Scheme",
    "Selection",
    "Selector",
    "Stateless",
    "Table",
    "Traits",
    "View",
    "check_traits",
    "configuration",
    "facts_wanted",
]

S = TypeVar("S")


@runtime_checkable
class _HasK(Protocol):
    k: int


class Traits:
    """Properties that every scheme or policy declares beside its name and needs, with their defaults."""

    uses: ClassVar[frozenset[Need]] = frozenset()
    """Optional facts: the scheme works better if the host reports them."""
    first_moments: ClassVar[bool] = False
    """Whether each client reports its moment only once. Training changes the features, so moments of different clients
    are comparable only if they come from the same model."""
    accumulates: ClassVar[tuple[Accumulator, ...]] = ()
    """Values that the ledger keeps for this scheme only."""

    @property
    def ignores_delays(self) -> bool:
        """Whether the scheme uses neither delays nor time, and sets no deadline.

        Its rounds are then the same under every delay model, so the simulator trains them only once
        (`fedpace.sim.reclock`). If it predicts the time of a round, it predicts the longest delay of the cohort.
        """
        return False

    @property
    def fixed_k(self) -> int | None:
        """The cohort size: the option `k` of the scheme; None if it has no such option."""
        return self.k if isinstance(self, _HasK) else None

    @property
    def server(self) -> ServerStep[Any] | None:
        """The default server step for this scheme; None = plain averaging."""
        return None


class Described(Protocol):
    """Properties that every scheme and policy has; `Traits` documents them and has the defaults."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]]
    uses: ClassVar[frozenset[Need]]
    first_moments: ClassVar[bool]
    accumulates: ClassVar[tuple[Accumulator, ...]]

    @property
    def ignores_delays(self) -> bool:
        """See `Traits`."""
        ...

    @property
    def fixed_k(self) -> int | None:
        """See `Traits`."""
        ...

    @property
    def server(self) -> ServerStep[Any] | None:
        """See `Traits`."""
        ...


@runtime_checkable
class Selector(Described, Protocol[S]):
    """A selection scheme: a frozen dataclass, derived from `Scheme`, with its options as fields.

    Its state S is None or a frozen dataclass of scalars, such as a stage or a threshold. The state holds nothing per
    client: facts about clients are in the ledger, so clients can join and leave without effect on the selector.
    """

    def init(self) -> S:
        """Return the state before the first selection."""
        ...

    def probe(self, state: S, view: View, rng: np.random.Generator) -> Probe | None:
        """Return the probe to make before choosing, or None."""
        ...

    def select(self, state: S, view: View, rng: np.random.Generator) -> tuple[Cohort, S]:
        """Return the cohort of this round and the new state."""
        ...

    def observe(self, state: S, report: Report) -> S:
        """Return the state after the round, updated from the report."""
        ...


class Scheme(Traits):
    """Base class for schemes with a state: it has the default traits and makes no probe."""

    def probe(self, state: Any, view: View, rng: np.random.Generator) -> Probe | None:
        """Make no probe."""
        return None


class Stateless(Scheme):
    """Base class for schemes without state: a subclass only writes `select`."""

    def init(self) -> None:
        """Return None: there is no state."""

    def observe(self, state: None, report: Report) -> None:
        """Return None: the ledger already stores the reported facts."""


TRAITS = ("uses", "first_moments", "accumulates", "ignores_delays", "fixed_k", "server")
"""Names of the properties in `Traits`."""


def check_traits(policy: Any) -> None:
    """Raise InputError if a scheme or policy lacks a trait or method that hosts use."""
    if isinstance(policy, type):
        raise InputError(f"expected a scheme, but the class {policy.__name__} came: give {policy.__name__}(...)")
    if hasattr(policy, "timeless"):
        raise InputError(f"{type(policy).__name__} says `timeless`, which is called `ignores_delays` now: rename it")
    missing = [name for name in TRAITS if not hasattr(policy, name)]
    if missing:
        raise InputError(
            f"{type(policy).__name__} says nothing of {', '.join(missing)}: derive it from Scheme or Stateless of "
            "fedpace, which have the defaults"
        )
    unwritten = [name for name in ("init", "observe") if not hasattr(policy, name)]
    if not (hasattr(policy, "select") or hasattr(policy, "decide")):
        unwritten.append("select")
    if unwritten:
        raise InputError(
            f"{type(policy).__name__} has no {' and no '.join(f'{name}()' for name in unwritten)}: a scheme that "
            "remembers nothing derives from fedpace.Stateless and writes select(); one with a state writes all three"
        )


def facts_wanted(selector: Any) -> frozenset[Need]:
    """Return the facts that a host should report for a selector: its `needs` and its `uses`."""
    needs: frozenset[Need] = selector.needs
    uses: frozenset[Need] = selector.uses
    return needs | uses


class DelayModel(Protocol):
    """The seconds that each client takes in each round, for all clients: schemes are compared on the same draws."""

    def expected(self) -> FloatArray:
        """(n,) mean seconds per round."""
        ...

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`; the result depends only on `step`, not on the order of calls."""
        ...


class DelayConfig(Protocol):
    """The options of a named delay model: a frozen dataclass that `build` turns into a DelayModel."""

    name: ClassVar[str]

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delay model of `clients` clients that exchange a model of `model_bytes` bytes."""
        ...


def configuration(component: Any) -> dict[str, Any]:
    """Return the options of a selector, delay model, data set or model, by field name."""
    return {item.name: getattr(component, item.name) for item in fields(component)}
