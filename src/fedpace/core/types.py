"""The contract between a host (simulator, Flower, yours), the Session and a selector.

    delays + data sketches -> View -> select -> Cohort (clients, weights) -> train -> Report -> observe -> next View

Selectors speak of rows: row i of every array in a View is the same client. Hosts speak of their own client ids; the
Session translates. Every type here is frozen and every array in it read-only, so a selector can neither change what it
was shown nor be surprised by a later change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from fedpace.core.checks import BoolArray, FloatArray, IntArray, frozen
from fedpace.core.errors import InputError
from fedpace.core.protocols import Moments

ClientId = Hashable
"""The host's name of a client: anything hashable."""

Mode = Literal["average", "delta"]
"""`average`: x <- sum a_i x_i. `delta`: x <- x + sum a_i (x_i - x), which importance weights need."""


Table = tuple[tuple[float | int | None, ...], ...]
"""Rows of numbers."""


class Need(StrEnum):
    """What a selector must be told about each client before it can choose it."""

    DELAY = "delays"
    LOSS = "losses"
    LABELS = "label histograms"
    UPDATE = "update sketches"
    MOMENT = "feature moments"
    TARGETS = "targets in the moments"
    """Moments of [features; targets] together, where the host can: see `fedpace.moments.factor`."""


def _freeze(instance: object, **dtypes: Any) -> None:
    """Replace the named array fields of a frozen dataclass by read-only copies; None stays None."""
    for name, dtype in dtypes.items():
        value = getattr(instance, name)
        if value is not None:
            object.__setattr__(instance, name, frozen(value, dtype))


def _freeze_rows(instance: Cohort | Probe) -> None:
    """Freeze `clients`. A mask or fractions would become rows without a word, and other clients than were meant."""
    rows = np.asarray(instance.clients)
    if rows.size and not np.issubdtype(rows.dtype, np.integer):
        raise InputError(f"clients must be rows, whole numbers, but an array of {rows.dtype} came")
    _freeze(instance, clients=np.int64)


@dataclass(frozen=True, eq=False)
class InFlight:
    """Tasks of a policy's, one entry each, in the order in which they began; a client may have several."""

    ids: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    clients: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Rows."""
    began: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Seconds, as `View.now`."""
    step: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The version of the model that each was given: `View.step` minus this is how stale an answer is."""
    weights: FloatArray = field(default_factory=lambda: np.zeros(0))
    """What the policy meant each to count for when it began."""
    tell: Callable[[], FloatArray | None] | None = None
    """What `updates` asks."""

    def updates(self) -> FloatArray | None:
        """Return sketches of the answers' updates, one row each, NaN = not reported; None where there are none at all.

        Only answers in hand have any. Ask when they are needed, not before: a simulator trains the tasks then.
        """
        return None if self.tell is None else self.tell()

    def __len__(self) -> int:
        """How many."""
        return int(self.ids.size)


_NOTHING = InFlight()


@dataclass(frozen=True, eq=False)
class View:
    """All that a selector may know. Row i is client i in every array.

    Every row in `available` has what the selector's `needs` name; other rows may hold NaN.
    """

    step: int
    """Selections made so far."""
    now: float
    """Seconds, virtual or real."""
    available: BoolArray
    """(n,) may be chosen in this round."""
    share: FloatArray
    """(n,) weight of the client in the objective; sums to 1."""
    delay: FloatArray
    """(n,) estimated seconds for one round; NaN = never seen."""
    loss: FloatArray
    """(n,) last reported loss; NaN = never."""
    loss_step: IntArray
    """(n,) step at which `loss` was reported; -1 = never."""
    participations: IntArray
    """(n,) rounds that the client finished."""
    samples: FloatArray | None = None
    """(n,) samples that the client holds, whatever it weighs in the objective; NaN = never told."""
    recent_weight: FloatArray | None = None
    """(n,) weight that the client had in past aggregates, each round counting half as much as the next."""
    lateness: FloatArray | None = None
    """(h, 2) recent answers, the newest last: the seconds taken over those expected; 1 = given up by then, else 0."""
    labels: FloatArray | None = None
    """(n, c) label histograms."""
    updates: FloatArray | None = None
    """(n, r) sketch of each client's last update; NaN rows = never."""
    update_step: IntArray | None = None
    """(n,) step at which `updates` were reported; -1 = never. None along with them."""
    moments: Moments | None = None
    in_flight: InFlight = _NOTHING
    """Tasks that may still be answered. Who has one is not available."""
    in_hand: InFlight = _NOTHING
    """Tasks that were answered and not yet applied."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        _freeze(
            self,
            available=np.bool_,
            share=np.float64,
            delay=np.float64,
            loss=np.float64,
            loss_step=np.int64,
            participations=np.int64,
            samples=np.float64,
            labels=np.float64,
            updates=np.float64,
            update_step=np.int64,
            recent_weight=np.float64,
            lateness=np.float64,
        )

    @property
    def clients(self) -> int:
        """Number of clients in the roster."""
        return int(self.available.size)

    @property
    def candidates(self) -> IntArray:
        """Rows that may be chosen, ascending."""
        return np.flatnonzero(self.available)


@dataclass(frozen=True)
class Diagnostics:
    """Why a cohort was chosen: recorded with the round and shown to the user."""

    objective: float | None = None
    """What the scheme minimised or maximised, at the chosen cohort."""
    predicted_seconds: float | None = None
    """The round time that the scheme expects."""
    status: str = "ok"
    """How the solver ended, in words."""
    facts: Mapping[str, float | int | str | bool | Table | None] = field(default_factory=dict)
    """Scheme-specific scalars, such as B_S and the rescaling constant, or a small table of them."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Row -> why this client is in (or out)."""

    def __post_init__(self) -> None:
        """Take private copies of the mappings."""
        object.__setattr__(self, "facts", dict(self.facts))
        object.__setattr__(self, "reasons", dict(self.reasons))


@dataclass(frozen=True, eq=False)
class Cohort:
    """What a selector answers: who trains, and what each counts for."""

    clients: IntArray
    """(k,) unique rows."""
    weights: FloatArray
    """(k,) what the aggregation uses."""
    mode: Mode = "average"
    deadline: float = math.inf
    """Seconds to wait for the cohort."""
    why: Diagnostics = field(default_factory=Diagnostics)
    enough: int = 0
    """Over-commitment: the round ends when this many have finished, and the others count as late; 0 = all."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        _freeze_rows(self)
        _freeze(self, weights=np.float64)


ProbeKind = Literal["loss", "gradient"]


@dataclass(frozen=True, eq=False)
class Probe:
    """Clients to ask for a loss or a gradient before choosing."""

    clients: IntArray
    """(q,) unique rows."""
    kind: ProbeKind = "loss"
    samples: int = 0
    """Samples of the client's data to answer from, drawn uniformly; 0 = all. A host that cannot cut may use all."""

    def __post_init__(self) -> None:
        """Freeze the array."""
        _freeze_rows(self)


@dataclass(frozen=True, eq=False)
class Report:
    """The clients that settled in a round, as a selector sees them."""

    step: int
    """The selection this is about."""
    now: float
    clients: IntArray
    """(k,) rows."""
    finished: BoolArray
    """(k,) False = failed, dropped out or late."""
    seconds: FloatArray
    """(k,) observed; NaN = unknown. For a failed client: how long it was waited for."""
    loss: FloatArray
    """(k,) training loss at the received model; NaN = not reported."""
    samples: FloatArray
    """(k,) NaN = not reported."""
    weights: FloatArray
    """(k,) what the cohort gave them."""
    updates: FloatArray | None = None
    """(k, r) sketches of the updates; NaN rows = not reported."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        _freeze(
            self,
            clients=np.int64,
            finished=np.bool_,
            seconds=np.float64,
            loss=np.float64,
            samples=np.float64,
            weights=np.float64,
            updates=np.float64,
        )


@dataclass(frozen=True, eq=False)
class Outcome:
    """One client's answer, as the host hands it to `Session.observe` or `Session.hear`."""

    client: ClientId
    seconds: float = math.nan
    finished: bool = True
    loss: float = math.nan
    samples: float = math.nan
    moment: FloatArray | None = None
    """Factor F (r x d) of the second moment F'F of the client's features, or of features and targets together."""
    update: FloatArray | None = None
    """Sketch of the update; every client of a session uses the same projection."""
    awaited: bool = False
    """It was asked in a warm-up that ended without it, and will be reported by `Session.hear` when it answers."""


@dataclass(frozen=True, eq=False)
class Selection:
    """A Cohort in the host's own client ids: what `Session.select` returns."""

    step: int
    """Number of this selection; a warm-up carries the step of the selection it prepares."""
    clients: tuple[ClientId, ...]
    weights: FloatArray
    mode: Mode
    deadline: float
    why: Diagnostics
    warmup: bool = False
    """True: train and report as usual, but leave the shared model as it is."""
    enough: int = 0
    """The round ends when this many have finished; 0 = all."""
    newcomers: int = 0
    """The last so many of `clients` are new to the scheme: they report, and weigh 0."""

    def __post_init__(self) -> None:
        """Freeze the array."""
        _freeze(self, weights=np.float64)


@dataclass(frozen=True)
class ProbeRequest:
    """A Probe in the host's own client ids: what `Session.probe` returns."""

    step: int
    clients: tuple[ClientId, ...]
    kind: ProbeKind
    samples: int = 0


S = TypeVar("S")


@runtime_checkable
class Selector(Protocol[S]):
    """A selection scheme: a frozen dataclass whose fields ARE its configuration.

    Its state S is None or a frozen dataclass of scalars (a stage, a threshold). It holds nothing per client: facts
    about clients live in the Session's ledger, so clients may join and leave without a selector noticing.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]]

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


class Stateless:
    """The three methods that a scheme without state or probes would otherwise repeat."""

    def init(self) -> None:
        """No state."""

    def probe(self, state: None, view: View, rng: np.random.Generator) -> Probe | None:
        """Ask nobody."""
        return None

    def observe(self, state: None, report: Report) -> None:
        """Learn nothing: the ledger already has it."""


def facts_wanted(selector: Any) -> frozenset[Need]:
    """Return what a host should report for a selector: what it `needs`, and what it `uses` where it is offered.

    A selector that works without a fact but better with it names it in an optional class variable `uses`.
    """
    needs: frozenset[Need] = selector.needs
    return needs | getattr(selector, "uses", frozenset())


def is_timeless(selector: Any) -> bool:
    """Whether a selector looks neither at delays nor at time, as it declares in an optional `timeless = True`.

    Its rounds are then the same under every delay model, and need to be trained only once (`fedpace.sim.reclock`). What
    it predicts of a round's length, if anything, is the longest delay of the cohort; it sets no deadline.
    """
    return bool(getattr(selector, "timeless", False))


def wants_first_moments(selector: Any) -> bool:
    """Whether a host should report a client's moment once only, although training moves the features.

    A selector that compares moments of different clients names it in an optional class variable `first_moments`: two
    moments that were measured at different models differ by what training did to the features between them.
    """
    return bool(getattr(selector, "first_moments", False))


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
