"""What the command line changes in an experiment, as a change of its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedpace.config.options import Table
from fedpace.core.naming import parse_named, scheme_table


@dataclass(frozen=True)
class Overrides:
    """What the command line changes in an experiment before it is built."""

    selectors: Sequence[str] | None = None
    """Labels or names to keep; a registered scheme that the experiment lacks is added with its defaults, and so is one
    with options, such as `random(k=5)`, beside those that the experiment has."""
    delays: str | None = None
    seeds: Sequence[int] | None = None
    target: float | None = None
    max_rounds: int | None = None
    charge_warmup: bool = False
    warmup_wait: float | None = None
    evaluate_every: int | None = None
    hold: int | None = None
    server: Table | None = None

    def apply(self, table: Table) -> dict[str, Any]:
        """Return a changed copy of `table`."""
        changed = dict(table)
        if self.seeds is not None:
            changed["seeds"] = list(self.seeds)
        limits = {
            "target": self.target,
            "max_rounds": self.max_rounds,
            "evaluate_every": self.evaluate_every,
            "hold": self.hold,
        }
        stop = changed.get("stop", {})
        if isinstance(stop, dict):
            changed["stop"] = {**stop, **{key: value for key, value in limits.items() if value is not None}}
        clock = changed.get("clock", {})
        if self.charge_warmup and isinstance(clock, dict):
            changed["clock"] = {**clock, "charge_warmup": True}
        fleet = changed.get("fleet", {})
        if self.warmup_wait is not None and isinstance(fleet, dict):
            changed["fleet"] = {**fleet, "warmup_wait": self.warmup_wait}
        if self.server is not None:
            changed["server"] = dict(self.server)
        delays = changed.get("delays", {})
        if self.delays is not None and not (isinstance(delays, dict) and delays.get("name") == self.delays):
            changed["delays"] = parse_named(self.delays, "--delays")
        if self.selectors is not None:
            entries = changed.get("selectors", [])
            present = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
            chosen: list[dict[str, Any]] = []
            for text in self.selectors:
                added = scheme_table(text, "--selectors")
                if len(added) > 1:
                    chosen.append(added)
                    continue
                wanted = added["name"]
                # A label is one scheme; a name may be several, of which one without a label is called by it.
                labelled = [entry for entry in present if wanted == entry.get("label", entry.get("name"))]
                named = labelled or [entry for entry in present if wanted == entry.get("name")]
                chosen += [entry for entry in named or [{"name": wanted}] if entry not in chosen]
            changed["selectors"] = chosen
        return changed
