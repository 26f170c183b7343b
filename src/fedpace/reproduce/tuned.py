"""Step sizes, targets and options of the quick profile, chosen on seeds that no table reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedpace._base.files import json_bytes, write_atomically

FILE = "tuned.json"


@dataclass
class Tuned:
    """What was chosen so far, with all that was tried."""

    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)

    @staticmethod
    def packaged() -> Tuned:
        """Return what comes with fedpace."""
        return Tuned(json.loads(files("fedpace.reproduce").joinpath(FILE).read_text(encoding="utf-8")))

    @staticmethod
    def read(path: Path) -> Tuned:
        """Return what was chosen in an earlier sitting."""
        return Tuned(json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})

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
