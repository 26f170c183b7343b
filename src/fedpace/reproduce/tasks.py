"""The data sets of the paper's tables, at the paper's scale and at a small scale that a laptop runs in minutes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from fedpace._base.errors import InputError
from fedpace.reproduce.paper import PAPER
from fedpace.reproduce.tuned import Tuned

Profile = Literal["quick", "paper", "tiny"]
DELAYS = ("synthetic", "nycmesh")

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
class Task:
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


def task(name: str, profile: Profile, tuned: Tuned | None = None) -> Task:
    """Return a data set at a scale."""
    if name not in _tables():
        raise InputError(f"the paper has no data set {name!r}: known are {', '.join(task_names())}")
    table = _tables()[name]
    parts: dict[str, Any] = {**table["paper"]}
    paper_target = PAPER.target(name)
    parts["target"], scale = paper_target, "as in the paper"
    if profile != "paper":
        parts = merged(parts, {"max_rounds": PATIENCE * table["rounds"], **table["quick"]})
        parts = merged(parts, (tuned or Tuned.packaged()).of(name))
        scale = table["scale"]
    if profile == "tiny":
        small = {"data": TINY.get(name, TINY_IMAGES), "training": {"epochs": 1}, "k": 2, "max_rounds": 2}
        parts = merged(parts, small)
    return Task(
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
    """Return `table` with what `change` says otherwise, table by table."""
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
