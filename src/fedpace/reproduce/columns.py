"""The columns of the reproduced tables: the paper's seven schemes, and our schemes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedpace._base.registry import scheme_table
from fedpace.reproduce import paper
from fedpace.reproduce.paper import PaperTask

Camp = Literal["paper", "baseline", "exact", "ours", "added"]
CHARGED: dict[str, Any] = {"clock": {"charge_warmup": True}, "fleet": {"warmup_wait": 0.25}}
"""Everything on the clock: the warm-up too, of which a quarter of the clients is waited for."""
RESCALED = 0.7
"""The hidden constant of the paper's schemes, as large as its Assumption 3 allows (docs/errata.md, A9)."""


@dataclass(frozen=True)
class SchemeColumn:
    """A scheme of the tables.

    The paper's clock charges neither the warm-up nor probes. `charged` schemes pay for their warm-up, beside others
    that do not: whoever is fastest that way is so under any accounting.
    """

    label: str
    title: str
    camp: Camp
    selector: Mapping[str, Any] = field(default_factory=dict)
    charged: bool = False
    patience: int = 1
    """Times as many rounds as others are allowed: the steps of schemes without rounds are much shorter."""

    def table(self, task: PaperTask, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the scheme as an experiment holds it; `options` are those that were tuned."""
        found = {"name": self.label, **self.selector, "label": self.label}
        if found.get("k") == "K":
            found["k"] = task.k
        if found.get("buffer") == "K":
            found["buffer"] = task.k
        if task.name == "quadratic" and str(found["name"]).startswith("delayhet"):
            found["ridge"] = 0.0  # raw features, whose mean moment is regular: as in the paper
        return {**found, **(options or {})}

    @property
    def sections(self) -> dict[str, Any]:
        """What it changes in the rest of an experiment."""
        return CHARGED if self.charged else {}


COLUMNS: tuple[SchemeColumn, ...] = (
    SchemeColumn(
        "delayhet-submodular",
        "Submodular",
        "paper",
        {"solver": "min-norm", "target_heterogeneity": RESCALED},
    ),
    SchemeColumn("delayhet-sampling", "Sampling", "paper", {"k": "K"}),
    SchemeColumn("random", "Random", "baseline", {"k": "K"}),
    SchemeColumn("flanp", "FLANP", "baseline"),
    SchemeColumn("divfl", "DivFL", "baseline", {"k": "K"}),
    SchemeColumn("power-of-choice", "Power-of-Choice", "baseline", {"k": "K"}),
    SchemeColumn("approx-opt-sampling", "ApproxOpt", "baseline", {"k": "K"}),
    SchemeColumn(
        "exact", "Submodular, exact", "exact", {"name": "delayhet-submodular", "target_heterogeneity": RESCALED}
    ),
    SchemeColumn("pace", "pace, charged", "ours", charged=True),
    SchemeColumn("pace-free", "pace, warm-up free", "ours", {"name": "pace"}),
    SchemeColumn("pace-async", "pace-async", "ours", patience=5),
    SchemeColumn("fedbuff", "FedBuff", "added", {"buffer": "K"}, patience=5),
)
assert tuple(column.label for column in COLUMNS[: len(paper.PRINTED)]) == paper.PRINTED

TUNED_OPTIONS: dict[str, Any] = {
    "flanp": lambda k: ({"k": k, "period": 5}, {"k": 2 * k, "period": 20}, {"k": 1, "period": 20}),
    "approx-opt-sampling": lambda k: ({"c": 1.0}, {"c": 5.0}, {"c": 0.2}),
}
"""Options that are chosen for each data set and delay model: FLANP's first stage and its length, the last as in its
authors' code; ApproxOptSampling's constant, for which the paper made a random search. The first is that of `paper`."""


def chosen(selectors: Sequence[str] | None) -> tuple[SchemeColumn, ...]:
    """Return the columns: all, or those named; other registered schemes may be named too, with options."""
    if selectors is None:
        return COLUMNS
    known = {column.label: column for column in COLUMNS}
    found = []
    for text in selectors:
        if text in known:
            found.append(known[text])
            continue
        table = scheme_table(text, "--selectors")
        label = str(table.pop("label", table["name"]))
        found.append(SchemeColumn(label, label, "added", table))
    return tuple(found)
