"""The contract between a host (simulator, Flower, yours), the coordinator and a selector.

    delays + data sketches -> View -> select -> Cohort (clients, weights) -> train -> Report -> observe -> next View

Selectors speak of rows: row i of every array in a View is the same client. Hosts speak of their own client ids; the
coordinator translates. What they say to each other is frozen and every array in it read-only, so that a selector can
neither change what it was shown nor be surprised by a later change.
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
    """What a scheme or a policy says of itself beside its name and its needs; these are the defaults."""

    uses: ClassVar[frozenset[Need]] = frozenset()
    """What it works better with, where the host reports it."""
    first_moments: ClassVar[bool] = False
    """Whether a client's moment is wanted once only, although training moves the features: moments of different clients
    that were measured at different models differ by what training did to the features between them."""
    accumulates: ClassVar[tuple[Accumulator, ...]] = ()
    """What the ledger remembers for it alone."""

    @property
    def ignores_delays(self) -> bool:
        """Whether it looks neither at delays nor at time.

        Its rounds are then the same under every delay model, and are trained only once (`fedpace.sim.reclock`). What it
        predicts of a round's length, if anything, is the longest delay of the cohort; it sets no deadline.
        """
        return False

    @property
    def fixed_k(self) -> int | None:
        """Its option `k`, where it has one: clients in a cohort, as far as that is fixed."""
        return self.k if isinstance(self, _HasK) else None

    @property
    def server(self) -> ServerStep[Any] | None:
        """How the server steps, unless it is told otherwise; None = the average."""
        return None


class Described(Protocol):
    """What a scheme and a policy say of themselves; see `Traits` for what each means, and for the defaults."""

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
    """A selection scheme: a frozen dataclass whose fields ARE its configuration, derived from `Scheme`.

    Its state S is None or a frozen dataclass of scalars (a stage, a threshold). It holds nothing per client: facts
    about clients live in the ledger, so clients may join and leave without a selector noticing.
    """

    def init(self) -> S:
        """Return the state before the first selection."""
        ...

    def probe(self, state: S, view: View, rng: np.random.Generator) -> Probe | None:
        """Name the clients to ask before choosing, or None."""
        ...

    def select(self, state: S, view: View, rng: np.random.Generator) -> tuple[Cohort, S]:
        """Choose the cohort of this round."""
        ...

    def observe(self, state: S, report: Report) -> S:
        """Learn from what came back."""
        ...


class Scheme(Traits):
    """A scheme with a state: what it need not say again."""

    def probe(self, state: Any, view: View, rng: np.random.Generator) -> Probe | None:
        """Ask nobody."""
        return None


class Stateless(Scheme):
    """A scheme without state: only `select` is left to write."""

    def init(self) -> None:
        """No state."""

    def observe(self, state: None, report: Report) -> None:
        """Learn nothing: the ledger already has it."""


TRAITS = ("uses", "first_moments", "accumulates", "ignores_delays", "fixed_k", "server")
"""What `Traits` has the defaults of."""


def check_traits(policy: Any) -> None:
    """Refuse a scheme or a policy that does not say all that hosts ask of it."""
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
    """Return what a host should report for a selector: what it `needs`, and what it `uses` where it is offered."""
    needs: frozenset[Need] = selector.needs
    uses: frozenset[Need] = selector.uses
    return needs | uses


class DelayModel(Protocol):
    """How long each client takes, round by round, for ALL clients: schemes are compared on the same draws."""

    def expected(self) -> FloatArray:
        """(n,) mean seconds of a round."""
        ...

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`; the same for the same step, whoever asks and in whatever order."""
        ...


class DelayConfig(Protocol):
    """A named delay model before it knows the clients: a frozen dataclass whose fields are its options."""

    name: ClassVar[str]

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delays of `clients` clients that exchange a model of `model_bytes`."""
        ...


def configuration(component: Any) -> dict[str, Any]:
    """Return the options of a selector, delay model, data set or model: its dataclass fields."""
    return {item.name: getattr(component, item.name) for item in fields(component)}
