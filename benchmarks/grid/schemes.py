"""Who takes part: every registered scheme, the paper's in both solver modes, and variants given on the command line."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedpace import registry
from fedpace.config import build
from fedpace.core.errors import InputError
from fedpace.core.types import Need, is_timeless
from fedpace.server.nesterov import Nesterov

Camp = Literal["baseline", "paper", "ours", "control"]
OURS = frozenset({"pace", "moment-match", "moment-sampling", "delayhet-transport"})
PAPER = frozenset({"delayhet-submodular", "delayhet-sampling"})
PAPERS_BASELINES = frozenset({"random", "power-of-choice", "divfl", "flanp", "approx-opt-sampling"})
"""What the paper compared itself with: its own speed-ups (1.30 and 3.53 over the best of them) are over these."""

HURRIED = "-hurried"
"""Ends the labels of schemes that are given the steps of `pace`."""
ROLLING = "pace-rolling"
"""`pace` with its warm-up on the clock, half of it waited for."""
BASELINE = "random"
"""What speed-ups are over."""
FEW = ("random", "flanp", "oort", "delayhet-submodular", "delayhet-sampling", "pace")
"""Taken by default where a run costs minutes."""


@dataclass(frozen=True)
class Scheme:
    """A selector with its options, under the name that tables call it by."""

    label: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    deadline: float = 1.0
    """Quantile of the expected delays after which the server goes on without those that are missing; 1 = it waits."""
    wait: float = 1.0
    """Share of the clients that the warm-up waits for; below 1 the warm-up is on the clock, and so in its times."""
    hurried: bool = False
    """Whether it is given the steps of `pace`, to tell apart what those bring and what its choice of clients does."""

    @property
    def selector(self) -> Any:
        """The selector itself."""
        own = build(registry.selectors[self.name], self.options, self.label)
        return Hurried(own) if self.hurried else own

    @property
    def blind(self) -> bool:
        """Whether delays cannot change what is trained: one trajectory then serves every delay model."""
        return self.deadline == 1.0 and is_timeless(self.selector)

    def runs_on(self, data: Any) -> bool:
        """Whether the data have what the scheme needs."""
        has_labels = getattr(data, "has_labels", data.metric == "accuracy")
        return has_labels or Need.LABELS not in self.selector.needs


class Hurried:
    """Another scheme's cohorts, with the momentum and the long steps that `pace` asks for."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        """Be the other scheme in everything else."""
        return getattr(self._inner, name)

    @property
    def server(self) -> Nesterov:
        """Step as `pace` does."""
        return Nesterov()


def camp(label: str, name: str) -> Camp:
    """Whose the registered scheme `name` is, where it runs as `label`; controls are nobody's."""
    if label.endswith(HURRIED):
        return "control"
    return "ours" if name in OURS else "paper" if name in PAPER else "baseline"


def everybody() -> list[Scheme]:
    """Return every scheme of the grid; one that is registered later joins by itself."""
    found = [Scheme(name, name) for name in registry.selectors.names()]
    rescaled = {"target_heterogeneity": 0.7}
    return [
        *found,
        Scheme("random-deadline", "random", deadline=0.9),
        Scheme("random-fedexp", "random", {"extrapolate": 1.0}),
        *(Scheme(name + HURRIED, name, hurried=True) for name in ("random", "fed-cs", "oort", "tifl")),
        Scheme(ROLLING, "pace", wait=0.5),
        Scheme("pace-no-deadlines", "pace", {"deadlines": False}),
        Scheme("pace-no-momentum", "pace", {"momentum": False}),
        Scheme("pace-no-fedexp", "pace", {"extrapolate": 0.0}),
        Scheme("pace-plain-steps", "pace", {"momentum": False, "extrapolate": 0.0}),
        Scheme("pace-no-repay", "pace", {"repay": False}),
        Scheme("submodular-rescaled", "delayhet-submodular", rescaled),
        Scheme("submodular-min-norm", "delayhet-submodular", {"solver": "min-norm"}),
        Scheme("submodular-min-norm-rescaled", "delayhet-submodular", {"solver": "min-norm", **rescaled}),
    ]


def chosen(labels: str, variants: Sequence[str], *, few: bool = False) -> list[Scheme]:
    """Return the schemes with these comma-separated labels, and the variants; all, or the few, when none is given."""
    known = {scheme.label: scheme for scheme in everybody()}
    wanted = labels.split(",") if labels else []
    if not labels and not variants:
        wanted = [label for label in known if label in FEW or not few]
    for label in wanted:
        if label not in known:
            raise InputError(f"the grid has no scheme {label!r}: known are {', '.join(known)}")
    return [*(known[label] for label in wanted), *(parse(variant) for variant in variants)]


def parse(variant: str) -> Scheme:
    """Read `label=name:key=value,...`; values are Python literals, or words."""
    head, _, tail = variant.partition(":")
    label, equals, name = head.partition("=")
    if not equals or not name:
        raise InputError(f"expected a variant as label=name:key=value,..., but {variant!r} came")
    options = {}
    for option in filter(None, tail.split(",")):
        key, equals, value = option.partition("=")
        if not equals:
            raise InputError(f"expected key=value in the variant {variant!r}, but {option!r} came")
        options[key] = _value(value)
    scheme = Scheme(label, name, options)
    _ = scheme.selector  # a mistake shows now, not after hours of other runs
    return scheme


def _value(text: str) -> Any:
    literal = {"true": "True", "false": "False"}.get(text, text)
    try:
        return ast.literal_eval(literal)
    except (ValueError, SyntaxError):
        return text
