"""`Overrides`: command-line options that change an experiment's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedpace.config.options import Table
from fedpace.core.naming import parse_named, scheme_table


@dataclass(frozen=True)
class Overrides:
    """Command-line options that change an experiment before it is built; None = unchanged."""

    selectors: Sequence[str] | None = None
    """Labels or names of the schemes to run. A registered scheme that is not in the experiment is added with its
    defaults, and a scheme with options, such as `random(k=5)`, is added as given."""
    delays: str | None = None
    seeds: Sequence[int] | None = None
    target: float | None = None
    max_rounds: int | None = None
    charge_warmup: bool = False
    warmup_wait: float | None = None
    evaluate_every: int | None = None
    hold: int | None = None
    server: Table | None = None
    robust: Table | None = None
    validation: int | None = None
    arithmetic: str | None = None
    option: str = "--selectors"
    """Name of the command-line option for schemes, for error messages."""

    def apply(self, table: Table) -> dict[str, Any]:
        """Return a changed copy of `table`."""
        changed = dict(table)
        if self.seeds is not None:
            changed["seeds"] = list(self.seeds)
        for section, keys in self._sections().items():
            before = changed.get(section, {})
            if isinstance(before, dict):
                changed[section] = {**before, **keys}
        if self.server is not None:
            changed["server"] = dict(self.server)
        if self.robust is not None or self.validation is not None:
            changed["robust"] = self._robust(table)
        if self.delays is not None and self._other_delays(table):
            changed["delays"] = parse_named(self.delays, "--delays")
        if self.selectors is not None:
            present = _schemes(table)
            chosen: list[dict[str, Any]] = []
            for text in self.selectors:
                added = scheme_table(text, self.option)
                if len(added) > 1:
                    chosen.append(added)
                    continue
                wanted = added["name"]
                # A label matches one scheme. A name may match several; a scheme without a label has its name as label.
                labelled = [entry for entry in present if wanted == entry.get("label", entry.get("name"))]
                named = labelled or [entry for entry in present if wanted == entry.get("name")]
                chosen += [entry for entry in named or [{"name": wanted}] if entry not in chosen]
            changed["selectors"] = chosen
        return changed

    def origins(self, table: Table) -> dict[str, str]:
        """Return part -> command-line option for each part that `apply` changes, so that errors can name the option.

        Parts are keys of the table; schemes are `selectors 1` and so on.
        """
        options = {
            section: ", ".join(f"--{key.replace('_', '-')}" for key in keys)
            for section, keys in self._sections().items()
            if keys
        }
        if self.server is not None:
            options["server"] = "--server"
        given = {"--robust": self.robust, "--validation": self.validation}
        if named := [option for option, value in given.items() if value is not None]:
            options["robust"] = ", ".join(named)
        if self.delays is not None and self._other_delays(table):
            options["delays"] = "--delays"
        if self.selectors is not None:
            present = _schemes(table)
            for position, entry in enumerate(self.apply(table)["selectors"], start=1):
                if entry not in present:
                    options[f"selectors {position}"] = self.option
        return options

    def _sections(self) -> dict[str, dict[str, Any]]:
        """Return the given options by the section of the table that they change."""
        stop = {name: getattr(self, name) for name in ("target", "max_rounds", "evaluate_every", "hold")}
        return {
            "stop": {name: value for name, value in stop.items() if value is not None},
            "clock": {"charge_warmup": True} if self.charge_warmup else {},
            "fleet": {} if self.warmup_wait is None else {"warmup_wait": self.warmup_wait},
            "training": {} if self.arithmetic is None else {"arithmetic": self.arithmetic},
        }

    def _robust(self, table: Table) -> Any:
        """Return the table of the robust rule: the option's rule, or the experiment's rule with another validation."""
        rule = table.get("robust", {}) if self.robust is None else self.robust
        if self.validation is None or not isinstance(rule, str | dict):
            return rule
        return {**({"name": rule} if isinstance(rule, str) else rule), "validation": self.validation}

    def _other_delays(self, table: Table) -> bool:
        """Return whether the option names another delay model than the table; the table's options then do not count."""
        delays = table.get("delays", {})
        return not (isinstance(delays, dict) and delays.get("name") == self.delays)


def _schemes(table: Table) -> list[dict[str, Any]]:
    entries = table.get("selectors", [])
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
