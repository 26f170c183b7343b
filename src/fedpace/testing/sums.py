"""Which schemes work where the server sees sums only, for the table in docs/privacy.md and for authors of schemes."""

from __future__ import annotations

from dataclasses import dataclass

from fedpace import make_selector
from fedpace.core.sums import why_not_sums
from fedpace.core.types import Need, facts_wanted


@dataclass(frozen=True)
class SumSupport:
    """Whether a scheme works with sums, and what the server sees of single clients then."""

    name: str
    why_not: str
    """Why it does not work, and what to use instead; empty if it works."""
    sees: tuple[str, ...]
    """Facts about single clients that the scheme is told, beside who takes part and when."""
    without: tuple[str, ...]
    """Facts that it uses with single updates, and does without here."""

    def row(self) -> str:
        """Return the line of the table in docs/privacy.md."""
        if self.why_not:
            return f"| `{self.name}` | no: {self.why_not} | |"
        does_without = f"; does without {', '.join(self.without)}" if self.without else ""
        return f"| `{self.name}` | yes{does_without} | {', '.join(self.sees)} |"


def sum_support(name: str) -> SumSupport:
    """Return how the scheme registered as `name` works with sums."""
    scheme = make_selector(name)
    wanted = facts_wanted(scheme)
    told = wanted - {Need.UPDATE, Need.DELAY, Need.TARGETS}
    if scheme.reads_losses:
        told |= {Need.LOSS}
    without = [Need.UPDATE.value] if Need.UPDATE in scheme.uses else []
    if name == "pace":
        without.append("memory")
    return SumSupport(name, why_not_sums(scheme), tuple(sorted(need.value for need in told)), tuple(without))
