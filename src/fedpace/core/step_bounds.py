"""The bounds of `fedpace.trust` for the tasks of a step.

`Trust` knows rows and numbers. This module gives it the tasks, cohorts and sketches of the coordinator, applies the
answer, and writes into the log of the step what was clipped, capped or left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, IntArray
from fedpace.core.server_rule import Update, double, norm
from fedpace.core.step_log import StepLog
from fedpace.core.tasks import Step, Task
from fedpace.core.types import ClientId, Cohort, Mode, View
from fedpace.numerics.parts import LARGE
from fedpace.trust.bounds import SKETCH, Sent, Trust

if TYPE_CHECKING:
    from fedpace.core.aggregation import Trained
    from fedpace.core.ledger import Ledger

NOT_FINITE = "its update is not finite"


class StepBounds:
    """Bounds the weights and the updates of each step, and tells trust what the step used.

    Args:
        ledger: holds the clients' rows, their shares and `Trust`.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.clipped: frozenset[int] = frozenset()
        """Tasks of the step with updates that `clip` has checked: their sketches are not clipped again."""

    def _rows(self, tasks: Sequence[Task]) -> IntArray:
        """Return the row of each task's client; -1 if the client has left."""
        return np.array(self.ledger.rows_or_gone([task.client for task in tasks]), dtype=np.int64)

    def weigh(
        self, tasks: Sequence[Task], weights: FloatArray, mode: Mode, number: int, log: StepLog
    ) -> tuple[tuple[tuple[Task, float], ...], float]:
        """Return the answers of step `number` with weights within the clients' caps, and `Step.scale`."""
        scale, trust = 1.0, self.ledger.trust
        if trust.on and tasks:
            capped = trust.bound_weights(self._rows(tasks), weights, self.ledger.shares(), number, mode)
            if capped is not weights:
                lower = (capped < weights - 1e-9) if mode == "average" else np.abs(capped) < np.abs(weights)
                log.capped |= {
                    str(tasks[place].client): float(capped[place]) for place in np.flatnonzero(lower).tolist()
                }
                total = float(capped.sum()) if mode == "average" else 1.0
                weights, scale = (capped / total, total) if 0 < total < 1 - 1e-12 else (capped, 1.0)
        return tuple(zip(tasks, weights.tolist(), strict=True)), scale

    def clip(
        self, answers: Sequence[Trained], step: int, log: StepLog
    ) -> tuple[dict[int, str], dict[int, float], dict[int, float]]:
        """Return which answers are not finite, and by how much to clip the others.

        Args:
            answers: one for each task of the step.
            step: number of steps made.
            log: gets the names of the clients that are clipped.

        Returns:
            Task id -> why its answer is refused; task id -> clip factor of each update that is too long; task id ->
            clip factor of the buffers that moved too far.
        """
        tasks, trust = [answer.task for answer in answers], self.ledger.trust
        kinds = sorted({kind for answer in answers for kind in answer.buffers})
        sent = Sent(
            self._rows(tasks),
            np.array([_length(answer) for answer in answers]),
            {kind: np.array([answer.buffers.get(kind, 0.0) for answer in answers]) for kind in kinds},
            len(answers[0].sent) if answers else 0,
        )
        valid, (updates, buffers) = trust.validate(sent), trust.bound(sent, step)
        lost = {task.id: NOT_FINITE for task, good in zip(tasks, valid.tolist(), strict=True) if not good}
        for place in np.flatnonzero(valid & (np.minimum(updates, buffers) < 1)).tolist():
            name, factor = str(tasks[place].client), float(min(updates[place], buffers[place]))
            log.clipped[name] = min(log.clipped.get(name, 1.0), factor)
        self.clipped = frozenset(task.id for task in tasks)
        return lost, _below_one(tasks, updates, lost), _below_one(tasks, buffers, lost)

    def leave_out(self, step: Step, counted: BoolArray, log: StepLog, *, judged: bool) -> None:
        """Log which answers a robust rule left out, and give trust the verdicts of a validation set.

        Args:
            step: the step.
            counted: (k,) True for the answers that the rule used.
            log: gets the names of the clients that were left out.
            judged: whether a validation set decided that.
        """
        tasks = [task for task, _ in step.answers]
        log.left_out = [str(t.client) for t, used in zip(tasks, counted.tolist(), strict=True) if not used]
        if judged:
            self.ledger.trust.observe_verdicts(self._rows(tasks), counted, step.number - 1)

    def observe(self, step: Step) -> None:
        """Tell trust how much weight the clients of a step had."""
        if self.ledger.trust.on and step.answers:
            weights = step.scale * np.array([weight for _, weight in step.answers])
            rows = self._rows([task for task, _ in step.answers])
            self.ledger.trust.observe(rows, weights, self.ledger.shares(), step.number)

    def cohort(self, cohort: Cohort, view: View) -> Cohort:
        """Return the cohort with capped weights, and with clipped moments among its reasons."""
        trust = self.ledger.trust
        if not trust.on:
            return cohort
        weights = cohort.weights
        if cohort.mode == "average":
            capped = trust.bound_weights(cohort.clients, weights, view.share, view.step + 1, cohort.mode)
            total = float(capped.sum())
            weights = capped / total if capped is not weights and total > 0 else weights
        facts, reasons = corrected_moments(cohort, trust)
        if not facts and weights is cohort.weights:
            return cohort
        why = replace(cohort.why, facts={**cohort.why.facts, **facts}, reasons={**cohort.why.reasons, **reasons})
        return replace(cohort, weights=weights, why=why)

    def sketches(self, sketches: FloatArray, clients: Sequence[ClientId], *, step: int) -> FloatArray:
        """Return the sketches of unused updates, clipped as step `step` would clip them, for the policy's View."""
        known = np.flatnonzero(~np.isnan(sketches).any(axis=1))
        trust = self.ledger.trust
        if not trust.on or not known.size:
            return sketches
        rows = self.ledger.rows(clients[place] for place in known.tolist())
        with np.errstate(over="ignore"):
            lengths = np.linalg.norm(sketches[known], axis=1)
        factors = trust.clip_factors(rows, lengths, SKETCH, step=step, remember=False)
        if (factors == 1).all():
            return sketches
        sketches = sketches.copy()
        sketches[known] *= factors[:, None]
        return sketches


def corrected_moments(cohort: Cohort, trust: Trust) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the moments that are clipped, as facts and as row -> reason of a decision.

    Args:
        cohort: its reasons are kept in front of the new ones.
        trust: has the clip factors of the moments.
    """
    scale = trust.columns["moment_scale"]
    rows = np.flatnonzero(scale != 1).tolist()
    reasons: dict[int, str] = {}
    for row in rows:
        said = [cohort.why.reasons[row]] if row in cohort.why.reasons else []
        said.append(f"its moment is {1 / scale[row]:.3g} times as large as it may be, and is clipped")
        reasons[row] = "; ".join(said)
    table = tuple((row, float(scale[row])) for row in rows)
    return ({"corrected": table} if rows else {}), reasons


def _below_one(tasks: Sequence[Task], factors: FloatArray, lost: Mapping[int, str]) -> dict[int, float]:
    """Return task id -> factor for tasks with a factor below 1 that are not in `lost`."""
    pairs = zip(tasks, factors.tolist(), strict=True)
    return {task.id: factor for task, factor in pairs if factor < 1 and task.id not in lost}


def _length(answer: Trained) -> float:
    """Return the Euclidean length of an update, per unit of work above 1; infinity if an entry is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if len(answer.model) > LARGE:
            length = Update(answer.model, answer.sent).length()
        else:
            length = norm(double(answer.model) - answer.sent)
    # More work makes longer updates. The server chose the work, so a client cannot gain by it.
    return length / max(1.0, answer.task.work) if math.isfinite(length) else math.inf
