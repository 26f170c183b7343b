"""The contract between a host (simulator, Flower, your server), the coordinator and a selector; start here.

    delays + data sketches -> View -> select -> Cohort (clients, weights) -> train -> Report -> observe -> next View

Selectors name clients by rows: row i of every array in a View is the same client. Hosts use their own client ids; the
coordinator translates. All messages are frozen and their arrays are read-only, so a selector cannot change a View, and
a View does not change later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray, freeze, shown
from fedpace._base.codec import ClientId as ClientId
from fedpace._base.errors import InputError
from fedpace._base.options import Options
from fedpace.moments.store import Moments

if TYPE_CHECKING:
    from fedpace.core.server_rule import ServerRule

Mode = Literal["average", "delta"]
"""How a step uses the weights a_i. `average`: x <- sum a_i x_i. `delta`: x <- x + sum a_i (x_i - x), for importance
weights, which need not sum to 1."""


Table = tuple[tuple[float | int | None, ...], ...]
"""A small table of numbers."""


class Need(StrEnum):
    """Facts about clients that a scheme can require (`needs`) or use (`uses`), and what a host can do (`WORK`)."""

    DELAY = "delays"
    LOSS = "losses"
    LABELS = "label histograms"
    UPDATE = "update sketches"
    MOMENT = "feature moments"
    TARGETS = "targets in the moments"
    """Moments of features and targets together, if the host can compute them; see `fedpace.moments.factor`."""
    WORK = "work per task"
    """No fact: the host's clients train as much as `Task.work` says. A scheme that sets work declares `sets_work`."""


def _freeze_rows(instance: Cohort | Probe) -> None:
    """Freeze the arrays. Raise InputError if `clients` are not integers: a mask would silently become wrong rows."""
    rows = np.asarray(instance.clients)
    if rows.size and not np.issubdtype(rows.dtype, np.integer):
        raise InputError(f"clients must be rows, whole numbers, but an array of {rows.dtype} came")
    freeze(instance)


@dataclass(frozen=True)
class Diagnostics:
    """Why the scheme chose a cohort; recorded with the round and shown to the user."""

    objective: float | None = None
    """Value of the scheme's objective at the chosen cohort."""
    predicted_seconds: float | None = None
    """The round time that the scheme expects."""
    status: str = "ok"
    """Result of the solver, in words."""
    facts: Mapping[str, float | int | str | bool | Table | None] = field(default_factory=dict)
    """Values specific to the scheme, such as B_S and the rescaling constant; scalars or small tables."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Row -> why the scheme chose this client, or did not."""

    def __post_init__(self) -> None:
        """Copy the mappings."""
        object.__setattr__(self, "facts", dict(self.facts))
        object.__setattr__(self, "reasons", dict(self.reasons))


@dataclass(frozen=True, eq=False)
class Cohort:
    """A selector's choice: the clients that train, and their weights."""

    clients: IntArray
    """(k,) unique rows."""
    weights: FloatArray
    """(k,) aggregation weights."""
    mode: Mode = "average"
    deadline: float = math.inf
    """Longest wait for the cohort, in seconds."""
    why: Diagnostics = field(default_factory=Diagnostics)
    quorum: int = 0
    """For over-commitment: the round ends when this many clients have finished, and the others are late; 0 = all."""
    work: FloatArray | None = None
    """(k,) how much each client trains: a multiple of the configured local training, in units of local steps; None = 1
    for all. The scheme must declare `sets_work`, and the host must offer `Need.WORK`."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        _freeze_rows(self)


ProbeKind = Literal["loss", "gradient"]


@dataclass(frozen=True, eq=False)
class Probe:
    """Clients that the server asks for a loss or a gradient before the scheme chooses."""

    clients: IntArray
    """(q,) unique rows."""
    kind: ProbeKind = "loss"
    samples: int = 0
    """Samples of the client's data to use, drawn uniformly; 0 = all. A host that cannot subsample may use all."""

    def __post_init__(self) -> None:
        """Freeze the array."""
        _freeze_rows(self)


@dataclass(frozen=True, eq=False)
class Outcome:
    """One client's answer; a host passes it to `Session.observe` or `Coordinator.receive`."""

    client: ClientId
    seconds: float = math.nan
    finished: bool = True
    loss: float = math.nan
    samples: float = math.nan
    moment: FloatArray | None = None
    """Factor F (r x d) of the second moment F'F of the client's features, or of features and targets together."""
    update: FloatArray | None = None
    """Sketch of the update; all clients of a session use the same projection."""
    measured: float = math.nan
    """Seconds from sending the task to receiving the answer, by the server's clock. `seconds`, the client's claim, then
    counts as at least this minus an allowance for the transfer (`fedpace.trust`)."""
    compute: float = math.nan
    """Part of the seconds that grew with the work: local training, without transfer and overhead; NaN = not reported. A
    server that does not hear of it learns it from answers with different work."""

    def __post_init__(self) -> None:
        """Raise InputError for arrays of Python objects, which cannot be saved."""
        for what, value in (("moment", self.moment), ("update", self.update)):
            if value is not None and _holds_objects(value):
                raise InputError(
                    f"the {what} of client {shown(self.client)} must be an array of numbers, but one of Python objects "
                    "came: make it with np.asarray(values, dtype=float)"
                )


def _holds_objects(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype.kind == "O")
    try:
        return bool(np.asarray(value).dtype.kind == "O")
    except (TypeError, ValueError, OverflowError):
        return False  # e.g. rows of different lengths: `Session.observe` raises a clear error


@dataclass(frozen=True, eq=False)
class Selection:
    """A Cohort with the host's client ids; `Session.select` returns it."""

    step: int
    """Number of this selection; a warm-up has the number of the selection that follows it."""
    clients: tuple[ClientId, ...]
    weights: FloatArray
    mode: Mode
    deadline: float
    why: Diagnostics
    warmup: bool = False
    """True = clients train and report as usual, but the shared model must not change."""
    quorum: int = 0
    """The round ends when this many clients have finished; 0 = all."""
    newcomers: int = 0
    """How many of the last entries in `clients` are new to the scheme: they report, and have weight 0."""
    work: FloatArray | None = None
    """(k,) how much each client trains (`Task.work`); None = 1 for all."""

    def __post_init__(self) -> None:
        """Freeze the array."""
        freeze(self)


@dataclass(frozen=True)
class ProbeRequest:
    """A Probe with the host's client ids; `Session.probe` returns it."""

    step: int
    clients: tuple[ClientId, ...]
    kind: ProbeKind
    samples: int = 0


# -- what a selector is shown ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class InFlight:
    """Some tasks of the policy, one entry per task in order of their start; a client may have several."""

    ids: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    clients: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Rows of the clients."""
    began: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Start of each task in seconds, on the same clock as `View.now`."""
    step: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Version of the model that each task started from; `View.step` minus this is the staleness."""
    weights: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Weight that the policy planned for each task at its start."""
    tell: Callable[[], FloatArray | None] | None = None
    """Function behind `updates`."""
    work: FloatArray = field(default_factory=lambda: np.zeros(0))
    """How much each client trains in the task (`Task.work`)."""

    def updates(self) -> FloatArray | None:
        """Return the update sketches, one row per task (NaN = not reported), or None if there are none.

        Only answers in hand have sketches. Call it only when you need them: it makes a simulator train the tasks.
        """
        return None if self.tell is None else self.tell()

    def __len__(self) -> int:
        """Number of tasks."""
        return int(self.ids.size)


_NOTHING = InFlight()
ASSUMED_COMPUTE = 0.5
"""Part of a task's seconds that is taken to grow with its work until answers with different work show it. It is an
assumption, not a measurement."""


@dataclass(frozen=True, eq=False)
class View:
    """All facts that a selector may use. Row i is the same client in every array.

    Available clients have every fact in the selector's `needs`; other rows may hold NaN.
    """

    step: int
    """Steps made so far, which is the current version of the model."""
    now: float
    """Current time in seconds, virtual or real."""
    available: BoolArray
    """(n,) True for clients that can be chosen now."""
    share: FloatArray
    """(n,) weight of each client in the objective; sums to 1."""
    delay: FloatArray
    """(n,) estimated seconds of a task with work 1; NaN = unknown."""
    loss: FloatArray
    """(n,) last reported loss; NaN = never reported."""
    loss_step: IntArray
    """(n,) version of the model that `loss` belongs to; -1 = never reported."""
    participations: IntArray
    """(n,) number of tasks that the client finished, warm-ups included."""
    samples: FloatArray | None = None
    """(n,) number of samples that the client holds, also if `share` does not depend on it; NaN = unknown."""
    labels: FloatArray | None = None
    """(n, c) label histograms."""
    updates: FloatArray | None = None
    """(n, r) sketch of each client's last update; rows of NaN = never reported. None = no client has reported one."""
    update_step: IntArray | None = None
    """(n,) version of the model that `updates` belong to; -1 = never reported. None if `updates` is None. With sums:
    the version of each client's newest answer, without `updates`."""
    moments: Moments | None = None
    in_flight: InFlight = _NOTHING
    """Tasks without an answer so far. Clients with such a task are not available."""
    in_hand: InFlight = _NOTHING
    """Tasks with an answer that no step has used yet."""
    failed: InFlight = _NOTHING
    """Tasks that failed since the last step. Their clients can be chosen again."""
    accumulated: Mapping[str, FloatArray] = field(default_factory=dict)
    """Name -> values of each accumulator that the scheme lists in `accumulates`."""
    compute: FloatArray | None = None
    """(n,) the part of `delay` that grows with the work of a task; NaN = unknown. See `seconds_with`."""
    minimum: int = 1
    """Fewest answers that a step can use; above 1 where the server sees only sums."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        freeze(self)

    @property
    def clients(self) -> int:
        """Number of clients in the roster."""
        return int(self.available.size)

    @property
    def growing(self) -> FloatArray:
        """(n,) seconds that one unit of work takes: `compute`, or half of `delay` where that is unknown."""
        assumed = ASSUMED_COMPUTE * self.delay
        return assumed if self.compute is None else np.where(np.isnan(self.compute), assumed, self.compute)

    def seconds_with(self, work: FloatArray | float) -> FloatArray:
        """(n,) estimated seconds of a task with this much work: `delay` for work 1; NaN = unknown."""
        return np.asarray(self.delay + (work - 1.0) * self.growing)

    @property
    def candidates(self) -> IntArray:
        """Rows of the available clients, ascending."""
        return np.flatnonzero(self.available)


@dataclass(frozen=True, eq=False)
class Report:
    """The results of a step for a selector: one entry per task that was applied, failed or given up."""

    step: int
    """Number of the selection, counted from 0: the version of the model before this step."""
    now: float
    clients: IntArray
    """(k,) rows."""
    finished: BoolArray
    """(k,) False = the client failed, dropped out or was late."""
    seconds: FloatArray
    """(k,) seconds that the client took; for a failed client, how long the server waited. NaN = unknown."""
    loss: FloatArray
    """(k,) training loss at the received model; NaN = not reported."""
    samples: FloatArray
    """(k,) number of samples; NaN = not reported."""
    weights: FloatArray
    """(k,) weights: from the cohort in rounds, from the step for other policies."""
    updates: FloatArray | None = None
    """(k, r) sketches of the updates; rows of NaN = not reported."""
    step_facts: Mapping[str, float] = field(default_factory=dict)
    """Name -> number that the server step measured."""
    work: FloatArray | None = None
    """(k,) `Task.work` of each task."""

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        freeze(self)


# -- values that the ledger keeps for one scheme -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Settled:
    """Clients that answered or were given up; one entry per client."""

    rows: IntArray
    expected: FloatArray
    """Expected seconds of each task with its work, estimated before this answer; NaN = unknown."""
    seconds: FloatArray
    """Seconds that the client took, or that the server waited in vain; NaN = unknown."""
    finished: BoolArray
    lag: int = 0
    """Staleness: steps made since the clients received their model, without the step that uses the answers."""


class Accumulator:
    """Values that are updated with every answer or step; subclasses define how.

    The values are an array of shape (n, ...) with one row per client, or of any length.
    """

    name: ClassVar[str]
    per_client: ClassVar[bool]
    """Whether row i of the values belongs to client i."""
    shape: ClassVar[tuple[int, ...]] = ()
    """Shape of one entry."""

    def empty(self, entries: int) -> FloatArray:
        """Return the initial values of new entries."""
        return np.zeros((entries, *self.shape))

    def answered(self, values: FloatArray, settled: Settled) -> FloatArray:
        """Return the values after answers of any kind, warm-ups included."""
        return values

    def stepped(self, values: FloatArray, rows: IntArray, weights: FloatArray) -> FloatArray:
        """Return the values after a step; `weights` are of the clients that finished, scaled to sum 1."""
        return values


# -- schemes -----------------------------------------------------------------------------------------------------------


S = TypeVar("S")


@runtime_checkable
class _HasK(Protocol):
    k: int


class Traits(Options):
    """Properties that every scheme or policy declares beside its name, with their defaults."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    """Facts without which the scheme cannot choose a client."""
    uses: ClassVar[frozenset[Need]] = frozenset()
    """Optional facts: the scheme works better if the host reports them."""
    first_moments: ClassVar[bool] = False
    """Whether each client reports its moment only once. Training changes the features, so moments of different clients
    are comparable only if they come from the same model."""
    accumulates: ClassVar[tuple[Accumulator, ...]] = ()
    """Values that the ledger keeps for this scheme only."""
    own_server: ClassVar[str] = ""
    """If not empty, the scheme is defined by its server rule and works with no other. The text names the scheme to use
    with another server rule."""
    not_with: ClassVar[Mapping[str, str]] = {}
    """Local algorithm that the scheme does not work with -> why, and what to use instead."""
    not_with_sums: ClassVar[str] = ""
    """If not empty, the scheme needs single updates; the text says why, and what to use with sums instead."""
    sum_sizes: ClassVar[tuple[str, ...]] = ("k", "m", "buffer", "max_clients")
    """Options that limit how many clients a step uses; with sums, they must not be below the minimum."""
    reads_losses: ClassVar[bool] = False
    """Whether the scheme uses single clients' losses. With sums, clients report them only to such schemes."""

    @property
    def ignores_delays(self) -> bool:
        """Whether the scheme uses neither delays nor time, and sets no deadline.

        Its rounds are then the same under every delay model, so the simulator trains them only once
        (`fedpace.sim.reclock`). If it predicts the time of a round, it predicts the longest delay of the cohort.
        """
        return False

    @property
    def sets_work(self) -> bool:
        """Whether the scheme decides how much each client trains (`Cohort.work`, `Move.work`).

        A host whose clients all train the same refuses such a scheme at its start: see `Need.WORK`.
        """
        return False

    @property
    def fixed_k(self) -> int | None:
        """The cohort size: the option `k` of the scheme; None if it has no such option."""
        return self.k if isinstance(self, _HasK) else None

    @property
    def server(self) -> ServerRule[Any] | None:
        """The default server rule for this scheme; None = plain averaging."""
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

    @property
    def sets_work(self) -> bool:
        """See `Traits`."""

    @property
    def fixed_k(self) -> int | None:
        """See `Traits`."""

    @property
    def server(self) -> ServerRule[Any] | None:
        """See `Traits`."""


@runtime_checkable
class Selector(Described, Protocol[S]):
    """A selection scheme: a frozen dataclass, derived from `Scheme`, with its options as fields.

    Its state S is None or a frozen dataclass of scalars, such as a stage or a threshold. The state holds nothing per
    client: facts about clients are in the ledger, so clients can join and leave without effect on the selector.
    """

    def init(self) -> S:
        """Return the state before the first selection."""

    def probe(self, state: S, view: View, rng: np.random.Generator) -> Probe | None:
        """Return the probe to make before choosing, or None."""

    def select(self, state: S, view: View, rng: np.random.Generator) -> tuple[Cohort, S]:
        """Return the cohort of this round and the new state."""

    def observe(self, state: S, report: Report) -> S:
        """Return the state after the round, updated from the report."""


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


TRAITS = ("uses", "first_moments", "accumulates", "ignores_delays", "sets_work", "fixed_k", "server")
"""Names of the properties in `Traits`."""


def check_traits(policy: Any) -> None:
    """Raise InputError if a scheme or policy lacks a trait or method that hosts use."""
    if isinstance(policy, type):
        raise InputError(f"expected a scheme, but the class {policy.__name__} came: give {policy.__name__}(...)")
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

    def draw(self, step: int) -> FloatArray:
        """(n,) seconds in round `step`; the result depends only on `step`, not on the order of calls."""


class DelayConfig(Protocol):
    """The options of a named delay model: a frozen dataclass that `build` turns into a DelayModel."""

    name: ClassVar[str]

    def build(self, clients: int, *, model_bytes: int, seed: int) -> DelayModel:
        """Return the delay model of `clients` clients that exchange a model of `model_bytes` bytes."""


def configuration(component: Any) -> dict[str, Any]:
    """Return the options of a selector, delay model, data set or model, by field name."""
    return {item.name: getattr(component, item.name) for item in fields(component)}
