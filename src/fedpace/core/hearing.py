"""What clients answer: checked as it comes, screened before a step, folded after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedpace._base.checks import FloatArray, listed, real
from fedpace._base.errors import InputError, OrderError
from fedpace.core.folding import compare_shapes, note_beginning
from fedpace.core.screening import ENOUGH, FIRST, compared
from fedpace.core.silence import PATIENCE, warn_of_silence
from fedpace.core.standing import Standing
from fedpace.core.stepping import Vector
from fedpace.core.tasks import Step, Task
from fedpace.core.types import ClientId, Need, Outcome, ProbeKind
from fedpace.core.widths import in_use

AGAINST = "its update points against the others', who agree with one another: it is left out of this step"
TOO_LONG = "its update is {:.3g} times as long as is usual, which is refused"
NOT_FINITE, BEYOND = "its update is not finite", 1e100
"""What is said of an update that is so many times as long as is usual: it holds NaN or infinity."""


class Hearing(Standing):
    """A standing that listens."""

    def checked(self, task: Task, outcome: Outcome) -> Outcome:
        """Return a report that can be folded; where most clients disagree with the width in use, theirs is used."""
        if task.kind == "probe":  # it takes no time, and what is not finite was not answered
            loss = real(outcome.loss, f"the loss of client {task.client!r}")
            loss = loss if math.isfinite(loss) else math.nan
            outcome = replace(outcome, client=task.client, seconds=0.0, loss=loss, moment=None)
        self.widths.vote(self, [outcome])
        self.ledger.check([outcome], in_use(self, "moment"), in_use(self, "update"))
        return outcome

    def screen(self, updates: Callable[[], Iterable[Vector]]) -> dict[int, str]:
        """Return which answers of the step that is due are to be refused: task -> why.

        Args:
            updates: yields what each answer changed, flat and in their order, each time that it is called.
        """
        if self._step is None:
            raise OrderError("screen() came without a step: due() says when one is to be made")
        tasks = [task for task, _ in self._step.answers]
        self._judged = frozenset(task.id for task in tasks)
        versions = [task.step for task in tasks]
        rows = [self.ledger.row(task.client) if task.client in self.ledger else -1 for task in tasks]
        trust = self.ledger.trust
        try:
            size = len(next(iter(updates()), ())) if trust.on and tasks else 0
            lengths, cosines = compared(updates, versions, trust.believed(rows, versions, size))
        except (TypeError, ValueError) as cause:
            raise InputError(f"screen() takes what yields {len(tasks)} flat vectors, one an answer: {cause}") from cause
        first = math.inf
        if trust.on and len(self.ledger) >= ENOUGH:  # of few clients, all may step as far
            first = FIRST * math.sqrt(size)
        times, against = trust.judge(rows, lengths, versions, cosines, self.step, first, size)
        long = too_long(tasks, times)
        doubted = [
            task.id for task, found in zip(tasks, against.tolist(), strict=True) if found and task.id not in long
        ]
        self._doubted = frozenset(doubted)
        return dict.fromkeys(doubted, AGAINST) | long

    def screen_buffers(self, lengths: Mapping[str, Sequence[float]]) -> dict[int, str]:
        """Return the same of what models hold beside their parameters: kind -> how far each answer moved it."""
        trust, step = self.ledger.trust, self._step
        if step is None or not trust.on:
            return {}
        tasks = [task for task, _ in step.answers]
        rows = [self.ledger.row(task.client) if task.client in self.ledger else -1 for task in tasks]
        long = too_long(tasks, trust.buffers.judge(lengths, [task.step for task in tasks], rows))
        self._doubted -= long.keys()
        return long

    def refuse(self, tasks: Collection[int] | Mapping[int, str]) -> Step:
        """Take answers of the step that is due for failures, and return what is left of it.

        For what shows only beside the others' answers, such as an update many times as long as theirs. Who is refused
        leaves its weight to the others, as who fails does; in delta mode its step is simply missing. It is held against
        all but those whose update merely points against the others: one answer does not prove that it was turned round.

        Args:
            tasks: whose answers, with the reasons where there are any, as `screen` gives them.
        """
        if self._step is None:
            raise OrderError("refuse() came without a step: due() says when one is to be made")
        step, refused = self._step, set(listed(tasks, "the tasks that are refused"))
        reasons = tasks if isinstance(tasks, Mapping) else dict.fromkeys(refused, "refused by the server")
        self.flight.refuse(refused)
        self.at.turn.failures |= {str(task.client): reasons[task.id] for task, _ in step.answers if task.id in reasons}
        clients = [task.client for task, _ in step.answers if task.id in refused - self._doubted]
        self.ledger.trust.refuse([self.ledger.row(client) for client in clients if client in self.ledger])
        left = [(task, weight) for task, weight in step.answers if task.id not in refused]
        total = sum(weight for _, weight in left)
        if step.mode == "average" and total > 0:
            left = [(task, weight / total) for task, weight in left]
        self._step = replace(step, answers=tuple(left))
        return self._step

    def fold(self, settled: list[tuple[Task, Outcome]]) -> None:
        """Fold outcomes, each at the version of the model that it is about; a client's several one after the other."""
        self.at.turn.count_reported(outcome for _, outcome in settled)
        groups: dict[tuple[int, int], list[Outcome]] = {}
        judged: dict[tuple[int, int], set[ClientId]] = {}
        times: dict[tuple[int, ClientId], int] = {}
        for task, outcome in map(self._as_asked, settled):
            nth = times.get((task.step, task.client), 0)
            times[task.step, task.client] = nth + 1
            groups.setdefault((task.step, nth), []).append(outcome)
            if task.id in self._judged:
                judged.setdefault((task.step, nth), set()).add(task.client)
        self._judged = self._doubted = frozenset()
        for group in sorted(groups):
            self.ledger.fold(groups[group], group[0], self.step - group[0], judged.get(group, ()))
        compare_shapes(self.ledger, self.shares)
        note_beginning(self.ledger, settled, rounds=bool(self.policy.rounds))
        if not self._warned and self.step == PATIENCE - 1 and any(task.kind == "train" for task, _ in settled):
            self._warned = True
            warn_of_silence(self)

    def _as_asked(self, pair: tuple[Task, Outcome]) -> tuple[Task, Outcome]:
        """Return an answer without a moment that was not asked for: the first was held against its update."""
        task, outcome = pair
        asked = Need.MOMENT in task.facts or Need.MOMENT not in self.wanted
        if outcome.moment is None or asked or not self.ledger.trust.on:
            return pair
        return task, replace(outcome, moment=None)

    # -- probes ----------------------------------------------------------------------------------------------

    def take_probes(self) -> None:
        """Fold what was answered to a probe; what is no number was not answered."""
        answered = [(task, outcome) for task, outcome in self.flight.take("probe") if outcome.finished]
        self.at.turn.count_reported(outcome for _, outcome in answered)
        if answered and answered[0][0].probe == "loss":
            self.note_probes({task.client: o.loss for task, o in answered if math.isfinite(o.loss)}, "loss")
        else:
            self.note_probes({task.client: o.update for task, o in answered if o.update is not None}, "gradient")

    def note_probes(self, answers: Mapping[ClientId, Any], kind: ProbeKind) -> None:
        """Take in the answers to the probe that is out, all or none of them; who is missing did not answer."""
        rows = {self.ledger.row(client): value for client, value in answers.items() if client in self.ledger}
        if kind == "loss":
            self.ledger.set_losses(rows, self.step)
        else:
            self.ledger.set_updates(rows, self.step)
        self._end_probe()

    def abandon_probe(self) -> None:
        """Give up the probe that is out: it was not carried out."""
        self._end_probe()
        self.at.probed_step, self.at.turn.probed = -1, []

    def _end_probe(self) -> None:
        self.flight.drop([task.id for task in self.tasks if task.kind == "probe"])
        self.at.probing = False


def too_long(tasks: Sequence[Task], times: FloatArray) -> dict[int, str]:
    """Return which tasks have answers that are so many times as long as is usual, 0 standing for none: task -> why."""
    found = {task.id: time for task, time in zip(tasks, times.tolist(), strict=True) if time}
    return {task: TOO_LONG.format(time) if time < BEYOND else NOT_FINITE for task, time in found.items()}
