"""The numbers printed in the paper."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

TABLES = {"synthetic": "table1_synthetic_delays", "nycmesh": "table2_nycmesh_delays"}
COLUMNS = (
    "delayhet-submodular",
    "delayhet-sampling",
    "random",
    "flanp",
    "divfl",
    "power-of-choice",
    "approx-opt-sampling",
)
"""Of its tables 1 and 2, in their order."""
OWN = COLUMNS[:2]
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
