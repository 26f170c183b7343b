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

Camp = Literal["baseline", "paper", "ours"]
OURS = frozenset({"pace", "moment-match", "moment-sampling", "delayhet-transport"})
PAPER = frozenset({"delayhet-submodular", "delayhet-sampling"})
PAPERS_BASELINES = frozenset({"random", "power-of-choice", "divfl", "flanp", "approx-opt-sampling"})
"""What the paper compared itself with: its own speed-ups (1.30 and 3.53 over the best of them) are over these."""

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

    @property
    def selector(self) -> Any:
        """The selector itself."""
        return build(registry.selectors[self.name], self.options, self.label)

    @property
    def camp(self) -> Camp:
        """Whose scheme it is."""
        return camp(self.name)

    @property
    def blind(self) -> bool:
        """Whether delays cannot change what is trained: one trajectory then serves every delay model."""
        return self.deadline == 1.0 and is_timeless(self.selector)

    def runs_on(self, data: Any) -> bool:
        """Whether the data have what the scheme needs."""
        return data.metric == "accuracy" or Need.LABELS not in self.selector.needs


def camp(name: str) -> Camp:
    """Whose the registered scheme `name` is."""
    return "ours" if name in OURS else "paper" if name in PAPER else "baseline"


def everybody() -> list[Scheme]:
    """Return every scheme of the grid; one that is registered later joins by itself."""
    found = [Scheme(name, name) for name in registry.selectors.names()]
    rescaled = {"target_heterogeneity": 0.7}
    return [
        *found,
        Scheme("random-deadline", "random", deadline=0.9),
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
