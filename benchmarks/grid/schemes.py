"""Who takes part: every registered scheme with the options that were tuned for it, controls, and given variants."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

from fedpace._base import registry
from fedpace._base.errors import InputError
from fedpace.config import build
from fedpace.core.types import Need
from fedpace.server.fedavgm import Fedavgm
from grid import controls
from grid.options import OPTIONS

Camp = Literal["baseline", "paper", "ours", "control"]
OURS = frozenset({"pace", "pace-async", "moment-match", "moment-sampling", "delayhet-transport"})
PAPER = frozenset({"delayhet-submodular", "delayhet-sampling"})
PAPERS_BASELINES = frozenset({"random-tuned", "random", "power-of-choice", "divfl", "flanp", "approx-opt-sampling"})
"""What the paper compared itself with: its own speed-ups (1.30 and 3.53 over the best of them) are over these."""

FLAGSHIP = "pace"
BASELINE = "random"
"""What speed-ups are over: as McMahan et al. have it, ten clients, all waited for."""
# By the old name of `fedexp_exponent`, as the records of the grid have it.
FEDEXP = [{"k": k, "fedexp_exponent": 1.0} for k in (10, 20, 30)]

SERVER_RATE = "server.lr"
"""Option of schemes that take plain averages: the server's step size, which is not an option of theirs."""

Mode = Literal["charged", "free"]
MODES: tuple[Mode, ...] = ("charged", "free")
WAIT = 0.25
"""Share of the clients that a charged warm-up waits for; the others are known when they answer."""


@dataclass(frozen=True)
class Scheme:
    """A selector with its options, under the name that tables call it by."""

    label: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = 1.0
    """Quantile of the expected delays after which the server goes on without those that are missing; 1 = it waits."""
    steps: bool = False
    """Whether it is given the steps of `pace`."""
    factor: float = 1.0
    """What the step size of the cell is multiplied by."""

    def selector(self, clients: int) -> Any:
        """Return the selector itself, for so many clients."""
        options = {key: clients if value == controls.ALL else value for key, value in self.options.items()}
        options.pop(SERVER_RATE, None)
        own = build(class_of(self.name), options, self.label)
        return controls.WithSteps(own) if self.steps else own

    @property
    def server(self) -> Any:
        """The server step, if the scheme takes plain averages and its server's step size was tuned; else None."""
        rate = self.options.get(SERVER_RATE)
        return None if rate is None else Fedavgm(0.0, rate)

    def with_server_rates(self) -> list[Mapping[str, Any]]:
        """Return the options with the server's step size halved and doubled; none if the scheme has no such thing."""
        if "lr" in getattr(class_of(self.name), "__dataclass_fields__", {}):
            key, now = "lr", self.selector(100).lr
        elif self.selector(100).server is None:
            key, now = SERVER_RATE, self.options.get(SERVER_RATE, 1.0)
        else:
            return []
        return [{**self.options, key: now * factor} for factor in (0.5, 2.0)]

    @property
    def warms_up(self) -> bool:
        """Whether it must hear of all clients before it can choose. Expected delays are known to everybody."""
        return bool(self.selector(100).needs - {Need.LABELS, Need.DELAY})

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The ways to count a warm-up that make a difference."""
        return MODES if self.warms_up else MODES[:1]

    def blind(self, mode: Mode) -> bool:
        """Whether delays cannot change what is trained: one trajectory then serves every delay model."""
        decided_by_time = mode == "charged" and self.warms_up
        return self.deadline == 1.0 and not decided_by_time and self.selector(100).ignores_delays

    def runs_on(self, data: Any) -> bool:
        """Whether the data have what the scheme needs."""
        has_labels = getattr(data, "has_labels", data.metric == "accuracy")
        return has_labels or Need.LABELS not in self.selector(100).needs

    def choices(self) -> list[Mapping[str, Any]]:
        """Return what it is tuned over: nothing but what it has, where there is no choice."""
        if self.label == BASELINE or self.name == FLAGSHIP or self.deadline < 1:
            return [self.options]
        if self.steps:
            return list(controls.options(self.name))
        if self.label == "random-fedexp":
            return list(FEDEXP)
        return list(OPTIONS.get(self.name, [self.options]))

    def given(self, options: Mapping[str, Any], factor: float = 1.0) -> Scheme:
        """Return it with other options, and the step size multiplied."""
        return replace(self, options=dict(options), factor=factor)


def class_of(name: str) -> Any:
    """Return the class of a scheme: a registered name, that of a plug-in among them, or module:Class."""
    module, colon, attribute = name.partition(":")
    if not colon:
        return registry.selectors[name]
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as cause:
        raise InputError(f"expected a scheme as module:Class, but {name!r} cannot be imported: {cause}") from cause


def camp(label: str, name: str) -> Camp:
    """Whose the registered scheme `name` is, where it runs as `label`; controls are nobody's."""
    if label.endswith(controls.SUFFIX):
        return "control"
    return "ours" if name in OURS else "paper" if name in PAPER else "baseline"


def everybody() -> list[Scheme]:
    """Return every scheme of the grid with its defaults; one that is registered later joins by itself."""
    return [
        *(Scheme(name, name) for name in registry.selectors.names()),
        Scheme("random-tuned", "random"),
        Scheme("random-deadline", "random", deadline=0.9),
        Scheme("random-fedexp", "random", FEDEXP[0]),
        *(Scheme(name + controls.SUFFIX, name, steps=True) for name in controls.SCHEMES),
    ]


def parts() -> list[Scheme]:
    """Return `pace` without one of its parts each, which says what the part brings; left out unless asked for."""
    return [
        Scheme("pace-no-deadlines", "pace", {"deadlines": False}),
        Scheme("pace-no-momentum", "pace", {"momentum": False}),
        Scheme("pace-no-fedexp", "pace", {"fedexp_exponent": 0.0}),
        Scheme("pace-plain-steps", "pace", {"momentum": False, "fedexp_exponent": 0.0}),
        Scheme("pace-no-repay", "pace", {"repay": False}),
    ]


def chosen(labels: str, variants: Sequence[str]) -> list[Scheme]:
    """Return the schemes with these comma-separated labels, and the variants; all when none is given."""
    known = {scheme.label: scheme for scheme in (*everybody(), *parts())}
    wanted = labels.split(",") if labels else []
    if not labels and not variants:
        wanted = [scheme.label for scheme in everybody()]
    for label in wanted:
        if label not in known and ":" not in label:
            raise InputError(f"the grid has no scheme {label!r}: known are {', '.join(known)}, and module:Class")
    own = [known[label] if label in known else Scheme(label, label) for label in wanted]
    for scheme in own:
        class_of(scheme.name)  # a mistake shows now, not after hours of other runs
    return [*own, *(parse(variant) for variant in variants)]


def parse(variant: str) -> Scheme:
    """Read `label=name:key=value,...` or `label=module:Class:key=value,...`; values are Python literals, or words."""
    label, equals, rest = variant.partition("=")
    name, _, tail = rest.partition(":")
    if tail and "=" not in tail.partition(":")[0]:
        attribute, _, tail = tail.partition(":")
        name = f"{name}:{attribute}"
    if not equals or not name:
        raise InputError(f"expected a variant as label=name:key=value,..., but {variant!r} came")
    options = {}
    for option in filter(None, tail.split(",")):
        key, equals, value = option.partition("=")
        if not equals:
            raise InputError(f"expected key=value in the variant {variant!r}, but {option!r} came")
        options[key] = _value(value)
    scheme = Scheme(label, name, options)
    scheme.selector(100)  # a mistake shows now, not after hours of other runs
    return scheme


def _value(text: str) -> Any:
    literal = {"true": "True", "false": "False"}.get(text, text)
    try:
        return ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        return text
