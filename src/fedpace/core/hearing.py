"""The handling of answers: validate them on arrival, bound them before a step, fold them into the ledger after it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedpace._base.checks import BoolArray, FloatArray, listed, real
from fedpace._base.errors import OrderError
from fedpace.core.aggregation import Trained, update_length
from fedpace.core.silence import PATIENCE, warn_of_silence
from fedpace.core.standing import Standing
from fedpace.core.tasks import Step, Task
from fedpace.core.types import ClientId, Mode, Outcome, ProbeKind
from fedpace.core.widths import in_use

NOT_FINITE = "its update is not finite"


class Hearing(Standing):
    """Collects answers, validates them and passes them to the ledger."""

    def checked(self, task: Task, outcome: Outcome) -> Outcome:
        """Return the outcome after validation; an invalid one raises InputError.

        The outcome also votes for the width of moments and sketches: a new majority replaces the width in use.
        """
        if task.kind == "probe":  # a probe takes no time, and a loss that is not finite is no answer
            loss = real(outcome.loss, f"the loss of client {task.client!r}")
            loss = loss if math.isfinite(loss) else math.nan
            outcome = replace(outcome, client=task.client, seconds=0.0, loss=loss, moment=None)
        self.widths.vote(self, [outcome])
        self.ledger.check([outcome], in_use(self, "moment"), in_use(self, "update"))
        return outcome

    def bound(self, step: Step, answers: Sequence[Trained]) -> tuple[Step, dict[int, float], dict[int, float]]:
        """Bound the answers of a step.

        Args:
            step: the step that is due.
            answers: one for each task of the step.

        Returns:
            The step without answers that are not finite; task id -> clip factor of each update that is too long; task
            id -> clip factor of the buffers that moved too far.
        """
        tasks = [answer.task for answer in answers]
        rows = self._rows_of(tasks)
        size = len(answers[0].sent) if answers else 0
        trust = self.ledger.trust
        lengths = [update_length(answer) for answer in answers]
        factors = trust.clip_factors(rows, lengths, step=self.step, size=size)
        buffers = np.ones(len(answers))
        for kind in sorted({kind for answer in answers for kind in answer.buffers}):
            moved = [answer.buffers.get(kind, 0.0) for answer in answers]
            buffers = np.minimum(buffers, trust.clip_factors(rows, moved, kind, step=self.step))
        lost = {task.id: NOT_FINITE for task, f, g in zip(tasks, factors, buffers, strict=True) if f == 0 or g == 0}
        shortened = _below_one(tasks, factors, lost), _below_one(tasks, buffers, lost)
        names = {task.id: str(task.client) for task in tasks}
        turn = self.at.turn
        for each in shortened:
            turn.clipped |= {names[task]: min(turn.clipped.get(names[task], 1.0), f) for task, f in each.items()}
        self._bounded = frozenset(names)
        return (self.refuse(lost, step) if lost else step), *shortened

    def note_combined(self, step: Step, counted: BoolArray, cosines: FloatArray | None) -> None:
        """Record which answers of a step a robust rule left out, and judge clients by the validation set.

        Args:
            step: the step.
            counted: (k,) True for the answers that the rule used.
            cosines: (k,) cosine of each update with the server's own update on its validation set; None = no such set.
        """
        tasks = [task for task, _ in step.answers]
        self.at.turn.left_out = [str(t.client) for t, used in zip(tasks, counted.tolist(), strict=True) if not used]
        if cosines is not None:
            self.ledger.trust.judge(self._rows_of(tasks), cosines)

    def _rows_of(self, tasks: Sequence[Task]) -> list[int]:
        """Return the row of each task's client; -1 if the client has left."""
        return [self.ledger.row(task.client) if task.client in self.ledger else -1 for task in tasks]

    def refuse(self, tasks: Collection[int] | Mapping[int, str], step: Step | None = None) -> Step:
        """Treat answers of the due step as failures, and return the step without them.

        In mode `average` the weights of the remaining answers are scaled to sum 1 and capped again. In mode `delta`
        they stay as they are, so the part of the refused answers is missing.

        Args:
            tasks: ids of the tasks; a mapping also gives the reason for each.
            step: the step to change; None = the coordinator's due step.
        """
        step = self._step if step is None else step
        if step is None:
            raise OrderError("refuse() came without a step: due() says when one is to be made")
        refused = set(listed(tasks, "the tasks that are refused"))
        reasons = tasks if isinstance(tasks, Mapping) else dict.fromkeys(refused, "refused by the server")
        self.flight.refuse(refused)
        self.at.turn.failures |= {str(task.client): reasons[task.id] for task, _ in step.answers if task.id in reasons}
        left = [(task, weight) for task, weight in step.answers if task.id not in refused]
        total, scale = sum(weight for _, weight in left), step.scale
        if refused and step.mode == "average" and total > 0:
            tasks_left = [task for task, _ in left]
            # Cap the scaled weights too: a refused client may collude with a client that gets its weight.
            weights, scale = self._capped(tasks_left, np.array([weight / total for _, weight in left]), step.mode)
            left = list(zip(tasks_left, weights.tolist(), strict=True))
        found = replace(step, answers=tuple(left), scale=scale)
        if self._step is not None:
            self._step = found
        return found

    def _capped(self, tasks: list[Task], weights: FloatArray, mode: Mode) -> tuple[FloatArray, float]:
        """Return weights within the clients' caps, and the fraction of the step to make (`Step.scale`)."""
        trust = self.ledger.trust
        if not trust.on or not tasks:
            return weights, 1.0
        rows = np.array(self._rows_of(tasks), dtype=np.int64)
        if mode == "average":
            capped = trust.cap_weights(rows, weights, self.shares(), self.step + 1)
        else:
            capped = trust.cap_deltas(rows, weights, self.shares(), self.step + 1)
        if capped is weights:
            return weights, 1.0
        lower = (capped < weights - 1e-9) if mode == "average" else np.abs(capped) < np.abs(weights)
        names = [str(task.client) for task in tasks]
        self.at.turn.capped |= {names[place]: float(capped[place]) for place in np.flatnonzero(lower)}
        scale = float(capped.sum()) if mode == "average" else 1.0
        if mode != "average" or not 0 < scale < 1 - 1e-12:
            return capped, 1.0
        return capped / scale, scale

    def fold(self, settled: list[tuple[Task, Outcome]]) -> None:
        """Fold outcomes into the ledger, grouped by the model version that each client trained from.

        Several outcomes of one client at one version are folded one after the other.
        """
        self.at.turn.count_reported(outcome for _, outcome in settled)
        groups: dict[tuple[int, int], list[Outcome]] = {}
        bounded: dict[tuple[int, int], set[ClientId]] = {}
        times: dict[tuple[int, ClientId], int] = {}
        for task, outcome in settled:
            nth = times.get((task.step, task.client), 0)
            times[task.step, task.client] = nth + 1
            groups.setdefault((task.step, nth), []).append(outcome)
            if task.id in self._bounded:
                bounded.setdefault((task.step, nth), set()).add(task.client)
        self._bounded = frozenset()
        for group in sorted(groups):
            self.ledger.fold(groups[group], group[0], self.step - group[0], bounded.get(group, ()))
        if not self._warned and self.step == PATIENCE - 1 and any(task.kind == "train" for task, _ in settled):
            self._warned = True
            warn_of_silence(self)

    # -- probes ----------------------------------------------------------------------------------------------

    def take_probes(self) -> None:
        """Fold the answers to the finished probe; a loss that is not finite counts as no answer."""
        answered = [(task, outcome) for task, outcome in self.flight.take("probe") if outcome.finished]
        self.at.turn.count_reported(outcome for _, outcome in answered)
        if answered and answered[0][0].probe == "loss":
            self.note_probes({task.client: o.loss for task, o in answered if math.isfinite(o.loss)}, "loss")
        else:
            self.note_probes({task.client: o.update for task, o in answered if o.update is not None}, "gradient")

    def note_probes(self, answers: Mapping[ClientId, Any], kind: ProbeKind) -> None:
        """Store the answers to the current probe and end it; one invalid answer rejects them all.

        Args:
            answers: client -> loss, or gradient sketch. Clients that did not answer are missing.
            kind: what the probe asked for.
        """
        rows = {self.ledger.row(client): value for client, value in answers.items() if client in self.ledger}
        if kind == "loss":
            self.ledger.set_losses(rows, self.step)
        else:
            self.ledger.set_updates(rows, self.step)
        self._end_probe()

    def abandon_probe(self) -> None:
        """Cancel the current probe; the policy may probe again in this step."""
        self._end_probe()
        self.at.probed_step, self.at.turn.probed = -1, []

    def _end_probe(self) -> None:
        self.flight.drop([task.id for task in self.tasks if task.kind == "probe"])
        self.at.probing = False


def _below_one(tasks: Sequence[Task], factors: FloatArray, lost: Collection[int]) -> dict[int, float]:
    """Return task id -> factor for tasks with a factor below 1 that are not in `lost`."""
    pairs = zip(tasks, factors.tolist(), strict=True)
    return {task.id: factor for task, factor in pairs if factor < 1 and task.id not in lost}
