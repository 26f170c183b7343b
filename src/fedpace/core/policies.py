"""Rounds as a policy: start the cohort, wait for it, apply its answers. Every Selector works this way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from fedpace._base.checks import Naming
from fedpace._base.errors import InputError
from fedpace.core.tasks import Apply, Move, Task, Wait
from fedpace.core.types import Cohort, Mode, Need, Probe, Report, Selector, View
from fedpace.core.validation import check_cohort


class Rounds:
    """Synchronous rounds of a scheme's cohorts. Their ends are the coordinator's: nothing is decided there.

    Args:
        selector: the scheme.
        name_of: what errors call a row.
        bound: caps the weights of a cohort (`fedpace.trust`).
    """

    rounds: ClassVar[bool] = True

    def __init__(self, selector: Selector[Any], name_of: Naming, bound: Callable[[Cohort, View], Cohort]) -> None:
        self.selector = selector
        self._name_of = name_of
        self._bound = bound

    def of(self, selector: Selector[Any]) -> Rounds:
        """Return rounds of another scheme's cohorts."""
        return Rounds(selector, self._name_of, self._bound)

    @property
    def name(self) -> str:
        """The scheme's."""
        return self.selector.name

    @property
    def needs(self) -> frozenset[Need]:
        """The scheme's."""
        return self.selector.needs

    @property
    def uses(self) -> frozenset[Need]:
        """The scheme's."""
        return self.selector.uses

    def init(self) -> Any:
        """Return the scheme's own state."""
        return self.selector.init()

    def probe(self, state: Any, view: View, rng: np.random.Generator) -> Probe | None:
        """Ask the scheme."""
        return self.selector.probe(state, view, rng)

    def decide(self, state: Any, view: View, rng: np.random.Generator) -> tuple[Move, Any]:
        """Choose the cohort of the next round."""
        chosen = self.selector.select(state, view, rng)
        if not (isinstance(chosen, tuple) and len(chosen) == 2 and isinstance(chosen[0], Cohort)):
            came = type(chosen).__name__
            raise InputError(
                f"select of {self.name} must return a Cohort and its state, (cohort, None), but {came} came"
            )
        cohort, state = chosen
        check_cohort(cohort, view, self.name, self._name_of)
        cohort = self._bound(cohort, view)
        wait = Wait(cohort.quorum, cohort.deadline)
        return Move(cohort.clients, cohort.weights, wait=wait, mode=cohort.mode, why=cohort.why), state

    def observe(self, state: Any, report: Report) -> Any:
        """Let the scheme learn."""
        return self.selector.observe(state, report)


def ending(flying: list[Task], held: list[Task], mode: Mode) -> Move:
    """Return the move that ends a round: what is in hand counts, what is missing is given up.

    Who is missing leaves its weight to the others in proportion. In delta mode its step is simply missing.
    """
    weights = [task.weight for task in held]
    if mode == "average" and (total := sum(weights)) > 0:
        weights = [weight / total for weight in weights]
    ids, missing = ([task.id for task in tasks] for tasks in (held, flying))
    apply = Apply(np.array(ids, dtype=np.int64), np.array(weights), mode)
    return Move(apply=apply, drop=np.array(missing, dtype=np.int64))
