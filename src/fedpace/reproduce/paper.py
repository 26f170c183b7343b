"""The paper's data sets, at its scale and at a small one, the numbers that it printed, and the columns of our tables.

`TunedOptions` holds step sizes, targets and options of the quick profile, chosen on seeds that no table reports.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from fedpace._base.errors import InputError
from fedpace._base.files import json_bytes, write_atomically
from fedpace._base.registry import scheme_table

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


TABLES = {"synthetic": "table1_synthetic_delays", "nycmesh": "table2_nycmesh_delays"}
PRINTED = (
    "delayhet-submodular",
    "delayhet-sampling",
    "random",
    "flanp",
    "divfl",
    "power-of-choice",
    "approx-opt-sampling",
)
"""Of its tables 1 and 2, in their order."""
PAPER_SCHEMES = PRINTED[:2]
"""The paper's own schemes."""


@dataclass(frozen=True)
class Paper:
    """The paper's figures, read once."""

    @cached_property
    def tables(self) -> dict[str, Any]:
        """Everything, as it was printed."""
        text = files("fedpace.reproduce").joinpath("paper.json").read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text)
        return found

    def target(self, task: str) -> float:
        """Return the target of a data set."""
        return float(self.tables[TABLES["synthetic"]][task]["target"])

    def seconds(self, task: str, delays: str, column: str) -> float | None:
        """Return the time to target in table 1 or 2 of a column that they have; None = not reached."""
        found = self.tables[TABLES[delays]][task]["kiloseconds"][column]
        return None if found is None else 1000 * float(found)


PAPER = Paper()


TUNED_FILE = "tuned.json"


@dataclass
class TunedOptions:
    """What was chosen so far, with all that was tried."""

    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)

    @staticmethod
    def packaged() -> TunedOptions:
        """Return what comes with fedpace."""
        return TunedOptions(json.loads(files("fedpace.reproduce").joinpath(TUNED_FILE).read_text(encoding="utf-8")))

    @staticmethod
    def read(path: Path) -> TunedOptions:
        """Return what was chosen in an earlier sitting."""
        return TunedOptions(json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})

    def write(self, path: Path) -> None:
        """Write it all."""
        write_atomically(path, json_bytes(self.tasks))

    def of(self, task: str) -> dict[str, Any]:
        """Return what changes in a data set of the quick profile: nothing where it was not tuned."""
        found = self.tasks.get(task, {})
        change: dict[str, Any] = {}
        if "lr" in found:
            change["training"] = {"lr": found["lr"]}
        if "target" in found:
            change["target"] = found["target"]
        return change

    def options(self, task: str, delays: str, label: str) -> Mapping[str, Any]:
        """Return the options that were chosen for a scheme under a delay model."""
        found = self.tasks.get(task, {}).get("options", {}).get(delays, {}).get(label, {})
        chosen: Mapping[str, Any] = found.get("chosen", {})
        return chosen


Profile = Literal["quick", "paper", "tiny"]
PAPER_DELAYS = ("synthetic", "nycmesh")

PATIENCE = 3
"""Times as many rounds as random is expected to take, after which a scheme has not reached the target."""
TINY: dict[str, dict[str, Any]] = {
    "quadratic": {"clients": 6, "samples": 10, "test_samples": 10, "dimension": 8},
    "femnist": {"clients": 4, "min_samples": 10},
    "shakespeare": {"clients": 3, "samples": 150, "min_samples": 150, "context": 2},
}
"""What `tiny` changes in the data of `quick`: every part is run, and nothing is learnt."""
TINY_IMAGES = {"clients": 4, "samples": 40, "test_samples": 20}


@dataclass(frozen=True)
class PaperTask:
    """A data set with what is trained on it, at one scale."""

    name: str
    title: str
    profile: Profile
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    k: int
    """Clients per round of schemes that are told how many."""
    target: float
    paper_target: float
    max_rounds: int
    bytes: int
    rounds: int
    """That random is expected to take."""
    rates: tuple[float, ...]
    """Step sizes that the tuning tries."""
    scale: str

    @property
    def clients(self) -> int:
        """How many there are."""
        return int(self.data["clients"])

    @property
    def metric(self) -> str:
        """What the target is a value of."""
        return "loss" if self.name == "quadratic" else "accuracy"

    def delays(self, name: str, **options: Any) -> dict[str, Any]:
        """Return a delay model; both know the network at its full width, whatever is trained."""
        size = {"model_bytes": self.bytes} if name == "synthetic" and self.bytes else {}
        return {"name": name, **size, **options}


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(files("fedpace.reproduce").joinpath("tasks.toml").read_text(encoding="utf-8"))


def task_names() -> tuple[str, ...]:
    """Return the data sets in the order of the paper's tables."""
    return tuple(_tables())


def task(name: str, profile: Profile, tuned: TunedOptions | None = None) -> PaperTask:
    """Return a data set at a scale."""
    if name not in _tables():
        raise InputError(f"the paper has no data set {name!r}: known are {', '.join(task_names())}")
    table = _tables()[name]
    parts: dict[str, Any] = {**table["paper"]}
    paper_target = PAPER.target(name)
    parts["target"], scale = paper_target, "as in the paper"
    if profile != "paper":
        parts = merged(parts, {"max_rounds": PATIENCE * table["rounds"], **table["quick"]})
        parts = merged(parts, (tuned or TunedOptions.packaged()).of(name))
        scale = table["scale"]
    if profile == "tiny":
        small = {"data": TINY.get(name, TINY_IMAGES), "training": {"epochs": 1}, "k": 2, "max_rounds": 2}
        parts = merged(parts, small)
    return PaperTask(
        name=name,
        title=table["title"],
        profile=profile,
        data=parts["data"],
        model=parts["model"],
        training=parts["training"],
        k=parts["k"],
        target=parts["target"],
        paper_target=paper_target,
        max_rounds=parts["max_rounds"],
        bytes=table["bytes"],
        rounds=table["rounds"],
        rates=tuple(table["rates"]),
        scale=scale,
    )


def merged(table: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `table` with the values of `change` in place of its own, table by table."""
    found = dict(table)
    for key, value in change.items():
        old = found.get(key)
        if (
            isinstance(old, Mapping)
            and isinstance(value, Mapping)
            and value.get("name", old.get("name")) == old.get("name")
        ):
            found[key] = merged(old, value)
        else:  # another component, such as another model, has options of its own
            found[key] = value
    return found
